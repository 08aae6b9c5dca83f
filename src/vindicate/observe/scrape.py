"""A service's read-only endpoints → Scrapes: metrics, health, loads, models, info; whatever it answers, in bounded time and size.

JSON answers become flat facts: the path joined by dots, list items by their index (`loads.0.disaggregation.mode`).
Only numbers, booleans and short texts of known endpoints are kept, and secrets never.
"""

import json
import math
import os
import time
from collections.abc import Iterator
from typing import Any

from vindicate.record.observation import Scrape
from vindicate.redact import REDACTED, is_secret_name, redact_text
from vindicate.stack.http import Exchange, OwnSockets, exchange
from vindicate.stack.model import Service
from vindicate.wire.prometheus import read_page

__all__ = ["auth_header", "endpoint_url", "scrape"]

_METRICS_LIMIT = 8_000_000
_JSON_LIMIT = 2_000_000
_FACT_LIMIT = 300
_TEXT_LIMIT = 120

# Answers that hold far more than a diagnosis needs (every resolved argument, keys included): only these are taken.
_INFO_FACTS = frozenset(
    {
        "disaggregation_mode",
        "disaggregation_bootstrap_port",
        "disaggregation_transfer_backend",
        "max_running_requests",
        "max_total_num_tokens",
        "model_path",
        "served_model_name",
        "version",
        "device",
        "enable_metrics",
        "watchdog_timeout",
        "effective_max_running_requests_per_dp",
        "simulated",
        "status",
    }
)
_PATHS = {
    "loads": "/v1/loads?include=all",
    "models": "/v1/models",
    "model_info": "/model_info",
    "info": "/server_info",
    "ready": "/ready",
    "workers": "/workers",
}


def endpoint_url(service: Service, kind: str) -> str:
    """Where *service* answers *kind*: ``metrics``, ``health``, or one of the JSON endpoints."""
    if kind == "metrics":
        return service.metrics
    if kind == "health":
        return service.url + service.health
    return service.url + _PATHS[kind]


def auth_header(service: Service) -> dict[str, str]:
    """The bearer header for *service*, from the environment variable that its `api_key_env` names; it is never stored."""
    key = os.environ.get(service.api_key_env) if service.api_key_env else None
    return {"Authorization": f"Bearer {key}"} if key else {}


async def scrape(
    service: Service,
    kind: str,
    *,
    began: float,
    deadline_s: float,
    own: OwnSockets | None = None,
    max_values: int = 4000,
) -> Scrape:
    """Read one endpoint once; every failure becomes a few words in `Scrape.error`.

    Args:
        began: When the capture began, on the monotonic clock.
        max_values: Most samples to keep of a metrics page.
    """
    t_s = time.monotonic() - began
    limit = _METRICS_LIMIT if kind == "metrics" else _JSON_LIMIT
    url = endpoint_url(service, kind)
    answer = await exchange(url, deadline_s=deadline_s, headers=auth_header(service), limit_bytes=limit, own=own)
    made: dict[str, Any] = {"facts": {"certificate": answer.problem}} if answer.problem else {}
    error = _failure(answer)
    if error is None and kind == "metrics":
        page = read_page(answer.body, limit=max_values)
        made["values"] = page.values
        counts = {"n_samples": page.n_samples, "n_bad": page.n_bad, "cut": page.cut}
        made["facts"] = {name: count for name, count in counts.items() if count}
        error = None if page.n_samples else ("empty" if not answer.body.strip() else "not prometheus")
    elif error is None and kind not in ("health", "ready"):
        try:
            made["facts"] = _facts(json.loads(answer.body), kind)
        except (ValueError, RecursionError):
            error = "not json"
    return Scrape(
        service=service.name,
        kind=kind,
        url=redact_text(url),
        t_s=round(t_s, 4),
        took_s=round(answer.total_s, 4),
        status=answer.status,
        error=error,
        **made,
    )


def _failure(answer: Exchange) -> str | None:
    if answer.error in ("connect_timeout", "tls_timeout", "no_headers", "no_first_byte", "stalled"):
        return f"timeout ({answer.error})"
    if answer.error is not None:
        return answer.error
    if answer.status is None:
        return "no answer"
    if 300 <= answer.status < 400:
        return f"redirect ({answer.status}), not followed"
    if not 200 <= answer.status < 300:
        return f"http {answer.status}"
    encoding = answer.headers.get("content-encoding", "identity").lower()
    return None if encoding in ("", "identity") else f"encoded as {encoding[:20]}, though not asked for"


def _facts(value: Any, kind: str) -> dict[str, str | float | bool | None]:
    if kind == "models":
        items = value.get("data") if isinstance(value, dict) else None
        names = [item.get("id") for item in items or () if isinstance(item, dict)] if isinstance(items, list) else []
        return {"model": str(names[0])[:_TEXT_LIMIT], "n_models": len(names)} if names else {}
    out: dict[str, str | float | bool | None] = {}
    for path, inner in _leaves(value, "", 0):
        name = path.rpartition(".")[2]
        if len(out) >= _FACT_LIMIT:
            break
        if kind in ("info", "model_info") and (name not in _INFO_FACTS or path.count(".") > 2):
            continue
        if is_secret_name(name):
            out[path] = REDACTED
        elif isinstance(inner, str):
            out[path] = redact_text(inner)[:_TEXT_LIMIT]
        elif inner is None or isinstance(inner, bool) or math.isfinite(inner):
            out[path] = inner
    return out


def _leaves(value: Any, path: str, depth: int) -> Iterator[tuple[str, str | float | bool | None]]:
    if depth > 8:
        return
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key[:60]}" if path else str(key)[:60], depth + 1)
    elif isinstance(value, list):
        for index, inner in enumerate(value[:64]):
            yield from _leaves(inner, f"{path}.{index}" if path else str(index), depth + 1)
    elif value is None or isinstance(value, str | int | float):
        yield path, float(value) if isinstance(value, int) and abs(value) > 2**62 else value
