"""The columns of a table of levels → what each one holds: figures of a metric, gains, or how sure they are; pure."""

import re
from dataclasses import dataclass, replace

from vindicate.ledger.cell import arms_in, gain_in, number_in
from vindicate.ledger.markdown import Grid
from vindicate.ledger.spread import Part, part_of

__all__ = ["BLANK", "CHANGE_HEAD", "Column", "bare_gain", "columns_of", "metric_in"]

CHANGE_HEAD = re.compile(r"change|chg|delta|Δ|diff|gain|speed.?up|improv|uplift|ratio|vs\.?\b|win|%", re.IGNORECASE)
_RATIO_HEAD = re.compile(r"speed.?up|ratio|[\u00d7x]\s*$", re.IGNORECASE)
_OTHER = re.compile(
    r"err|fail|time.?out|util|hit|memory|\bmem\b|\bcpu\b|power|watt|cost|price|share|reject|drop|\bsd\b|\bstd|\bcv\b|noise|accept",
    re.IGNORECASE,
)  # what gets better or worse in ways that are not asked about here
_SIGN = re.compile(r"[\s*_`~≈]*(?:[+\u2212\u2013-]\s*\d|[x\u00d7]?\s*\d+(?:[.,]\d+)?\s*[x\u00d7]|[x\u00d7]\s*\d)")
BLANK = " -\u2013\u2014"  # how people write that a cell is empty
_METRICS = (
    ("ttft_ms", re.compile(r"ttft|first.?token", re.IGNORECASE)),
    ("tpot_ms", re.compile(r"tpot|per.?output.?token", re.IGNORECASE)),
    ("itl_ms", re.compile(r"\bitl\b|inter.?token", re.IGNORECASE)),
    ("e2e_ms", re.compile(r"e2e|latency", re.IGNORECASE)),
    ("total_tok_per_s", re.compile(r"total\s+(?:tok|throughput)", re.IGNORECASE)),
    ("output_tok_per_s", re.compile(r"tok(?:en)?s?\s*(?:/|per)\s*s|throughput|\btps\b|\bt/s\b", re.IGNORECASE)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column that holds numbers of one metric, or gains."""

    head: str
    cells: tuple[str, ...]
    metric: str | None
    part: Part = "figure"

    @property
    def is_gain(self) -> bool:
        """Whether most cells are gains, by their own marks or by what the head says of bare numbers."""
        filled = [cell for cell in self.cells if cell.strip(BLANK)]
        if self.part != "figure" or not filled or _OTHER.search(self.head):
            return False
        if all(bare_gain(self.head, cell) is not None for cell in filled) and CHANGE_HEAD.search(self.head):
            return True
        marked = [cell for cell in filled if gain_in(cell) is not None]
        named = CHANGE_HEAD.search(self.head) or self.metric or arms_in(self.head)
        signed = sum(_SIGN.match(cell) is not None for cell in marked) * 2 > len(marked)
        return len(marked) * 2 > len(filled) and bool(named or signed)  # 12 % of something is no gain

    @property
    def is_number(self) -> bool:
        """Whether any cell is a number."""
        return (
            self.part == "figure"
            and not _OTHER.search(self.head)
            and any(number_in(cell) is not None for cell in self.cells)
        )


def columns_of(grid: Grid, at: int) -> list[Column]:
    """The columns that tell something, the one of the levels at *at* left out; each with the metric it is of, as far as that is said.

    A column that names the metric of each row (``output tok/s``, ``TTFT``) parts the others: one for each metric.
    """
    columns = [
        Column(
            head=head,
            cells=tuple(row[other] if other < len(row) else "" for row in grid.rows),
            metric=metric_in(head),
            part=part_of(head),
        )
        for other, head in enumerate(grid.header)
        if other != at
    ]
    useful = [column for column in columns if column.is_gain or column.is_number or column.part != "figure"]
    by_row = next((column for column in columns if column not in useful and any(map(metric_in, column.cells))), None)
    if by_row:
        metrics = [metric_in(cell) for cell in by_row.cells]
        return [
            replace(column, metric=metric, cells=tuple(cell if of == metric else "" for cell, of in zip(column.cells, metrics, strict=True)))
            for metric in dict.fromkeys(metrics) if metric
            for column in useful
        ]  # fmt: skip
    named = [column.metric for column in useful if column.metric]
    words = (*grid.near, grid.below, *(cell for column in useful for cell in column.cells[:1]))
    context = next((metric for text in words if (metric := metric_in(text))), None)
    only = named[0] if len(set(named)) == 1 else context if not named else None
    # A change column that names no metric goes with the figures before it.
    filled, last = [], only
    for column in useful:
        last = column.metric or last
        filled.append(replace(column, metric=column.metric or last))
    return filled


def metric_in(text: str) -> str | None:
    """The metric that a head or a line names, such as ``output_tok_per_s``."""
    return next((name for name, pattern in _METRICS if pattern.search(text)), None)


def bare_gain(head: str, cell: str) -> tuple[float, str] | None:
    """A gain without its mark in the cell, where the head gives it: ``change %`` over ``12.8``, ``speedup`` over ``1.128``."""
    number = number_in(cell)
    if number is None:
        return None
    if "%" in head:
        return number, ""
    return ((number - 1) * 100, "") if _RATIO_HEAD.search(head) and 0.2 < number < 5 else None
