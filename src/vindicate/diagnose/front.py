"""An engine whose front end and scheduler have parted: requests that run for nobody, an event loop that is blocked."""

from collections.abc import Iterator

from vindicate.diagnose.pages import pages_of
from vindicate.diagnose.rule import Against, Clue, Scene, count, oldest
from vindicate.record.observation import ProcessFacts, Scrape

__all__ = ["front_end_faults"]

SLOW_GET_S = 0.4  # a page of an engine whose loop is free comes within tens of milliseconds
LARGE_BYTES = 100_000
FIRST_LOOKS_S = 1.0


def front_end_faults(scene: Scene) -> Iterator[Clue]:
    """Clues to engines with such a fault."""
    for name in scene.leaves:
        if scene.chain.role(name) != "prefill":
            yield from _zombies(scene, name)
        yield from _blocked_loop(scene, name)


def _zombies(scene: Scene, name: str) -> Iterator[Clue]:
    """Requests run and make tokens, and nobody is connected to take them.

    Every open connection may carry a request, so each counts as one that runs, unless it is known to wait in the queue:
    then the queue must hold exactly those that are owed (one request with several answers counts several times in both).
    """
    progress, node = scene.progress[name], scene.account.nodes[name]
    running, waiting = progress.gauges.get("running"), progress.gauges.get("waiting")
    if running is None or not running.floor or len(running.values) < 3 or not (progress.live_delta or 0) > 0:
        return
    if not node.visible and node.down:
        return
    links = [link for link in (*node.down, *node.own) if link.is_open and link.state != "unused"]
    owed = tuple(link for link in links if link.state == "owed")
    others = [link for link in links if link.state != "owed"]
    queued = waiting.last if waiting is not None else 0.0
    if others or (progress.ended_delta or 0) > 0 or (owed and queued != len(owed)):
        return
    if name in scene.awaited and scene.awaited[name] > len(owed):
        return
    if any(link.answered_since(FIRST_LOOKS_S) for link in node.down):
        return  # its readers come and go, each with a connection of its own
    mechanism = "engine.zombie_after_disconnect"
    measured: dict[str, str | float | int | bool | None] = {
        "running": running.floor,
        "queued": queued,
        "connections": len(links),
    }
    waits = (
        f"and the {count(len(owed), 'connection')} to it all wait in its queue"
        if owed
        else "and nobody is connected to it"
    )
    against = Against(name, mechanism)
    yield against(
        "conservation",
        0.6,
        f"{name} ran {running.floor:g} requests all through the window, {waits}: those that run have no reader",
        **measured,
    )
    yield against(
        "counter",
        0.55,
        f"its token counters rise, no request ended, and not one byte of an answer left {name}",
        tokens=progress.live_delta,
        ended=progress.ended_delta,
    )
    if owed:
        yield against(
            "wait-for",
            0.4,
            f"{name} owes {count(len(owed), 'request')}, the oldest for {oldest(owed):.0f} s: their slots are taken",
            owed=len(owed),
            oldest_s=oldest(owed),
        )


def _gets(scene: Scene, names: tuple[str, ...]) -> list[Scrape]:
    """Answered reads of pages that cost nothing to make."""
    return [
        s
        for s in scene.capture.scrapes
        if s.service in names and s.status is not None and s.kind in ("metrics", "loads", "models", "ready")
    ]


def _busy(process: ProcessFacts) -> float:
    """Cores that the process used over the window."""
    if len(process.samples) < 2:
        return 0.0
    first, last = process.samples[0], process.samples[-1]
    return (last.cpu_s - first.cpu_s) / max(0.1, last.t_s - first.t_s)


def _blocked_loop(scene: Scene, name: str) -> Iterator[Clue]:
    """At times it answers nothing, not even a page, while large prompts come in; its scheduler works on at its usual pace."""
    mine = [s.took_s for s in _gets(scene, (name,))]
    mine += [max(p.gaps_s) for p in scene.capture.probes if p.target == name and len(p.gaps_s) > 2]
    slow = [took for took in mine if took >= SLOW_GET_S]
    elsewhere = _gets(scene, tuple(other for other in scene.chain.order if other != name))
    if len(slow) < 2 or sum(s.took_s >= SLOW_GET_S for s in elsewhere) >= max(1, len(elsewhere) // 4):
        return
    large = [
        link
        for link in scene.account.nodes[name].down
        if link.request_delta >= LARGE_BYTES or (link.state in ("owed", "uploading") and link.request >= LARGE_BYTES)
    ]
    before, within = pages_of(scene.capture, name).mean("inter_token_latency_seconds")
    usual = before is not None and within is not None and within <= 2 * before
    listening = {pid for one in scene.capture.listeners for pid in one.pids}
    burning = [p for p in scene.processes(name) if p.pid in listening and _busy(p) >= 0.5]
    if not large or not usual or scene.progress[name].work != "moving":
        return
    mechanism = "engine.tokenizer_blocks_loop"
    worst = max(slow)
    against = Against(name, mechanism)
    yield against(
        "probe",
        0.55,
        f"{len(slow)} of {len(mine)} small answers of {name} stood still for {SLOW_GET_S} s or more, one for {worst:.1f} s",
        slow=len(slow),
        reads=len(mine),
        longest_s=round(worst, 2),
    )
    yield against(
        "socket",
        0.4,
        f"{count(len(large), 'connection')} brought it requests of {LARGE_BYTES // 1000} kB and more in that time",
        large=len(large),
        largest_bytes=max(link.request_delta or link.request for link in large),
    )
    yield against(
        "counter",
        0.4,
        f"by its own count its tokens came as ever, {1000 * (within or 0):.0f} ms apart: its scheduler does not wait",
        itl_s=within,
        itl_before_s=before,
    )
    if burning:
        yield against(
            "process",
            0.5,
            f"process {burning[0].pid}, which takes its connections, used {100 * _busy(burning[0]):.0f} % of a core",
            cpu_share=round(_busy(burning[0]), 2),
        )
