"""Who is cleared, of which hazard, and why; as strict as convicting.

Idle is not innocent: an engine that forgets the end of its answers is idle too. A service is cleared only when a request
of the same shape went past the guilty one and through it, and came back with its end; when it owes nobody; and when
no answer of its own may still be unfinished: its figures say so, or no connection with a begun answer stands open.
"""

from collections.abc import Iterator

from vindicate.diagnose.chain import port_in
from vindicate.diagnose.progress import bare_name
from vindicate.diagnose.rule import Scene, count
from vindicate.record.diagnosis import FAILS_AT_ONCE, REFUSALS, Clearance
from vindicate.record.observation import ProbeResult

__all__ = ["clearances", "hazard"]


def hazard(mechanism: str) -> str:
    """What the innocent are cleared of, by what the guilty one does."""
    kind = mechanism.rpartition(".")[2]
    if kind in FAILS_AT_ONCE:
        return REFUSALS
    if kind in ("cuts_streams", "total_timeout", "idle_timeout_before_first_byte"):
        return "cutting streams at this load"
    if kind in ("sse_reframing", "malformed_stream", "body_truncation"):
        return "garbling streams"
    return "stalling streams at this load"


def clearances(scene: Scene, guilty: str, mechanism: str) -> Iterator[Clearance]:
    """Every service that the evidence clears of the hazard of *mechanism*, with its knobs."""
    for name in scene.chain.order:
        if name == guilty:
            continue
        probe = _past(scene, name, guilty)
        reason = _owes_nothing(scene, name)
        if probe is None or reason is None:
            continue
        yield Clearance(
            service=name,
            knobs=tuple(scene.chain.services[name].knobs),
            of=hazard(mechanism),
            because=f"a request of the same shape that went through {name} and past {guilty} was answered complete, end of stream "
            f"included, in {probe.total_s:.1f} s; {reason}",
        )


def _past(scene: Scene, name: str, guilty: str) -> ProbeResult | None:
    """The quickest good probe through *name* that did not pass *guilty*, if none through it alone failed."""
    if scene.ladder.bad_at(name) or name in scene.ladder.suspects:
        return None
    good = [p for p in scene.ladder.good if name in p.covers and guilty not in p.covers and p.terminated]
    return min(good, key=lambda p: (len(p.covers), p.total_s), default=None)


def _owes_nothing(scene: Scene, name: str) -> str | None:
    """Why *name* owes nobody anything; ``None`` when that is not shown."""
    node, progress = scene.account.nodes[name], scene.progress[name]
    unfinished = _unfinished(scene, name)
    awaited = scene.awaited.get(name, 0.0) >= 1
    if awaited or node.owed or progress.work == "stuck" or (progress.work != "moving" and (unfinished or 0) >= 1):
        return None
    if scene.chain.is_relay(name):
        return _relay_owes_nothing(scene, name)
    open_answers = [link for link in node.down_in("open", "abandoned") if link.id not in scene.account.finished]
    # Its own word that it is done is not enough while begun answers stand open: one that forgets the end believes it too.
    settled = name in scene.awaited or not open_answers
    if progress.work == "idle" and unfinished is not None and unfinished < 1 and settled:
        caller = ", its caller waits for nothing from it" if name in scene.awaited else ""
        return f"it has nothing running, nothing queued and no HTTP answer unfinished{caller}, and no request at its sockets is without an answer"
    if progress.work in ("idle", "moving") and not open_answers:
        left = node.down_in("moving")
        flows = f" but {count(len(left), 'answer')} that flowed" if left else ""
        return f"no connection to it had an answer outstanding{flows}"
    if unfinished is not None and unfinished < 1 and progress.work == "moving" and settled:
        return "its counters moved with the requests it got, and at times it had no HTTP answer unfinished"
    return None


def _unfinished(scene: Scene, name: str) -> float | None:
    """HTTP exchanges unfinished at *name* all along, less our own scrape where a relay's count must hold it.

    A count without labels, read at the port that serves requests too, counts the reading of itself. It is taken off only where
    the relay also says, worker by worker, what it awaits below.
    """
    n, seen = scene.progress[name].http_active, scene.chain.services[name]
    pages = [s for s in scene.capture.scrapes if s.service == name and s.kind == "metrics" and s.values]
    same_port = seen.address is not None and all(port_in(s.url) == seen.address.port for s in pages)
    bare = {m.labels for s in pages for m in s.values if bare_name(m.name) == "http_connections_active"} == {()}
    tells = bool(seen.upstream) and all(below in scene.awaited for below in seen.upstream)
    return n - 1 if n is not None and scene.chain.is_relay(name) and same_port and bare and tells else n


def _relay_owes_nothing(scene: Scene, name: str) -> str | None:
    node = scene.account.nodes[name]
    if node.held or node.up_in("owed", "connecting"):
        return None
    below = [scene.progress[under] for under in scene.chain.below(name) if under in scene.leaves]
    settled = bool(below) and all(
        progress.work == "idle" and (progress.http_active is None or progress.http_active < 1) for progress in below
    )
    if not node.down_in("open", "abandoned") or settled:
        return "it handed on every request that it got, and nothing is outstanding below it"
    return None
