"""p values of one family → p values that may be read one by one."""

from collections.abc import Sequence

__all__ = ["holm"]


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down adjustment, in the order given; the chance of any false claim at ``<= alpha`` is at most alpha.

    Valid under any dependence, which levels measured in one start have (S. Holm, Scand. J. Statist. 6, 1979).

    Example:
        >>> holm([0.01, 0.04, 0.03])
        [0.03, 0.06, 0.06]
    """
    adjusted = [0.0] * len(p_values)
    worst = 0.0
    for step, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        worst = max(worst, min(1.0, (len(p_values) - step) * p_values[index]))
        adjusted[index] = worst
    return adjusted
