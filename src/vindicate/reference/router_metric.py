"""What happens in the router → a `/metrics` page with the names of sglang-router 0.3.2."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import generate_latest

from vindicate.reference.worker import Worker

__all__ = ["Exchange", "RouterMetrics"]

_AGES_S: Final = (0, 30, 60, 180, 300, 600, 1200, 3600, 7200, 14400, 28800, 86400, float("inf"))
_DURATIONS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15, 30, 45, 60, 90, 120, 180, 240)


@dataclass(slots=True, eq=False)
class Exchange:
    """One request that the router is answering; *status* 499 is a client that went away."""

    began: float = field(default_factory=time.monotonic)
    status: int = 499


class RouterMetrics:
    """The counters of one router."""

    def __init__(self, workers: Sequence[Worker]) -> None:
        self._workers = workers
        self._exchanges: set[Exchange] = set()
        self.registry = registry = CollectorRegistry()
        self._http = Counter("smg_http_requests", "HTTP requests.", ["method", "path"], registry=registry)
        self._http_ended = Counter(
            "smg_http_responses", "HTTP responses.", ["status_code", "error_code"], registry=registry
        )
        self._http_s = Histogram(
            "smg_http_request_duration_seconds",
            "Duration.",
            ["method", "path"],
            buckets=_DURATIONS_S,
            registry=registry,
        )
        self._connections = Gauge("smg_http_connections_active", "Requests being answered.", registry=registry)
        self._ages = Gauge(
            "smg_http_inflight_request_age_count", "Requests being answered, by age.", ["gt", "le"], registry=registry
        )
        self._routed = Counter(
            "smg_router_requests",
            "Requests sent to a pair of workers.",
            ["router_type", "backend_type", "connection_mode", "model", "endpoint", "streaming"],
            registry=registry,
        )
        self._active = Gauge("smg_worker_requests_active", "Requests with a worker.", ["worker"], registry=registry)
        self._health = Gauge("smg_worker_health", "1 healthy, 0 not, -1 not known.", ["worker"], registry=registry)
        self._breaker = Gauge("smg_worker_cb_state", "0 closed, 1 open, 2 half open.", ["worker"], registry=registry)
        self._failures = Gauge("smg_worker_cb_consecutive_failures", "In a row.", ["worker"], registry=registry)
        self._checks = Counter(
            "smg_worker_health_checks", "Health checks.", ["worker_type", "result"], registry=registry
        )

    @contextmanager
    def exchange(self, request: web.Request) -> Iterator[Exchange]:
        """Count one request, from its first byte to its last."""
        resource = request.match_info.route.resource
        path = resource.canonical if resource else "unknown"
        exchange = Exchange()
        self._exchanges.add(exchange)
        self._http.labels(request.method, path).inc()
        try:
            yield exchange
        except web.HTTPException as refusal:
            exchange.status = refusal.status
            raise
        finally:
            self._exchanges.discard(exchange)
            self._http_s.labels(request.method, path).observe(time.monotonic() - exchange.began)
            self._http_ended.labels(str(exchange.status), "").inc()

    def routed(self, endpoint: str, body: Mapping[str, Any]) -> None:
        """A request is about to be sent to two workers."""
        streaming = str(bool(body.get("stream"))).lower()
        self._routed.labels("http", "pd", "http", str(body.get("model", "unknown"))[:100], endpoint, streaming).inc()

    def checked(self, worker: Worker) -> None:
        """A health check is over."""
        self._checks.labels(worker.role, "success" if worker.healthy else "failure").inc()

    def page(self) -> bytes:
        """The page, with the gauges of this moment."""
        now = time.monotonic()
        self._connections.set(len(self._exchanges))
        ages = [now - exchange.began for exchange in self._exchanges]
        for above, upto in pairwise(_AGES_S):
            label = "+Inf" if upto == float("inf") else str(upto)
            self._ages.labels(str(above), label).set(sum(1 for age in ages if above < age <= upto))
        for worker in self._workers:
            self._active.labels(worker.url).set(worker.n_active)
            self._health.labels(worker.url).set(-1 if worker.healthy is None else int(worker.healthy))
            self._breaker.labels(worker.url).set(worker.breaker(now))
            self._failures.labels(worker.url).set(worker.n_failures)
        return generate_latest(self.registry)
