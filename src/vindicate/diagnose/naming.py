"""Clues to a service that stalls → the same under a more exact name, where further evidence says which kind of stall it is.

Whether it stalls at all is for the other rules to say; what is found here only tells one stall from another, and
adds evidence of its own.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from vindicate.diagnose.pages import Pages, pages_of
from vindicate.diagnose.pool import USAGES
from vindicate.diagnose.rule import Clue, Scene, count
from vindicate.diagnose.threads import full_pool
from vindicate.record.observation import ProcessFacts

__all__ = ["more_exactly"]

_STALLS = ("stall_mid_stream", "no_first_token", "no_end", "inflight_parked", "not_ready")
_OUTAGES = ("down", "not_listening", "not_accepting")
_FAILURES = ("answers_errors", "cuts_streams", "holds_response", "drop_stream", "not_ready", "body_truncation")
_LOOKS, _SPARE_FDS = 3, 1
_BUSY_PCT, _NO_TRAFFIC_PCT = 90.0, 5.0
_QUEUES = (
    "num_running_reqs",
    "num_queue_reqs",
    "num_prefill_bootstrap_queue_reqs",
    "num_prefill_inflight_queue_reqs",
    "num_decode_prealloc_queue_reqs",
    "num_decode_transfer_queue_reqs",
)
_SMALL_ANSWER = 1500  # a page read before it on the same connection; its request is small too
_BYTES_PER_TOKEN = 8  # no tokenizer makes fewer tokens of text than this


@dataclass(frozen=True, slots=True)
class _Name:
    """A more exact name, and what speaks for it; *of*: which general names it stands for, none for any."""

    mechanism: str
    evidence: tuple[Clue, ...]
    of: tuple[str, ...] = _STALLS

    def fits(self, clue: Clue) -> bool:
        """Whether it may stand for the name that *clue* gives."""
        return clue.mechanism is not None and (not self.of or clue.mechanism.rpartition(".")[2] in self.of)


def more_exactly(scene: Scene, clues: list[Clue]) -> list[Clue]:
    """Rename the stalls among *clues* where the kind of stall is known, and add what says so."""
    named = list(clues)
    for service in scene.chain.order:
        accused = [c for c in named if c.service == service and c.direction == "implicates" and c.layer is None]
        name = next((n for n in _names(scene, service) if any(map(n.fits, accused))), None)
        if name is None:
            continue
        named = [replace(c, mechanism=name.mechanism) if c in accused and name.fits(c) else c for c in named]
        named.extend(name.evidence)
    return named


def _names(scene: Scene, name: str) -> Iterator[_Name]:
    yield from _used_up(scene, name)
    if scene.chain.is_relay(name):
        yield from _pool_used_up(scene, name)
        return
    pages = pages_of(scene.capture, name)
    yield from _watchdog(scene, name)
    yield from _dead_worker(scene, name)
    yield from _paused(scene, name, pages)
    yield from _ranks_differ(scene, name, pages)
    yield from _victim(scene, name)
    yield from _spinning(scene, name, pages)
    yield from _busy_and_cold(scene, name)
    yield from _unservable(scene, name, pages)


def _used_up(scene: Scene, name: str) -> Iterator[_Name]:
    """It has run out of something that the host gives: file descriptors, room on a disk, memory."""
    for p in scene.processes(name):
        last = [s.n_fds for s in p.samples[-3:] if s.n_fds is not None]
        if p.fd_limit is not None and len(last) == _LOOKS and min(last) >= p.fd_limit - _SPARE_FDS:
            mechanism = "service.out_of_descriptors"
            text = f"its process {p.pid} has {last[-1]} of {p.fd_limit} file descriptors open: it can neither take nor open a connection"
            clue = _clue(name, "process", mechanism, 0.6, text, open=last[-1], limit=p.fd_limit)
            yield _Name(mechanism, (clue,), of=())
        if p.full_disk is not None:
            mechanism = "host.disk_full"
            text = f"the disk of {p.full_disk}, where its process {p.pid} works or writes, has no room left"
            yield _Name(mechanism, (replace(_clue(name, "host", mechanism, 0.5, text), layer="host"),), of=_FAILURES)
    kills = scene.capture.host_facts.oom_kills
    if kills and any(p.ended for p in scene.processes(name)):
        mechanism = "service.out_of_memory"
        text = f"the kernel ended {count(kills, 'process')} for want of memory while we looked, and a process of {name} went"
        yield _Name(mechanism, (_clue(name, "host", mechanism, 0.5, text, oom_kills=kills),), _OUTAGES)


def _pool_used_up(scene: Scene, name: str) -> Iterator[_Name]:
    """All threads of its pool are at work at both looks at its stacks: what needs one, as a name lookup does, waits its turn."""
    pool = full_pool(scene, name)
    if pool is not None:
        mechanism = "proxy.dns_threadpool"
        lookups = ", name lookups among them" if pool.looks_up else ""
        text = f"all {pool.n_threads} threads of a pool of its process {pool.pid} were at work at both looks at its stacks{lookups}: {', '.join(pool.places)}"
        yield _Name(
            mechanism, (_clue(name, "process", mechanism, 0.5, text, threads=pool.n_threads),), ("slow_to_pass_on",)
        )


def _watchdog(scene: Scene, name: str) -> Iterator[_Name]:
    lines = [line for line in scene.capture.log_lines if line.service == name and line.pattern == "watchdog"]
    if lines:
        clue = _clue(name, "log", "engine.watchdog_kill_after_idle", 0.3, f"its log: {lines[-1].text[:120]}")
        yield _Name("engine.watchdog_kill_after_idle", (clue,), _OUTAGES)


def _dead_worker(scene: Scene, name: str) -> Iterator[_Name]:
    """A child of the process that answers is dead and not yet buried, while health is green and a real request fails."""
    main = {pid for one in scene.capture.listeners for pid in one.pids} & set(scene.chain.services[name].pids)
    dead = [p for p in scene.processes(name) if p.pid not in main and p.samples and p.samples[-1].state in "ZX"]
    green = [s for s in scene.capture.scrapes if s.service == name and s.kind == "health" and s.status == 200]
    if dead and main and green:
        mechanism = "engine.false_green_health"
        text = f"its worker process {dead[0].pid} is dead (state Z), and its health endpoint answers 200"
        yield _Name(mechanism, (_clue(name, "process", mechanism, 0.6, text, pid=dead[0].pid),))


def _paused(scene: Scene, name: str, pages: Pages) -> Iterator[_Name]:
    mechanism = "engine.paused"
    ready = [s for s in scene.capture.scrapes if s.service == name and s.kind == "ready"]
    healthy = any(s.service == name and s.kind == "health" and s.status == 200 for s in scene.capture.scrapes)
    asleep = pages.gauge("engine_sleep_state", lambda labels: labels.get("sleep_state") == "awake")
    held = pages.gauge("num_paused_reqs")
    if ready and ready[-1].status == 503 and healthy:
        yield _Name(
            mechanism, (_clue(name, "process", mechanism, 0.6, "its /ready answers 503 while its /health answers 200"),)
        )
    elif asleep is not None and max(v for _, v in asleep.values) < 1:
        yield _Name(mechanism, (_clue(name, "counter", mechanism, 0.6, "it says of itself that it sleeps"),))
    elif held is not None and held.floor >= 1:
        yield _Name(mechanism, (_clue(name, "queue", mechanism, 0.6, f"it holds {held.floor:g} requests as paused"),))


def _ranks_differ(scene: Scene, name: str, pages: Pages) -> Iterator[_Name]:
    """Ranks of one engine must hold the same queues; these do not, and stay so."""
    if scene.progress[name].work == "moving":
        return
    for gauge in _QUEUES:
        for by_rank in pages.ranks(gauge):
            still = all(len(set(values)) == 1 and len(values) >= 3 for values in by_rank.values())
            held = [values[-1] for values in by_rank.values()]
            if still and len(set(held)) > 1:
                prefill = scene.chain.role(name) == "prefill"
                mechanism = "prefill.pp_divergence_after_abort_storm" if prefill else "engine.collective_deadlock"
                aborted = pages.total("num_aborted_requests_total")
                text = (
                    f"its ranks hold different queues all through the window: {gauge} is {', '.join(f'{v:g}' for v in held)}"
                    + (f"; {aborted:g} requests were aborted before" if aborted else "")
                )
                yield _Name(mechanism, (_clue(name, "queue", mechanism, 0.6, text, aborted=aborted),))
                return


def _cpu(process: ProcessFacts) -> tuple[float, float]:
    """Share of the window in which the process ran, and in which it ran or wanted to."""
    if len(process.samples) < 2:
        return 0.0, 0.0
    first, last = process.samples[0], process.samples[-1]
    wall = max(0.1, last.t_s - first.t_s)
    ran = last.cpu_s - first.cpu_s
    waited = (last.run_delay_s or 0.0) - (first.run_delay_s or 0.0)
    return ran / wall, (ran + max(0.0, waited)) / wall


def _victim(scene: Scene, name: str) -> Iterator[_Name]:
    """Health or log blames the detokenizer, which idles, while the scheduler before it gives nothing."""
    blamed = [s for s in scene.capture.log_lines if s.service == name and s.pattern == "health_no_answer"]
    sick = [s for s in scene.capture.scrapes if s.service == name and s.kind == "health" and s.status == 503]
    last = [p for p in scene.processes(name) if "detok" in p.name]
    running = scene.progress[name].floor("running") or 0
    if scene.progress[name].work != "stuck" or running < 1 or not (blamed or (sick and last)):
        return
    if any(_cpu(p)[0] >= 0.2 for p in last):
        return
    mechanism = "engine.detokenizer_is_victim"
    idle = f", and it idles ({100 * _cpu(last[0])[0]:.0f} % of a core)" if last else ""
    said = "its log names the detokenizer" if blamed else "its health endpoint answers 503"
    text = f"{said}{idle}; the scheduler before it holds {running:g} running requests and gives no token: that one is stuck"
    yield _Name(mechanism, (_clue(name, "process" if last else "log", mechanism, 0.5 if last else 0.3, text),))


def _spinning(scene: Scene, name: str, pages: Pages) -> Iterator[_Name]:
    """Two ranks or more want the CPU all the time, nothing comes of it, and no scheduler loop goes round."""
    if scene.progress[name].work != "stuck" or (scene.progress[name].floor("running") or 0) < 1:
        return
    loop = [pages.growth(f"scheduler_{what}_seconds_total") for what in ("idle", "process_cpu")]
    if any(grown is not None and grown > 0.5 for grown in loop):
        return
    main = {pid for one in scene.capture.listeners for pid in one.pids}
    spin = [p for p in scene.processes(name) if p.pid not in main and _cpu(p)[0] >= 0.2 and _cpu(p)[1] >= 0.85]
    if len(spin) < 2:
        return
    mechanism = "engine.collective_deadlock"
    text = f"{len(spin)} of its worker processes want the CPU all the time ({', '.join(str(p.pid) for p in spin[:4])}) and no token comes of it"
    yield _Name(mechanism, (_clue(name, "process", mechanism, 0.4, text, spinning=len(spin)),))


def _busy_and_cold(scene: Scene, name: str) -> Iterator[_Name]:
    """A GPU of it is busy all the time, moves no memory and draws little: a kernel that waits for another rank."""
    if scene.progress[name].work != "stuck" or (scene.progress[name].floor("running") or 0) < 1:
        return
    own = {p.pid for p in scene.processes(name)}
    for card in scene.capture.cards:
        late = card.samples[-_LOOKS:]
        busy = [s.busy_pct for s in late if s.busy_pct is not None]
        traffic = [s.memory_traffic_pct for s in late if s.memory_traffic_pct is not None]
        if not own & set(card.pids) or min(len(busy), len(traffic)) < _LOOKS:
            continue
        if min(busy) < _BUSY_PCT or max(traffic) > _NO_TRAFFIC_PCT:
            continue
        watts = [s.power_w for s in late if s.power_w is not None]
        power = (
            f" at {max(watts):.0f} W" + (f" of {card.power_limit_w:.0f}" if card.power_limit_w else "") if watts else ""
        )
        mechanism = "engine.collective_deadlock"
        text = f"GPU {card.index} of it is busy {min(busy):.0f} % of the time and moves its memory {max(traffic):.0f} %{power}: a kernel that waits"
        yield _Name(
            mechanism, (_clue(name, "host", mechanism, 0.5, text, busy_pct=min(busy), memory_traffic_pct=max(traffic)),)
        )
        return


def _unservable(scene: Scene, name: str, pages: Pages) -> Iterator[_Name]:
    """Requests wait, nothing runs, the pool is empty, and the oldest of them is too large for it, or far larger than the rest."""
    gauges = scene.progress[name].gauges
    usage = next((r for r in map(pages.gauge, USAGES) if r is not None), None)
    elsewhere = scene.progress[name].floor("grammar", "paused", "prealloc", "transfer", "retracted") or 0
    waits, runs = gauges.get("waiting"), gauges.get("running")
    if usage is None or waits is None or runs is None or scene.progress[name].work != "stuck" or elsewhere >= 1:
        return
    if waits.floor < 1 or max(v for _, v in runs.values) >= 1 or max(v for _, v in usage.values) > 0.05:
        return
    pool = pages.total("max_total_num_tokens")
    queue = sorted(
        (link for link in scene.account.nodes[name].owed if link.is_open and link.response <= _SMALL_ANSWER),
        key=lambda link: link.asked_at or 0.0,
    )
    if not queue:
        return
    head, rest = queue[0], sorted(link.request for link in queue[1:])
    beyond = pool is not None and head.request / _BYTES_PER_TOKEN > pool
    if not beyond and not (rest and head.request >= 4 * rest[-1]):
        return
    mechanism = "engine.unservable_head_of_line"
    text = (
        f"{count(int(waits.floor), 'request')} waited at {name} with nothing running and {100 * usage.last:.0f} % of its KV pool used; "
        f"the oldest has {head.request / 1000:.0f} kB, "
        + (
            f"more than its pool of {pool:g} tokens can hold"
            if beyond
            else f"the others {(rest or [0])[-1] / 1000:.1f} kB or less"
        )
    )
    yield _Name(
        mechanism,
        (_clue(name, "queue", mechanism, 0.6 if beyond else 0.5, text, waiting=waits.floor, head_bytes=head.request),),
    )


def _clue(service: str, kind: str, mechanism: str, strength: float, text: str, **measured: float | None) -> Clue:
    return Clue(service=service, kind=kind, mechanism=mechanism, strength=strength, text=text, measured=dict(measured))  # type: ignore[arg-type]
