"""Retries that pile up: a caller gives up and asks the same again while what it left behind is still worked on."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

from vindicate.diagnose.account import NodeAccount
from vindicate.diagnose.clients import Caller, callers_of
from vindicate.diagnose.link import Link
from vindicate.diagnose.rule import Against, Clue, Scene, count

__all__ = ["age_given_up", "between_looks", "is_constant", "left_at", "retries", "size_asked"]

MECHANISM = "retry.amplification"
_BACKOFF_S = 9.0  # the longest that usual clients wait before they ask again (0.5 s doubled to 8 s)
_SAME_SIZE = 8  # bytes: a counter or a date in a header may have a digit more
_OUTLIVES_S = 1.0
_LOOKS_APART_S = 0.6
_SELDOM_S = 1.2
_ALIVE = ("owed", "moving", "young", "uploading")
_CLOSING = ("FIN_WAIT1", "FIN_WAIT2", "TIME_WAIT", "CLOSE")


def retries(scene: Scene) -> Iterator[Clue]:
    """Clues to clients whose retries overlap below the service that they call."""
    for caller in callers_of(scene):
        for series in _series(caller.links, between_looks(scene)):
            given_up = [link for link in series if link.gave_up]
            node = scene.account.nodes[series[0].callee]
            left_behind = _left_behind(node, given_up, scene.account.end)
            if len(given_up) >= 2 and left_behind:
                yield from _clues(scene, caller, node, series, left_behind)


def between_looks(scene: Scene) -> float:
    """How far off the moment at which a connection was given up may be: a busy host looks less often."""
    looks = scene.capture.n_looks or 1
    return min(_SELDOM_S, max(_LOOKS_APART_S, 1.5 * scene.capture.window_s / looks)) if looks > 1 else _LOOKS_APART_S


def _series(links: Sequence[Link], apart_s: float) -> Iterator[list[Link]]:
    """Attempts of one size, each begun after the one before was given up, which happened at a constant age."""
    attempts = sorted(
        (link for link in links if link.asked_at is not None and (link.gave_up or link.is_open)),
        key=lambda link: link.asked_at or 0.0,
    )
    used: set[str] = set()
    for first in attempts:
        if first.id in used or not first.gave_up:
            continue
        series = [first]
        for link in attempts:
            last = series[-1]
            pause = (link.asked_at or 0.0) - left_at(last)
            same = abs(size_asked(link) - size_asked(first)) <= _SAME_SIZE and link.callee == first.callee
            if link.id not in used and link is not last and last.gave_up and same and -1.0 <= pause <= _BACKOFF_S:
                series.append(link)
        ages = [age_given_up(link) for link in series if link.gave_up]
        gaps = [(b.asked_at or 0.0) - (a.asked_at or 0.0) for a, b in pairwise(series)]
        if len(series) >= 2 and (is_constant(ages, apart_s) or (len(gaps) >= 2 and is_constant(gaps, _LOOKS_APART_S))):
            used.update(link.id for link in series)
            yield series


def is_constant(times: Sequence[float], apart_s: float) -> bool:
    """Whether these are one constant, as far as looks *apart_s* apart can tell."""
    return max(times) - min(times) <= max(apart_s, 0.1 * max(times))


def left_at(link: Link) -> float:
    """When its caller closed it; the service may take no notice for long."""
    theirs = link.client.samples if link.client is not None else ()
    ours = link.server.samples if link.server is not None else ()
    seen = [s.t_s for s in theirs if s.state in _CLOSING] + [s.t_s for s in ours if s.state == "CLOSE_WAIT"]
    return min(seen, default=link.last_seen)


def age_given_up(link: Link) -> float:
    """How old its last request was when its caller left."""
    return left_at(link) - (link.asked_at or 0.0)


def size_asked(link: Link) -> int:
    """Bytes of its last request."""
    return link.request if link.response == 0 or not link.asks else link.asks[-1][1]


def _left_behind(node: NodeAccount, given_up: Sequence[Link], end: float) -> list[Link]:
    """Requests below that were sent on for attempts, and lived on for a while after these were given up."""
    found: list[Link] = []
    for link in given_up:
        asked = link.asked_at or 0.0
        for up in node.up:
            near = up.asked_at is not None and -0.3 <= up.asked_at - asked <= 1.0
            outlived = (end if up.state in _ALIVE else left_at(up)) >= left_at(link) + _OUTLIVES_S
            if near and outlived and up.state != "open" and up not in found:
                found.append(up)
                break
    return found


def _clues(
    scene: Scene, caller: Caller, node: NodeAccount, series: list[Link], left_behind: list[Link]
) -> Iterator[Clue]:
    ages = [age_given_up(link) for link in series if link.gave_up]
    gaps = [(b.asked_at or 0.0) - (a.asked_at or 0.0) for a, b in pairwise(series)]
    against = Against(caller.name, MECHANISM, layer="client")
    yield against(
        "socket",
        0.6,
        f"{caller.name} gave up {count(len(ages), 'request')} of {size_asked(series[0])} bytes at the same age ({max(ages):.1f} s) and sent one of that size again each time",
        given_up=len(ages),
        age_s=round(max(ages), 2),
        gap_s=round(max(gaps), 2),
        request_bytes=size_asked(series[0]),
    )
    yield against(
        "conservation",
        0.65 if len(left_behind) >= 2 else 0.5,
        f"{node.name} had {count(len(left_behind), 'request')} under way below that {caller.name} no longer waits for: copies of one request overlap",
        copies_left_behind=len(left_behind),
        waiting=1,
    )
    for name in scene.chain.below(node.name):
        running = scene.progress[name].gauges.get("running")
        waited_for = len(node.down_in("owed", "moving", "young"))
        if running is not None and name in scene.leaves and running.last > waited_for:
            yield against(
                "counter",
                0.4,
                f"{name} runs {running.last:g} requests while {waited_for} are waited for",
                running=running.last,
                waited_for=waited_for,
            )
