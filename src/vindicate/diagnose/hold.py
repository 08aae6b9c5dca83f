"""A relay that holds requests: it owes its callers, is owed nothing upstream, and what came in never left."""

from collections.abc import Iterator
from dataclasses import replace

from vindicate.diagnose.account import NodeAccount
from vindicate.diagnose.dispatch import strangers
from vindicate.diagnose.ladder import fault_class
from vindicate.diagnose.link import Link, sent_at
from vindicate.diagnose.rule import Against, Clue, Scene, count, oldest
from vindicate.record.observation import ProbeResult

__all__ = ["hold_mechanism", "holds", "upstream_seen", "went_nowhere"]

PATIENCE_S = 3.0  # a relay may look at a request, or translate it, before it hands it on
DISTINCT = 3  # so many callers do not all keep half a request back, or a connection open for news

_HELD = {"proxy": "proxy.connector_starvation", "gateway": "proxy.connector_starvation", "router": "router.hold"}


def hold_mechanism(scene: Scene, name: str) -> str:
    """What a relay that holds requests suffers from, by how its upstream side looks."""
    node = scene.account.nodes[name]
    connecting = node.up_in("connecting")
    if (connecting or strangers(scene, name)) and not node.up_active:
        return "router.ghost_endpoint"
    mechanism = _HELD.get(scene.chain.role(name), "proxy.connector_starvation")
    since = min((link.asked_at or 0.0 for link in node.held), default=float("inf")) + PATIENCE_S
    if mechanism != "router.hold" and any(t > since for link in node.up_in("open") for t, _ in link.rises):
        return "unknown"  # others of its requests find a connection upstream: its pool has not run dry
    return mechanism


def holds(scene: Scene) -> Iterator[Clue]:
    """Clues to relays that keep requests to themselves."""
    for name in scene.chain.order:
        if not scene.chain.is_relay(name):
            continue
        node = scene.account.nodes[name]
        probes = [p for p in scene.ladder.bad_at(name) if fault_class(p) == "silent"]
        unsent = [p for p in probes if went_nowhere(scene, node, p)]
        joined = _one_leg_only(scene, name)
        if joined is not None:
            yield from _lost_leg(scene, node, joined)
            continue
        held = tuple(link for link in node.held if link.waited_s >= PATIENCE_S)
        if not held and not (unsent and name in scene.ladder.suspects):
            continue
        busy = _busy(scene, node, unsent)
        if busy is not None:
            yield Clue(
                service=name,
                kind="queue",
                direction="neutral",
                text=f"{count(len(held) or 1, 'request')} waited at {name} while {busy}: a queue, not a stop",
                measured={
                    "held": len(held),
                    "flowing": len(node.up_in("moving", "uploading")),
                    "owed_upstream": len(node.awaited),
                },
            )
            continue
        node = replace(node, held=held)
        yield from _wait_for(scene, node, unsent)
        yield from _conservation(scene, node, unsent)
        if unsent and name in scene.ladder.suspects:
            yield from _probe(scene, node, unsent)
        yield from _upstream_side(scene, node, unsent)


def _weight(scene: Scene, name: str, strength: float) -> float:
    """A probe that came back through it, or answers that flow through it, show that it holds some requests at most."""
    partly = scene.ladder.proven(name) or bool(scene.account.nodes[name].up_in("moving"))
    return strength * 0.5 if partly else strength


def _busy(scene: Scene, node: NodeAccount, unsent: list[ProbeResult]) -> str | None:
    """What it does for other requests meanwhile, and so why one may wait its turn: answers flow, or are owed to it.

    Connections upstream on which answers stand unread are not idle ones: with them it is no mere queue.
    """
    flowing = node.up_in("moving", "uploading")
    if any(link.unread_response > 0 for link in node.pinned):
        return None
    if flowing:
        return f"{count(len(flowing), 'answer')} flowed through it"
    if node.awaited:
        return (
            f"{count(len(node.awaited), 'answer')} was owed to it from below"
            if len(node.awaited) == 1
            else f"{len(node.awaited)} answers were owed to it from below"
        )
    moving = [below for below in scene.chain.below(node.name) if scene.progress[below].work == "moving"]
    return f"{moving[0]} below it worked on users' requests" if moving and not unsent else None


def upstream_seen(scene: Scene, node: NodeAccount) -> bool:
    """Whether all that leaves *node* for the services below it is seen and counted, from its own side or from theirs."""
    below = [
        scene.chain.services[name] for name in scene.chain.services[node.name].upstream if name in scene.chain.services
    ]
    seen = node.visible or (bool(below) and all(service.pids and not service.remote for service in below))
    return seen and all(link.counted for link in node.up)


def went_nowhere(scene: Scene, node: NodeAccount, probe: ProbeResult) -> bool:
    """Whether the probe came to the relay and nothing of its size left upstream while it waited; unknown sides count as left."""
    if not upstream_seen(scene, node) or any(not link.counted for link in node.own):
        return False
    if probe.t_s > scene.account.end - 1.0:  # sent when nobody looked at the sockets any more
        return False
    size = max(40, probe.request_bytes // 2)
    return not any(link.asked_between(probe.t_s - 0.1, probe.t_s + probe.total_s + 0.3, size) for link in node.up)


def _one_leg_only(scene: Scene, name: str) -> tuple[str, tuple[Link, ...]] | None:
    """The one leg of a split pair that was asked while the other never heard of it, though the pair answers: role, owed links."""
    node = scene.account.nodes[name]
    roles = {scene.chain.role(below) for below in scene.chain.services[name].upstream}
    owed = node.up_in("owed")
    legs = {scene.chain.role(link.callee) for link in owed} & {"prefill", "decode"}
    if not {"prefill", "decode"} <= roles or len(legs) != 1 or node.up_in("moving"):
        return None
    if not all(scene.ladder.proven(link.callee) for link in owed):
        return None
    leg = legs.pop()
    other = [
        t for link in node.up if scene.chain.role(link.callee) in {"prefill", "decode"} - {leg} for t in sent_at(link)
    ]
    alone = tuple(link for link in owed if not any(abs(t - (link.asked_at or 0.0)) <= 1.5 for t in other))
    if leg == "decode":  # a prefill leg that ended before we looked leaves no trace: only what we saw begin counts
        alone = tuple(link for link in alone if (link.asked_at or 0.0) >= 0.5)
    return (leg, alone) if alone else None


def _lost_leg(scene: Scene, node: NodeAccount, joined: tuple[str, tuple[Link, ...]]) -> Iterator[Clue]:
    (leg, owed), name = joined, node.name
    other = "decode" if leg == "prefill" else "prefill"
    mechanism = "router.dual_dispatch_join" if leg == "prefill" else "router.prefill_failure_swallowed"
    text = f"{name} waits for {leg} with {count(len(owed), 'request')}, the oldest for {oldest(owed):.1f} s, and for {other} with none: such a pair never meets"
    measured: dict[str, str | float | int | bool | None] = {
        f"owed_by_{leg}": len(owed),
        f"owed_by_{other}": 0,
        "oldest_s": oldest(owed),
    }
    against = Against(name, mechanism)
    yield against("wait-for", 0.6, text, **measured)
    if name in scene.ladder.suspects:
        sole = scene.ladder.suspects == {name}
        text = f"a small request through {name} failed, and the same sent to prefill and decode as a pair was complete"
        yield against("probe", 0.75 if sole else 0.35, text)
    idle = [
        below
        for below in scene.chain.services[name].upstream
        if scene.chain.role(below) == other and scene.progress[below].work == "idle"
    ]
    if idle:
        yield against("counter", 0.4, f"{idle[0]} holds nothing of them: nothing running, nothing queued")


def _wait_for(scene: Scene, node: NodeAccount, unsent: list[ProbeResult]) -> Iterator[Clue]:
    name, mechanism = node.name, hold_mechanism(scene, node.name)
    against = Against(name, mechanism)
    if node.held:
        age = oldest(node.held)
        strength = 0.6 if len(node.held) >= 2 or age >= 5 or unsent else 0.4
        text = (
            f"{name} owes {count(len(node.held), 'request')}, the oldest for {age:.1f} s, and no service below it was asked for "
            f"{'it' if len(node.held) == 1 else 'them'}"
        )
        yield against(
            "wait-for",
            _weight(scene, name, strength),
            text,
            "held requests",
            owed=len(node.owed),
            held=len(node.held),
            owed_upstream=len(node.up_in("owed")),
            oldest_s=age,
        )
    elif unsent:
        yield against(
            "wait-for",
            0.5,
            f"{name} owed our own probe for {unsent[0].total_s:.1f} s and was itself owed nothing",
            "our probe",
            owed_to_probe_s=round(unsent[0].total_s, 1),
            owed_upstream=len(node.up_in("owed")),
        )


def _conservation(scene: Scene, node: NodeAccount, unsent: list[ProbeResult]) -> Iterator[Clue]:
    name, mechanism = node.name, hold_mechanism(scene, node.name)
    against = Against(name, mechanism)
    if node.held and node.held_bytes > 0:
        since = min(link.asked_at or 0.0 for link in node.held) - 0.3
        left = sum(n for link in node.up for t, n in link.asks if t >= since)
        left += sum(link.request for link in node.awaited if not link.asks and (link.asked_at or 0.0) >= since)
        unread = sum(link.unread_request for link in node.held)
        if left < node.held_bytes / 2 and upstream_seen(scene, node):
            took = node.held_bytes - unread
            text = f"{name} took in {took} request bytes of them and passed {left} on"
            yield against(
                "conservation",
                _weight(scene, name, 0.6),
                text,
                "bytes upstream" if unsent or len(node.held) >= DISTINCT else "held requests",
                request_bytes_in=took,
                request_bytes_out=left,
                unread_bytes=unread,
            )
            return
    if unsent:
        taken = sum(p.request_bytes for p in unsent)
        yield against(
            "conservation",
            0.6,
            f"our own probe's {taken} request bytes reached {name}, and nothing of that size left it for any service below",
            "bytes upstream",
            request_bytes_in=taken,
            request_bytes_out=0,
        )


def _probe(scene: Scene, node: NodeAccount, unsent: list[ProbeResult]) -> Iterator[Clue]:
    name = node.name
    sole = scene.ladder.sole(name, below=scene.chain.below(name))  # what never left it reached nobody below
    past = [p for p in scene.ladder.good if name not in p.covers]
    where = f"; straight to {past[0].target} it was complete in {past[0].total_s:.1f} s" if past else ""
    strength = _weight(scene, name, 0.75 if sole else 0.35)
    yield Clue(
        service=name,
        kind="probe",
        mechanism=hold_mechanism(scene, name),
        strength=strength,
        text=f"a small request through {name} got no answer in {unsent[0].total_s:.1f} s{where}",
        measured={
            "through": unsent[0].error,
            "through_s": round(unsent[0].total_s, 1),
            "past_s": round(past[0].total_s, 2) if past else None,
        },
        basis="our probe",
    )


def _upstream_side(scene: Scene, node: NodeAccount, unsent: list[ProbeResult]) -> Iterator[Clue]:
    """How the upstream side of a holding relay looks: pinned connections, or none at all; and engines with nothing to do."""
    name, mechanism = node.name, hold_mechanism(scene, node.name)
    against = Against(name, mechanism)
    if node.pinned and (node.visible or any(link.server_seen for link in node.pinned)):
        unread = sum(link.unread_response for link in node.pinned)
        text = f"its {count(len(node.pinned), 'connection')} upstream stood open and silent all the time"
        text += f", with {unread} answer bytes that it did not read" if unread else ""
        yield against(
            "socket",
            _weight(scene, name, 0.4),
            text,
            None if unread else "bytes upstream",
            pinned_upstream=len(node.pinned),
            unread_bytes=unread,
        )
    elif not [link for link in node.up if link.is_open] and node.visible:
        yield against(
            "socket",
            _weight(scene, name, 0.4),
            f"{name} has no connection to any service below it",
            "bytes upstream",
            upstream=0,
        )
    if scene.engines_idle(name):
        engines = [below for below in scene.chain.below(name) if below in scene.leaves]
        yield against(
            "counter",
            _weight(scene, name, 0.4),
            f"{' and '.join(engines)} had nothing running and nothing queued all the while",
            None if unsent or len(node.held) >= DISTINCT else "bytes upstream",
            **{f"{engine}_in_work": scene.progress[engine].in_work_last for engine in engines},
        )
