"""An engine whose KV pool or hand-over stands in the way: retracted requests that wedge or slow all, KV that never comes."""

from collections.abc import Iterator

from vindicate.diagnose.pages import Pages, pages_of
from vindicate.diagnose.progress import LATE_LOOKS
from vindicate.diagnose.rule import Against, Clue, Scene, count, oldest

__all__ = ["pool_faults"]

RETRACTIONS = ("num_retracted_requests_total", "num_preemptions_total")
FAILURES = (
    "num_transfer_failed_reqs_total",
    "nixl_num_failed_transfers_total",
    "nixl_num_kv_expired_reqs_total",
    "mooncake_num_failed_transfers_total",
    "mooncake_num_kv_expired_reqs_total",
)
USAGES = ("token_usage", "kv_cache_usage_perc", "gpu_cache_usage_perc")
FULL = 0.85
ROOMY = 0.5  # so much is used that a waiting request would fit
SLOWED = 3.0  # times slower than before the window; a batch that doubles explains no such factor
FAR_SLOWED = 5.0  # against the best quarter of its tokens, which may be of smaller batches
SETTLED_S = 3.0


def pool_faults(scene: Scene) -> Iterator[Clue]:
    """Clues to engines with such a fault."""
    for name in scene.leaves:
        if scene.chain.role(name) == "prefill":
            continue
        pages = pages_of(scene.capture, name)
        yield from _collapse(scene, name, pages)
        if scene.chain.role(name) == "decode" and _prefill_holds_nothing(scene, name):
            yield from _wedge(scene, name, pages)
            yield from _remote_wait(scene, name, pages)


def _prefills(scene: Scene, decode: str) -> list[str]:
    above = [s for s in scene.chain.services.values() if decode in s.upstream]
    return [other for s in above for other in s.upstream if scene.chain.role(other) == "prefill"]


def _prefill_holds_nothing(scene: Scene, decode: str) -> bool:
    """Whether every prefill of the pair says, at every look, that it has no request in any stage."""
    found = _prefills(scene, decode)
    return bool(found) and all(
        scene.progress[name].n_looks >= 2
        and scene.progress[name].in_work is not None
        and all(r.last < 1 for stage, r in scene.progress[name].gauges.items() if stage != "http")
        for name in found
    )


def _collapse(scene: Scene, name: str, pages: Pages) -> Iterator[Clue]:
    """Tokens still come, many times slower than before, while the pool is full and requests are thrown out of it."""
    usage = next((r for r in map(pages.gauge, USAGES) if r is not None), None)
    thrown = pages.growth(*RETRACTIONS)
    before, within = pages.mean("inter_token_latency_seconds")
    if usage is None or thrown is None or thrown < 1 or usage.floor < FULL or before is None or within is None:
        return
    once = pages.quartile("inter_token_latency_seconds")
    if once is not None and once < before and within >= FAR_SLOWED * once:
        before = once  # the mean before the window holds the crawl itself, when that began before it
    elif within < SLOWED * before:
        return
    mechanism = "decode.retraction_collapse"
    against = Against(name, mechanism)
    yield against(
        "queue",
        0.5,
        f"the KV pool of {name} stood at {100 * usage.last:.0f} %, and {thrown:g} requests were thrown out of it within {pages.looks[-1][0]:.0f} s",
        usage_pct=round(100 * usage.floor, 1),
        retracted=thrown,
    )
    yield against(
        "counter",
        0.65,
        f"{name} takes {1000 * within:.0f} ms a token; before it took {1000 * before:.0f} ms",
        itl_s=round(within, 4),
        itl_before_s=round(before, 4),
    )
    ours = [gap for p in scene.capture.probes if name in p.covers for gap in p.gaps_s]
    slow = sorted(ours)[len(ours) // 2] if ours else 0.0
    if slow >= SLOWED * before:
        yield against(
            "probe", 0.4, f"the tokens of our own request came {1000 * slow:.0f} ms apart", gap_s=round(slow, 4)
        )


def _wedge(scene: Scene, name: str, pages: Pages) -> Iterator[Clue]:
    """Requests wait for memory that is free, after some were thrown out of it, in the middle of their answers."""
    progress, node = scene.progress[name], scene.account.nodes[name]
    waiting = progress.gauges.get("prealloc")
    usage = next((r for r in map(pages.gauge, USAGES) if r is not None), None)
    thrown = pages.total(*RETRACTIONS) or 0
    end = scene.account.end
    begun = [link for link in node.down_in("open") if end - (link.answered_at or 0.0) >= SETTLED_S]
    if waiting is None or not waiting.constant or waiting.floor < 1 or thrown < 1 or not begun:
        return
    if usage is None or usage.last > ROOMY:
        return
    stuck = min(waiting.floor, len(begun))
    live = (progress.http_active or 0) >= 1 or name in scene.awaited
    mechanism = "decode.prealloc_wedge_after_retraction"
    against = Against(name, mechanism)
    yield against(
        "queue",
        0.6,
        f"{waiting.floor:g} requests stayed in {name}'s prealloc queue though {100 * usage.last:.0f} % of its KV pool are used and prefill holds none of them",
        prealloc=waiting.floor,
        usage_pct=round(100 * usage.last, 1),
    )
    yield against(
        "wait-for",
        0.5 if live else 0.2,
        f"{count(int(stuck), 'answer')} of {name} were begun and stand still, and {name} waits for nobody",
        begun=len(begun),
        http_active=progress.http_active,
    )
    yield against(
        "counter", 0.35, f"{name} has thrown {thrown:g} requests out of its KV pool since it began", retracted=thrown
    )


def _remote_wait(scene: Scene, name: str, pages: Pages) -> Iterator[Clue]:
    """Requests wait for KV that nobody is going to send: the other side holds none of them any more."""
    progress, node = scene.progress[name], scene.account.nodes[name]
    waits = progress.gauges.get("transfer") or pages.gauge(
        "num_requests_waiting_by_reason", lambda labels: labels.get("reason") == "deferred"
    )
    owed = tuple(link for link in node.owed if link.is_open and link.waited_s >= SETTLED_S)
    if waits is None or waits.late_floor < 1 or len(waits.values) < LATE_LOOKS or not owed:
        return
    if any(p.shape == "pd_pair" and name in p.covers for p in scene.ladder.good) and scene.ladder.bad_at(name):
        return  # it takes KV from one prefill and not from another: the pair is at fault, not the wait
    mechanism = "kv.remote_wait_without_timeout"
    stuck = int(min(waits.late_floor, len(owed)))
    since_s = waits.values[-1][0] - waits.values[-LATE_LOOKS][0]
    against = Against(name, mechanism, layer="transfer")
    yield against(
        "queue",
        0.6,
        f"{waits.late_floor:g} requests at {name} waited for KV at the last {LATE_LOOKS} looks, over {since_s:.0f} s, and prefill holds none of them",
        waiting_for_kv=waits.late_floor,
    )
    yield against(
        "wait-for",
        0.5,
        f"{name} owes {count(stuck, 'request')}, the oldest for {oldest(owed):.0f} s, and no deadline ended the wait",
        owed=len(owed),
        oldest_s=oldest(owed),
    )
    failed = sum(
        pages_of(scene.capture, other).total(counter) or 0
        for other in (*_prefills(scene, name), name)
        for counter in FAILURES
    )
    usage = next((r for r in map(pages.gauge, USAGES) if r is not None), None)
    if failed or (usage is not None and usage.floor > 0):
        used = 100 * usage.floor if usage is not None else None
        yield against(
            "counter",
            0.4 if failed else 0.2,
            f"{failed:g} KV transfers are counted as failed"
            + (f", and {used:.0f} % of the KV pool of {name} stay taken" if used else ""),
            failed=failed,
            usage_floor_pct=used,
        )
