"""What happens in an engine → a `/metrics` page with SGLang's names, labels and meanings.

One difference: SGLang's scheduler gauges are set now and then and can be stale; these are read when they are scraped.
"""

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import generate_latest

from vindicate.reference.sequence import End, Sequence, Stage

if TYPE_CHECKING:
    from vindicate.reference.engine import Load

__all__ = ["EngineMetrics"]

# gauge → the stage it counts
QUEUES: Final[Mapping[str, Stage]] = {
    "num_running_reqs": Stage.RUNNING,
    "num_queue_reqs": Stage.WAITING,
    "num_prefill_bootstrap_queue_reqs": Stage.BOOTSTRAP,
    "num_prefill_inflight_queue_reqs": Stage.INFLIGHT,
    "num_decode_prealloc_queue_reqs": Stage.PREALLOC,
    "num_decode_transfer_queue_reqs": Stage.TRANSFER,
}
_GAUGES = (*QUEUES, "num_retracted_reqs", "gen_throughput", "token_usage", "num_used_tokens", "max_total_num_tokens")
_ITL_S = (
    0.002,
    0.004,
    0.006,
    0.008,
    0.01,
    0.015,
    0.02,
    0.025,
    0.03,
    0.035,
    0.04,
    0.06,
    0.08,
    0.1,
    0.2,
    0.4,
    0.6,
    0.8,
    1,
    2,
    4,
    6,
    8,
)
_TTFT_S = (0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400)
_E2E_S = (*_TTFT_S, 600, 1200, 1800, 2400)
_MB = (1, 5, 10, 50, 100, 500, 1000, 5000, 10000)
_MS = (1, 2, 5, 10, 25, 50, 100, 250, 500, 1000, 2500)


class EngineMetrics:
    """The counters of one engine, told by the engine and its HTTP side."""

    def __init__(self, *, role: str, model: str, max_total_tokens: int) -> None:
        self.registry = CollectorRegistry()
        self._max_total_tokens = max_total_tokens
        self._of_tokenizer = {"engine_type": role, "model_name": model}
        self._of_scheduler = {**self._of_tokenizer, "moe_ep_rank": "0", "pp_rank": "0", "tp_rank": "0"}
        of_scheduler, of_tokenizer = list(self._of_scheduler), list(self._of_tokenizer)
        self._gauges = {name: self._gauge(name).labels(**self._of_scheduler) for name in _GAUGES}
        self._idle = Counter(
            "sglang:scheduler_idle_seconds", "Seconds without work.", of_scheduler, registry=self.registry
        ).labels(**self._of_scheduler)
        self._realtime = self._counter("realtime_tokens", "Tokens, as they are computed.", [*of_scheduler, "mode"])
        self._prompt = self._counter(
            "prompt_tokens", "Prompt tokens of requests that ended.", [*of_tokenizer, "is_streaming"]
        )
        self._generated = self._counter(
            "generation_tokens", "Tokens of requests that ended.", [*of_tokenizer, "is_streaming"]
        )
        self._requests = self._counter("num_requests", "Requests that ended.", [*of_tokenizer, "is_streaming"])
        self._aborted = self._counter("num_aborted_requests", "Requests that were aborted.", of_tokenizer).labels(
            **self._of_tokenizer
        )
        bootstrap = self._counter("num_bootstrap_failed_reqs", "Requests whose two legs did not meet.", of_scheduler)
        transfer = self._counter("num_transfer_failed_reqs", "Requests whose KV did not come over.", of_scheduler)
        self._bootstrap_failed = bootstrap.labels(**self._of_scheduler)
        self._transfer_failed = transfer.labels(**self._of_scheduler)
        self._ttft = self._histogram("time_to_first_token_seconds", _TTFT_S, [*of_tokenizer, "is_streaming"])
        self._e2e = self._histogram("e2e_request_latency_seconds", _E2E_S, [*of_tokenizer, "is_streaming"])
        self._itl = self._histogram("inter_token_latency_seconds", _ITL_S, of_tokenizer).labels(**self._of_tokenizer)
        self._kv_mb = self._histogram("kv_transfer_total_mb", _MB, of_scheduler).labels(**self._of_scheduler)
        self._kv_ms = self._histogram("kv_transfer_latency_ms", _MS, of_scheduler).labels(**self._of_scheduler)
        self._http = self._counter("http_requests", "HTTP requests.", ["endpoint", "method"])
        self._http_ended = self._counter("http_responses", "HTTP responses.", ["endpoint", "method", "status_code"])
        self._http_active = Gauge(
            "sglang:http_requests_active",
            "HTTP requests being answered.",
            ["endpoint", "method"],
            registry=self.registry,
        )

    def _gauge(self, name: str) -> Gauge:
        return Gauge(f"sglang:{name}", name.replace("_", " "), list(self._of_scheduler), registry=self.registry)

    def _counter(self, name: str, text: str, labels: list[str]) -> Counter:
        return Counter(f"sglang:{name}", text, labels, registry=self.registry)

    def _histogram(self, name: str, bounds: tuple[float, ...], labels: list[str]) -> Histogram:
        return Histogram(f"sglang:{name}", name.replace("_", " "), labels, buckets=bounds, registry=self.registry)

    # ---- told by the engine ---------------------------------------------------------------------------------------

    def stepped(self, mode: str, n_tokens: int) -> None:
        """A forward pass is over."""
        self._realtime.labels(**self._of_scheduler, mode=mode).inc(n_tokens)

    def token(self, sequence: Sequence, now: float) -> None:
        """*sequence* is about to get a token."""
        if sequence.first_token_at is not None:
            self._itl.observe(now - sequence.last_token_at)

    def transferred(self, n_bytes: int, took_s: float) -> None:
        """KV went from prefill to decode."""
        self._kv_mb.observe(n_bytes / 2**20)
        self._kv_ms.observe(took_s * 1000)

    def failed(self, sequence: Sequence) -> None:
        """The legs of *sequence* did not come together; called before it ends."""
        met = sequence.stage not in (Stage.BOOTSTRAP, Stage.PREALLOC)
        (self._transfer_failed if met else self._bootstrap_failed).inc()

    def ended(self, sequence: Sequence, end: End) -> None:
        """As in SGLang, a request's tokens are counted when it ends, and only if it was not aborted."""
        if end.reason not in ("stop", "length"):
            self._aborted.inc()
            return
        labels = {**self._of_tokenizer, "is_streaming": str(sequence.order.stream).lower()}
        self._requests.labels(**labels).inc()
        self._prompt.labels(**labels).inc(sequence.n_prompt)
        self._generated.labels(**labels).inc(sequence.n_output)
        self._e2e.labels(**labels).observe(time.monotonic() - sequence.started)
        if sequence.first_token_at is not None:
            self._ttft.labels(**labels).observe(sequence.first_token_at - sequence.started)

    # ---- told by the HTTP side ------------------------------------------------------------------------------------

    def http_began(self, endpoint: str, method: str) -> None:
        """A request came in."""
        self._http.labels(endpoint, method).inc()
        self._http_active.labels(endpoint, method).inc()

    def http_ended(self, endpoint: str, method: str, status: int) -> None:
        """It was answered, or its client is gone."""
        self._http_ended.labels(endpoint, method, str(status)).inc()
        self._http_active.labels(endpoint, method).dec()

    def page(self, load: "Load") -> bytes:
        """The page, with the gauges of this moment."""
        for name, stage in QUEUES.items():
            self._gauges[name].set(load.stages[stage])
        self._gauges["gen_throughput"].set(load.gen_throughput)
        self._gauges["num_used_tokens"].set(load.n_used_tokens)
        self._gauges["token_usage"].set(load.n_used_tokens / self._max_total_tokens)
        self._gauges["max_total_num_tokens"].set(self._max_total_tokens)
        self._idle.reset()
        self._idle.inc(load.idle_s)
        return generate_latest(self.registry)
