"""A metric's name → where it stands in a level's summary, and which way is better."""

from vindicate.errors import MisuseError
from vindicate.record.load import LevelSummary, Quantiles

__all__ = ["DEFAULT_METRIC", "METRICS", "higher_is_better", "metric_value", "require_metric"]

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


def metric_value(summary: LevelSummary, name: str) -> float | None:
    """The metric in its own unit; ``None`` when the level's sample does not give it."""
    if name == DEFAULT_METRIC:
        return summary.output_tok_per_s
    kind, statistic, unit = name.split("_")
    quantiles: Quantiles = getattr(summary, f"{kind}_{unit}")
    value: float | None = getattr(quantiles, statistic)
    return value
