"""An engine that does not give what it owes: no first token, a stream that stops, an end that never comes."""

from collections.abc import Iterator

from vindicate.diagnose.ladder import fault_class
from vindicate.diagnose.legs import refusing_sides
from vindicate.diagnose.link import Link
from vindicate.diagnose.rule import Against, Clue, Scene, count, oldest
from vindicate.record.observation import ProbeResult

__all__ = ["stalls"]

GOES_ON_S = 1.5  # what comes later than this after its request, or before another request, is more than the beginning of an answer
LONG_PROMPT_S = 24.0  # three times a probe's usual patience: a request without a byte for so long waits for no long prompt, as a rule

_SUFFIX = {
    "silent": "no_first_token",
    "stalled": "stall_mid_stream",
    "no_end": "no_end",
    "cut": "cuts_streams",
    "malformed": "malformed_stream",
    "errors": "answers_errors",
    "refused": "no_first_token",
}
_SAYS = {
    "silent": "gave no byte of an answer",
    "stalled": "gave {n} tokens and stopped",
    "no_end": "gave all its tokens and a finish reason, and never the end of the stream",
    "cut": "was cut off",
    "malformed": "came back malformed",
    "errors": "was answered with an error",
    "refused": "was refused",
}


def stalls(scene: Scene) -> Iterator[Clue]:
    """Clues to engines that owe answers and do not give them."""
    left_waiting = {leg.waits for leg in refusing_sides(scene)}
    for name in scene.leaves:
        if name in left_waiting:
            continue  # what it holds waits for the other side of its pair
        probe, share = _probe_against(scene, name)
        kind = fault_class(probe) if probe else None
        role = scene.chain.role(name)
        role = role if role in ("prefill", "decode") else "engine"
        mechanism = f"{role}.{_SUFFIX[kind]}" if kind in _SUFFIX else None
        if role == "prefill" and mechanism is not None:
            mechanism = _prefill_mechanism(scene, name)
        elif kind == "silent" and _stopped_in_the_middle(scene, name):
            mechanism = f"{role}.stall_mid_stream"
        if probe is not None and mechanism is not None and kind is not None and kind not in ("errors", "refused"):
            busy = _answers_others(scene, name, kind)
            text = f"a small request straight to {name} {_SAYS[kind].format(n=probe.n_tokens)} in {probe.total_s:.1f} s"
            if probe.target != name:
                text = f"a small request through {probe.target}, which needs {name}, {_SAYS[kind].format(n=probe.n_tokens)}"
            yield Clue(
                service=name,
                kind="probe",
                mechanism=mechanism,
                strength=share * (0.4 if busy else 1.0),
                text=text,
                measured={"error": probe.error, "tokens": probe.n_tokens, "finish_reason": probe.finish_reason},
                basis="our probe",
            )
        yield from _engine_figures(scene, name, role, kind, mechanism)
        yield from _links(scene, name, role, mechanism, probe)
        yield from _some_stand_still(scene, name, role)


def _answers_others(scene: Scene, name: str, kind: str | None) -> bool:
    """Whether it serves others while it leaves our request alone. One that stops in mid-answer begins to answer others, too."""
    node, progress = scene.account.nodes[name], scene.progress[name]
    if kind == "stalled" and node.visible and node.down:
        lately = scene.account.end - 3.0
        going_on = any(
            link.rises[-1][0] - (link.asked_at or 0.0) >= GOES_ON_S or sum(t >= lately for t, _ in link.asks) > 1
            for link in node.down
            if link.rises and link.answered_since(lately)
        )
        return going_on or (progress.ended_delta or 0.0) > 0
    return kind in ("silent", "stalled") and scene.moves(name)


def _probe_against(scene: Scene, name: str) -> tuple[ProbeResult | None, float]:
    """The bad probe that speaks of *name*, and how far it points to it alone."""
    if name not in scene.ladder.suspects:
        return None, 0.0
    probe = scene.ladder.worst_of(name)
    if probe is None:
        return None, 0.0
    if scene.ladder.suspects == {name}:
        return probe, 0.75
    kind, role = fault_class(probe), scene.chain.role(name)
    others = scene.ladder.suspects - {name}
    if {scene.chain.role(other) for other in others} == {"prefill"} and role == "decode":
        if kind in ("stalled", "no_end", "cut", "malformed"):
            return probe, 0.75  # tokens came: prefill had done its part
        legs_fine = all(_prefill_is_done(scene, other, probe) for other in others)
        return probe, 0.75 if legs_fine else 0.3
    if role == "prefill" and (kind in ("stalled", "no_end") or _prefill_is_done(scene, name, probe)):
        return None, 0.0
    if kind in ("stalled", "no_end", "silent") and all(scene.chain.is_relay(other) for other in others):
        return probe, 0.4
    return probe, 0.3


def _prefill_is_done(scene: Scene, name: str, probe: ProbeResult) -> bool:
    """Whether prefill did its part of the probe: its leg ended well, or it says that it holds nothing."""
    return probe.legs.get(name, "unknown") is None or scene.progress[name].work == "idle"


def _stopped_in_the_middle(scene: Scene, name: str) -> bool:
    """Whether requests that had begun to be answered stay in the running batch, though a fresh one gets nothing at all."""
    running = scene.progress[name].floor("running")
    return scene.progress[name].work == "stuck" and running is not None and running >= 1 and bool(_silent(scene, name))


def _prefill_mechanism(scene: Scene, name: str) -> str:
    inflight = scene.progress[name].floor("inflight")
    return "prefill.inflight_parked" if inflight is not None and inflight >= 1 else "prefill.no_first_token"


def _engine_figures(scene: Scene, name: str, role: str, kind: str | None, mechanism: str | None) -> Iterator[Clue]:
    progress = scene.progress[name]
    node = scene.account.nodes[name]
    waits = bool(node.owed) or bool(_silent(scene, name))
    proven = scene.ladder.proven(name)
    if _waits_on_partner(scene, name) and progress.work != "moving":
        where = ", ".join(
            f"{stage} {reading.last:g}"
            for stage, reading in sorted(progress.gauges.items())
            if stage != "http" and reading.floor >= 1
        )
        yield Clue(
            service=name,
            kind="queue",
            direction="neutral",
            text=f"the requests at {name} all wait for the other side of the pair ({where})",
            measured={"in_work": progress.in_work},
        )
        return
    if progress.work == "stuck" and (waits or kind is not None):
        in_work = progress.in_work or 0
        where = ", ".join(
            f"{stage} {reading.last:g}"
            for stage, reading in sorted(progress.gauges.items())
            if stage != "http" and reading.floor >= 1
        )
        yield Clue(
            service=name,
            kind="counter",
            mechanism=mechanism or _stuck_mechanism(scene, name, role),
            strength=(0.4 if proven and (progress.http_active or 0) < 1 else 0.6)
            if _not_a_prompt(scene, name, kind)
            else 0.15,
            text=f"{name} held {in_work:g} requests for {progress.span_s:.0f} s ({where}) and none of its counters moved for them",
            measured={"in_work": in_work, "tokens": 0.0, "span_s": round(progress.span_s, 1)},
        )
    elif progress.work == "stuck":
        yield Clue(
            service=name,
            kind="counter",
            direction="neutral",
            text=f"{name} still shows {progress.in_work:g} requests in work, but nobody waits for them: a stale gauge",
            measured={"in_work": progress.in_work},
        )
    unfinished = (progress.http_active or 0) - _held_by_readers(scene)
    done = progress.in_work_last is not None and progress.in_work_last < 1
    against = Against(name, mechanism or f"{role}.no_end")
    if role != "prefill" and unfinished >= 1 and done and progress.work != "moving":
        yield against(
            "counter",
            0.6,
            f"{name} has nothing running or queued, yet {unfinished:g} of its HTTP answers stayed unfinished all the while",
            in_work=progress.in_work_last,
            http_active=unfinished,
        )
    elif (
        role != "prefill"
        and scene.awaited.get(name, 0.0) >= 1
        and done
        and progress.work != "moving"
        and _silent(scene, name)
    ):
        awaited = scene.awaited[name]
        yield against(
            "counter",
            0.6 if kind == "no_end" else 0.35,
            f"{name} has nothing running or queued, yet its caller awaited {awaited:g} answers from it all the while",
            in_work=progress.in_work_last,
            awaited_by_caller=awaited,
        )
        if kind is None:
            yield Clue(
                service=name,
                kind="wait-for",
                mechanism=f"{role}.no_end",
                strength=0.4,
                text=f"{count(len(_silent(scene, name)), 'stream')} from {name} stand open with nothing coming",
                measured={"silent_streams": len(_silent(scene, name))},
            )
    elif kind == "no_end" and done:
        yield Clue(
            service=name,
            kind="counter",
            mechanism=mechanism,
            strength=0.5,
            text=f"{name} was done with the request (nothing running or queued) while our stream to it stayed open",
            measured={"in_work": progress.in_work_last},
        )


def _stuck_mechanism(scene: Scene, name: str, role: str) -> str:
    gauges = scene.progress[name].gauges
    if role == "prefill":
        return _prefill_mechanism(scene, name)
    if role == "decode" and "running" in gauges and gauges["running"].floor < 1:
        return "decode.no_first_token"
    return f"{role}.stall_mid_stream"


def _waits_on_partner(scene: Scene, name: str) -> bool:
    """Whether an engine of a split pair holds its requests only in stages in which the other side is to act.

    A decode in prealloc or transfer waits for KV from prefill; a prefill in bootstrap waits for decode to take part.
    """
    progress = scene.progress[name]
    if scene.chain.role(name) == "prefill":
        own, waits = progress.floor("running", "waiting", "inflight"), progress.floor("bootstrap")
    else:
        own, waits = progress.floor("running", "waiting", "retracted"), progress.floor("prealloc", "transfer")
    return own is not None and own < 1 and (waits or 0) >= 1


def _held_by_readers(scene: Scene) -> int:
    """Connections on which an answer stands unread or unsent: somebody nearer to the client does not take it."""
    return sum(link.unsent_response > 0 or link.unread_response > 0 for link in scene.account.links if link.is_open)


def _occupied(scene: Scene, name: str) -> bool:
    """Whether callers of the silent links opened new ones meanwhile: idle ones, kept alive, they would have used again."""
    callers = {link.caller for link in _silent(scene, name)}
    return any(
        link.began_at >= 0.5 and link.asks and link.caller in callers
        for link in scene.account.nodes[name].down
        if link.caller is not None
    )


def _not_a_prompt(scene: Scene, name: str, kind: str | None) -> bool:
    """Whether silence at *name* cannot be the work on a long prompt.

    Our own probe was given tokens; or users have waited for several times its usual patience; or the stage in which requests stand
    still is not that of prompts; or a counter that would move with a prompt stands still too.
    """
    progress, node = scene.progress[name], scene.account.nodes[name]
    if kind in ("stalled", "no_end", "cut", "malformed"):
        return True
    if oldest(node.owed) >= LONG_PROMPT_S:
        return True
    if progress.work == "idle" and kind is not None:
        return True  # it says itself that it works on none
    if progress.work != "stuck":
        return False
    role = scene.chain.role(name)
    handing_over = (progress.floor("bootstrap", "inflight", "prealloc", "transfer") or 0) >= 1
    decodes = (progress.floor("running") or 0) >= 1 and role == "decode"
    silent_all = kind is None and bool(_silent(scene, name)) and not node.owed
    return progress.shows_prefill or handing_over or decodes or silent_all


def _silent(scene: Scene, name: str) -> tuple[Link, ...]:
    """Callers' links on which an answer was begun and nothing came all through the window, or no more since at least 3 s."""
    node = scene.account.nodes[name]
    end = scene.account.end
    return tuple(link for link in node.down_in("open") if end - (link.answered_at or 0.0) >= 3.0)


def _links(scene: Scene, name: str, role: str, mechanism: str | None, probe: ProbeResult | None) -> Iterator[Clue]:
    """Who waits for this engine: it owes, and as it calls nobody it is owed nothing."""
    node, progress = scene.account.nodes[name], scene.progress[name]
    kind = fault_class(probe) if probe else None
    owed = tuple(link for link in node.owed if link.waited_s >= 3.0)
    silent = _silent(scene, name)
    unfinished = (progress.http_active or 0) - _held_by_readers(scene)
    stuck = progress.work == "stuck" or (unfinished >= 1 and progress.work != "moving")
    if node.down_in("moving") and kind is None:
        return
    if _answers_others(scene, name, kind):
        yield Clue(
            service=name,
            kind="queue",
            direction="neutral",
            text=f"our request waited at {name} while it answered others: a queue, or a stop that spares others",
            measured={"owed": len(owed), "streams_that_move": len(node.down_in("moving"))},
        )
        return
    if _waits_on_partner(scene, name) and kind in (None, "silent"):
        return
    against = Against(name, mechanism)
    if owed and not scene.ladder.proven(name):
        yield Clue(
            service=name,
            kind="wait-for",
            mechanism=mechanism or (_stuck_mechanism(scene, name, role) if stuck else f"{role}.no_first_token"),
            strength=(0.6 if stuck or kind is not None else 0.4) if _not_a_prompt(scene, name, kind) else 0.15,
            text=f"{name} owes {count(len(owed), 'request')} that reached it, the oldest for {oldest(owed):.1f} s, and waits for nobody",
            measured={"owed": len(owed), "oldest_s": oldest(owed)},
        )
    elif silent and (stuck or kind in ("stalled", "no_end")):
        n_stuck = max(progress.in_work or 0, unfinished)
        open_at_entry = _open_at_entry(scene)
        if kind is None and scene.ladder.proven(name) and not _occupied(scene, name):
            return
        if kind is None and not (
            open_at_entry >= 1 and n_stuck >= 1 and 2 * len(silent) >= n_stuck and role != "prefill"
        ):
            return
        yield Clue(
            service=name,
            kind="wait-for",
            mechanism=mechanism or _silent_mechanism(scene, name, role),
            strength=0.6 if kind is not None else 0.55,
            text=f"{count(len(silent), 'stream')} from {name} stand open with nothing coming, and {name} waits for nobody",
            measured={"silent_streams": len(silent), "open_at_entry": open_at_entry},
        )
    elif probe is not None and kind in ("stalled", "no_end", "silent") and probe.target == name:
        yield against(
            "wait-for",
            0.5,
            f"{name} owed our own probe until its deadline, and waits for nobody",
            "our probe",
            owed_to_probe_s=round(probe.total_s, 1),
        )
    unsent = sum(link.unsent_response for link in (*silent, *node.own))
    if kind in ("stalled", "no_end") and node.visible and unsent == 0 and (silent or node.own):
        yield against(
            "socket",
            0.4,
            f"the sockets of {name} hold nothing unsent: it is not the network or a reader that holds these answers up",
            None if silent else "our probe",
            unsent_bytes=0,
        )


def _some_stand_still(scene: Scene, name: str, role: str) -> Iterator[Clue]:
    """Requests in the running batch that get no token while others do: more run than there are streams that move."""
    progress, node = scene.progress[name], scene.account.nodes[name]
    running = progress.gauges.get("running")
    if running is None or progress.work != "moving" or role == "prefill" or len(running.values) < 2:
        return
    if scene.seldom_looked:
        return
    n_running = min(value for _, value in running.values[-2:])
    silent = _silent(scene, name)
    # One that was just asked again, of whose new answer hardly anything has come, is open and not silent.
    getting = len(node.down_in("moving", "young", "owed", "uploading", "open")) - len(silent)
    # One request may run as several (n > 1), and idle connections are silent too: where its own count of answers is known, it rules.
    unfinished = progress.http_active if progress.http_active is not None else float("inf")
    pinned = min(n_running - getting, len(silent), _open_at_entry(scene) - getting, unfinished - getting)
    if pinned < 1:
        return
    all_along = all(value - getting >= pinned for _, value in running.values)
    measured: dict[str, str | float | int | bool | None] = {
        "running": n_running,
        "streams_that_move": getting,
        "silent_streams": len(silent),
    }
    mechanism = f"{role}.stall_mid_stream"
    against = Against(name, mechanism)
    yield against(
        "counter",
        0.55 if all_along else 0.4,
        f"{name} runs {n_running:g} requests, and only {count(getting, 'stream')} from it moved",
        **measured,
    )
    yield against(
        "wait-for",
        0.5,
        f"{count(len(silent), 'stream')} from {name} stand open with nothing coming, and {name} waits for nobody",
        **measured,
    )


def _silent_mechanism(scene: Scene, name: str, role: str) -> str:
    progress = scene.progress[name]
    done = progress.in_work_last is not None and progress.in_work_last < 1
    return f"{role}.no_end" if done else _stuck_mechanism(scene, name, role)


def _open_at_entry(scene: Scene) -> int:
    entry = scene.chain.entry
    if entry is None:
        return 0
    return len(scene.account.nodes[entry].down_in("open", "owed", "moving"))
