"""A relay that takes its time: it holds requests while it asks nobody, or passes on only so many at a time.

Both pass for healthy where one only asks whether answers flow. What convicts is the minimal pair: past the relay the same
request is complete at once.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from vindicate.diagnose.account import NodeAccount
from vindicate.diagnose.hold import upstream_seen, went_nowhere
from vindicate.diagnose.ladder import fault_class
from vindicate.diagnose.link import MIN_REQUEST_BYTES, Link
from vindicate.diagnose.rule import Against, Clue, Scene, count, oldest
from vindicate.record.observation import ProbeResult

__all__ = ["SLOWER_S", "SLOWER_TIMES", "Exchange", "delays", "exchanges", "past"]

_STEP_S, _MOST_LOOKS = 0.25, 4000
_QUICK_S = 0.5  # so long any relay may look at a request
_IDLE_LOOKS, _IDLE_SHARE = 8, 0.3  # one at its limit is never idle for longer than it takes to pass the next one on
SLOWER_S, SLOWER_TIMES = 1.5, 3.0
_WAITED_S = 5.0
_NO_QUEUE_S = 30.0  # at a limit that is meant, some answer of a crowd ends within that time


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request on a link: when it was asked, in how many bytes, and its first and last answer byte, ``None`` when none came.

    The *size* of one that came before the window is not known: 0.
    """

    asked: float
    size: int
    first: float | None
    last: float | None
    until: float

    def waits(self, t: float) -> bool:
        """Whether at *t* it has waited for its first byte for longer than a relay takes."""
        return self.asked + _QUICK_S <= t < (self.until if self.first is None else self.first)

    def runs(self, t: float) -> bool:
        """Whether at *t* it was under way."""
        return self.asked - _STEP_S <= t <= (self.until if self.last is None else self.last)


def exchanges(link: Link) -> Iterator[Exchange]:
    """The requests that were seen on *link*, each until the next one."""
    asked = [(t, n) for t, n in link.asks if n >= MIN_REQUEST_BYTES]
    if link.asked_at is not None and link.asked_at < 0:
        asked.insert(0, (link.asked_at, 0))
    for (start, size), (stop, _) in pairwise([*asked, (link.last_seen + _STEP_S, 0)]):
        came = [t for t, _ in link.rises if start <= t < stop]
        yield Exchange(start, size, came[0] if came else None, came[-1] if came else None, stop)


def delays(scene: Scene) -> Iterator[Clue]:
    """Clues to relays in which requests wait though nothing below them is in their way."""
    for name in scene.chain.order:
        node = scene.account.nodes[name]
        if scene.chain.is_relay(name) and upstream_seen(scene, node) and not scene.seldom_looked:
            yield from _idles(scene, node)
            yield from _capped(scene, node)


def past(scene: Scene, name: str) -> ProbeResult | None:
    """The quickest probe that came back complete without passing *name*."""
    below = scene.chain.below(name)
    return min(
        (p for p in scene.ladder.good if name not in p.covers and p.target in below),
        key=lambda p: p.total_s,
        default=None,
    )


def _idles(scene: Scene, node: NodeAccount) -> Iterator[Clue]:
    """It owes answers, asks nobody for them, and passes all on in the end."""
    name, beyond = node.name, past(scene, node.name)
    through = min((p for p in scene.ladder.good if p.target == name), key=lambda p: p.total_s, default=None)
    if (
        beyond is None
        or through is None
        or through.total_s < max(beyond.total_s + SLOWER_S, SLOWER_TIMES * beyond.total_s)
    ):
        return
    owed = [exchange for link in node.down for exchange in exchanges(link)]
    asked = [e for link in scene.account.links if may_be_of(scene, link, name) for e in exchanges(link)]
    step_s = max(_STEP_S, scene.account.end / _MOST_LOOKS)
    looks = [i * step_s for i in range(int(scene.account.end / step_s))]
    waiting = [t for t in looks if any(e.waits(t) for e in owed)]
    idle = [t for t in waiting if not any(e.runs(t) for e in asked)]
    if len(idle) < _IDLE_LOOKS or len(idle) < _IDLE_SHARE * len(waiting):
        return
    against = Against(name, "proxy.slow_to_pass_on")
    share = 100 * len(idle) / len(waiting)
    yield against(
        "wait-for",
        0.6,
        f"in {share:.0f} % of the time in which {name} owed an answer it was asking nobody for one",
        waited_s=len(waiting) * step_s,
        idle_s=len(idle) * step_s,
    )
    yield against(
        "probe",
        0.6,
        f"a small request through {name} was complete in {through.total_s:.1f} s, straight to {beyond.target} in {beyond.total_s:.1f} s",
        through_s=round(through.total_s, 2),
        past_s=round(beyond.total_s, 2),
    )


def may_be_of(scene: Scene, link: Link, name: str) -> bool:
    """Whether *name* opened it, to whomever, or may have."""
    return link.caller == name or (link.caller is None and link.callee in scene.chain.services[name].upstream)


def _capped(scene: Scene, node: NodeAccount) -> Iterator[Clue]:
    """The same answers flow all through the window, the same requests wait, and past it there is room."""
    name, beyond = node.name, past(scene, node.name)
    unsent = [p for p in scene.ladder.bad_at(name) if fault_class(p) == "silent" and went_nowhere(scene, node, p)]
    flowing = node.down_in("moving")
    held = [link for link in node.owed if link.is_open and link.waited_s >= _WAITED_S]
    if beyond is None or not unsent or not held or not flowing or beyond.total_s > unsent[0].total_s / 4:
        return
    if node.awaited or len(node.up_active) > len(flowing):
        return  # what waits has been passed on
    if any((link.asked_at or 0.0) > _QUICK_S for link in flowing) or any(
        link.rises for link in node.down if link not in flowing
    ):
        return  # some ended, or found their way in: a queue that moves
    text = (
        f"{count(len(held), 'request')} waited in {name} all the while that the same {count(len(flowing), 'answer')} flowed through it, "
        "and nobody below was asked for them"
    )
    if oldest(tuple(held)) < _NO_QUEUE_S:
        yield Clue(
            service=name,
            kind="queue",
            direction="neutral",
            text=text,
            measured={"held": len(held), "flowing": len(flowing)},
        )
        return
    against = Against(name, "gateway.h2_stream_cap")
    yield against("wait-for", 0.6, text, held=len(held), flowing=len(flowing), oldest_s=oldest(tuple(held)))
    yield against(
        "probe",
        0.6,
        f"a small request through {name} got no answer in {unsent[0].total_s:.1f} s; straight to {beyond.target} it was complete in {beyond.total_s:.1f} s",
        through_s=round(unsent[0].total_s, 2),
        past_s=round(beyond.total_s, 2),
    )
