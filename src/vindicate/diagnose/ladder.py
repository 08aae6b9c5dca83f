"""Probe results → how far our own requests came: which services are shown to work, and which are left under suspicion."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from vindicate.record.observation import Capture, ProbeResult

__all__ = ["Ladder", "error_class", "fault_class", "ladder_of"]

_UNCLEAR = ("denied", "shape", "busy", "slow")
_TIMES_KEPT = 256  # of arrivals; what came later is not known


@dataclass(frozen=True, slots=True)
class Ladder:
    """Generation probes, by outcome.

    Attributes:
        good: Came back complete, end included.
        bad: Did not, in a way that speaks of the services.
        unclear: Rejected for what they were (401, 404, 422 …), which says nothing of a stall.
        suspects: Services that every bad probe had to pass and no good one did; empty when nothing is bad or the
            outcomes contradict one another.
        alone: Sides of a split pair that answered a request of ours without the other: they compute, and nothing is shown of
            how they hand over.
    """

    good: tuple[ProbeResult, ...] = ()
    bad: tuple[ProbeResult, ...] = ()
    unclear: tuple[ProbeResult, ...] = ()
    suspects: frozenset[str] = frozenset()
    alone: frozenset[str] = frozenset()

    @property
    def ran(self) -> bool:
        """Whether any probe says anything."""
        return bool(self.good or self.bad)

    def proven(self, service: str) -> bool:
        """Whether a probe that had to pass *service* came back complete, and none straight at it failed."""
        return any(service in p.covers for p in self.good) and not self.bad_at(service)

    def bad_at(self, service: str) -> tuple[ProbeResult, ...]:
        """Bad probes that called *service* itself."""
        return tuple(p for p in self.bad if p.target == service)

    def worst_of(self, service: str) -> ProbeResult | None:
        """The bad probe that says most about *service*: one straight at it, else the one that covers fewest others."""
        return min(
            (p for p in self.bad if service in p.covers),
            key=lambda p: (p.target != service, len(p.covers)),
            default=None,
        )

    def sole(self, service: str, *, below: tuple[str, ...] = ()) -> bool:
        """Whether the bad probes leave nobody but *service* under suspicion.

        A worker that a bad probe may have passed, and that no good one is known to have passed, is under suspicion too.

        Args:
            below: Services that the bad probes are known not to have reached.
        """
        cleared = {name for p in self.good for name in p.covers} | {service, *below}
        chosen = {name for p in self.bad if service in p.covers for name in p.may_pass}
        return service in self.suspects and not (self.suspects | chosen) - cleared


def fault_class(probe: ProbeResult) -> str | None:
    """What kind of failure *probe* shows: ``silent``, ``stalled``, ``no_end``, ``cut``, ``errors``, ``malformed``, ``refused``,
    ``busy`` (429), ``slow`` (bytes still came at the deadline), ``denied`` or ``shape`` (our request was not wanted); ``None``: good.
    """  # noqa: D205 one sentence needs two lines
    error = probe.error
    if error is None:
        return None if probe.terminated else "no_end"
    if error == "stalled" and _trickles(probe):
        return "slow"
    if error == "stalled" and probe.n_comments and not probe.n_events:
        return "silent"  # heartbeats are all that came
    return error_class(error)


def error_class(error: str) -> str:
    """The same for an error alone, of whatever part of a probe."""
    table = {
        "no_headers": "silent",
        "no_first_byte": "silent",
        "connect_timeout": "silent",
        "stalled": "stalled",
        "no_end": "no_end",
        "reset": "cut",
        "truncated": "cut",
        "not_sse": "malformed",
        "garbage": "malformed",
        "refused": "refused",
        "error_event": "errors",
    }
    if error in table:
        return table[error]
    code = error.removeprefix("http_")
    if code == "429":
        return "busy"
    if code in ("401", "403"):
        return "denied"
    return "errors" if code.startswith("5") or code == "408" else "shape"


def _trickles(probe: ProbeResult) -> bool:
    """Whether the stream was cut by our deadline while it still flowed at its own rhythm, that of its first token included.

    Events without text that keep coming may be text that we do not know: then bytes are taken for progress, as where token
    times were not noted.
    """
    times = probe.token_times_s
    if times is None or probe.n_empty > 1 or len(times) >= _TIMES_KEPT:
        if probe.first_byte_s is None:
            return False
        times = tuple(accumulate((probe.first_byte_s, *probe.gaps_s)))
    if not times:
        return False
    gaps = [after - before for before, after in pairwise(times)]
    return probe.total_s - times[-1] < max(1.0, times[0], 3 * max(gaps, default=0.0))


def ladder_of(capture: Capture) -> Ladder:
    """Sort the generation probes of *capture* by outcome and see whom they leave under suspicion."""
    classes = [(p, fault_class(p)) for whole in capture.probes for p in _legs_apart(whole)]
    alone = frozenset(p.target for p, kind in classes if kind is None and p.shape == "leg")
    good = tuple(p for p, kind in classes if kind is None and p.shape != "leg")
    bad = tuple(p for p, kind in classes if kind not in (None, *_UNCLEAR))
    suspects: set[str] = set()
    if bad:
        # One that may pass a worker which fails by itself fails for that worker's sake.
        targets = {p.target for p in bad} | {name for p in bad if p.shape == "pd_pair" for name in p.covers}
        own = [p for p in bad if not targets & set(p.may_pass)] or list(bad)
        suspects = set.intersection(*(set(p.covers) for p in own))
        suspects -= {name for p in good for name in p.covers}
        if all(fault_class(p) == "cut" for p in own):
            cut_s = max(p.total_s for p in own)
            suspects -= {n for p, kind in classes if kind == "slow" and p.total_s > cut_s + 1.0 for n in p.covers}
    return Ladder(
        good=good,
        bad=bad,
        unclear=tuple(p for p, kind in classes if kind in _UNCLEAR),
        suspects=frozenset(suspects),
        alone=alone,
    )


def _legs_apart(probe: ProbeResult) -> Iterator[ProbeResult]:
    """The pair whose decode leg came complete while prefill's was never answered: what is shown of the one is not shown of the other."""
    silent = [
        name for name, error in probe.legs.items() if name != probe.target and error in ("no_headers", "no_first_byte")
    ]
    if fault_class(probe) is not None or not silent or probe.total_s > probe.deadline_s / 2:
        yield probe
        return
    yield replace(probe, covers=tuple(name for name in probe.covers if name not in silent))
    for name in silent:
        yield replace(
            probe, target=name, covers=(name,), error=probe.legs[name], terminated=False, n_tokens=0, n_events=0,
            status=None, first_byte_s=None, total_s=probe.deadline_s, response_bytes=0, gaps_s=(), token_times_s=(),
        )  # fmt: skip
