"""A price or an experiment → text for a terminal, as wide as it needs and without colour."""

from collections.abc import Sequence

from vindicate.record.experiment import ClientError, Design, Experiment, LevelEffect, Price
from vindicate.units import format_duration

__all__ = ["calibration_text", "price_text", "report_text"]

_PLOT = 33


def price_text(design: Design, price: Price) -> str:
    """The first screen: what it costs, what it can find, and what else could be done."""
    at = [
        f"{alone:.1f} % after {stop} blocks"
        if alone == family
        else f"{alone:.1f} % ({family:.1f} % by Holm over levels) after {stop} blocks"
        for stop, alone, family in zip(design.looks, price.detectable_pct, price.detectable_holm_pct, strict=True)
    ]
    start = (
        f"{format_duration(price.start_s)} each, {'measured here' if price.start_known else 'assumed, not measured'}"
    )
    minutes = (
        f"about {format_duration(price.minutes * 60)}, if no look stops it"
        if price.minutes is not None
        else f"{format_duration(price.starts * price.start_s)} of starts, and load that nobody timed here yet"
    )
    lines = [
        design.question,
        f"  design      {design.blocks} blocks of one fresh start an arm, in the order {' '.join(design.order)}",
        f"  looks       after {' and '.join(map(str, design.looks))} blocks, at {' and '.join(f'{alpha:g}' for alpha in design.alpha)}",
        f"  levels      {', '.join(map(str, design.levels))} requests at a time, {design.requests_per_level} requests each, to {design.url}",
        (
            f"  starts      {price.starts} of {' and '.join(design.restarted)} ({price.restarts} service restarts): 2 priming, "
            f"{2 * design.blocks} measured, 1 to put everything back; {start}"
        ),
        f"  outage      the stack serves only this for {minutes}",
        f"  requests    {price.requests} = {price.requests_are}",
        f"  can find    {'; '.join(at)}, with 80 % chance",
        f"  noise       {price.sd_block_pct:.2f} % a block, {price.noise}",
    ]
    lines += [f"  or          {line}" for line in price.alternatives]
    return "\n".join(lines)


def calibration_text(errors: Sequence[ClientError]) -> str:
    """The client's own error, in a line."""
    parts = [f"{item.level}: {item.ttft_ms:+.2f} / {item.itl_ms:+.3f} / {item.e2e_ms:+.2f} ms" for item in errors]
    return f"  its own error in TTFT / ITL / whole requests, at {', at '.join(parts)}"


def report_text(result: Experiment) -> str:
    """What an experiment says: levels, verdicts and reasons, what was left out, and what would change it."""
    design = result.design
    state = "A/A, an arm against itself" if result.aa else f"{_arm(result, 'b')} over {_arm(result, 'a')}"
    lines = [f"{result.id}: {result.knob}, {state}{'; all figures are simulated' if result.simulated else ''}", ""]
    lines += _table(result)
    lines += ["", *_forest(result.effects)]
    for item in result.effects:
        if item.reason:
            lines.append(f"level {item.level}: {item.verdict}: {item.reason}")
    lines += [
        "",
        (
            f"design: {result.blocks_done} of {design['blocks']} blocks, order {design['order']}, seed {design['seed']}, "
            f"{design['analysis']}, {_family(result)}"
        ),
        "grade A: six or more randomised blocks of fresh, primed starts, value read back in every process; B: three to five",
    ]
    if errors := [
        f"{item.level}: {item.client_error_pct:.2f} %" for item in result.effects if item.client_error_pct is not None
    ]:
        lines.append(
            f"the client's own error, of what it measured: {', '.join(errors)}; no verdict smaller than that is given"
        )
    lines += [f"left out: {line}" for line in result.exclusions] or ["left out: nothing"]
    lines += [f"note: {line}" for line in result.notes]
    lines += [f"what would change it: {line}" for line in result.would_change]
    return "\n".join(lines)


def _arm(result: Experiment, name: str) -> str:
    value = result.arms[name]
    return "unset" if value is None else repr(value)


def _family(result: Experiment) -> str:
    primary = result.design["primary"]
    if primary is not None:
        return f"level {primary} judged first and by itself"
    return "Holm over all levels" if len(result.effects) > 1 else "one level"


def _table(result: Experiment) -> list[str]:
    metric = result.effects[0].metric if result.effects else ""
    rows = [("level", "gain", "interval", "verdict", "p", "p Holm", "grade", "blocks", f"{metric}, A", "B")]
    rows += [
        (
            str(item.level),
            "-" if item.gain_pct is None else f"{item.gain_pct:+.1f} %",
            "-" if item.lo_pct is None else f"{item.lo_pct:+.1f} to {item.hi_pct:+.1f} % ({item.confidence_pct:g} %)",
            item.verdict,
            _p(item.p),
            _p(item.p_holm),
            item.grade,
            str(item.blocks),
            "-" if item.value_a is None else f"{item.value_a:.4g}",
            "-" if item.value_b is None else f"{item.value_b:.4g}",
        )
        for item in result.effects
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _p(value: float | None) -> str:
    return "-" if value is None else "<.0001" if value < 0.0001 else f"{value:.4f}"


def _forest(effects: Sequence[LevelEffect]) -> list[str]:
    """One line a level: the interval, the estimate, every block's ratio as a dot, and 0."""
    drawn = [item for item in effects if item.lo_pct is not None and item.hi_pct is not None]
    if not drawn:
        return []
    points = [
        0.0,
        *(value for item in drawn for value in (item.lo_pct, item.hi_pct, *item.block_gains_pct) if value is not None),
    ]
    low, high = min(points), max(points)
    span = (high - low) or 1.0

    def column(value: float) -> int:
        return round((value - low) / span * (_PLOT - 1))

    lines = []
    for item in drawn:
        row = [" "] * _PLOT
        for value in item.block_gains_pct:
            row[column(value)] = "·"
        start, stop = column(item.lo_pct or 0.0), column(item.hi_pct or 0.0)
        row[start : stop + 1] = ["-" if mark == " " else mark for mark in row[start : stop + 1]]
        row[start], row[stop] = "[", "]"
        row[column(0.0)] = "|"
        row[column(item.gain_pct or 0.0)] = "o"
        lines.append(f"{item.level:>5}  {''.join(row)}")
    return [
        *lines,
        f"{'':>5}  {f'{low:+.1f} %':<{_PLOT - 8}}{f'{high:+.1f} %':>8}   | is no difference, o the estimate, · a block",
        "",
    ]
