"""A table as text → what going from one value of a knob to another was worth per level, or why it does not say; pure."""

import re
from collections.abc import Collection
from dataclasses import dataclass

from vindicate.ledger.cell import level_in
from vindicate.ledger.column import columns_of
from vindicate.ledger.compared import Arms, arms_of, knob_of
from vindicate.ledger.figures import effects_of, grade_of
from vindicate.ledger.markdown import Grid
from vindicate.ledger.shape import level_column, upright, wide
from vindicate.record.ledger import Effect

__all__ = ["Comparison", "Reading", "Skipped", "understand"]

_DATE = re.compile(r"\b(20\d\d-[01]\d-[0-3]\d)\b")


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


def understand(grid: Grid, *, known: Collection[str] = (), said: Comparison | None = None) -> Reading | Skipped:
    """Read one table.

    Args:
        known: Names that are knobs for certain.
        said: Knob and values as the user gives them; taken before anything in the document.
    """
    if grid.unread:
        return Skipped(line=grid.line, why=grid.unread)
    grid = upright(grid, (said.a, said.b) if said else None)
    at = level_column(grid)
    if at is None:
        return Skipped(line=grid.line, why="no column of concurrency levels; it is about something else")
    grid = wide(grid, at, known)
    at = level_column(grid) or 0
    levels = [level_in(row[at]) if at < len(row) else None for row in grid.rows]
    columns = columns_of(grid, at)
    notes = [
        f"line {line}: no level in {row[at] if at < len(row) else ''!r}; row left out"
        for line, row, level in zip(grid.lines, grid.rows, levels, strict=True)
        if level is None and any(row)
    ]
    knob = said.knob if said else knob_of(grid, known)
    if knob is None:
        return Skipped(line=grid.line, why="it names no knob, or several; say which with --knob NAME=A..B")
    arms = Arms(a=said.a, b=said.b) if said else arms_of(grid, columns, knob, {str(level) for level in levels})
    if arms is None:
        return Skipped(
            line=grid.line,
            why=f"it does not say which two values of {knob} it compares; say so with --knob {knob}=A..B",
        )
    a, b = arms.a, arms.b
    if arms.guess:
        notes.append(f"guessed: {arms.guess}")
    grade, because = grade_of(grid, columns)
    effects = []
    for metric in dict.fromkeys(column.metric for column in columns):
        group = [column for column in columns if column.metric == metric]
        effects += effects_of(
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
