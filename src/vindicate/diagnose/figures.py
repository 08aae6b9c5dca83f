"""Metrics that lie: gauges of work long gone, counts below zero, processes that disagree on one port, a cache that looks like a leak.

What a user asks is who holds his requests up. Figures that lie hold nobody up by themselves: with a chain that serves,
such a finding stands beside the verdict as an aggravator, and never convicts the engine. It becomes the verdict, of layer
``metrics``, when the figure is impossible (below zero, or different at one moment), or when others act on it: requests
queue at one worker while its fellow, whose gauge shows work that it has not, gets none.
"""

from collections.abc import Collection, Iterator, Mapping
from itertools import pairwise

from vindicate.diagnose.link import Link
from vindicate.diagnose.progress import WORK_GAUGES, Reading, bare_name
from vindicate.diagnose.rule import Against, Clue, Scene, count
from vindicate.record.observation import Scrape

__all__ = ["lying_figures"]

_USAGE = ("token_usage", "kv_cache_usage_perc", "gpu_cache_usage_perc")
_FULL = 0.9
_POLL_BYTES, _POLL_ANSWER_BYTES, _AT_ONCE_S = 250, 600, 0.3
_ENDED = ("num_requests_total", "request_success_total", "num_aborted_requests_total")
_COUNTS_UP = ("_total", "_count")


def lying_figures(scene: Scene) -> Iterator[Clue]:
    """Clues to figures that are not so."""
    for name in scene.leaves:
        pages = [s for s in scene.capture.scrapes if s.service == name and s.kind == "metrics" and s.values]
        pages.sort(key=lambda s: s.t_s)
        if len(pages) < 2:
            continue
        yield from _disagreeing(scene, name, pages)
        yield from _dead_series(scene, name, pages[-1])
        yield from _negative(scene, name, pages)
        yield from _stale(scene, name)
        yield from _full(scene, name, pages[-1])


def _one_life(scene: Scene, name: str) -> bool:
    """Whether the processes of *name* were the same all through the window, as far as they were seen."""
    processes = scene.processes(name)
    return bool(processes) and not any(p.ended or (p.samples and p.samples[0].t_s > 1.5) for p in processes)


def _negative(scene: Scene, name: str, pages: list[Scrape]) -> Iterator[Clue]:
    below: dict[str, list[float]] = {}
    for page in pages:
        for metric in page.values:
            if bare_name(metric.name) in WORK_GAUGES and metric.value < 0:
                below.setdefault(metric.name, []).append(metric.value)
    lasting = {gauge: values for gauge, values in below.items() if len(values) >= 2}
    if not lasting:
        return
    gauge, values = min(lasting.items(), key=lambda item: min(item[1]))
    mechanism = "metrics.negative_delta"
    against = Against(name, mechanism, layer="metrics")
    yield against(
        "counter",
        0.75,
        f"{gauge} of {name} was {min(values):g} at {count(len(values), 'look')}: no count of requests is below zero",
        value=min(values),
        looks=len(values),
    )
    if _one_life(scene, name):
        yield against("process", 0.4, f"the processes of {name} were the same all the while, so it is no restart")


def _disagreeing(scene: Scene, name: str, pages: list[Scrape]) -> Iterator[Clue]:
    """Counters that fall and come back within one life of the process: several registries answer in turn."""
    series: dict[tuple[str, tuple[tuple[str, str], ...]], list[float]] = {}
    for page in pages:
        for metric in page.values:
            if metric.name.endswith(_COUNTS_UP):
                series.setdefault((metric.name, metric.labels), []).append(metric.value)
    falls = {key: sum(b < a for a, b in pairwise(values)) for key, values in series.items()}
    back = [key for key, n in falls.items() if n and _comes_back(series[key])]
    if not back or not _one_life(scene, name):
        return
    worst = max(back, key=lambda key: falls[key])
    mechanism = "metrics.multiprocess_exposition"
    against = Against(name, mechanism, layer="metrics")
    yield against(
        "counter",
        0.7,
        f"{worst[0]} of {name} fell {count(falls[worst], 'time')} in {len(pages)} looks and came back, which a counter of one process cannot",
        falls=falls[worst],
        looks=len(pages),
        series=len(back),
    )
    where = scene.chain.services[name].address
    here = [one for one in scene.capture.listeners if where is not None and one.local.port == where.port]
    answering = {pid for one in here for pid in one.pids}
    if len(here) > 1 or len(answering) > 1:
        yield against(
            "socket",
            0.5,
            f"its port is served by more than one ({count(len(here), 'socket')}, processes: {len(answering)}), each with figures of its own",
            listeners=len(here),
            processes=len(answering),
        )


def _comes_back(values: list[float]) -> bool:
    """Whether it fell and later stood at or above where it had fallen from."""
    return any(b < a and max(values[i + 1 :], default=a - 1) >= a for i, (a, b) in enumerate(pairwise(values)))


def _dead_series(scene: Scene, name: str, page: Scrape) -> Iterator[Clue]:
    """Series that carry the number of a process which is not there, beside others of one that is."""
    alive = {str(p.pid) for p in scene.processes(name) if not p.ended} | {
        str(pid) for pid in scene.chain.services[name].pids
    }
    named = {dict(metric.labels).get("pid") for metric in page.values} - {None}
    dead = sorted(pid for pid in named - alive if pid is not None)
    if dead and named & alive:  # with none alive the numbers are those of another namespace
        yield Clue(
            service=name,
            kind="process",
            layer="metrics",
            mechanism="metrics.multiprocess_exposition",
            strength=0.6,
            text=f"{name} still shows figures of process {', '.join(dead[:3])}, which is not there",
            measured={"dead": len(dead)},
        )


def _stale(scene: Scene, name: str) -> Iterator[Clue]:
    """A gauge shows work that no connection carries, before anybody touched the service; and the service answers at once."""
    progress, node = scene.progress[name], scene.account.nodes[name]
    touched = [p.t_s for p in scene.capture.probes if name in p.covers or name in p.may_pass]
    touched += [t for link in node.down for t, n in link.asks if not _is_poll(link, t, n)]
    first = min(touched, default=scene.account.end)
    gauges = [progress.gauges[g] for g in ("running", "waiting") if g in progress.gauges]
    before = [
        sum(value for reading in gauges for t, value in reading.values if t == look)
        for look in _looks(progress.gauges, first)
    ]
    if not before or min(before) < 2 or not scene.ladder.proven(name):
        return
    in_use = [link for link in node.down if link.began_at <= first and link.request > 0]
    carried = [
        link
        for link in in_use
        if (link.state == "owed" and (link.asked_at or 0.0) <= first)
        or any(t <= first and n > _POLL_ANSWER_BYTES for t, n in link.rises)
    ]
    vanished = _vanished(scene, name, first)
    if carried or min(before) != max(before) or not node.visible:
        return
    if len(in_use) >= min(before) and vanished < 2:
        return
    mechanism = "metrics.stale_after_mass_abort"
    after = progress.in_work_last
    tail = f", and the gauge went to {after:g} upon it" if after is not None and after < min(before) else ""
    misled = _misled(scene, name)
    against = Against(name, mechanism, layer="metrics")
    yield against(
        "counter",
        0.6 if misled else 0.4,
        f"{name} showed {min(before):g} requests in work, and {f'of them {vanished:g} were gone a look later with no request ended' if vanished >= 2 else count(len(in_use), 'connection') + ' to it could carry one'}",
        gauge=min(before),
        connections=len(in_use),
        after=after,
    )
    yield against("probe", 0.5 if misled else 0.3, f"{name} answered a small request complete{tail}", after=after)
    if misled:
        yield against(
            "queue",
            0.6,
            f"requests queued at {misled} while {name} was sent none",
            queued=scene.progress[misled].gauges["waiting"].last,
        )


def _is_poll(link: Link, t: float, n: int) -> bool:
    """Whether an ask is a small one that was answered at once, as a look at health or metrics is."""
    return n <= _POLL_BYTES and link.state != "owed" and any(0 <= at - t <= _AT_ONCE_S for at, _ in link.rises)


def _vanished(scene: Scene, name: str, first: float) -> float:
    """By how many the gauges of work fell at the first touch beyond the requests that ended or whose callers left."""
    pages = [s for s in scene.capture.scrapes if s.service == name and s.kind == "metrics" and s.values]
    early, late = [s for s in pages if s.t_s < first], [s for s in pages if s.t_s > first + _AT_ONCE_S]
    if not early or not late:
        return 0.0
    before, after = max(early, key=lambda s: s.t_s), min(late, key=lambda s: s.t_s)
    fall = _sum(before, WORK_GAUGES) - _sum(after, WORK_GAUGES)
    ended = _sum(after, _ENDED) - _sum(before, _ENDED)
    left = sum(
        not link.is_open and before.t_s <= link.last_seen <= after.t_s for link in scene.account.nodes[name].down
    )
    return fall - max(0.0, ended) - left


def _sum(page: Scrape, names: Collection[str]) -> float:
    return sum(m.value for m in page.values if bare_name(m.name) in names and "http" not in m.name)


def _looks(gauges: Mapping[str, Reading], first: float) -> list[float]:
    """Times of looks before *first* at which the running gauge was read."""
    reading = gauges.get("running")
    return [t for t, _ in reading.values if t < first] if reading is not None else []


def _misled(scene: Scene, name: str) -> str | None:
    """A fellow worker of the same role under the same relay at which requests queued at the first look, if there is one."""
    for relay in scene.chain.order:
        below = scene.chain.services[relay].upstream
        if name not in below:
            continue
        for fellow in below:
            waiting = scene.progress[fellow].gauges.get("waiting")
            same = fellow != name and scene.chain.role(fellow) == scene.chain.role(name)
            if same and waiting is not None and waiting.values[0][1] >= 1:
                return fellow
    return None


def _full(scene: Scene, name: str, page: Scrape) -> Iterator[Clue]:
    """High KV usage at rest: cache that can be evicted, or blocks that are lost; from outside they look the same."""
    usage = max((m.value for m in page.values if bare_name(m.name) in _USAGE), default=0.0)
    if usage >= _FULL and scene.progress[name].work == "idle":
        yield Clue(
            service=name,
            kind="counter",
            direction="neutral",
            text=f"{name} says that {100 * usage:.0f} % of its KV memory is used though it has nothing in work: cached prefixes that can be "
            "evicted, or a leak (kv.usage_leak_or_cache); flush its cache at rest, what remains is lost",
            measured={"usage": usage},
        )
