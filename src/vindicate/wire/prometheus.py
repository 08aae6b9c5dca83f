"""Bytes of a metrics page → the samples that matter, bounded; a bad line is skipped and counted, never an exception."""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

from vindicate.record.observation import MetricValue

__all__ = ["FAMILIES", "Page", "read_page"]

# Name prefixes of engines, routers and proxies; SGLang's own page has ':', the one merged by its router '_'.
FAMILIES = (
    "sglang:",
    "sglang_",
    "vllm:",
    "smg_",
    "sgl_router_",
    "vllm_router_",
    "llamacpp:",
    "dynamo_",
    "litellm_",
    "haproxy_",
    "envoy_",
    "nginx",
    "process_start_time",
)
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
# Buckets are many and say little over 10 s; these three families are read as distributions.
_KEPT_BUCKETS = re.compile(r"time_to_first_token|ttft|inter_token_latency|itl|inflight_request_age")
_LINE_LIMIT = 8192


@dataclass(frozen=True, slots=True)
class Page:
    """What a page held.

    Attributes:
        values: Kept samples, in page order.
        n_samples: Lines that are samples by their form, kept or not; 0 means that this is no metrics page.
        n_bad: Lines that look like a sample of a kept family and cannot be read, NaN and infinity included.
        cut: Whether samples were dropped because there were more than the limit.
    """

    values: tuple[MetricValue, ...]
    n_samples: int
    n_bad: int
    cut: bool


def read_page(body: bytes, *, limit: int = 4000, families: Iterable[str] = FAMILIES) -> Page:
    """Read a page in Prometheus text format or OpenMetrics; bytes that are no UTF-8 are replaced.

    Args:
        limit: Most samples to keep.
        families: Prefixes of the names to keep.
    """
    prefixes = tuple(families)
    values: list[MetricValue] = []
    n_samples = n_bad = 0
    cut = False
    for line in body.decode("utf-8", errors="replace").split("\n"):
        if not line or line[0] == "#":
            continue
        name = _NAME.match(line)
        if name is None or line[name.end() : name.end() + 1] not in ("{", " ", "\t"):
            continue
        if not line.startswith(prefixes):
            n_samples += _has_number(line)
            continue
        if _is_dropped(name[0]):
            n_samples += 1
            continue
        value = _sample(line)
        if value is None:
            n_bad += 1
            continue
        n_samples += 1
        if len(values) >= limit:
            cut = True
            continue
        values.append(value)
    return Page(tuple(values), n_samples, n_bad, cut)


def _is_dropped(name: str) -> bool:
    return name.endswith("_created") or (name.endswith("_bucket") and _KEPT_BUCKETS.search(name) is None)


def _has_number(line: str) -> bool:
    """Whether the first word behind name and labels is a number: the form of a sample, seen cheaply."""
    words = line[line.rfind("}") + 1 :].split() if "{" in line else line.split()[1:]
    if not 1 <= len(words) <= 2:
        return False
    try:
        float(words[0])
    except ValueError:
        return False
    return True


def _sample(line: str) -> MetricValue | None:
    from prometheus_client.parser import text_string_to_metric_families

    if len(line) > _LINE_LIMIT:
        return None
    try:
        sample = next(iter(text_string_to_metric_families(line + "\n"))).samples[0]
    except (ValueError, IndexError, KeyError, StopIteration, TypeError):
        return None
    if not math.isfinite(sample.value):
        return None
    return MetricValue(name=sample.name, labels=tuple(sorted(sample.labels.items())), value=float(sample.value))
