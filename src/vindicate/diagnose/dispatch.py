"""How a relay admits, chooses and lets go: refusals with nobody inside, workers that are not there, counts and streams of callers who left."""

from collections.abc import Iterator

from vindicate.diagnose.chain import address_in
from vindicate.diagnose.ladder import fault_class
from vindicate.diagnose.link import ANSWER_BYTES, MIN_REQUEST_BYTES, Link, sent_at
from vindicate.diagnose.progress import LATE_LOOKS
from vindicate.diagnose.rule import Against, Clue, Scene, count, oldest
from vindicate.record.observation import ProbeResult, Scrape

__all__ = ["dispatches", "strangers", "worker_figures"]

_PATIENCE_S = 3.0
_CALLER_WITHIN_S = 1.5
_REFUSES_FOR_LOAD = ("too many", "concurren", "queue", "rate limit", "capacity", "permit", "overload")
_TRANSFER_FAILURES = ("num_transfer_failed_reqs_total", "num_failed_transfers_total", "num_kv_expired_reqs_total")
_ACTIVE_NAMES = ("worker_requests_active", "worker_inflight_requests", "active_load", "worker_load")


def dispatches(scene: Scene) -> Iterator[Clue]:
    """Clues to relays that admit, choose or release badly."""
    for name in scene.chain.order:
        if scene.chain.is_relay(name):
            yield from _turned_away(scene, name)
            yield from _breaker(scene, name)
            yield from _ghost(scene, name)
            yield from _orphans(scene, name)
            yield from _funnel(scene, name)
            yield from _lost_leg(scene, name)


# ---- admission -------------------------------------------------------------------------------------------------------


def _turned_away(scene: Scene, name: str) -> Iterator[Clue]:
    """It refuses for load, and nothing is active below it: its own count of what is inside is wrong."""
    refused = [p for p in scene.capture.probes if p.target == name and _for_load(p)]
    good = [p for p in scene.ladder.good if p.target == name]
    deeper = [p for p in scene.capture.probes if p.target in scene.chain.below(name) and _for_load(p)]
    past = [p for p in scene.ladder.good if name not in p.covers and p.target in scene.chain.below(name)]
    if not refused or good or deeper:
        return
    node = scene.account.nodes[name]
    active = [link for link in node.up if link.state in ("owed", "moving", "uploading", "young")]
    asks = [n for link in node.down for _, n in link.asks if n >= MIN_REQUEST_BYTES]
    sent = [n for link in node.up for _, n in link.asks if n >= min(asks, default=MIN_REQUEST_BYTES)]
    if active or sent:
        yield Clue(
            service=name,
            kind="queue",
            direction="neutral",
            text=f"{name} turned our request away ({refused[0].status}) while {count(max(len(active), len(sent)), 'exchange')} ran through it: it is at its limit",
            measured={"active": len(active), "status": refused[0].status},
        )
        return
    mechanism = "router.permit_leak"
    where = f"; straight to {past[0].target} the same was complete in {past[0].total_s:.1f} s" if past else ""
    against = Against(name, mechanism)
    yield against(
        "probe",
        0.6 if past else 0.3,
        f"{name} turned our request away ({refused[0].status}) for load{where}",
        status=refused[0].status,
        past_s=round(past[0].total_s, 2) if past else None,
    )
    if scene.engines_idle(name):
        yield against("counter", 0.4, "the engines below it had nothing running and nothing queued", in_work=0)
    if asks and node.visible:
        yield against(
            "conservation",
            0.6,
            f"{name} took {count(len(asks), 'request')} of its callers in the window and handed none on",
            requests_in=len(asks),
            requests_out=0,
        )


def _for_load(p: ProbeResult) -> bool:
    return p.status == 429 or (p.status == 503 and any(word in p.detail.lower() for word in _REFUSES_FOR_LOAD))


def _breaker(scene: Scene, name: str) -> Iterator[Clue]:
    """Its circuit breaker keeps workers out that answer; one that keeps a sick worker out does its work."""
    looks = _pages(scene, name)
    states = worker_figures(scene, name, ("worker_cb_state", "cb_state"))
    shut = [
        worker for worker, values in states.items() if values and len(values) == len(looks) and set(values) == {1.0}
    ]
    fit = [w for w in shut if scene.ladder.proven(w) or any(p.target == w for p in scene.ladder.good)]
    if not fit:
        return
    refused = [p for p in scene.capture.probes if p.target == name and p.error and p.error.startswith("http_5")]
    if not refused or any(p.target == name for p in scene.ladder.good):
        yield Clue(
            service=name,
            kind="counter",
            direction="neutral",
            text=f"the breaker of {name} keeps {', '.join(fit)} out, which answered us; others serve",
            measured={"open": len(fit)},
        )
        return
    mechanism = "router.breaker_open"
    against = Against(name, mechanism)
    yield against(
        "counter",
        0.75,
        f"the breaker of {name} for {', '.join(fit)} stood open all the while, though straight they answer complete",
        open=len(shut),
        of_them_fit=len(fit),
    )
    yield against(
        "probe",
        0.75,
        f"{name} answered our request with {refused[0].status} in {refused[0].total_s:.1f} s",
        status=refused[0].status,
    )
    yield against(
        "queue", 0.4, f"{name} has no worker left to choose: {count(len(shut), 'breaker')} open", open=len(shut)
    )


# ---- choice ----------------------------------------------------------------------------------------------------------


def strangers(scene: Scene, name: str) -> tuple[Link, ...]:
    """Connections that *name* tries to open for a second or more to an address where no service of the chain listens."""
    found = []
    for link in scene.account.links:
        if link.caller != name or link.ours or link.callee in scene.chain.services or link.client is None:
            continue
        knocking = [s for s in link.client.samples if s.state == "SYN_SENT"]
        alive = [s for s in link.client.samples if s.state not in ("SYN_SENT", "CLOSE")]
        if knocking and not alive and knocking[-1].t_s - knocking[0].t_s >= 1.0:
            found.append(link)
    return tuple(found)


def _ghost(scene: Scene, name: str) -> Iterator[Clue]:
    """Some requests wait for a handshake that never comes; others are served."""
    knocking = strangers(scene, name)
    node = scene.account.nodes[name]
    if not knocking:
        return
    mechanism = "router.ghost_endpoint"
    address = ", ".join(sorted({link.callee for link in knocking}))
    silent = [p for p in scene.ladder.bad_at(name) if fault_class(p) in ("silent", "errors")]
    theirs = [p for p in silent if any(abs(link.began_at - p.t_s) <= 0.6 for link in knocking)]
    waiting = [
        link
        for link in node.down
        if link.state == "owed"
        or (link.asked_at is not None and any(abs(k.began_at - link.asked_at) <= 0.6 for k in knocking))
    ]
    if not (theirs or waiting) or 2 * len(knocking) < len(node.held):
        return  # it knocks for some purpose of its own
    against = Against(name, mechanism)
    yield against(
        "socket",
        0.6,
        f"{count(len(knocking), 'connection')} of {name} to {address} got no handshake (SYN_SENT); no service of the chain listens there",
        syn_sent=len(knocking),
        address=address,
    )
    if waiting:
        yield against(
            "wait-for",
            0.6,
            f"{count(len(waiting), 'request')} at {name} wait with them and reached no worker, the oldest for {oldest(tuple(waiting)):.1f} s",
            waiting=len(waiting),
            held=len(node.held),
        )
    good = [p for p in scene.ladder.good if p.target == name]
    if theirs:
        yield against(
            "probe",
            0.6 if good else 0.5,
            f"of {len(good) + len(silent)} small requests to {name}, {len(silent)} failed as it knocked there, and {len(good)} were complete",
            failed=len(silent),
            complete=len(good),
        )


def _pages(scene: Scene, name: str) -> list[Scrape]:
    return [s for s in scene.capture.scrapes if s.service == name and s.kind == "metrics" and s.values]


def worker_figures(scene: Scene, name: str, names: tuple[str, ...]) -> dict[str, list[float]]:
    """What a relay's own page says of each worker, look for look; *names* without prefix."""
    found: dict[str, list[float]] = {}
    for page in _pages(scene, name):
        at_once: dict[str, float] = {}
        for metric in page.values:
            labels = dict(metric.labels)
            url = labels.get("worker", labels.get("worker_url", ""))
            worker = _worker_at(scene, url) if url and metric.name.endswith(names) else None
            if worker is not None:
                at_once[worker] = at_once.get(worker, 0.0) + metric.value
        for worker, value in at_once.items():
            found.setdefault(worker, []).append(value)
    return found


def _worker_at(scene: Scene, url: str) -> str | None:
    address = address_in(url)
    return scene.chain.callee_at(address) if address is not None else None


def _funnel(scene: Scene, name: str) -> Iterator[Clue]:
    """It counts work at a worker that has none, and sends everything to another, where requests queue."""
    counted = {w: ns[-LATE_LOOKS:] for w, ns in worker_figures(scene, name, _ACTIVE_NAMES).items()}
    below = scene.chain.services[name].upstream
    for idle in [w for w in below if min(counted.get(w, [0.0])) - _most_in_work(scene, w) >= 1]:
        fellows = [w for w in below if w != idle and scene.chain.role(w) == scene.chain.role(idle)]
        crowded = [w for w in fellows if (scene.progress[w].floor("waiting") or 0) >= 1]
        if not crowded:
            continue
        if any(
            link.callee == idle and link.asked_between(0.0, scene.account.end, MIN_REQUEST_BYTES)
            for link in scene.account.nodes[name].up
        ):
            continue  # it is sent some
        mechanism, phantom = "router.load_counter_leak", min(counted[idle])
        waits = scene.progress[crowded[0]].floor("waiting")
        against = Against(name, mechanism)
        yield against(
            "counter",
            0.65,
            f"{name} counts {phantom:g} requests at {idle}, which itself had {_most_in_work(scene, idle):g} in work or queued",
            counted=phantom,
            in_work=_most_in_work(scene, idle),
        )
        yield against(
            "queue",
            0.6,
            f"{waits:g} requests queued at {crowded[0]} all the while, beside {idle} where none does",
            queued=waits,
            queued_beside=0,
        )
        yield against("socket", 0.4, f"{name} sent {idle} no request in the whole window", requests=0)


def _most_in_work(scene: Scene, worker: str) -> float:
    """Most requests that *worker* had, queued ones included, at any of the last looks; infinite when it does not say."""
    gauges = scene.progress[worker].gauges
    if "running" not in gauges:
        return float("inf")
    running, waiting = gauges["running"].values, gauges["waiting"].values if "waiting" in gauges else ()
    last = max(value for _, value in running[-LATE_LOOKS:])
    return last + max((value for _, value in waiting[-LATE_LOOKS:]), default=0.0)


# ---- release ---------------------------------------------------------------------------------------------------------


def _orphans(scene: Scene, name: str) -> Iterator[Clue]:
    """Answers that flow to it on requests whose callers have left: no open caller's request is of the same moment.

    Callers are paired by the moment of their request, so health checks and idle connections do not stand for them. What
    goes out must fall short by those answers: one connection that carries many requests (HTTP/2) passes everything on.
    """
    node = scene.account.nodes[name]
    if not node.visible:
        return
    callers = [
        link
        for link in (*node.down, *node.own)
        if link.is_open and link.state != "abandoned" and link.asked_at is not None
    ]
    flowing = [link for link in node.up_in("moving") if link.asked_at is not None and len(link.rises) >= 4]
    orphans, left = [], list(callers)
    for up in flowing:
        match = next((c for c in left if abs((c.asked_at or 0.0) - (up.asked_at or 0.0)) <= _CALLER_WITHIN_S), None)
        if match is None:
            orphans.append(up)
        else:
            left.remove(match)
    since = (
        max((up.asked_at or 0.0 for up in orphans), default=0.0) + 0.3
    )  # whoever asked later than all of them owns none
    spare = [c for c in left if c.state in ("owed", "moving", "young", "uploading") and (c.asked_at or 0.0) <= since]
    lone = orphans[: max(0, len(orphans) - len(spare))]
    came = sum(link.response_delta for link in lone)
    went = sum(link.response_delta for link in (*node.down, *node.own))
    total = sum(link.response_delta for link in node.up)
    if len(lone) < 2 or went > total - 0.6 * came or came < 2 * ANSWER_BYTES:
        return
    mechanism = "router.cancel_not_propagated"
    against = Against(name, mechanism)
    yield against(
        "socket",
        0.6,
        f"{name} still takes {count(len(lone), 'stream')} from upstream for which no caller is connected",
        streams=len(lone),
        callers=len(spare),
    )
    yield against(
        "conservation",
        0.6,
        f"{total} answer bytes came to {name} and {went} left it",
        response_bytes_in=total,
        response_bytes_out=went,
    )


# ---- two legs --------------------------------------------------------------------------------------------------------


def _lost_leg(scene: Scene, name: str) -> Iterator[Clue]:
    """Among requests that pass, some that one side of a split pair holds and the other has never heard of; a fresh pair passes."""
    legs = {
        role: [w for w in scene.chain.services[name].upstream if scene.chain.role(w) == role]
        for role in ("prefill", "decode")
    }
    if not all(legs.values()):
        return
    for role, other, stages, far in (
        ("prefill", "decode", ("bootstrap",), ("prealloc", "transfer", "waiting")),
        ("decode", "prefill", ("prealloc", "transfer"), ("bootstrap", "inflight", "running", "waiting")),
    ):
        holders = [w for w in legs[role] if _held_lately(scene, w, stages) >= 1]
        there = [scene.progress[w].floor(*far) for w in legs[other]]
        if not holders or any(n is None or n >= 1 for n in there) or not all(scene.ladder.proven(w) for w in holders):
            continue
        waits = _unanswered(scene, name, holders)
        if not waits or _unanswered(scene, name, legs[other]):
            continue
        held = sum(_held_lately(scene, w, stages) for w in holders)
        mechanism = "router.dual_dispatch_join" if role == "prefill" else "router.prefill_failure_swallowed"
        refused = _refused(scene, legs[other])
        if role == "decode" and not refused and _transfers_failed(scene, (*holders, *legs[other])):
            continue  # prefill knew them
        # That decode waits for requests which prefill no longer has can be decode's fault too: refusals tell.
        sure = 1.0 if role == "prefill" or refused else 0.8
        if refused:
            yield Clue(
                service=name,
                kind="log",
                mechanism=mechanism,
                strength=0.4,
                root=True,
                text=f"{', '.join(legs[other])} counted {count(int(refused), 'inference request')} answered with an error",
                measured={"refused": refused},
            )
        against = Against(name, mechanism)
        yield against(
            "counter",
            0.6 * sure,
            f"{' and '.join(holders)} held {held:g} requests for a partner from look to look, and at times no {other} had any",
            **{f"held_at_{role}": held, f"floor_at_{other}": 0},
        )
        yield against(
            "wait-for",
            0.5 * sure,
            f"{name} waits on {count(len(waits), 'connection')} for {role}, the oldest for {oldest(waits):.1f} s, and on none so long for {other}",
            **{f"owed_by_{role}": len(waits), f"owed_by_{other}": 0},
        )
        yield against("probe", 0.35 * sure, "a fresh request to the same workers as a pair was complete")


def _held_lately(scene: Scene, worker: str, stages: tuple[str, ...]) -> float:
    """Requests that *worker* held in *stages* at its last two looks."""
    readings = [scene.progress[worker].gauges[s] for s in stages if s in scene.progress[worker].gauges]
    return sum(min(value for _, value in r.values[-2:]) for r in readings if len(r.values) > 1)


def _refused(scene: Scene, workers: list[str]) -> float:
    """Inference requests that *workers* answered with an error, by their own count."""
    total = 0.0
    for worker in workers:
        for metric in _pages(scene, worker)[-1].values if _pages(scene, worker) else ():
            labels = dict(metric.labels)
            path = labels.get("endpoint", labels.get("path", ""))
            if (
                metric.name.endswith("http_responses_total")
                and labels.get("status_code", "2") >= "4"
                and "completions" in path
            ):
                total += metric.value
    return total


def _transfers_failed(scene: Scene, workers: tuple[str, ...]) -> bool:
    pages = [_pages(scene, worker)[-1:] for worker in workers]
    return any(m.value > 0 for page in pages for s in page for m in s.values if m.name.endswith(_TRANSFER_FAILURES))


def _unanswered(scene: Scene, name: str, workers: list[str]) -> tuple[Link, ...]:
    """Requests of *name* at *workers* without a byte of answer for some seconds."""
    return tuple(
        link
        for link in scene.account.nodes[name].up
        if link.callee in workers and link.state == "owed" and link.waited_s >= _PATIENCE_S and sent_at(link)
    )
