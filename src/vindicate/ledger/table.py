"""A table as text → what going from one value of a knob to another was worth per level, or why it does not say; pure."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from vindicate.ledger.cell import arms_in, gain_in, is_explicit_level, level_in, number_in
from vindicate.ledger.markdown import Grid
from vindicate.ledger.prose import knobs_in
from vindicate.ledger.spread import Part, interval_in, level_of, part_of, starts_in
from vindicate.record.ledger import Effect

__all__ = ["Comparison", "Reading", "Skipped", "understand"]

_LEVEL_HEAD = re.compile(
    r"conc|stream|user|client|session|parallel|in.?flight|batch|\bbs\b|^\s*[cn]\s*$|level|load", re.IGNORECASE
)
_CHANGE_HEAD = re.compile(r"change|chg|delta|Δ|diff|gain|speed.?up|improv|uplift|ratio|vs\.?\b|win|%", re.IGNORECASE)
_RATIO_HEAD = re.compile(r"speed.?up|ratio|[\u00d7x]\s*$", re.IGNORECASE)
_BLANK = " -\u2013\u2014"  # how people write that a cell is empty
_OLD = re.compile(r"\b(?:baseline|base|before|old|default|control|off|orig(?:inal)?|stock|was|A)\b", re.IGNORECASE)
_NEW = re.compile(r"\b(?:after|new|tuned|candidate|treatment|test|patched|on|now|B)\b", re.IGNORECASE)
_METRICS = (
    ("ttft_ms", re.compile(r"ttft|first.?token", re.IGNORECASE)),
    ("tpot_ms", re.compile(r"tpot|per.?output.?token", re.IGNORECASE)),
    ("itl_ms", re.compile(r"\bitl\b|inter.?token", re.IGNORECASE)),
    ("e2e_ms", re.compile(r"e2e|latency", re.IGNORECASE)),
    ("total_tok_per_s", re.compile(r"total\s+(?:tok|throughput)", re.IGNORECASE)),
    ("output_tok_per_s", re.compile(r"tok(?:en)?s?\s*(?:/|per)\s*s|throughput|\btps\b|\bt/s\b", re.IGNORECASE)),
)
_STARTS = re.compile(
    r"\b(?:([2-9]|\d{2,}|two|three|four|five|six|eight|ten|several|multiple)\s+(?:\w+\s+){0,2}(?:re)?starts\b"
    r"|restart(?:ed|ing)?\s+(?:\w+\s+){0,3}(?:between|before)\s+(?:each|every)"
    r"|(?:[2-9]|\d{2,})\s+blocks\b(?=[^.|]{0,40}\b(?:random|order|starts?|fresh|interleaved)))",
    re.IGNORECASE,
)
_DATE = re.compile(r"\b(20\d\d-[01]\d-[0-3]\d)\b")
_DEFAULT = re.compile(r"default\D{0,16}?(\d\w*(?:\.\w+)*)", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What the user says a document compares, where it does not say so itself."""

    knob: str
    a: str
    b: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A table understood: *effects* read b over a; *notes* say what was guessed or left out, each with its reason."""

    line: int
    knob: str
    a: str
    b: str
    effects: tuple[Effect, ...]
    grade_because: str
    measured_on: str | None
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """A table that is about something else, or does not say enough; *why* names what is missing."""

    line: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Column:
    """A column that holds numbers of one metric, or gains."""

    head: str
    cells: tuple[str, ...]
    metric: str | None
    part: Part = "figure"

    @property
    def is_gain(self) -> bool:
        if self.part != "figure":
            return False
        filled = [cell for cell in self.cells if cell.strip(_BLANK)]
        marked = sum(gain_in(cell) is not None for cell in filled)
        bare = _CHANGE_HEAD.search(self.head) is not None and all(
            _bare_gain(self.head, cell) is not None for cell in filled
        )
        return bool(filled) and (marked * 2 > len(filled) or bare)

    @property
    def is_number(self) -> bool:
        return self.part == "figure" and any(number_in(cell) is not None for cell in self.cells)


def understand(grid: Grid, *, known: Collection[str] = (), said: Comparison | None = None) -> Reading | Skipped:
    """Read one table.

    Args:
        known: Names that are knobs for certain.
        said: Knob and values as the user gives them; taken before anything in the document.
    """
    if grid.html:
        return Skipped(line=grid.line, why="it is written in HTML; write it as a Markdown table")
    grid = _upright(grid, said)
    at = _level_column(grid)
    if at is None:
        return Skipped(line=grid.line, why="no column of concurrency levels; it is about something else")
    grid = _wide(grid, at, known)
    at = _level_column(grid) or 0
    levels = [level_in(row[at]) if at < len(row) else None for row in grid.rows]
    columns = _columns(grid, at)
    notes = [
        f"line {line}: no level in {row[at] if at < len(row) else ''!r}; row left out"
        for line, row, level in zip(grid.lines, grid.rows, levels, strict=True)
        if level is None and any(row)
    ]
    knob = said.knob if said else _knob(grid, known)
    if knob is None:
        return Skipped(line=grid.line, why="it names no knob, or several; say which with --knob NAME=A..B")
    arms = (said.a, said.b, True) if said else _arms(grid, columns, knob, {str(level) for level in levels})
    if arms is None:
        return Skipped(
            line=grid.line,
            why=f"it does not say which two values of {knob} it compares; say so with --knob {knob}=A..B",
        )
    a, b, ordered = arms
    if not ordered:
        notes.append(f"guessed: {b} over {a}, since the text does not say which came first")
    grade, because = _grade(grid, columns)
    effects = []
    for metric in dict.fromkeys(column.metric for column in columns):
        group = [column for column in columns if column.metric == metric]
        effects += _effects(
            group,
            levels,
            grid.lines,
            Effect(knob=knob, a=a, b=b, level=0, metric=metric or "output_tok_per_s", gain_pct=0.0, grade=grade),
            notes,
        )
    if not effects:
        return Skipped(line=grid.line, why="no gain and no pair of figures for two values; it is about something else")
    if all(column.metric is None for column in columns):
        notes.append("guessed: the figures are output tokens per second, since the table names no metric")
    date = next((match[1] for text in grid.near if (match := _DATE.search(text))), None)
    return Reading(
        line=grid.line,
        knob=knob,
        a=a,
        b=b,
        effects=tuple(effects),
        grade_because=because,
        measured_on=date,
        notes=tuple(notes),
    )


# ---- the shape of the table ------------------------------------------------------------------------------------------


def _upright(grid: Grid, said: Comparison | None) -> Grid:
    """Levels down the side: a table with levels across its head is turned."""
    if sum(is_explicit_level(cell) for cell in grid.header[1:]) < 2 and not _has_levels_across(grid, said):
        return grid
    width = len(grid.header)
    rows = [tuple(row[at] if at < len(row) else "" for row in (grid.header, *grid.rows)) for at in range(1, width)]
    names = tuple(row[0] if row else "" for row in grid.rows)
    return replace(grid, header=("concurrency", *names), rows=tuple(rows), lines=(grid.line,) * len(rows))


def _has_levels_across(grid: Grid, said: Comparison | None) -> bool:
    """Whether the bare numbers of the head are levels. In ``| conc | 256 | 512 | gain |`` they are the two values."""
    across = [cell for cell in grid.header[1:] if level_in(cell) is not None]
    if len(across) < 2:
        return False
    side = [row[0].strip("*` ") for row in grid.rows if row]
    texts = (*grid.near, grid.below, grid.section)
    told = (said.a, said.b) if said else next((arms[:2] for text in texts if (arms := arms_in(text))), ())
    if told and set(told) <= {_short(re.sub(r"\(.*", "", cell)) for cell in side}:
        return True
    if not _LEVEL_HEAD.search(grid.header[0]):
        return False
    is_down = all(level_in(cell) is not None for cell in side)
    values = {cell.strip("*` ") for cell in across} == set(told)
    has_gain = any(_CHANGE_HEAD.search(cell) for cell in grid.header[1:])
    return not (is_down and len(across) == 2 and (values or has_gain or len(side) != 2))


def _level_column(grid: Grid) -> int | None:
    for at, head in enumerate(grid.header):
        cells = [row[at] for row in grid.rows if at < len(row) and row[at].strip()]
        named = [
            cell
            for cell in cells
            if is_explicit_level(cell) or (_LEVEL_HEAD.search(head) and level_in(cell) is not None)
        ]
        if cells and len(named) * 2 > len(cells) and not _metric(head):
            return at
    return None


def _wide(grid: Grid, at: int, known: Collection[str]) -> Grid:
    """One row a level: a table with a row for each value of the knob is folded into columns."""
    for arm in range(len(grid.header)):
        cells = [row[arm].strip("` ") if arm < len(row) else "" for row in grid.rows]
        values = list(dict.fromkeys(cells))
        named = bool(knobs_in(grid.header[arm], known)) or re.search(
            r"value|setting|arm|config|variant|ctas?\b|knob", grid.header[arm], re.IGNORECASE
        )
        if arm == at or len(values) != 2 or not named or "" in values:
            continue
        heads, cells_of = ["concurrency"], dict[int | None, list[str]]()
        rest = [other for other in range(len(grid.header)) if other not in (arm, at)]
        for value in values:
            heads += [f"{grid.header[other]} ({_short(value)})" for other in rest]
        for row, value in zip(grid.rows, cells, strict=True):
            level = level_in(row[at]) if at < len(row) else None
            filled = cells_of.setdefault(level, [""] * (len(rest) * 2))
            for place, other in enumerate(rest):
                filled[values.index(value) * len(rest) + place] = row[other] if other < len(row) else ""
        rows = [("" if level is None else str(level), *filled) for level, filled in cells_of.items()]
        section = grid.section if knobs_in(grid.section, known) else f"{grid.section} {grid.header[arm]}"
        return replace(
            grid,
            header=tuple(heads),
            rows=tuple(rows),
            lines=(grid.line,) * len(rows),
            near=(grid.header[arm], *grid.near),
            section=section,
        )
    return grid


def _short(value: str) -> str:
    return value.rpartition("=")[2].strip("` ")


def _columns(grid: Grid, at: int) -> list[_Column]:
    columns = [
        _Column(
            head=head,
            cells=tuple(row[other] if other < len(row) else "" for row in grid.rows),
            metric=_metric(head),
            part=part_of(head),
        )
        for other, head in enumerate(grid.header)
        if other != at
    ]
    useful = [column for column in columns if column.is_gain or column.is_number or column.part != "figure"]
    named = [column.metric for column in useful if column.metric]
    context = next((metric for text in grid.near if (metric := _metric(text))), None)
    only = named[0] if len(set(named)) == 1 else context if not named else None
    # A change column that names no metric goes with the figures before it.
    filled, last = [], only
    for column in useful:
        last = column.metric or last
        filled.append(replace(column, metric=column.metric or last))
    return filled


def _metric(text: str) -> str | None:
    return next((name for name, pattern in _METRICS if pattern.search(text)), None)


# ---- what it compares ------------------------------------------------------------------------------------------------


def _knob(grid: Grid, known: Collection[str]) -> str | None:
    for text in (" ".join(grid.header), *grid.near, grid.below, grid.section):
        named = knobs_in(text, known)
        if named:
            return named[0] if len(named) == 1 else None
    return None


def _arms(grid: Grid, columns: Sequence[_Column], knob: str, levels: set[str]) -> tuple[str, str, bool] | None:
    """The two values, old one first, and whether the order is said rather than guessed."""
    texts = (*grid.header, *grid.near, grid.below, grid.section)
    told = next((arms for text in texts if (arms := arms_in(text)) and not {arms[0], arms[1]} <= levels), None)
    if told and told[2]:
        return told
    heads = [value for column in columns if not column.is_gain for value in [_value_in(column.head, knob)] if value]
    distinct = list(dict.fromkeys(heads))
    default = next((match[1] for text in texts if (match := _DEFAULT.search(text))), None)
    if len(distinct) == 2:
        old = next((v for c in columns if (v := _value_in(c.head, knob)) and _OLD.search(c.head)), default)
        pair = (
            (distinct[0], distinct[1])
            if old in (distinct[0], None) or old not in distinct
            else (distinct[1], distinct[0])
        )
        return *pair, old in distinct
    if told:
        return (
            told
            if default not in told[:2] or default is None
            else (default, told[1] if told[0] == default else told[0], True)
        )
    stated = next(
        (match[1] for text in texts if (match := re.search(rf"{re.escape(knob)}`?\s*=\s*`?(\w+(?:\.\w+)*)", text))),
        None,
    )
    if stated and default and stated != default:
        return default, stated, True
    return None


def _value_in(head: str, knob: str) -> str | None:
    """The value of the knob that a column's head names: ``512``, ``CTAS=512``, ``tok/s (512)``."""
    plain = head.replace("`", "").replace("\\_", "_")
    match = (
        re.search(rf"{re.escape(knob)}\s*=\s*([\w.]+)", plain)
        or re.search(r"=\s*(\d[\w.]*|on|off|true|false)\b", plain, re.IGNORECASE)
        or re.search(r"(?<![\w.])(\d+(?:\.\d+)?|on|off|true|false)(?![\w%]|\.\d)", plain, re.IGNORECASE)
    )
    return match[1] if match else None


# ---- the figures -----------------------------------------------------------------------------------------------------


def _effects(
    group: Sequence[_Column], levels: Sequence[int | None], lines: Sequence[int], blank: Effect, notes: list[str]
) -> list[Effect]:
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
            if any(column.cells[at].strip(_BLANK) for column in (*gains, *(pair or ()))):
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


def _intervals(group: Sequence[_Column], notes: list[str]) -> dict[int, tuple[float, float]]:
    """The 90 % interval of each row that gives one; a note for each column of another or an unknown level."""
    found: dict[int, tuple[float, float]] = {}
    ends: dict[str, _Column] = {}
    for column in group:
        if column.part not in ("interval", "lo", "hi"):
            continue
        level = level_of(column.head)
        if level != 90:
            what = "of unknown level" if level is None else f"of {level:g} %"
            notes.append(f"the column {column.head!r} is an interval {what}; passed over, for 90 % intervals are kept")
        elif column.part == "interval":
            found |= {at: both for at, cell in enumerate(column.cells) if (both := interval_in(cell))}
            unread = [cell for at, cell in enumerate(column.cells) if at not in found and cell.strip(_BLANK)]
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


def _pair(columns: Sequence[_Column], blank: Effect) -> tuple[_Column, _Column] | None:
    """The columns of the old and of the new value, by the value in their heads or by words such as before and after."""
    by_value = {_value_in(column.head, blank.knob): column for column in reversed(columns)}
    if blank.a in by_value and blank.b in by_value:
        return by_value[blank.a], by_value[blank.b]
    old = [column for column in columns if _OLD.search(column.head)]
    new = [column for column in columns if _NEW.search(column.head) and column not in old]
    return (old[0], new[0]) if len(old) == 1 and len(new) == 1 else None


def _stated(column: _Column, at: int) -> tuple[float, str] | None:
    return gain_in(column.cells[at]) or _bare_gain(column.head, column.cells[at])


def _bare_gain(head: str, cell: str) -> tuple[float, str] | None:
    """A gain without its mark in the cell, where the head gives it: ``change %`` over ``12.8``, ``speedup`` over ``1.128``."""
    number = number_in(cell)
    if number is None:
        return None
    if "%" in head:
        return number, ""
    return ((number - 1) * 100, "") if _RATIO_HEAD.search(head) and 0.2 < number < 5 else None


def _grade(grid: Grid, columns: Sequence[_Column]) -> tuple[Literal["C", "D"], str]:
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
