"""Noise of one block, effect wanted → blocks needed, or the smallest effect that so many blocks can see.

``P(|T'| > t)`` with the non-central t of the paired test. An effect and an sd are log ratios: 2.85 % is 0.0285.
"""

import math
from collections.abc import Callable

__all__ = [
    "MOST_BLOCKS",
    "alpha_split",
    "blocks_needed",
    "equivalence_blocks",
    "minimum_detectable",
    "power",
    "upper_sd",
]

MOST_BLOCKS = 1000  # nobody restarts a production stack 2000 times; a search that gets here says "1000 or more"
_FEWEST = 3
_SPLITS = {1: (0.05,), 2: (0.02, 0.03), 3: (0.01, 0.015, 0.025)}


def alpha_split(looks: int) -> tuple[float, ...]:
    """How 5 % is spent over one, two or three planned looks: a Bonferroni split, so valid under any dependence.

    Raises:
        KeyError: More than three looks; no split was simulated for them.
    """
    return _SPLITS[looks]


def power(effect: float, sd: float, n: int, alpha: float, *, df: int | None = None) -> float:
    """Chance that *n* blocks reject "no difference" at *alpha* two-sided when the true log ratio is *effect*.

    *df* is n - 1 unless the estimate is adjusted for order.
    """
    from scipy.stats import nct, t

    df = n - 1 if df is None else df
    if sd == 0:
        return 1.0 if effect else alpha
    bar = float(t.isf(alpha / 2, df))
    shift = abs(effect) * math.sqrt(n) / sd
    above = float(nct.sf(bar, df, shift))
    return above if math.isfinite(above) else float(shift > bar)  # far out, scipy's series gives nan


def blocks_needed(effect: float, sd: float, alpha: float, *, wanted: float = 0.8) -> int:
    """Fewest blocks, 3 or more, whose power reaches *wanted*; MOST_BLOCKS when that many do not suffice."""
    if effect == 0:
        return MOST_BLOCKS
    return _fewest(lambda n: power(effect, sd, n, alpha) >= wanted)


def minimum_detectable(sd: float, n: int, alpha: float, *, df: int | None = None, wanted: float = 0.8) -> float:
    """The smallest true log ratio that *n* blocks find with chance *wanted*."""
    low, high = 0.0, sd
    if sd == 0:
        return 0.0
    while power(high, sd, n, alpha, df=df) < wanted:
        high *= 2
    while high - low > 1e-4 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if power(middle, sd, n, alpha, df=df) < wanted else (low, middle)
    return high


def equivalence_blocks(log_gain: float, sd: float, bounds: tuple[float, float], alpha: float) -> int:
    """Fewest blocks with 80 % chance to show that the gain lies inside *bounds*, were *log_gain* the truth.

    The chance is bounded from below by the sum of the two one-sided ones, less one.
    """
    low, high = bounds
    if not low < log_gain < high:
        return MOST_BLOCKS

    def enough(n: int) -> bool:
        from scipy.stats import nct, t

        bar = float(t.isf(alpha, n - 1))
        shifts = [(log_gain - low) * math.sqrt(n) / sd, (high - log_gain) * math.sqrt(n) / sd]
        chances = [float(nct.sf(bar, n - 1, shift)) for shift in shifts]
        sure = [
            chance if math.isfinite(chance) else float(shift > bar)
            for chance, shift in zip(chances, shifts, strict=True)
        ]
        return sum(sure) - 1 >= 0.8

    return _FEWEST if sd == 0 else _fewest(enough)


def upper_sd(sd: float, df: int, *, confidence: float = 0.8) -> float:
    """Upper one-sided bound of the true sd, from an sd with *df*: what to plan with, because an sd of few blocks is a guess."""
    from scipy.stats import chi2

    return sd * math.sqrt(df / float(chi2.ppf(1 - confidence, df)))


def _fewest(enough: Callable[[int], bool]) -> int:
    low, high = _FEWEST, MOST_BLOCKS
    if not enough(high):
        return MOST_BLOCKS
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle + 1, high)
    return low
