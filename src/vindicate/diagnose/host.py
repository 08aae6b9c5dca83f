"""What the host holds back: CPU that is given out by quota or fought over. It slows; it accuses nobody."""

from collections.abc import Iterator

from vindicate.diagnose.rule import Clue, Scene

__all__ = ["host_limits"]

_THROTTLED_PCT = 25.0
_CONTENDED_PCT = 50.0


def host_limits(scene: Scene) -> Iterator[Clue]:
    """What of the host slows services of the chain down, each with its figure; neutral all of it."""
    for name in scene.chain.order:
        held = max(
            (p for p in scene.processes(name) if (p.throttled_pct or 0.0) >= _THROTTLED_PCT),
            key=lambda p: p.throttled_pct or 0.0,
            default=None,
        )
        if held is not None:
            yield Clue(
                service=name,
                kind="host",
                direction="neutral",
                text=f"the CPU quota of its control group held process {held.pid} of {name} back in {held.throttled_pct:.0f} % of its periods",
                measured={"throttled_pct": held.throttled_pct, "pid": held.pid},
            )
    pressure, entry = scene.capture.host_facts.cpu_pressure_pct, scene.chain.entry
    if entry is not None and pressure is not None and pressure >= _CONTENDED_PCT:
        yield Clue(
            service=entry,
            kind="host",
            direction="neutral",
            text=f"something on this host waited for a CPU in {pressure:.0f} % of the time (PSI)",
            measured={"cpu_pressure_pct": pressure, "load_1m": scene.capture.host_facts.load_1m},
        )
