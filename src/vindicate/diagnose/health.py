"""Without a conviction: is the chain healthy, or is it only that nobody can be named?"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from vindicate.diagnose.awake import kept_awake
from vindicate.diagnose.delay import SLOWER_S, SLOWER_TIMES, exchanges, past
from vindicate.diagnose.ladder import fault_class
from vindicate.diagnose.link import Link
from vindicate.diagnose.occupied import occupied
from vindicate.diagnose.rule import Scene, count, oldest
from vindicate.record.observation import ProbeResult

__all__ = ["Health", "health_of"]

OPEN_QUESTION_AT = 0.45
SELDOM_LOOKED = 0.8
FLOWS_NOW_S = 1.0
FLOWS_LATELY_S = 3.0
ERROR_BYTES = 700  # an answer at one go that is smaller may be an error
OLD_S = 8.0
OVERTAKEN = 5
STRONG_QUESTION_AT = 0.7  # even though requests pass and answers flow


@dataclass(frozen=True, slots=True)
class Health:
    """Healthy, or why that cannot be said."""

    status: Literal["healthy", "undetermined"]
    confidence: float
    summary: str


def health_of(scene: Scene, scores: Iterable[float]) -> Health:
    """Judge a scene in which nobody was convicted; *scores* are the cases against its services.

    Who looked seldom has missed much: below two looks a second healthy is said with no more confidence than it takes, and below
    one not at all: a request counts as waiting after one second, so that one looked for less often comes and goes unseen.
    """
    health = _health_of(scene, scores)
    looks, window_s = scene.capture.n_looks, scene.capture.window_s
    if looks is None or health.status != "healthy":
        return health
    if scene.seldom_looked:
        text = f"the sockets were looked at only {count(looks, 'time')} in {window_s:.0f} s, so what waited between two looks was not seen"
        return Health("undetermined", 0.0, text)
    if looks < 2 * window_s and health.confidence > SELDOM_LOOKED:
        return replace(health, confidence=SELDOM_LOOKED)
    return health


def _health_of(scene: Scene, scores: Iterable[float]) -> Health:
    if not scene.chain.order:
        return Health("undetermined", 0.0, "no service was found")
    entry = scene.chain.entry or scene.chain.order[0]
    node = scene.account.nodes[entry]
    waiting = tuple(link for link in node.owed if link.is_open)
    moving = _flows(scene, entry)
    through = any(p.target == entry for p in scene.ladder.good)
    worst = max(scores, default=0.0)
    if worst >= STRONG_QUESTION_AT or (worst >= OPEN_QUESTION_AT and not (moving and through)):
        return Health("undetermined", 0.0, "what accuses is not enough, or of one kind only")
    left = _left_standing(scene, entry) or kept_awake(scene)
    if left is not None:
        return Health("undetermined", 0.0, left)
    if scene.ladder.bad:
        told = next((p for p in scene.ladder.bad if fault_class(p) != "silent"), None)
        if told is not None:  # a request that waits may wait its turn; one that failed says that something is wrong
            text = (
                f"a request of ours to {told.target} failed ({told.error}), and nothing else tells whose doing it was"
            )
            return Health("undetermined", 0.0, text)
        stuck = _stands_still(scene, entry)
        if stuck is not None:
            text = (
                f"a request of ours failed, and {stuck} holds requests of which none moves: a long prefill, or a stall"
            )
            return Health("undetermined", 0.0, text)
        ours = "a request of ours did not come through in its time"
        if moving:
            return Health("healthy", 0.8, f"busy: answers flow to the clients, though {ours}")
        lost = _comes_in_and_stays(scene)
        if lost is not None:
            return Health(
                "undetermined", 0.0, f"answers come to {lost}, and none goes on to its callers, who wait; {ours}"
            )
        if _gives(scene):
            return Health(
                "healthy",
                0.8,
                f"busy: the engines give tokens, though no answer flowed to the clients just now and {ours}",
            )
        return Health("undetermined", 0.0, "a request of ours failed, and nothing else tells whose doing it was")
    if through:
        at, waiting = _waiting(scene, entry)
        return _passes(scene, entry, at=at, waiting_s=oldest(waiting), n_waiting=len(waiting), moving=moving)
    return _unprobed(scene, n_waiting=len(waiting), moving=moving)


def _stands_still(scene: Scene, entry: str) -> str | None:
    """An engine that holds requests and moves none of them, while somebody waits and no answer flows at the entry just now."""
    end, nodes = scene.account.end, scene.account.nodes
    if any(link.rises[-1][0] >= end - FLOWS_NOW_S for link in nodes[entry].down_in("moving")):
        return None
    stuck = (name for name in scene.leaves if scene.progress[name].work == "stuck")
    return next((name for name in stuck if nodes[name].owed or nodes[entry].owed), None)


def _left_standing(scene: Scene, entry: str) -> str | None:
    """Requests that wait far longer than later ones did, while the engines have less in work than they would if these had reached them.

    Where no engine says what it has in work, and in a chain whose lower part was not found, that they were overtaken is enough.
    """
    node = scene.account.nodes[entry]
    old = tuple(link for link in node.owed if link.is_open and link.waited_s >= OLD_S)
    if not old:
        return None
    since = max(link.asked_at or 0.0 for link in old) + 1.0
    later = sum(
        one.asked > since and one.first is not None
        for link in (*node.down, *node.own)
        if link not in old
        for one in exchanges(link)
    )
    known = [n for name in scene.leaves if (n := scene.progress[name].in_work_last) is not None]
    cut_off = any(service.opaque for service in scene.chain.services.values())
    if known and not cut_off and sum(known) >= len(old) + len(node.down_in("moving")):
        return None
    if later < OVERTAKEN and not cut_off:
        return None
    what = f"{count(len(old), 'request')} at {entry} had no byte of answer for up to {oldest(old):.0f} s"
    if cut_off:
        return f"{what}, and what {entry} calls in its turn was not found"
    return f"{what}, while {later} that came later were answered" + (
        f" and the engines have {sum(known):g} in work" if known else ""
    )


def _comes_in_and_stays(scene: Scene) -> str | None:
    """A relay to which answers flow while all of its callers wait and get none."""
    for name in scene.chain.order:
        node = scene.account.nodes[name]
        if (
            scene.chain.is_relay(name)
            and node.up_in("moving")
            and node.owed
            and not any(link.rises for link in node.down)
        ):
            return name
    return None


def _works(scene: Scene) -> bool:
    return any(scene.progress[name].work == "moving" for name in scene.leaves)


def _gives(scene: Scene) -> bool:
    """Whether an engine gives tokens: a prefill that works gives none to anybody."""
    return any(scene.progress[name].work == "moving" for name in scene.leaves if scene.chain.role(name) != "prefill")


def _flows(scene: Scene, entry: str) -> bool:
    """Whether clients get answers: one flows, or lately one came that is larger than errors are."""
    since = scene.account.end - FLOWS_LATELY_S
    links = scene.account.nodes[entry].down
    return any(
        link.state == "moving" or link.answered_since(max(since, (link.asked_at or 0.0) - 0.01), ERROR_BYTES)
        for link in links
    )


def _waiting(scene: Scene, entry: str) -> tuple[str, tuple[Link, ...]]:
    """Where requests wait for a first byte: at the entry, or, where a relay has begun its answers already, further down."""
    owed = {name: tuple(link for link in scene.account.nodes[name].owed if link.is_open) for name in scene.chain.order}
    at = entry if owed[entry] else max(owed, key=lambda name: len(owed[name]))
    return at, owed[at]


def _passes(scene: Scene, entry: str, *, at: str, waiting_s: float, n_waiting: int, moving: bool) -> Health:
    took = min(p.total_s for p in scene.ladder.good if p.target == entry)
    stalled = next(occupied(scene), None)
    if stalled is not None:
        return Health("undetermined", 0.0, f"a request of ours passes, but {stalled}")
    ours = f"a request of ours through {entry} was complete in {took:.1f} s"
    beyond = past(scene, entry)
    if beyond is not None and took >= max(beyond.total_s + SLOWER_S, SLOWER_TIMES * beyond.total_s):
        ours += f"; straight to {beyond.target} in {beyond.total_s:.1f} s, so most of that time passes above it"
    if moving or _works(scene):
        return Health("healthy", 0.9 if n_waiting else 0.95, f"healthy and busy: {ours}")
    if not n_waiting:
        asked = any(link.asks or link.rises for link in scene.account.nodes[entry].down)
        idle = "idle" if asked else f"idle (no client asked for anything in these {scene.capture.window_s:.0f} s)"
        silent = len(scene.account.nodes[entry].down_in("open"))
        if silent and all(scene.progress[name].work == "unknown" for name in scene.leaves):
            said = f"{count(silent, 'connection')} of clients stood silent, and no engine says whether their answers are over"
            return Health("healthy", SELDOM_LOOKED, f"healthy and {idle}, as far as can be told: {ours}; {said}")
        return Health("healthy", 0.95, f"healthy and {idle}: {ours}")
    text = f"a request of ours passes, but {count(n_waiting, 'request')} at {at} had no byte of answer for {waiting_s:.0f} s: a long prefill, or a stall"
    return Health("undetermined", 0.0, text)


def _slow(probe: ProbeResult) -> Health:
    text = f"a request of ours to {probe.target} was still being answered after {probe.total_s:.0f} s"
    if len(probe.gaps_s) >= 2:
        return Health("healthy", 0.8, f"slow, but not stalled: {text}, at a steady pace")
    return Health("undetermined", 0.0, f"{text}, too slowly to tell from a stall")


def _unprobed(scene: Scene, *, n_waiting: int, moving: bool) -> Health:
    if moving or (_works(scene) and not n_waiting):
        return Health("healthy", 0.85, "answers flow to the clients; nothing was probed")
    if n_waiting:
        return Health(
            "undetermined",
            0.0,
            f"{count(n_waiting, 'request')} without an answer, and no probe to tell how far one comes",
        )
    silent = scene.account.nodes[scene.chain.entry or scene.chain.order[0]].down_in("open")
    if silent and not scene.awaited:
        return Health(
            "undetermined",
            0.0,
            f"{count(len(silent), 'connection')} of clients stand silent; without a probe an idle one and one that waits for an end look the same",
        )
    slow = [p for p in scene.ladder.unclear if fault_class(p) == "slow"]
    if slow:
        return _slow(slow[0])
    if scene.ladder.unclear and scene.ladder.unclear[0].error == "unresolved":
        return Health("undetermined", 0.0, f"the host name of {scene.ladder.unclear[0].target} does not resolve")
    if scene.ladder.unclear:  # before "idle": what turns our requests away may do so to everybody's
        return Health(
            "undetermined",
            0.0,
            f"our requests were turned away ({scene.ladder.unclear[0].error}), so they tell nothing of a stall",
        )
    works = {scene.progress[name].work for name in scene.leaves}
    begun = [link for node in scene.account.nodes.values() for link in node.down_in("open")]
    if works == {"idle"} or (not begun and scene.account.links):
        return Health("healthy", 0.8, "idle: nobody waits for anything; nothing was probed")
    return Health(
        "undetermined", 0.0, "nothing moved, nothing was probed, and silent connections may be idle or stalled"
    )
