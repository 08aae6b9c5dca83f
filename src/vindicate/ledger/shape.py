"""A table in any layout → the same table with one row a level; pure."""

import re
from collections.abc import Collection
from dataclasses import replace

from vindicate.ledger.cell import arms_in, is_explicit_level, level_in
from vindicate.ledger.column import metric_in
from vindicate.ledger.markdown import Grid
from vindicate.ledger.prose import knobs_in

__all__ = ["level_column", "upright", "wide"]

_LEVEL_HEAD = re.compile(
    r"conc|stream|user|client|session|parallel|in.?flight|batch|\bbs\b|^\s*[cn]\s*$|level|load", re.IGNORECASE
)


def upright(grid: Grid, said: tuple[str, str] | None) -> Grid:
    """Levels down the side: a table with levels across its head is turned."""
    if sum(is_explicit_level(cell) for cell in grid.header[1:]) < 2 and not _has_levels_across(grid, said):
        return grid
    width = len(grid.header)
    rows = [tuple(row[at] if at < len(row) else "" for row in (grid.header, *grid.rows)) for at in range(1, width)]
    names = tuple(row[0] if row else "" for row in grid.rows)
    return replace(grid, header=("concurrency", *names), rows=tuple(rows), lines=(grid.line,) * len(rows))


def _has_levels_across(grid: Grid, said: tuple[str, str] | None) -> bool:
    """Whether the bare numbers of the head are levels. In ``| conc | 256 | 512 | gain |`` they are the two values."""
    across = [cell for cell in grid.header[1:] if level_in(cell) is not None]
    if len(across) < 2:
        return False
    side = [row[0].strip("*` ") for row in grid.rows if row]
    texts = (*grid.near, grid.below, grid.section)
    told = said or next((arms[:2] for text in texts if (arms := arms_in(text))), ())
    if told and set(told) <= {_short(re.sub(r"\(.*", "", cell)) for cell in side}:
        return True
    if not _LEVEL_HEAD.search(grid.header[0]):
        return False
    return not all(level_in(cell) is not None for cell in side)


def level_column(grid: Grid) -> int | None:
    """Where the concurrency levels stand; ``None`` when no column names any."""
    for at, head in enumerate(grid.header):
        cells = [row[at] for row in grid.rows if at < len(row) and row[at].strip()]
        named = [
            cell
            for cell in cells
            if is_explicit_level(cell) or (_LEVEL_HEAD.search(head) and level_in(cell) is not None)
        ]
        if cells and len(named) * 2 > len(cells) and not metric_in(head):
            return at
    return None


def wide(grid: Grid, at: int, known: Collection[str]) -> Grid:
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
