"""Links of a relay → single requests on both its sides: when each was asked, how its connection ended, what was handed on for it.

Bytes are counted by look, so that two quick requests of one look may appear as one; what is computed here allows for it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from vindicate.diagnose.account import NodeAccount
from vindicate.diagnose.link import MIN_REQUEST_BYTES, Link

__all__ = ["Asked", "End", "asked_of", "end_of"]

_NEAR_S = 0.35
_CLOSES_FIRST = ("TIME_WAIT", "FIN_WAIT1", "FIN_WAIT2", "CLOSING")


@dataclass(frozen=True, slots=True)
class End:
    """How the last request of a link that is gone had fared: *by* closed first; ``None`` when neither did in good form."""

    link: Link
    by: Literal["service", "caller"] | None
    asked_at: float
    answered_at: float | None

    @property
    def age_s(self) -> float:
        """From the request to the last byte of its answer."""
        return (self.answered_at if self.answered_at is not None else self.link.last_seen) - self.asked_at


def end_of(link: Link) -> End | None:
    """The end of *link*, where it ended in the window and carried a request."""
    if link.state not in ("closed", "ended", "abandoned") or link.request < MIN_REQUEST_BYTES:
        return None
    seen = link.server if link.server is not None else link.client
    aged = [s for s in seen.samples if s.last_rx_age_s is not None and s.counted] if seen else []
    if not aged:
        return None
    last = aged[-1]
    rx, tx = last.t_s - (last.last_rx_age_s or 0.0), last.t_s - (last.last_tx_age_s or 0.0)
    asked_at, answered_at = (rx, tx) if link.server is not None else (tx, rx)
    return End(link, _closed_by(link), asked_at, answered_at if link.response > 0 else None)


def _closed_by(link: Link) -> Literal["service", "caller"] | None:
    first: set[Literal["service", "caller"]] = set()
    if link.server is not None and any(s.state in _CLOSES_FIRST for s in link.server.samples):
        first.add("service")
    if link.client is not None and any(s.state in _CLOSES_FIRST for s in link.client.samples):
        first.add("caller")
    if not first and link.server is not None and link.server.samples[-1].state == "CLOSE_WAIT":
        first.add("caller")
    return first.pop() if len(first) == 1 else None


@dataclass(frozen=True, slots=True)
class Asked:
    """A request of a caller to a relay.

    Attributes:
        answer: Answer bytes until the next request on its connection.
        waited_s: To the first of them; ``None`` without any.
        handed_on: Most request bytes that left the relay on one connection at about that time.
        at_once: The same within 0.2 s.
        idle_s: How long nothing had been exchanged upstream before; infinite when nothing ever was.
    """

    link: str
    at: float
    size: int
    answer: int
    waited_s: float | None
    handed_on: int
    at_once: int
    idle_s: float

    @property
    def lacks(self) -> bool:
        """Whether the relay did not hand it on whole: nothing near its size left on any connection at about that time."""
        return self.handed_on < 0.7 * self.size


def asked_of(node: NodeAccount, end: float) -> Iterator[Asked]:
    """Requests of callers in the window whose beginning was seen and whose outcome can be known by *end*."""
    lively = sorted({t for link in node.up for t, _ in (*link.asks, *link.rises)})
    for link in node.down:
        moments = [t for t, n in link.asks if n >= MIN_REQUEST_BYTES]
        for number, (at, size) in enumerate((t, n) for t, n in link.asks if n >= MIN_REQUEST_BYTES):
            if at > end - 1.0 or at < _NEAR_S:
                continue
            until = moments[number + 1] if number + 1 < len(moments) else end
            answers = [(t, n) for t, n in link.rises if at - 0.002 <= t < until - 0.002]
            before = [t for t in lively if t < at - 0.005]
            yield Asked(
                link=link.id,
                at=at,
                size=size,
                answer=sum(n for _, n in answers),
                waited_s=max(0.0, answers[0][0] - at) if answers else None,
                handed_on=_most_on_one(node, at - _NEAR_S, at + _NEAR_S + 0.3),
                at_once=_most_on_one(node, at - 0.03, at + 0.2),
                idle_s=at - before[-1] if before else float("inf"),
            )


def _most_on_one(node: NodeAccount, start: float, stop: float) -> int:
    """The largest request that left on one connection: what left before an answer came belongs to it, what leaves after does not."""
    most = 0
    for up in node.up:
        size, since = 0, start
        for t, n in ((t, n) for t, n in up.asks if start <= t <= stop):
            answered = any(since < rise < t for rise, _ in up.rises)
            size, since = (n if answered else size + n), t
            most = max(most, size)
    return most
