"""A metric's name → where it stands in a level's summary, and which way is better."""

from typing import Literal

from vindicate.errors import MisuseError
from vindicate.record.load import LevelSummary, Quantiles

__all__ = [
    "DEFAULT_METRIC",
    "METRICS",
    "clock_of",
    "higher_is_better",
    "mean_of_kind",
    "metric_value",
    "require_metric",
]

DEFAULT_METRIC = "output_tok_per_s"
_KINDS = ("ttft", "itl", "tpot", "e2e")
_STATISTICS = ("mean", "p50", "p90", "p95", "p99")
METRICS = (DEFAULT_METRIC, *(f"{kind}_{statistic}_ms" for kind in _KINDS for statistic in _STATISTICS))


def require_metric(name: str) -> str:
    """*name* itself, when it is one of METRICS.

    Raises:
        MisuseError: It is not.
    """
    if name not in METRICS:
        raise MisuseError(f"no metric {name!r}", remedy=f"one of: {', '.join(METRICS)}")
    return name


def higher_is_better(name: str) -> bool:
    """True of throughput, false of every latency."""
    return name == DEFAULT_METRIC


def clock_of(name: str) -> Literal["ttft", "itl", "e2e"]:
    """Which of the client's stamps the metric rests on: throughput in a closed loop on whole requests, TPOT on gaps."""
    kinds: dict[str, Literal["ttft", "itl", "e2e"]] = {"ttft": "ttft", "itl": "itl", "tpot": "itl"}
    return kinds.get(name.split("_", maxsplit=1)[0], "e2e")


def mean_of_kind(name: str) -> str:
    """The metric's mean, for what only means are kept of: ``ttft_p99_ms`` is ``ttft_mean_ms``."""
    return name if name == DEFAULT_METRIC else f"{name.split('_', maxsplit=1)[0]}_mean_ms"


def metric_value(summary: LevelSummary, name: str) -> float | None:
    """The metric in its own unit; ``None`` when the level's sample does not give it."""
    if name == DEFAULT_METRIC:
        return summary.output_tok_per_s
    kind, statistic, unit = name.split("_")
    quantiles: Quantiles = getattr(summary, f"{kind}_{unit}")
    value: float | None = getattr(quantiles, statistic)
    return value
