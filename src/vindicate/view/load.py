"""A LoadSummary → a short table and, when something broke, one line that names it and the next command."""

import sys

from vindicate.record.load import LevelSummary, LoadSummary, Quantiles

__all__ = ["load_lines", "show_load"]

_HEADS = (
    "level", "requests", "ok", "failed", "stalled", "truncated", "cancelled", "wrong", "tok/s",
    "ttft p50/p95 ms", "itl p50/p95 ms", "in flight",
)  # fmt: skip


def show_load(summary: LoadSummary) -> None:
    """Print it: a drawn table on a terminal, aligned columns otherwise."""
    rows = [_row(level) for level in summary.levels]
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table

        table = Table(*_HEADS)
        for row in rows:
            table.add_row(*row)
        Console().print(table)
    else:
        widths = [max(len(row[column]) for row in [_HEADS, *rows]) for column in range(len(_HEADS))]
        for row in [_HEADS, *rows]:
            print("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip())  # noqa: T201 the view prints
    for line in load_lines(summary):
        print(line)  # noqa: T201 the view prints


def load_lines(summary: LoadSummary) -> list[str]:
    """What the table cannot say: errors by kind, ages of the stalled streams, where the files are, what to do next."""
    lines = []
    for level in summary.levels:
        if level.errors:
            kinds = ", ".join(f"{count} {kind}" for kind, count in level.errors.items())
            lines.append(f"{_name(level)}: {kinds}")
        lines += [f"{_name(level)}: {warning}" for warning in level.warnings]
        if level.client_error_ms is not None:
            lines.append(
                f"{_name(level)}: this client's TTFT is off by {level.client_error_ms:+.2f} ms in the mean, by the mock"
            )
        if level.slo_pct is not None:
            lines.append(
                f"{_name(level)}: {level.slo_met} requests kept the bounds ({level.slo_pct:g} %), {level.goodput_req_per_s or 0:g} a second"
            )
        if level.stall_ages_s:
            ages = sorted(level.stall_ages_s, reverse=True)
            shown = ", ".join(f"{age:.1f} s" for age in ages[:8]) + (", …" if len(ages) > 8 else "")
            lines.append(f"{_name(level)}: {len(ages)} stalled streams, silent for {shown}")
    if summary.simulated:
        lines.append("simulated: the server says that its figures are not those of a real card")
    if summary.ended_early is not None:
        lines.append(f"ended early: {summary.ended_early}")
    if summary.out is not None:
        lines.append(f"files: {summary.out}")
    if any(level.stalled or level.failed or level.truncated for level in summary.levels):
        lines.append(f"next: vindicate diagnose {summary.url}")
    return lines


def _name(level: LevelSummary) -> str:
    return f"level {level.level}" if level.level else "open loop"


def _row(level: LevelSummary) -> tuple[str, ...]:
    wrong = f"{level.recall_failed}/{level.recall_asked}" if level.recall_asked else "-"
    return (
        str(level.level or "open"),
        str(level.requests),
        str(level.completed),
        str(level.failed),
        str(level.stalled),
        str(level.truncated),
        str(level.cancelled),
        wrong,
        "-" if level.output_tok_per_s is None else f"{level.output_tok_per_s:.1f}",
        _pair(level.ttft_ms),
        _pair(level.itl_ms),
        f"{level.achieved_concurrency:.1f}, peak {level.peak_concurrency}",
    )


def _pair(values: Quantiles) -> str:
    return " / ".join("-" if value is None else f"{value:.1f}" for value in (values.p50, values.p95))
