"""A relay that spoils answers: it keeps back, cuts, garbles or refuses what the services below it gave."""

from collections.abc import Iterator

from vindicate.diagnose.account import NodeAccount
from vindicate.diagnose.hold import hold_mechanism, upstream_seen
from vindicate.diagnose.ladder import fault_class
from vindicate.diagnose.link import ANSWER_BYTES, Link, before_asks, sent_at
from vindicate.diagnose.rule import Against, Clue, Scene, count
from vindicate.record.observation import ProbeResult

__all__ = ["spoilers"]

_SAYS = {
    "silent": "was answered with nothing",
    "stalled": "began to answer and stopped",
    "no_end": "gave every token and never the end of the stream",
    "cut": "was cut off",
    "errors": "was answered with an error",
    "malformed": "came back malformed",
}


def spoilers(scene: Scene) -> Iterator[Clue]:
    """Clues to relays through which an answer does not come whole, though it does past them."""
    for name in scene.chain.order:
        if not scene.chain.is_relay(name):
            continue
        node = scene.account.nodes[name]
        probe = scene.ladder.worst_of(name) if name in scene.ladder.suspects else None
        kind = fault_class(probe) if probe else None
        mechanism = _mechanism(scene, node, probe, kind)
        if kind == "silent" and mechanism and node.flows(scene.account.end):
            yield Clue(
                service=name,
                kind="queue",
                direction="neutral",
                text=f"our request waited at {name} while answers flowed through it to its callers: a queue, or a stop that spares others",
                measured={"flowing": len(node.down_in("moving"))},
            )
            mechanism = None
        if probe is not None and kind == "silent" and not node.flows(scene.account.end):
            yield from _owed_below(scene, node, probe)
        if probe is not None and mechanism is not None:
            yield from _probe(scene, node, probe, mechanism)
        yield from _kept_back(scene, node, mechanism)
        yield from _orphans(scene, node)


def _mechanism(scene: Scene, node: NodeAccount, probe: ProbeResult | None, kind: str | None) -> str | None:
    """The fault that a bad answer through a relay shows; silence that was never handed on is another rule's."""
    role = scene.chain.role(node.name)
    role = role if role in ("proxy", "gateway", "router") else "proxy"
    if kind == "silent" and probe is not None:
        if not upstream_seen(scene, node):
            return hold_mechanism(scene, node.name)
        asked = node.asked_for(probe)
        # Nothing handed on is a hold, and what no service below answered is no answer held back.
        return f"{role}.holds_response" if asked and node.came_for(probe) >= ANSWER_BYTES else None
    return {
        "stalled": f"{role}.drop_stream",
        "no_end": "stream.missing_done_masked_by_heartbeat",
        "cut": f"{role}.cuts_streams",
        "malformed": "proxy.sse_reframing",
    }.get(kind or "")


def _owed_below(scene: Scene, node: NodeAccount, probe: ProbeResult) -> Iterator[Clue]:
    """Our probe went through, and the service below owes its answer: that one, or what it waits for, is as suspect."""
    for link in node.asked_for(probe):
        if (
            link.answered_between(probe.t_s - 0.1, probe.t_s + probe.total_s + 0.3)
            or link.callee not in scene.chain.services
        ):
            continue
        role = scene.chain.role(link.callee)
        mechanism = (
            hold_mechanism(scene, link.callee) if scene.chain.is_relay(link.callee) else f"{role}.no_first_token"
        )
        yield Clue(
            service=link.callee,
            kind="wait-for",
            mechanism=mechanism,
            strength=0.5,
            text=f"{node.name} handed our probe on to {link.callee} and was owed its answer until our deadline",
            measured={"owed_s": round(probe.total_s, 1)},
            basis="our probe",
        )


def _probe(scene: Scene, node: NodeAccount, probe: ProbeResult, mechanism: str) -> Iterator[Clue]:
    name, kind = node.name, fault_class(probe) or ""
    sole = scene.ladder.sole(name)
    busy = node.flows(scene.account.end) and kind in ("silent", "stalled")
    past = [p for p in scene.ladder.good if name not in p.covers]
    where = f"; straight to {past[0].target} it was complete in {past[0].total_s:.1f} s" if past else ""
    against = Against(name, mechanism)
    yield against(
        "probe",
        (0.75 if sole else 0.3) * (0.4 if busy else 1.0),
        f"a small request through {name} {_SAYS.get(kind, 'failed')}{where}",
        "our probe",
        through=probe.error,
        tokens=probe.n_tokens,
        past_s=round(past[0].total_s, 2) if past else None,
    )
    if not sole or busy:
        return
    if kind in ("stalled", "no_end", "silent") and not node.up_in("owed"):
        users = node.down_in("owed") or (kind == "stalled" and _stopped_early(node))
        open_own = [
            link for link in node.own if link.last_seen - link.began_at >= probe.total_s - 1.0 and link.request > 0
        ]
        if open_own or node.down_in("open", "owed"):
            waiting = len(node.down_in("open", "owed"))
            yield against(
                "wait-for",
                0.5,
                f"{name} left our stream open until our deadline while no service below it owed it anything",
                None if users else "our probe",
                callers_open=waiting,
                owed_upstream=0,
            )
    if scene.engines_idle(name) and (kind != "silent" or upstream_seen(scene, node)):
        yield against("counter", 0.5, "the engines below it were done: nothing running, nothing queued", in_work=0)
    same_shape = [p for p in past if p.response_bytes]
    came = node.came_for(probe)
    if probe.compressed:
        return  # its bytes are no measure of what came
    if came > 1.2 * probe.response_bytes + ANSWER_BYTES and upstream_seen(scene, node):
        yield against(
            "conservation",
            0.5,
            f"{came} answer bytes came to {name} for our probe, and it passed {probe.response_bytes} on",
            response_bytes_in=came,
            response_bytes_out=probe.response_bytes,
        )
    elif (
        kind in ("stalled", "no_end", "cut")
        and same_shape
        and probe.response_bytes < same_shape[0].response_bytes * 0.9
    ):
        yield against(
            "conservation",
            0.5,
            f"through {name} came {probe.response_bytes} bytes of an answer that is {same_shape[0].response_bytes} bytes past it",
            "our probe",
            bytes_through=probe.response_bytes,
            bytes_past=same_shape[0].response_bytes,
        )


def _kept_back(scene: Scene, node: NodeAccount, mechanism: str | None) -> Iterator[Clue]:
    """Answer bytes that came in and did not go out: grossly more than re-framing explains, or unread before its nose."""
    name = node.name
    role = scene.chain.role(name)
    fallback = mechanism or f"{role if role in ('proxy', 'gateway', 'router') else 'proxy'}.drop_stream"
    short = _stopped_early(node)
    if short and node.visible:
        came, went = (
            sum(u.response_delta or u.response for _, u in short),
            sum(d.response_delta or d.response for d, _ in short),
        )
        against = Against(name, fallback)
        yield against(
            "conservation",
            0.6 if len(short) > 1 else 0.5,
            f"{name} passed on {went} answer bytes of {count(len(short), 'stream')} and stopped, while {came} came to it from upstream",
            streams=len(short),
            response_bytes_in=came,
            response_bytes_out=went,
        )
        if not node.up_in("owed"):
            yield against(
                "wait-for",
                0.5,
                f"the callers of {name} are left with {count(len(short), 'stream')} that stopped, and no service below owes it anything",
                stopped_streams=len(short),
                owed_upstream=0,
            )
    unread = [link for link in node.up if link.unread_response > 0]
    blocked = [link for link in node.down if link.unsent_response > 0]
    if unread and not blocked:
        total = sum(link.unread_response for link in unread)
        yield Clue(
            service=name,
            kind="socket",
            mechanism=mechanism,
            strength=0.4,
            text=f"{name} leaves {total} answer bytes unread on {count(len(unread), 'connection')} upstream",
            measured={"unread_bytes": total, "connections": len(unread)},
        )


def _stopped_early(node: NodeAccount) -> list[tuple[Link, Link]]:
    """Streams that went out for a while and stopped, while upstream every stream that may be theirs came on for 1 s or more.

    A stream whose upstream exchange cannot be told apart from one that ended with it is left out: it may have been passed
    on whole. An upstream connection that took a new request since is taken as it was before that.
    """
    found: list[tuple[Link, Link]] = []
    ups = [*node.up, *(earlier for up in node.up if (earlier := before_asks(up)) is not None)]
    for down in node.down_in("open"):
        if down.asked_at is None or down.answered_at is None or down.answered_at - down.asked_at < 0.2:
            continue
        if down.unread_response > 0 or down.unsent_response > 0:
            continue  # its reader does not take it: that stops the best of relays
        start, stop = down.asked_at - 0.05, down.answered_at
        theirs = [up for up in ups if any(start <= t <= stop for t in sent_at(up))]
        if not theirs or any(
            up.asked_at is None or up.asked_at > stop or (up.answered_at or 0.0) < stop + 1.0 for up in theirs
        ):
            continue
        spare = [up for up in theirs if up.id not in {u.id for _, u in found}]
        went = down.response_delta if down.rises else down.response
        more = [up for up in spare if (up.response_delta if down.rises else up.response) > 1.5 * went + 500]
        if more:
            found.append((down, more[0]))
    return found


def _orphans(scene: Scene, node: NodeAccount) -> Iterator[Clue]:
    """Answers that flow to a relay whose callers have all gone."""
    lately = scene.account.end - 5.0
    flowing = [link for link in node.up_in("moving") if sum(t >= lately for t, _ in link.rises) >= 4]
    callers = [link for link in (*node.down, *node.own) if link.last_seen >= lately and link.request > 0]
    if len(flowing) >= 2 and not callers and node.visible:
        against = Against(node.name, "router.cancel_not_propagated")
        yield against(
            "socket",
            0.6,
            f"{node.name} still takes {count(len(flowing), 'stream')} from upstream, and nobody is connected to it",
            streams=len(flowing),
            callers=0,
        )
        yield against(
            "conservation",
            0.6,
            f"{sum(link.response_delta for link in flowing)} answer bytes came to {node.name} and none left it",
            response_bytes_in=sum(link.response_delta for link in flowing),
            response_bytes_out=0,
        )
