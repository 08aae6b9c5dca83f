"""Log ratios, one a block → the gain, its standard error, interval and p.

One block holds one fresh start of each arm, so its log ratio carries one draw of the restart effect of each: the block is
the unit of replication, never the request or the window. Model and simulations: docs/decisions/0004-verdict-statistics.md.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Estimate", "Interval", "gain_pct", "order_adjusted_estimate", "order_effect", "paired_estimate", "trend"]


@dataclass(frozen=True, slots=True)
class Interval:
    """Bounds in per cent of arm A, both inside."""

    lo_pct: float
    hi_pct: float


def gain_pct(log_ratio: float) -> float:
    """A log ratio as per cent of A: ``log(1.128)`` is 12.8."""
    return math.expm1(log_ratio) * 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean log ratio with its uncertainty.

    Attributes:
        log_gain: Natural log of B over A.
        sd: Standard deviation of one block's log ratio; pooled over the two orders when adjusted for order.
        se: Standard error of *log_gain*.
        df: Degrees of freedom of *se*.
        n: Blocks.
    """

    log_gain: float
    sd: float
    se: float
    df: int
    n: int

    @property
    def p(self) -> float:
        """Two-sided p for "no difference", Student's t with *df*."""
        from scipy.stats import t

        if self.se == 0:
            return 1.0 if self.log_gain == 0 else 0.0
        return float(2 * t.sf(abs(self.log_gain) / self.se, self.df))

    def interval(self, confidence: float) -> Interval:
        """The interval that covers the true gain with chance *confidence*, in (0, 1)."""
        from scipy.stats import t

        reach = float(t.isf((1 - confidence) / 2, self.df)) * self.se
        return Interval(gain_pct(self.log_gain - reach), gain_pct(self.log_gain + reach))


def paired_estimate(log_ratios: Sequence[float]) -> Estimate:
    """Mean log ratio over at least two blocks, as the paired t test takes it; df = n - 1.

    Example:
        >>> paired_estimate([0.1, 0.12, 0.14]).df
        2
    """
    n = len(log_ratios)
    mean = math.fsum(log_ratios) / n
    sd = math.sqrt(_squares(log_ratios) / (n - 1))
    return Estimate(log_gain=mean, sd=sd, se=sd / math.sqrt(n), df=n - 1, n=n)


def order_adjusted_estimate(ab: Sequence[float], ba: Sequence[float]) -> Estimate:
    """Mean of the two orders' means, with their pooled variance; df = n - 2.

    Exact under a constant order effect (whatever runs second is a little faster) and under linear drift, both of which the
    plain mean only dilutes.

    Args:
        ab: Log ratios of the blocks that ran A first; at least one.
        ba: Those of the blocks that ran B first; at least one, and three in all.
    """
    n = len(ab) + len(ba)
    mean = (math.fsum(ab) / len(ab) + math.fsum(ba) / len(ba)) / 2
    sd = math.sqrt((_squares(ab) + _squares(ba)) / (n - 2))
    return Estimate(log_gain=mean, sd=sd, se=sd * math.sqrt(1 / len(ab) + 1 / len(ba)) / 2, df=n - 2, n=n)


def order_effect(ab: Sequence[float], ba: Sequence[float]) -> Estimate:
    """By how much the second start of a block is above the first, whatever it holds: half the difference of the two orders' means.

    Args:
        ab, ba: Log ratios B over A, as in :func:`order_adjusted_estimate`.
    """
    n = len(ab) + len(ba)
    half = (math.fsum(ab) / len(ab) - math.fsum(ba) / len(ba)) / 2
    sd = math.sqrt((_squares(ab) + _squares(ba)) / (n - 2))
    return Estimate(log_gain=half, sd=sd, se=sd * math.sqrt(1 / len(ab) + 1 / len(ba)) / 2, df=n - 2, n=n)


def trend(values: Sequence[float]) -> Estimate:
    """Least-squares slope of at least three values against 0, 1, 2 and so on; *log_gain* is the change a step."""
    n = len(values)
    centre, mean = (n - 1) / 2, math.fsum(values) / n
    width = math.fsum((at - centre) ** 2 for at in range(n))
    slope = math.fsum((at - centre) * value for at, value in enumerate(values)) / width
    rest = math.fsum((value - mean - slope * (at - centre)) ** 2 for at, value in enumerate(values))
    sd = math.sqrt(rest / (n - 2))
    return Estimate(log_gain=slope, sd=sd, se=sd / math.sqrt(width), df=n - 2, n=n)


def _squares(values: Sequence[float]) -> float:
    mean = math.fsum(values) / len(values)
    return math.fsum((value - mean) ** 2 for value in values)
