"""A path that lost a connection: one side sends again and again into silence, and the other end knows nothing of it."""

from collections.abc import Iterator

from vindicate.diagnose.clients import STANDS_S, Caller, callers_of, since_when
from vindicate.diagnose.link import Link
from vindicate.diagnose.rule import Against, Clue, Scene, count

__all__ = ["paths"]

MECHANISM = "net.half_open_nat"
_SENDS = ("ESTABLISHED", "FIN_WAIT1", "CLOSING", "LAST_ACK", "CLOSE_WAIT")
_MIN_RETRANSMITS = 2


def paths(scene: Scene) -> Iterator[Clue]:
    """Clues to paths between a client and the chain that swallow packets of some connections."""
    for caller in callers_of(scene):
        lost = tuple(link for link in caller.links if _into_silence_s(link, scene.account.end) >= STANDS_S)
        if lost:
            yield from _lost(scene, caller, lost)


def _into_silence_s(link: Link, end: float) -> float:
    """For how long the service had bytes on the way that were sent again and never acknowledged, though the window was open."""
    if link.server is None or link.server.samples[-1].retransmits < _MIN_RETRANSMITS:
        return 0.0
    samples = link.server.samples
    since = since_when(
        samples, lambda s: s.state in _SENDS and s.unsent > 0 and not s.zero_window and s.tx == samples[-1].tx
    )
    return end - since if since is not None else 0.0


def _lost(scene: Scene, caller: Caller, lost: tuple[Link, ...]) -> Iterator[Clue]:
    unsent = sum(link.server.samples[-1].unsent for link in lost if link.server is not None)
    again = sum(link.server.samples[-1].retransmits for link in lost if link.server is not None)
    ages = [link.server.samples[-1].last_ack_age_s for link in lost if link.server is not None]
    silent = min((age for age in ages if age is not None), default=None)
    service = lost[0].callee
    against = Against(caller.name, MECHANISM, layer="network")
    yield against(
        "socket",
        0.6,
        f"{service} has {unsent} answer bytes on {count(len(lost), 'connection')} to {caller.name}, sent them again {again} times, and hears nothing",
        connections=len(lost),
        unsent_bytes=unsent,
        retransmits=again,
        last_heard_s=None if silent is None else round(silent, 1),
    )
    waits = [
        link
        for link in lost
        if link.client is not None and link.client.pids and link.client.samples[-1].state == "ESTABLISHED"
    ]
    if waits:
        yield against(
            "conservation",
            0.6,
            f"{caller.name} still has {count(len(waits), 'connection')} of them open, waits, and got none of these bytes: its host did not lose them, the path did",
            client_established=len(waits),
        )
    heard = [
        link
        for link in caller.links
        if link not in lost and (link.rises or link.asks) and (link.unsent_response == 0 or link.state == "moving")
    ]
    if heard:
        yield against(
            "wait-for",
            0.55,
            f"{count(len(heard), 'other connection')} of {caller.name} carried bytes both ways meanwhile: the host is there, and some of its connections are forgotten on the way",
            connections_that_work=len(heard),
        )
    good = [p for p in scene.ladder.good if p.target == scene.chain.entry]
    if good:
        yield against(
            "probe",
            0.4,
            f"a request from this host through {good[0].target} was complete in {good[0].total_s:.1f} s",
            total_s=round(good[0].total_s, 2),
        )
