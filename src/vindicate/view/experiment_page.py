"""An experiment → one HTML page that needs nothing else: forest plot as SVG, table, design, exclusions, what would change it.

Everything that is shown is escaped; the page loads nothing and runs nothing.
"""

from collections.abc import Callable, Iterator, Sequence
from html import escape

from vindicate.record.experiment import Experiment, LevelEffect
from vindicate.units import shown
from vindicate.view.page import MARK
from vindicate.view.ticks import round_ticks

__all__ = ["report_page"]

Scale = Callable[[float], float]  # per cent → place
_WIDTH, _LEFT, _RIGHT, _ROW, _TOP = 900, 90, 30, 64, 20
_STYLE = """
:root { color-scheme: light dark; --ink: #1a1a1a; --paper: #fff; --soft: #6b7280; --line: #d4d4d8;
  --better: #15803d; --worse: #b91c1c; --equivalent: #1d4ed8; --unresolved: #a16207; --invalid: #6b7280; }
@media (prefers-color-scheme: dark) { :root { --ink: #e5e5e5; --paper: #18181b; --soft: #a1a1aa; --line: #3f3f46;
  --better: #4ade80; --worse: #f87171; --equivalent: #93c5fd; --unresolved: #fbbf24; --invalid: #a1a1aa; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; overflow-wrap: anywhere; } h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; } .wide { overflow-x: auto; }
th, td { text-align: right; padding: .25rem .75rem; border-bottom: 1px solid var(--line); white-space: nowrap; }
li, dd { overflow-wrap: anywhere; } dt { color: var(--soft); } dd { margin: 0 0 .5rem 0; }
svg { width: 100%; height: auto; } svg text { fill: var(--ink); font-size: 13px; } .soft, svg .soft { fill: var(--soft); color: var(--soft); }
.better { color: var(--better); } .worse { color: var(--worse); } .equivalent { color: var(--equivalent); }
.unresolved { color: var(--unresolved); } .invalid { color: var(--invalid); } svg g { stroke: currentColor; fill: currentColor; }
.simulated { border: 1px solid var(--unresolved); padding: .5rem 1rem; }
"""


def report_page(result: Experiment) -> str:
    """The whole page."""
    title = f"{result.id}: {result.knob}, " + (
        "an arm against itself" if result.aa else f"{shown(result.arms['b'])} over {shown(result.arms['a'])}"
    )
    parts = [
        "<!doctype html>",
        f'<html lang="en"><head><meta charset="utf-8">{MARK}<meta name="viewport" content="width=device-width">',
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{escape(title)}</h1>",
    ]
    if result.simulated:
        parts.append('<p class="simulated">All figures are simulated; none is one of a real card.</p>')
    if not result.complete:
        parts.append(f"<p>Not finished: {result.blocks_done} of {escape(str(result.design['blocks']))} blocks.</p>")
    parts += [_verdicts(result.effects), _forest(result), "<h2>Figures</h2>", _table(result)]
    parts += ["<h2>Design</h2>", _design(result)]
    parts += ["<h2>Left out</h2>", _listed(result.exclusions or ["nothing"])]
    if result.notes:
        parts += ["<h2>To be known</h2>", _listed(result.notes)]
    parts += ["<h2>What would change it</h2>", _listed(result.would_change), "</body></html>"]
    return "\n".join(parts) + "\n"


def _verdicts(effects: Sequence[LevelEffect]) -> str:
    return "<ul>" + "".join(
        f'<li>level {item.level}: <strong class="{item.verdict}">{item.verdict}</strong>'
        f"{'' if item.gain_pct is None else f', {item.gain_pct:+.1f} %'}"
        f"{'' if item.reason is None else f': {escape(item.reason)}'}</li>"
        for item in effects
    ) + "</ul>"  # fmt: skip


# ---- the plot ----------------------------------------------------------------------------------------------------


def _forest(result: Experiment) -> str:
    """A row a level: the interval as a line, the estimate as a square, every block as a dot; the margin is shaded."""
    drawn = [item for item in result.effects if item.lo_pct is not None and item.hi_pct is not None]
    if not drawn:
        return '<p class="soft">No level has an interval to draw.</p>'
    margin = float(str(result.design["margin_pct"]))
    values = [value for item in drawn for value in (item.lo_pct or 0.0, item.hi_pct or 0.0, *item.block_gains_pct)]
    low, high = min(-margin, *values), max(margin, *values)
    low, high = low - 0.04 * (high - low), high + 0.04 * (high - low)
    height = _TOP + _ROW * len(drawn) + 40

    def x(value: float) -> float:
        return round(_LEFT + (value - low) / (high - low) * (_WIDTH - _LEFT - _RIGHT), 1)

    foot = _TOP + _ROW * len(drawn)
    shapes = [
        f'<rect x="{x(-margin)}" y="{_TOP}" width="{x(margin) - x(-margin):.1f}" height="{foot - _TOP}" fill="var(--line)" opacity=".4"/>',
        f'<line x1="{x(0)}" x2="{x(0)}" y1="{_TOP}" y2="{foot}" stroke="var(--soft)" stroke-dasharray="4 3"/>',
    ]
    shapes += [
        f'<line x1="{x(tick)}" x2="{x(tick)}" y1="{foot}" y2="{foot + 5}" stroke="var(--soft)"/>'
        f'<text x="{x(tick)}" y="{foot + 20}" text-anchor="middle">{tick:+g} %</text>'
        for tick in round_ticks(low, high)
    ]
    for row, item in enumerate(drawn):
        shapes += _row(item, _TOP + _ROW * row + _ROW / 2, x)
    label = "; ".join(f"level {i.level}: {i.gain_pct:+.1f} %, {i.lo_pct:+.1f} to {i.hi_pct:+.1f} %" for i in drawn)
    return (
        f'<h2>Gain of b over a, {escape(drawn[0].metric)}</h2>\n<svg viewBox="0 0 {_WIDTH} {height}" role="img" '
        f'aria-label="{escape(label, quote=True)}">\n' + "\n".join(shapes) + "\n</svg>\n"
        '<p class="soft">Line: interval at the level of the look. Square: estimate. Dots: blocks. Shaded: the margin inside which '
        "a difference does not matter. Dashed: no difference.</p>"
    )


def _row(item: LevelEffect, y: float, x: Scale) -> Iterator[str]:
    lo, hi, gain = item.lo_pct or 0.0, item.hi_pct or 0.0, item.gain_pct or 0.0
    yield f'<text x="{_LEFT - 14}" y="{y + 4}" text-anchor="end">{item.level}</text>'
    yield f'<g class="{item.verdict}">'
    yield f'<line x1="{x(lo)}" x2="{x(hi)}" y1="{y}" y2="{y}" stroke-width="2"/>'
    for end in (lo, hi):
        yield f'<line x1="{x(end)}" x2="{x(end)}" y1="{y - 7}" y2="{y + 7}" stroke-width="2"/>'
    yield f'<rect x="{x(gain) - 5:.1f}" y="{y - 5}" width="10" height="10"/>'
    for at, block in enumerate(item.block_gains_pct):
        yield f'<circle cx="{x(block)}" cy="{y + 15 + 4 * (at % 3)}" r="3" opacity=".6"><title>block ratio {block:+.2f} %</title></circle>'
    yield "</g>"


# ---- the rest ----------------------------------------------------------------------------------------------------


def _table(result: Experiment) -> str:
    head = (
        "level,gain,interval,at,verdict,grade,blocks,p,p Holm,sign flips,Hodges-Lehmann,finds,client error,a,b".split(
            ","
        )
    )
    rows = [
        (
            f"{item.level}",
            _figure(item.gain_pct, "+.1f", " %"),
            "-" if item.lo_pct is None else f"{item.lo_pct:+.1f} to {item.hi_pct:+.1f} %",
            f"{item.confidence_pct:g} %",
            item.verdict,
            item.grade,
            f"{item.blocks}",
            _figure(item.p, ".4f"),
            _figure(item.p_holm, ".4f"),
            _figure(item.p_sign_flip, ".4f"),
            _figure(item.hodges_lehmann_pct, "+.1f", " %"),
            _figure(item.mde_pct, ".1f", " %"),
            _figure(item.client_error_pct, ".2f", " %"),
            _figure(item.value_a, ".4g"),
            _figure(item.value_b, ".4g"),
        )
        for item in result.effects
    ]
    lines = ["".join(f"<th>{escape(name)}</th>" for name in head)]
    lines += ["".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows]
    return '<div class="wide"><table>' + "".join(f"<tr>{line}</tr>" for line in lines) + "</table></div>"


def _figure(value: float | None, form: str, unit: str = "") -> str:
    return "-" if value is None else f"{value:{form}}{unit}"


def _design(result: Experiment) -> str:
    rows = []
    for name, value in result.design.items():
        if name == "rules" or value in (None, []):
            continue
        rows.append(f"<dt>{escape(name.replace('_', ' '))}</dt><dd>{escape(_told(value))}</dd>")
    rules = result.design.get("rules")
    listed = _listed([str(rule) for rule in rules]) if isinstance(rules, list) else ""
    return f"<dl>{''.join(rows)}</dl><p>Rules, registered before the first start:</p>{listed}"


def _told(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {part}" for name, part in value.items())
    return "; ".join(map(_told, value)) if isinstance(value, list) else str(value)


def _listed(lines: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>"
