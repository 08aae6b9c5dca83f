"""Items of a Markdown list → the table that they spell out, one level an item; pure."""

import re
from collections.abc import Sequence

from vindicate.ledger.cell import gain_in, is_explicit_level, number_in

__all__ = ["listed_table"]

_ITEM = re.compile(
    r"(?P<level>[^:\u2013\u2014=]{1,24}(?:=\s*\d{1,5})?)\s*(?::|\s[\u2013\u2014-]|,)\s+(?P<rest>.{1,120})"
)
_FIGURES = re.compile(
    r"(?P<a>[^→>]{1,24}?)\s*(?:→|->|=>)\s*(?P<b>[^(,;]{1,24}?)\s*(?:[(,;]\s*(?P<gain>[^)]{1,40})\)?)?"
)


def listed_table(items: Sequence[str]) -> tuple[tuple[str, ...], ...] | None:
    """Level, value before, value after and gain of each item of ``C64: 2310 → 2606 (+12.8 %)`` or ``64 users: +12.8 %``.

    Returns:
        ``None`` unless at least two items, and more than half of them, read so.
    """
    rows = [row for item in items if (row := _row(item))]
    return tuple(rows) if len(rows) >= 2 and len(rows) * 2 > len(items) else None


def _row(item: str) -> tuple[str, ...] | None:
    match = _ITEM.fullmatch(item.strip())
    if match is None or not is_explicit_level(match["level"].removeprefix("at ").strip()):
        return None
    level, rest = match["level"].removeprefix("at ").strip(), match["rest"].strip()
    if gain_in(rest):
        return level, "", "", rest
    figures = _FIGURES.fullmatch(rest)
    if figures is None or number_in(figures["a"]) is None or number_in(figures["b"]) is None:
        return None
    return level, figures["a"], figures["b"], figures["gain"] or ""
