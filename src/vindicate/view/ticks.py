"""The ends of an axis → round numbers to mark on it."""

__all__ = ["round_ticks"]


def round_ticks(low: float, high: float) -> list[float]:
    """Round numbers from *low* to *high*, four to nine of them."""
    for step in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 1000, 10000):
        if (high - low) / step <= 8:
            first = int(low / step) - 1
            marks = [round((first + n) * step, 6) for n in range(12)]
            return [mark for mark in marks if low <= mark <= high]
    return [0.0]
