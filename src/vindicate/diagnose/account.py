"""Links of a chain → each service's account: what it owes, what it is owed, and which requests it never handed on."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from vindicate.diagnose.chain import Chain
from vindicate.diagnose.link import Link, LinkState, links_of, sent_at
from vindicate.record.observation import Capture, ProbeResult

__all__ = ["Account", "NodeAccount", "account_of"]

FORWARD_WITHIN_S = 1.5


@dataclass(frozen=True, slots=True)
class NodeAccount:
    """What one service owes and is owed.

    Attributes:
        down: Links of its callers, our own probes excepted; *own* are ours.
        up: Links that it opened to the services it calls (or that may be its own when its sockets are hidden).
        echo: Links upstream that it owes to our own probes.
        owed: Callers' requests without a byte of answer, longer than the grace time; those given up in the window included.
        held: Those of *owed* for which no request left upstream at about the time they came, and that no later one upstream that
            still waits accounts for.
        visible: Its own sockets could be attributed to it.
    """

    name: str
    down: tuple[Link, ...] = ()
    own: tuple[Link, ...] = ()
    up: tuple[Link, ...] = ()
    owed: tuple[Link, ...] = ()
    held: tuple[Link, ...] = ()
    visible: bool = True
    echo: frozenset[str] = frozenset()

    @property
    def awaited(self) -> tuple[Link, ...]:
        """Links upstream on which it is owed an answer for its callers, our own probes excepted."""
        return tuple(link for link in self.up_in("owed", "young", "uploading") if link.id not in self.echo)

    def down_in(self, *states: LinkState) -> tuple[Link, ...]:
        """Callers' links in one of *states*."""
        return tuple(link for link in self.down if link.state in states)

    def up_in(self, *states: LinkState) -> tuple[Link, ...]:
        """Links upstream in one of *states*."""
        return tuple(link for link in self.up if link.state in states)

    def flows(self, end: float) -> bool:
        """Whether callers still get answers: one flows, or was given within the last 3 s."""
        return any(link.state == "moving" or link.answered_since(end - 3.0) for link in self.down)

    def asked_for(self, probe: ProbeResult) -> tuple[Link, ...]:
        """Links upstream on which a request of the probe's size left while it waited."""
        size = max(40, probe.request_bytes // 2)
        return tuple(
            link for link in self.up if link.asked_between(probe.t_s - 0.1, probe.t_s + probe.total_s + 0.3, size)
        )

    def came_for(self, probe: ProbeResult) -> int:
        """Answer bytes that came in for the probe, at most; the least where several links may have carried it."""
        stop = probe.t_s + probe.total_s + 0.3
        return min((link.answered_between(probe.t_s - 0.1, stop) for link in self.asked_for(probe)), default=0)

    @property
    def up_active(self) -> tuple[Link, ...]:
        """Links upstream on which a request is certainly under way."""
        return self.up_in("owed", "moving", "uploading", "young")

    @property
    def pinned(self) -> tuple[Link, ...]:
        """Links upstream that were open and silent for the whole window, with an answer begun: idle ones look the same."""
        return tuple(
            link
            for link in self.up
            if link.state in ("open", "ended") and not link.rises and not link.asks and link.request > 0
        )

    @property
    def held_bytes(self) -> int:
        """Request bytes of the held requests, where the connection carried nothing else."""
        return sum(link.request if link.response == 0 else link.request_delta for link in self.held)


@dataclass(frozen=True, slots=True)
class Account:
    """All links of a capture and the account of every service; *end* is the time of the last look.

    Attributes:
        finished: Ids of links whose last exchange handed on one of our own probes that came back complete.
    """

    links: tuple[Link, ...]
    nodes: Mapping[str, NodeAccount]
    end: float
    finished: frozenset[str] = frozenset()


def account_of(capture: Capture, chain: Chain) -> Account:
    """Pair connection ends, judge the state of every link, and draw up each service's account."""
    end = max((sample.t_s for c in capture.connections for sample in c.samples), default=capture.window_s)
    links = tuple(links_of(capture.connections, chain, end))
    echoes = _echoes(links, capture.probes)
    nodes = {name: _node(name, links, chain, echoes) for name in chain.order}
    finished = _echoes(links, [p for p in capture.probes if p.terminated and p.error is None])
    return Account(links=links, nodes=nodes, end=end, finished=finished)


def _echoes(links: tuple[Link, ...], probes: Iterable[ProbeResult]) -> frozenset[str]:
    """Links on which a relay handed one of our own probes on: what they owe is owed to us, not to a user."""
    found: set[str] = set()
    for p in probes:
        for service in (*p.covers, *p.may_pass):
            near = [
                link
                for link in links
                if link.callee == service
                and not link.ours
                and link.id not in found
                and link.asked_at is not None
                and -0.1 <= link.asked_at - p.t_s <= 0.5
            ]
            if service != p.target and near:
                found.add(min(near, key=lambda link: abs((link.asked_at or 0.0) - p.t_s)).id)
    return frozenset(found)


def _node(name: str, links: tuple[Link, ...], chain: Chain, echoes: frozenset[str]) -> NodeAccount:
    seen = chain.services[name]
    down = tuple(link for link in links if link.callee == name)
    up = tuple(link for link in links if link.caller == name and link.callee != name)
    if seen.upstream:
        up = tuple(link for link in up if link.callee in seen.upstream)
    visible = bool(seen.pids) and all(link.server_seen for link in down if link.is_open)
    if not seen.pids:  # its own sockets are hidden: what reaches its upstream from nobody known may be its
        up += tuple(link for link in links if link.callee in seen.upstream and link.caller is None and not link.ours)
    users = tuple(link for link in down if not link.ours)
    owed = tuple(
        link
        for link in users
        if (link.state == "owed" or (link.gave_up and not link.left_before)) and link.id not in echoes
    )
    # An owed request below whose caller was not found may be this one's: then it passed it on, and does not hold it.
    nobodys = tuple(
        link
        for link in links
        if link.callee in seen.upstream and link.caller is None and not link.ours and link.state == "owed"
    )
    up += tuple(link for link in nobodys if link not in up)
    held = _unmatched(owed, up, _sides(seen.upstream or tuple({link.callee for link in up}), chain), echoes)
    return NodeAccount(
        name=name,
        down=users,
        own=tuple(link for link in down if link.ours),
        up=up,
        owed=owed,
        held=held if chain.is_relay(name) else (),
        visible=visible,
        echo=echoes,
    )


def _sides(upstream: tuple[str, ...], chain: Chain) -> list[set[str]]:
    """Services of one role, of which a request goes to one; to each role of a split pair it goes once."""
    sides: dict[str, set[str]] = {}
    for name in upstream:
        sides.setdefault(chain.role(name) if name in chain.services else "", set()).add(name)
    return list(sides.values())


def _unmatched(
    owed: tuple[Link, ...], up: tuple[Link, ...], sides: list[set[str]], echoes: frozenset[str]
) -> tuple[Link, ...]:
    """Pair every owed request with one that left upstream at about its time; what finds none, nowhere, is held."""
    found: set[str] = set()
    for side in sides:
        sent = sorted(
            (t for link in up if link.callee in side and not link.ours for t in sent_at(link)),
        )
        for link in sorted(owed, key=lambda one: one.asked_at or 0.0):
            assert link.asked_at is not None
            match = next((t for t in sent if -0.3 <= t - link.asked_at <= FORWARD_WITHIN_S), None)
            if match is not None:
                sent.remove(match)
                found.add(link.id)
        # One that takes its time before it hands on: whatever still waits upstream waits for somebody who came before.
        waits = [link for link in up if link.callee in side and link.state == "owed" and link.id not in echoes]
        late = sorted(link.asked_at for link in waits if link.asked_at in sent)
        for link in sorted(owed, key=lambda one: one.asked_at or 0.0):
            match = next((t for t in late if link.id not in found and t >= (link.asked_at or 0.0) - 0.3), None)
            if match is not None:
                late.remove(match)
                found.add(link.id)
    return tuple(link for link in owed if link.id not in found)
