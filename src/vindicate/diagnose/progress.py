"""Scrapes of an engine over the window → does it work on something, and does that something move.

Which counters move while a request runs, and which only when it ends, differs by engine (SGLang adds to
`generation_tokens_total` at the end; vLLM with every iteration). A gauge of a stalled SGLang scheduler keeps its last
value, so a gauge alone never convicts and never clears. Absent is unknown, never zero.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from vindicate.diagnose.chain import Chain, address_in
from vindicate.record.observation import Capture, ProbeResult, Scrape

__all__ = ["WORK_GAUGES", "Progress", "Reading", "Work", "awaited_of", "bare_name", "progress_of"]

LATE_LOOKS = 3  # a stall that began within the window shows in its last looks; what moved before it does not excuse it

Work = Literal["idle", "moving", "stuck", "unknown"]

# name without prefix → what it means to us
_GAUGES = {
    "num_running_reqs": "running",
    "num_requests_running": "running",
    "requests_processing": "running",
    "num_queue_reqs": "waiting",
    "num_waiting_reqs": "waiting",
    "num_requests_waiting": "waiting",
    "requests_deferred": "waiting",
    "num_grammar_queue_reqs": "grammar",
    "num_paused_reqs": "paused",
    "num_prefill_bootstrap_queue_reqs": "bootstrap",
    "num_prefill_prealloc_queue_reqs": "bootstrap",
    "prefill_bootstrap_queue_reqs": "bootstrap",
    "num_prefill_inflight_queue_reqs": "inflight",
    "prefill_inflight_queue_reqs": "inflight",
    "num_decode_prealloc_queue_reqs": "prealloc",
    "decode_prealloc_queue_reqs": "prealloc",
    "num_decode_transfer_queue_reqs": "transfer",
    "decode_transfer_queue_reqs": "transfer",
    "decode_retracted_queue_reqs": "retracted",
    "http_requests_active": "http",
    "http_connections_active": "http",
}
_WORKING = ("running", "waiting", "grammar", "paused", "bootstrap", "inflight", "prealloc", "transfer", "retracted")
WORK_GAUGES = frozenset(name for name, meaning in _GAUGES.items() if meaning in (*_WORKING, "http"))
_LIVE_COUNTERS = {
    "inter_token_latency_seconds_count",
    "realtime_tokens_total",
    "iteration_tokens_total_count",
    "tokens_predicted_total",
    "prompt_tokens_seconds_total",
    "kv_transfer_latency_ms_count",
    "kv_transfer_total_mb_count",
}
# Of these, those that move while a prompt is worked on, before any token is given.
_LIVE_IN_PREFILL = {"realtime_tokens_total", "iteration_tokens_total_count", "prompt_tokens_seconds_total"}
_PROMPTS_TOO = {"realtime_tokens_total", "prompt_tokens_total"}  # count the tokens of prompts, too
_LIVE_IN_VLLM = {"generation_tokens_total", "prompt_tokens_total"}
_END_COUNTERS = {
    "generation_tokens_total",
    "num_requests_total",
    "request_success_total",
    "num_aborted_requests_total",
    "e2e_request_latency_seconds_count",
    "time_to_first_token_seconds_count",
}
_PREFIXES = ("sglang:", "sglang_", "vllm:", "llamacpp:", "smg_", "vllm_router_")
_SAME_EVERYWHERE = {"tp_rank", "pp_rank", "moe_ep_rank"}


@dataclass(frozen=True, slots=True)
class Reading:
    """One gauge over the window: its values in time order."""

    values: tuple[tuple[float, float], ...]

    @property
    def floor(self) -> float:
        """Its smallest value: what was there all the time."""
        return min(v for _, v in self.values)

    @property
    def late_floor(self) -> float:
        """What was there at all of the last looks: a stall that began within the window shows in them."""
        return min(v for _, v in self.values[-LATE_LOOKS:])

    @property
    def last(self) -> float:
        """Its newest value."""
        return self.values[-1][1]

    @property
    def constant(self) -> bool:
        """Whether at least two looks agreed and none differed."""
        return len(self.values) > 1 and len({v for _, v in self.values}) == 1


@dataclass(frozen=True, slots=True)
class Progress:
    """What one service's own figures say about the window.

    Attributes:
        gauges: Meaning (``running``, ``waiting``, ``inflight`` …) → reading.
        live_delta: Growth, over the last looks, of counters that move while a request runs, our own probes' tokens taken off; ``None``: none seen.
        ended_delta: Growth of counters that move when a request ends; ``None``: none seen.
        shows_prefill: It has a counter that moves while a prompt is worked on.
        n_looks: Scrapes that gave values.
    """

    service: str
    work: Work
    gauges: Mapping[str, Reading] = field(default_factory=dict)
    live_delta: float | None = None
    ended_delta: float | None = None
    shows_prefill: bool = False
    n_looks: int = 0
    span_s: float = 0.0

    def floor(self, *names: str) -> float | None:
        """Requests that were in these stages all through the window; ``None`` when none of them is known."""
        known = [self.gauges[name].floor for name in names if name in self.gauges]
        return sum(known) if known else None

    @property
    def in_work(self) -> float | None:
        """Requests that the engine held in any stage all through the window; ``None``: it does not say."""
        return self.floor(*_WORKING)

    @property
    def in_work_last(self) -> float | None:
        """Requests that the engine holds in any stage at the last look."""
        known = [self.gauges[name].last for name in _WORKING if name in self.gauges]
        return sum(known) if known else None

    @property
    def http_active(self) -> float | None:
        """HTTP exchanges that were unfinished all through the window; ``None``: it does not say."""
        return self.floor("http")


def progress_of(capture: Capture, chain: Chain) -> dict[str, Progress]:
    """Read every service's progress from its scrapes."""
    return {name: _progress(name, capture) for name in chain.order}


def awaited_of(capture: Capture, chain: Chain) -> dict[str, float]:
    """Service → answers that the relays in front of it awaited from it all through the window, by their own count.

    A service may believe an answer finished that its caller still waits for; and a caller's count may leak (one per
    cancelled request), so that this alone convicts nobody.
    """
    looks: dict[str, list[float]] = {}
    for scrape in capture.scrapes:
        at_once: dict[str, float] = {}
        for metric in scrape.values:
            if _bare(metric.name) != "worker_requests_active":
                continue
            callee = _callee(dict(metric.labels).get("worker", ""), chain)
            if callee is not None and metric.value >= 0:
                at_once[callee] = at_once.get(callee, 0.0) + metric.value
        for callee, value in at_once.items():
            looks.setdefault(callee, []).append(value)
    return {callee: min(values) for callee, values in looks.items()}


def _callee(url: str, chain: Chain) -> str | None:
    address = address_in(url)
    return chain.callee_at(address) if address is not None else None


def _progress(name: str, capture: Capture) -> Progress:
    looks = sorted(
        (s for s in capture.scrapes if s.service == name and (s.values or s.facts) and s.kind in ("metrics", "loads")),
        key=lambda s: s.t_s,
    )
    pages = [s for s in looks if s.values]
    gauges = _gauges(looks)
    live, ended = _counters(pages[-LATE_LOOKS:], [p for p in capture.probes if name in p.covers or name in p.may_pass])
    return Progress(
        service=name,
        work=_work(gauges, live, ended, len(looks)),
        gauges=gauges,
        live_delta=live,
        ended_delta=ended,
        shows_prefill=any(_bare(metric.name) in _LIVE_IN_PREFILL for page in pages for metric in page.values),
        n_looks=len(looks),
        span_s=looks[-1].t_s - looks[0].t_s if looks else 0.0,
    )


def _work(gauges: Mapping[str, Reading], live: float | None, ended: float | None, n_looks: int) -> Work:
    moved = (live or 0.0) > 0 or (ended or 0.0) > 0
    if moved:
        return "moving"
    known = [gauges[name] for name in _WORKING if name in gauges]
    if not known or n_looks < 2:
        return "unknown"
    if sum(reading.floor for reading in known) >= 1:
        return "stuck" if live is not None else "unknown"
    return "idle" if sum(reading.last for reading in known) < 1 else "unknown"


def _gauges(looks: Iterable[Scrape]) -> dict[str, Reading]:
    found: dict[str, list[tuple[float, float]]] = {}
    for look in looks:
        for meaning, value in _gauge_values(look).items():
            if value == value and abs(value) != float("inf"):  # noqa: PLR0124 NaN is no reading
                found.setdefault(meaning, []).append((look.t_s, max(0.0, value)))
    return {meaning: Reading(tuple(values)) for meaning, values in found.items()}


def _gauge_values(look: Scrape) -> dict[str, float]:
    """One value per meaning: ranks that repeat the same request count once, other label sets add up."""
    per_set: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    for metric in look.values:
        meaning = _GAUGES.get(_bare(metric.name))
        labels = tuple(pair for pair in metric.labels if pair[0] not in _SAME_EVERYWHERE)
        if meaning == "http" and not _inference_path(dict(labels)):
            continue
        if meaning is not None:
            key = (meaning, labels)
            per_set[key] = max(metric.value, per_set.get(key, metric.value))
    if look.kind == "loads":
        for name, fact in look.facts.items():
            meaning = _GAUGES.get(name.rpartition(".")[2])
            if meaning is not None and isinstance(fact, int | float):
                per_set[meaning, (("fact", name),)] = float(fact)
    summed: dict[str, float] = {}
    for (meaning, _), value in per_set.items():
        summed[meaning] = summed.get(meaning, 0.0) + value
    return summed


def _inference_path(labels: Mapping[str, str]) -> bool:
    """A scrape of `/metrics` is itself an active HTTP request; only those that ask for tokens count."""
    path = labels.get("endpoint", labels.get("path"))
    return path is None or any(word in path for word in ("completions", "generate", "messages", "responses"))


def _bare(name: str) -> str:
    """The name of a metric without the prefix of its engine."""
    for prefix in _PREFIXES:
        if name.startswith(prefix):
            return name.removeprefix(prefix)
    return name


bare_name = _bare


def _counters(pages: list[Scrape], own: list[ProbeResult]) -> tuple[float | None, float | None]:
    """Growth of live and of ending counters by the users' work alone."""
    live = ended = 0.0
    saw_live = saw_ended = False
    busiest_live: dict[str, float] = {}
    busiest_ended: dict[str, float] = {}
    for before, after in pairwise(pages):
        old = {(m.name, m.labels): m.value for m in before.values}
        quiet = not any(p.t_s < after.t_s + after.took_s and before.t_s < p.t_s + p.total_s + 0.5 for p in own)
        for metric in after.values:
            kind = _counter_kind(metric.name)
            if kind is None or (metric.name, metric.labels) not in old:
                continue
            delta = metric.value - old[metric.name, metric.labels]
            saw_live, saw_ended = saw_live or kind == "live", saw_ended or kind == "ended"
            if delta > 0:
                book = busiest_live if kind == "live" else busiest_ended
                book[metric.name] = book.get(metric.name, 0.0) + delta
                if quiet:
                    live, ended = (live + delta, ended) if kind == "live" else (live, ended + delta)
    own_tokens = sum(p.n_tokens + 2 for p in own)
    own_prompts = 2 * sum(p.request_bytes for p in own)  # no tokenizer makes more tokens of a prompt than it has bytes
    users = [n - own_prompts * (_bare(name) in _PROMPTS_TOO) for name, n in busiest_live.items()]
    live = max(live, max(users, default=0.0) - 2 * own_tokens - 8 * len(own))
    return (live if saw_live else None), (ended if saw_ended else None)


def _counter_kind(name: str) -> Literal["live", "ended"] | None:
    bare = _bare(name)
    if bare in _LIVE_COUNTERS or (name.startswith("vllm:") and bare in _LIVE_IN_VLLM):
        return "live"
    return "ended" if bare in _END_COUNTERS else None
