"""Heads and cells of a table that tell how sure a gain is → the 90 % interval, the number of starts, or why neither was taken; pure."""

import re
from collections.abc import Sequence
from typing import Literal

from vindicate.ledger.cell import number_in

__all__ = ["Part", "interval_in", "level_of", "part_of", "starts_in"]

Part = Literal["figure", "interval", "lo", "hi", "starts"]

_INTERVAL = re.compile(
    r"\bci\b|\bci\s?\d|interval|confidence|\b\d{2}(?:\.\d)?\s?%\s*(?:ci|range)|±|\+/-|\bspread\b", re.IGNORECASE
)
_LO = re.compile(
    r"^\W*(?:lo|low|lower)(?:er)?[\s_-]*(?:ci|bound|end)?[\s_-]*(\d{2})?(?:[\s_]*(?:%|pct))?\W*$", re.IGNORECASE
)
_HI = re.compile(r"^\W*(?:hi|high|upper)[\s_-]*(?:ci|bound|end)?[\s_-]*(\d{2})?(?:[\s_]*(?:%|pct))?\W*$", re.IGNORECASE)
_STARTS = re.compile(r"^\W*(?:n\s+)?(?:fresh\s+)?(?:re)?(?:starts|blocks)(?:\s+(?:each|per\s+\w+))?\W*$", re.IGNORECASE)
_LEVEL = re.compile(r"(?<!\d)(\d{2}(?:\.\d)?)(?!\d)")
_SIGNED = r"([+-]?\s?\d+(?:[.,]\d+)?)\s*(?:%|pct)?"
_RANGE = re.compile(
    rf"[\[(]?\s*{_SIGNED}\s*(?:\u2026|\.\.\.?|[,;:/]\s|\bto\b|\u2013|\u2014|\s-\s)\s*{_SIGNED}\s*[\])]?", re.IGNORECASE
)


def part_of(head: str) -> Part:
    """What the column under *head* tells: an interval, one end of it, how many starts stand behind it, or a figure."""
    plain = head.replace("`", "").replace("*", "")
    if _LO.match(plain):
        return "lo"
    if _HI.match(plain):
        return "hi"
    if _STARTS.match(plain):
        return "starts"
    return "interval" if _INTERVAL.search(plain) else "figure"


def level_of(head: str) -> float | None:
    """The level in per cent that a head gives: ``90`` of ``90 % CI`` or ``lo90``; ``None`` when it gives none."""
    match = _LEVEL.search(head)
    return float(match[1]) if match else None


def interval_in(cell: str) -> tuple[float, float] | None:
    """Both ends of ``+9.7 … +16.0``, ``[9.7, 16.0]`` or ``9.7 to 16.0``; ``None`` for anything else."""
    match = _RANGE.fullmatch(cell.replace("\u2212", "-").replace("\u00a0", " ").strip("*`_ "))
    if match is None:
        return None
    lo, hi = (float(end.replace(" ", "").replace(",", ".")) for end in match.groups())
    return (lo, hi) if lo <= hi else None


def starts_in(cells: Sequence[str]) -> int | None:
    """The least number of starts that a column gives; ``None`` when a row gives none."""
    numbers = [number_in(cell) for cell in cells if cell.strip()]
    known = [int(number) for number in numbers if number is not None]
    return min(known) if known and len(known) == len(numbers) else None
