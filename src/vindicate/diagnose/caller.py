"""A client that holds itself up: it does not read its answers, does not see that they were closed, or asks for nothing."""

from collections.abc import Iterator

from vindicate.diagnose.clients import STANDS_S, Caller, callers_of, since_when
from vindicate.diagnose.link import Link
from vindicate.diagnose.rule import Against, Clue, Scene, count
from vindicate.record.diagnosis import FindingKind
from vindicate.record.observation import Connection

__all__ = ["callers"]

AT_ONCE_S = 0.5  # a close this soon after the last byte ended an exchange; one of an idle connection comes after its keep-alive time
SMALL_ANSWER_BYTES = 700
MUCH_BYTES = 4096


def callers(scene: Scene) -> Iterator[Clue]:
    """Clues to clients at which the chain waits, or that wait for nothing that the chain could give."""
    for caller in callers_of(scene):
        unread = list(_not_reading(scene, caller))
        closed = [] if unread else list(_half_closed(scene, caller))
        yield from unread or closed or _waits_inside(scene, caller)


# ---- answers that nobody takes ----------------------------------------------------------------------------------------


def _takes_nothing_s(link: Link, end: float) -> float:
    """For how long the client took no byte though some lay there for it; 0: it takes them, or there are none.

    What was received less what lies unread is what the process took. Of a client that is not seen, a window that stood closed
    while nothing was acknowledged tells the same.
    """
    if link.client is not None and link.client.pids:
        samples = link.client.samples
        taken = samples[-1].rx - samples[-1].unread
        still = since_when(samples, lambda s: s.unread > 0 and s.rx - s.unread == taken and s.counted)
        return end - still if still is not None else 0.0
    if link.server is None:
        return 0.0
    samples = link.server.samples
    still = since_when(samples, lambda s: s.zero_window and s.unsent > 0 and s.tx == samples[-1].tx and s.counted)
    return end - still if still is not None else 0.0


def _not_reading(scene: Scene, caller: Caller) -> Iterator[Clue]:
    end = scene.account.end
    left = [link for link in caller.links if link.is_open and _takes_nothing_s(link, end) >= STANDS_S]
    if not left:
        return
    unread = sum(link.client.samples[-1].unread for link in left if link.client is not None)
    came = sum(n for link in left for t, n in link.rises if t >= end - _takes_nothing_s(link, end))
    kept = [link for link in left if link.unsent_response > 0]
    much = unread >= MUCH_BYTES * len(left)  # no rest of an answer that somebody forgot
    # Who reads a lot at a time and then works on it takes no byte for long, too; while all fits into its buffers it holds nobody up.
    ends = [link.client.samples[-1] for link in left if link.client is not None]
    never = len(ends) == len(left) and all(end.rx - end.unread <= MUCH_BYTES for end in ends)
    stopped = next(
        (
            p
            for p in scene.processes(caller.name)
            if p.samples and all(s.state in "Tt" or s.frozen for s in p.samples[-3:])
        ),
        None,
    )
    held = bool(kept) or caller.said_to_hang or stopped is not None or (never and (came > 0 or much))
    age = min(_takes_nothing_s(link, end) for link in left)

    def clue(kind: FindingKind, strength: float, text: str, **measured: float) -> Clue:
        return Clue(
            service=caller.name,
            kind=kind,
            layer="client",
            mechanism="client.not_reading",
            strength=strength,
            text=text,
            measured={"connections": len(left), **measured},
        )

    where = f"{count(len(left), 'connection')}"
    text = f"{caller.name} took no byte for {age:.0f} s from {where} on which {unread} answer bytes lie unread"
    if not unread:
        text = f"{caller.name} keeps its window closed on {where} and took no byte for {age:.0f} s"
    yield clue("socket", 0.6 if held or much else 0.4, text, unread_bytes=unread, for_s=round(age, 1))
    if came:
        text = f"{came} answer bytes came to {caller.name} meanwhile, and it took none of them"
        yield clue("conservation", 0.6 if held else 0.2, text, bytes_came=came, bytes_taken=0)
    if stopped is not None:
        yield clue("process", 0.6, f"its process {stopped.pid} is stopped and runs no instruction", pid=stopped.pid)
    if kept:
        waiting = sum(link.unsent_response for link in kept)
        text = f"{kept[0].callee} stands with {waiting} answer bytes that it cannot hand over to {caller.name}"
        yield clue("wait-for", 0.6, text, unsent_bytes=waiting)
    yield from _passes(scene, caller, "client.not_reading", 0.5 if held else 0.3 if much else 0.25)
    yield from _named(caller, "client.not_reading")


# ---- closed by the other side, and not noticed ------------------------------------------------------------------------


def _closed_by_peer_s(connection: Connection, end: float) -> float:
    """How long it stands in CLOSE_WAIT, as far as it was seen; 0: it does not."""
    since = since_when(connection.samples, lambda s: s.state == "CLOSE_WAIT")
    return end - since if since is not None and not connection.closed else 0.0


def _in_an_exchange(connection: Connection) -> bool:
    """Whether the peer closed it in an exchange or at its very end, not after it had been idle.

    The peer's last packet is its FIN. Where that came right after the last answer byte, or a request after that byte has no
    answer, the connection was no idle one.
    """
    last = connection.samples[-1]
    if last.last_rx_age_s is None or last.last_tx_age_s is None:
        return False
    unanswered = last.tx > 0 and (last.rx == 0 or last.last_rx_age_s - last.last_tx_age_s > AT_ONCE_S)
    return unanswered or (
        last.rx > 0 and last.last_ack_age_s is not None and last.last_rx_age_s - last.last_ack_age_s <= AT_ONCE_S
    )


def _half_closed(scene: Scene, caller: Caller) -> Iterator[Clue]:
    end = scene.account.end
    ends = [link.client for link in caller.links if link.client is not None and link.client.pids]
    stand = [one for one in ends if _closed_by_peer_s(one, end) >= STANDS_S]
    if not stand:
        return
    ended = [one for one in stand if _in_an_exchange(one)]
    age = min(_closed_by_peer_s(one, end) for one in stand)
    works = bool(caller.under_way)
    measured: dict[str, str | float | int | bool | None] = {
        "close_wait": len(stand),
        "closed_in_an_exchange": len(ended),
        "for_s": round(age, 1),
    }
    if 2 * len(ended) <= len(stand) and not (caller.said_to_hang and not works):
        yield Clue(
            service=caller.name,
            kind="socket",
            direction="neutral",
            text=f"{caller.name} keeps {count(len(stand), 'connection')} that the other side closed while idle, as a pool does until it needs one",
            measured=measured,
        )
        return
    small = all(one.samples[-1].rx <= SMALL_ANSWER_BYTES for one in stand)
    slots = not ended or (len(ended) >= 3 and small)
    mechanism = "client.pool_slot_leak" if slots else "client.half_closed_ignored"
    how = "right after the last byte of an answer, or with a request unanswered" if ended else "long ago"
    against = Against(caller.name, mechanism, layer="client")
    yield against(
        "socket",
        (0.65 if ended else 0.5) * (0.6 if works else 1.0),
        f"{caller.name} holds {count(len(stand), 'connection')} that the other side closed at least {age:.0f} s ago, {how}, and has not closed them",
        **measured,
    )
    yield from _passes(scene, caller, mechanism, 0.25 if works else 0.5)
    if not works:
        yield against(
            "wait-for",
            0.4,
            f"no service owes {caller.name} anything: no request of its was under way in the whole window",
            requests_under_way=0,
        )
    yield from _named(caller, mechanism)


# ---- said to hang, and asks for nothing -------------------------------------------------------------------------------


def _waits_inside(scene: Scene, caller: Caller) -> Iterator[Clue]:
    if not caller.said_to_hang or not caller.processes or caller.under_way or scene.ladder.bad:
        return
    if any(not p.readable for p in caller.processes):
        return  # its sockets cannot be told
    still_open = [link for link in caller.links if link.is_open]
    entry = scene.chain.entry
    finished = scene.ladder.ran and all(scene.progress[name].work in ("idle", "unknown") for name in scene.leaves)
    if still_open and not finished:
        return  # a begun answer of its may be stuck further down
    if still_open and not any(scene.progress[name].work == "idle" for name in scene.leaves):
        return
    mechanism = "client.pool_slot_leak" if not still_open and caller.n_threads >= 4 else "client.waits_inside"
    where = f"{count(len(still_open), 'idle connection')} to {entry}" if still_open else f"no connection to {entry}"
    yield Clue(
        service=caller.name,
        kind="socket",
        layer="client",
        mechanism=mechanism,
        strength=0.5,
        text=f"{caller.name} has {where}, and sent no request in the whole window",
        measured={"connections": len(still_open), "requests": 0},
    )
    yield from _passes(scene, caller, mechanism, 0.5)
    yield from _named(caller, mechanism)


def _passes(scene: Scene, caller: Caller, mechanism: str, strength: float) -> Iterator[Clue]:
    """A request from a fresh process passes where this client hangs: what is wrong is in the old process."""
    good = [p for p in scene.ladder.good if p.target == scene.chain.entry]
    if good and not scene.ladder.bad:
        yield Clue(
            service=caller.name,
            kind="probe",
            layer="client",
            mechanism=mechanism,
            strength=strength,
            text=f"a fresh request through {good[0].target} was complete in {good[0].total_s:.1f} s while {caller.name} stood",
            measured={"total_s": round(good[0].total_s, 2)},
        )


def _named(caller: Caller, mechanism: str) -> Iterator[Clue]:
    """The user's word that it hangs, and that its processes sleep."""
    if not caller.said_to_hang or not caller.asleep:
        return
    yield Clue(
        service=caller.name,
        kind="process",
        layer="client",
        mechanism=mechanism,
        strength=0.5,
        text=f"{caller.name}, which was named as hanging, sleeps with {count(caller.n_threads, 'thread')} and uses no CPU",
        measured={"threads": caller.n_threads, "cpu_share": round(caller.cpu_share or 0.0, 3)},
    )
