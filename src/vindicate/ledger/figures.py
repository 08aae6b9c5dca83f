"""The columns of a table of levels → the gain at each level, its interval and its grade, with a note of all that was left out; pure."""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from vindicate.ledger.cell import gain_in, number_in
from vindicate.ledger.column import BLANK, Column, bare_gain
from vindicate.ledger.compared import NEW, OLD, value_in
from vindicate.ledger.markdown import Grid
from vindicate.ledger.spread import interval_in, level_of, starts_in
from vindicate.record.ledger import Effect

__all__ = ["effects_of", "grade_of"]

_STARTS = re.compile(
    r"\b(?:([2-9]|\d{2,}|two|three|four|five|six|eight|ten|several|multiple)\s+(?:\w+\s+){0,2}(?:re)?starts\b"
    r"|restart(?:ed|ing)?\s+(?:\w+\s+){0,3}(?:between|before)\s+(?:each|every)"
    r"|(?:[2-9]|\d{2,})\s+blocks\b(?=[^.|]{0,40}\b(?:random|order|starts?|fresh|interleaved)))",
    re.IGNORECASE,
)


def effects_of(
    group: Sequence[Column], levels: Sequence[int | None], lines: Sequence[int], blank: Effect, notes: list[str]
) -> list[Effect]:
    """The effect at each level, filled into *blank*; *notes* takes what was left out, with its line."""
    gains = [column for column in group if column.is_gain]
    pair = _pair([column for column in group if column.is_number and not column.is_gain], blank)
    intervals = _intervals(group, notes)
    effects = []
    for at, level in enumerate(levels):
        if level is None:
            continue
        stated, rest = (_stated(gains[0], at) or (None, "")) if gains else (None, "")
        a, b = (number_in(column.cells[at]) for column in pair) if pair else (None, None)
        computed = (b / a - 1) * 100 if a and b is not None else None
        if stated is None and computed is None:
            if any(column.cells[at].strip(BLANK) for column in (*gains, *(pair or ()))):
                notes.append(f"line {lines[at]}: level {level} gives no gain that can be read; left out")
            continue
        gain = stated if stated is not None else computed
        if stated is not None and computed is not None and abs(stated - computed) > 0.5:
            notes.append(
                f"line {lines[at]}: level {level} says {stated:+.1f} %, and its own figures give {computed:+.1f} %; the figures were taken"
            )
            gain = computed
        if rest:
            notes.append(
                f"line {lines[at]}: {rest!r} after the gain is a spread of unknown meaning, and was not taken as an interval"
            )
        assert gain is not None
        lo, hi = intervals.get(at, (None, None))
        if lo is not None and hi is not None and not lo - 0.1 <= gain <= hi + 0.1:
            notes.append(
                f"line {lines[at]}: the interval {lo:g} … {hi:g} does not hold the gain {gain:+.1f} %; passed over"
            )
            lo = hi = None
        effects.append(
            replace(blank, level=level, gain_pct=round(gain, 3), value_a=a, value_b=b, lo90_pct=lo, hi90_pct=hi)
        )
    if len(gains) > 1:
        notes.append(f"several columns of gains; {gains[0].head!r} was taken")
    return effects


def _intervals(group: Sequence[Column], notes: list[str]) -> dict[int, tuple[float, float]]:
    """The 90 % interval of each row that gives one; a note for each column of another or an unknown level."""
    found: dict[int, tuple[float, float]] = {}
    ends: dict[str, Column] = {}
    for column in group:
        if column.part not in ("interval", "lo", "hi"):
            continue
        level = level_of(column.head)
        if level != 90:
            what = "of unknown level" if level is None else f"of {level:g} %"
            notes.append(f"the column {column.head!r} is an interval {what}; passed over, for 90 % intervals are kept")
        elif column.part == "interval":
            found |= {at: both for at, cell in enumerate(column.cells) if (both := interval_in(cell))}
            unread = [cell for at, cell in enumerate(column.cells) if at not in found and cell.strip(BLANK)]
            if unread:
                notes.append(
                    f"the column {column.head!r} holds {unread[0]!r}, which is no interval that can be read; passed over"
                )
        else:
            ends.setdefault(column.part, column)
    if len(ends) == 2:
        for at, cells in enumerate(zip(ends["lo"].cells, ends["hi"].cells, strict=True)):
            lo, hi = (gain[0] if (gain := gain_in(cell)) else number_in(cell) for cell in cells)
            if lo is not None and hi is not None and lo <= hi:
                found[at] = (lo, hi)
    elif ends:
        notes.append(
            f"the column {next(iter(ends.values())).head!r} is one end of an interval without the other; passed over"
        )
    return found


def _pair(columns: Sequence[Column], blank: Effect) -> tuple[Column, Column] | None:
    """The columns of the old and of the new value, by the value in their heads or by words such as before and after."""
    by_value = {value_in(column.head, blank.knob): column for column in reversed(columns)}
    if blank.a in by_value and blank.b in by_value:
        return by_value[blank.a], by_value[blank.b]
    old = [column for column in columns if OLD.search(column.head)]
    new = [column for column in columns if NEW.search(column.head) and column not in old]
    return (old[0], new[0]) if len(old) == 1 and len(new) == 1 else None


def _stated(column: Column, at: int) -> tuple[float, str] | None:
    return gain_in(column.cells[at]) or bare_gain(column.head, column.cells[at])


def grade_of(grid: Grid, columns: Sequence[Column]) -> tuple[Literal["C", "D"], str]:
    """D, unless the words around the table say that each value was started several times: then C, for the order is unknown."""
    for text in (*grid.near, grid.below, grid.section):
        match = _STARTS.search(text)
        if match:
            return "C", f"the text says {match[0]!r}"
    column = next((column for column in columns if column.part == "starts"), None)
    count = starts_in(column.cells) if column else None
    if column is not None and count is not None and count > 1:
        return "C", f"the column {column.head!r} says {count} or more"
    return "D", "the text does not say that each value was started more than once"
