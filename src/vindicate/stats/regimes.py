"""Figures of equal starts → whether they fall into two groups, as when each start draws a fast or a slow mode."""

import math
from collections.abc import Sequence

__all__ = ["two_regimes"]

_FEWEST = 6
_GAP = 0.05
_TIMES = 6.0


def two_regimes(log_values: Sequence[float]) -> tuple[float, float] | None:
    """Means of the two groups, low first; ``None`` when the figures look like one.

    Two groups: the largest gap between neighbours is 5 % or more, and six times the spread inside the groups. One group of
    normal figures is called two in at most 4 of 100 samples of six, 1 of 1000 of twelve (simulated; a remark, never a test).
    """
    values = sorted(log_values)
    if len(values) < _FEWEST:
        return None
    gap, at = max((values[i] - values[i - 1], i) for i in range(1, len(values)))
    low, high = values[:at], values[at:]
    means = math.fsum(low) / len(low), math.fsum(high) / len(high)
    squares = math.fsum((v - means[0]) ** 2 for v in low) + math.fsum((v - means[1]) ** 2 for v in high)
    spread = math.sqrt(squares / (len(values) - 2))
    return means if gap >= _GAP and gap >= _TIMES * spread else None
