"""Connections of a capture → links: both ends put together, what each carried, and whether an answer is owed on it.

A loopback connection is seen from both its ends; both are one `Link`. Only byte counters that were sampled several
times, or a request that came in clearly after the last byte of an answer, say that an answer is owed: a connection that
is open and silent is most often an idle one that is kept alive.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

from vindicate.diagnose.chain import Chain
from vindicate.record.observation import Address, Connection, SocketSample

__all__ = ["ANSWER_BYTES", "Link", "LinkState", "before_asks", "links_of", "sent_at"]

LinkState = Literal[
    "owed", "moving", "uploading", "young", "open", "unused", "connecting", "abandoned", "ended", "closed"
]

GRACE_S = 1.0
ORDER_MARGIN_S = 0.003  # the kernel's own stamps tick in steps of 1 to 4 ms: two in one step have no order
HEARTBEAT_BYTES = 48
EVENT_BYTES = 30  # an event with a token is longer; a comment that keeps a stream awake is shorter
ANSWER_BYTES = 300
MIN_REQUEST_BYTES = 40


@dataclass(frozen=True, slots=True)
class Link:
    """One connection between a caller and a service.

    Attributes:
        caller: Service or client that opened it; ``None`` when its process could not be seen.
        state: ``owed``: a request waits for the first byte of its answer since *waited_s*; ``moving``: an answer flows;
            ``uploading``: the request still comes in; ``young``: asked too short a time ago to judge; ``open``: an answer
            was begun, nothing moves, and it may be finished; ``unused``: no request yet; ``connecting``: no handshake;
            ``abandoned``: the caller closed its side and the service has not noticed; ``ended``: the service closed its
            side and the caller has not noticed; ``closed``: gone before the window ended.
        asked_at, answered_at: Last request byte, last answer byte, in seconds of the capture.
        request, response: Bytes since the connection began.
        rises, asks: Sample times at which answer bytes, request bytes, had risen, and by how much.
        unread_request, unread_response: Smallest queue over the last samples at service and caller.
        server, client: What was recorded of either end; ``None`` where it was not seen.
        counted: The kernel gave byte counters; without them nothing is known of what it carried.
        gave_up: Closed by the end of the window with its request unanswered after the grace time.
    """

    id: str
    caller: str | None
    callee: str
    ours: bool
    state: LinkState
    began_at: float
    last_seen: float
    request: int = 0
    response: int = 0
    asked_at: float | None = None
    answered_at: float | None = None
    waited_s: float = 0.0
    rises: tuple[tuple[float, int], ...] = ()
    asks: tuple[tuple[float, int], ...] = ()
    unread_request: int = 0
    unread_response: int = 0
    unsent_response: int = 0
    gave_up: bool = False
    server_seen: bool = True
    counted: bool = True
    server: Connection | None = None
    client: Connection | None = None

    @property
    def left_before(self) -> bool:
        """Whether its caller had left before the window began: the service that does not notice answers for it, and owes nobody."""
        seen = self.server
        return seen is not None and not seen.fresh and seen.samples[0].state == "CLOSE_WAIT"

    @property
    def is_open(self) -> bool:
        """Whether it was there at the end of the window."""
        return self.state != "closed"

    def answered_since(self, moment: float, at_least: int = ANSWER_BYTES) -> bool:
        """Whether more of an answer than a health check has came since *moment*, flowing or at one go."""
        return sum(n for t, n in self.rises if t >= moment) >= at_least

    @property
    def request_delta(self) -> int:
        """Request bytes over the window."""
        return sum(n for _, n in self.asks)

    @property
    def response_delta(self) -> int:
        """Answer bytes over the window."""
        return sum(n for _, n in self.rises)

    def answered_between(self, start: float, stop: float) -> int:
        """Answer bytes that came on it between two moments."""
        return sum(n for t, n in self.rises if start <= t <= stop)

    def asked_between(self, start: float, stop: float, at_least: int) -> bool:
        """Whether a request of *at_least* bytes was handed over on it between two moments."""
        return any(start <= t <= stop and n >= at_least for t, n in self.asks)


def links_of(connections: Iterable[Connection], chain: Chain, end: float) -> Iterable[Link]:
    """Pair the ends of every connection and judge its state at *end*, the time of the last look."""
    server_side: dict[tuple[Address, Address], Connection] = {}
    client_side: dict[tuple[Address, Address], Connection] = {}
    for c in connections:
        if not c.samples:
            continue
        owner = next((chain.owner_of[pid] for pid in c.pids if pid in chain.owner_of), None)
        local, remote = chain.callee_at(c.local), chain.callee_at(c.remote)
        if local is not None and (owner in (local, None) or remote is None):
            side, key = server_side, (c.local, c.remote)
        elif remote is not None or owner in chain.services:
            side, key = client_side, (c.remote, c.local)
        else:
            continue
        if owner is not None or key not in side:  # two captures may hold one end, and only one of them its process
            side[key] = c
    for key in dict.fromkeys([*server_side, *client_side]):
        server, client = server_side.get(key), client_side.get(key)
        callee = chain.callee_at(key[0]) or f"{key[0].host}:{key[0].port}"
        if callee in chain.forwarders and _is_second_half(key[0], server, client, chain, callee):
            continue
        owner = None
        if client is not None:
            owner = next((chain.owner_of[pid] for pid in client.pids if pid in chain.owner_of), None)
            if owner is None and client.pids:
                owner = f"pid {client.pids[0]}"
        yield _link(server, client, owner, callee, end)


def before_asks(link: Link) -> Link | None:
    """*link* as it stood before the first request on it in the window: what was left of an earlier exchange is covered by the next.

    ``None`` when no request came, or it was not there before.
    """
    cut = link.asks[0][0] if link.asks else 0.0
    server, client = (_until(c, cut) for c in (link.server, link.client))
    if cut <= 0 or (server is None and client is None):
        return None
    earlier = _link(server, client, link.caller, link.callee, cut)
    return earlier if earlier.request > 0 else None


def _until(connection: Connection | None, t_s: float) -> Connection | None:
    looks = tuple(look for look in connection.samples if look.t_s < t_s) if connection is not None else ()
    return replace(connection, samples=looks, closed=False) if connection is not None and looks else None


def _is_second_half(
    at: Address, server: Connection | None, client: Connection | None, chain: Chain, callee: str
) -> bool:
    """Whether the same exchange is there as another connection: a container's port is published by a forwarder or by translation."""
    if at in chain.services[callee].inside:
        forwarders = chain.forwarders[callee]
        return client is not None and (bool(forwarders & set(client.pids)) or (not client.pids and not forwarders))
    return server is None  # of a translated connection the half in the container counts


def _link(server: Connection | None, client: Connection | None, caller: str | None, callee: str, end: float) -> Link:
    seen = server if server is not None else client
    assert seen is not None
    server_view = seen is server
    last = seen.samples[-1]
    request, response = (last.rx, last.tx) if server_view else (last.tx, last.rx)
    received = _rises([(x.t_s, x.rx, x.last_rx_age_s) for x in seen.samples], fresh=seen.fresh)
    sent = _rises([(x.t_s, x.tx, x.last_tx_age_s) for x in seen.samples], fresh=seen.fresh)
    asks, rises = (received, sent) if server_view else (sent, received)
    ask_age, answer_age = (
        (last.last_rx_age_s, last.last_tx_age_s) if server_view else (last.last_tx_age_s, last.last_rx_age_s)
    )
    began_at = seen.samples[0].t_s
    asked_at = _moment(request, last.t_s, ask_age, asks, began_at)
    answered_at = _moment(response, last.t_s, answer_age, rises, began_at)
    closed = any(c is not None and c.closed for c in (server, client)) or last.state in ("CLOSE", "TIME_WAIT")
    server_last = server.samples[-1] if server else None
    client_last = client.samples[-1] if client else None
    state = _state(
        server_last,
        client_last,
        request=request,
        response=response,
        asked_at=asked_at,
        answered_at=answered_at,
        rises=rises,
        asks=asks,
        closed=closed,
        end=end,
    )
    waited = max(0.0, last.t_s - asked_at) if asked_at is not None else 0.0
    unanswered = asked_at is not None and _after(asked_at, answered_at, response)
    return Link(
        id=seen.id,
        caller=caller,
        callee=callee,
        ours=any(c is not None and c.ours for c in (server, client)),
        state=state,
        began_at=began_at,
        last_seen=last.t_s,
        request=request,
        response=response,
        asked_at=asked_at,
        answered_at=answered_at,
        waited_s=waited,
        rises=rises,
        asks=asks,
        unread_request=_standing(server, "unread"),
        unread_response=_standing(client, "unread"),
        unsent_response=_standing(server, "unsent"),
        gave_up=state in ("closed", "abandoned") and unanswered and waited >= GRACE_S,
        server_seen=server is not None and bool(server.pids),
        counted=any(sample.counted for sample in seen.samples),
        server=server,
        client=client,
    )


def _rises(points: list[tuple[float, int, float | None]], *, fresh: bool) -> tuple[tuple[float, int], ...]:
    """When bytes came, and how many: between two looks, at the moment that the later one's age of the last byte tells."""
    found = []
    before_t, before_n = (-1.0, 0) if fresh else points[0][:2]
    for t, n, age in points if fresh else points[1:]:
        if n > before_n:
            found.append((t if age is None else min(t, max(before_t, t - age)), n - before_n))
        before_t, before_n = t, n
    return tuple(found)


def _moment(
    n_bytes: int, t: float, age: float | None, rises: tuple[tuple[float, int], ...], first: float
) -> float | None:
    if n_bytes <= 0:
        return None
    if age is not None:
        return t - age
    return rises[-1][0] if rises else first


def _after(asked_at: float, answered_at: float | None, response: int) -> bool:
    return response == 0 or answered_at is None or asked_at - answered_at > ORDER_MARGIN_S


def _standing(connection: Connection | None, queue: Literal["unread", "unsent"]) -> int:
    """Bytes that lay in a queue for the last 3 s: what passes through it is not standing. Equal looks may have been left out."""
    if connection is None:
        return 0
    since = connection.samples[-1].t_s - 3.0
    late = [s for s in connection.samples if s.t_s >= since]
    before = [s for s in connection.samples if s.t_s < since][-1:]
    return min(s.unread if queue == "unread" else s.unsent for s in before + late)


def _state(
    server: SocketSample | None,
    client: SocketSample | None,
    *,
    request: int,
    response: int,
    asked_at: float | None,
    answered_at: float | None,
    rises: tuple[tuple[float, int], ...],
    asks: tuple[tuple[float, int], ...],
    closed: bool,
    end: float,
) -> LinkState:
    if closed:
        return "closed"
    if client is not None and client.state == "SYN_SENT":
        return "connecting"
    if server is not None and server.state == "CLOSE_WAIT":
        return "abandoned"
    if client is not None and client.state == "CLOSE_WAIT":
        return "ended"
    if request == 0 or asked_at is None:
        return "unused"
    if _after(asked_at, answered_at, response):
        if len(asks) > 1 and asks[-1][0] >= end - 1.0 and asks[-1][0] - asks[0][0] > 0.5 and not rises:
            return "uploading"
        return "owed" if end - asked_at >= GRACE_S else "young"
    return "moving" if _moves(rises, asks, end - answered_at if answered_at is not None else 0.0) else "open"


def _moves(rises: tuple[tuple[float, int], ...], asks: tuple[tuple[float, int], ...], silence_s: float) -> bool:
    """Whether an answer flows: bytes came more than once since it was asked for, not mere heartbeats, and lately.

    One rise is an exchange that is over, as a health check is. Lately: no longer ago than its own rhythm explains.
    """
    since = asks[-1][0] if asks else 0.0
    rises = tuple((t, n) for t, n in rises if t >= since)
    total = sum(n for _, n in rises)
    if len(rises) < 2 or total < HEARTBEAT_BYTES or total / len(rises) < EVENT_BYTES:
        return False
    gaps = sorted(b - a for (a, _), (b, _) in pairwise(rises))
    return silence_s <= max(2.5, 2 * gaps[len(gaps) // 2])


def sent_at(link: Link) -> tuple[float, ...]:
    """Moments at which a request certainly left on *link*, the last one exactly, those before by the sample that showed them."""
    earlier = tuple(
        t for t, n in link.asks if n >= MIN_REQUEST_BYTES and (link.asked_at is None or t < link.asked_at - 0.5)
    )
    return (*earlier, link.asked_at) if link.asked_at is not None else earlier
