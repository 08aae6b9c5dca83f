"""An estimate and a margin → how surely the gain lies inside it; "not significant" is never read as "no change"."""

import math

from vindicate.stats.paired import Estimate

__all__ = ["equivalence_p", "margin_bounds", "non_inferiority_p"]


def margin_bounds(margin: float) -> tuple[float, float]:
    """*margin*, a share such as 0.03, as bounds of the log ratio."""
    return math.log1p(-margin), math.log1p(margin)


def non_inferiority_p(estimate: Estimate, margin: float) -> float:
    """One-sided p for "B is worse than A by *margin* or more"; small says that it is not."""
    return _upper_tail(estimate, margin_bounds(margin)[0])


def equivalence_p(estimate: Estimate, margin: float) -> float:
    """Larger of the two one-sided p values (Schuirmann 1987): small says that the gain lies inside plus or minus *margin*."""
    low, high = margin_bounds(margin)
    return max(_upper_tail(estimate, low), 1 - _upper_tail(estimate, high))


def _upper_tail(estimate: Estimate, at: float) -> float:
    from scipy.stats import t

    if estimate.se == 0:
        return 0.0 if estimate.log_gain > at else 1.0
    return float(t.sf((estimate.log_gain - at) / estimate.se, estimate.df))
