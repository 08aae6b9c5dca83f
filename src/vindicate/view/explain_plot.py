"""A fit of the wave model → an SVG picture: gain over concurrency for the mappings that fit best, with the measured points."""

from collections.abc import Callable, Iterator, Sequence
from html import escape

from vindicate.stats.wavefit import MappingFit, WaveFit
from vindicate.stats.waves import Card, predicted_gain_pct
from vindicate.view.ticks import round_ticks

__all__ = ["MARK", "explain_svg"]

MARK = "<!-- vindicate-explain -->"

Scale = Callable[[float], float]
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 860, 480, 70, 20, 50, 120
_COLOURS = ("#1d4ed8", "#b45309", "#15803d")  # tell themselves apart in grey, too, by their dashes
_DASHES = ("", "8 4", "2 4")
_INK, _SOFT, _LINE = "#1a1a1a", "#6b7280", "#d4d4d8"


def explain_svg(knob: str, card: Card, targets: tuple[int, int], fit: WaveFit) -> str:
    """The picture, self-contained, on white."""
    drawn = fit.mappings[: len(_COLOURS)]
    rows = drawn[0].levels
    last = max(row.level for row in rows)
    levels = range(1, last + max(4, last // 8) + 1)
    curves = [_curve(mapping, card, targets, levels) for mapping in drawn]
    measured = [(row.level, row.measured_gain_pct) for row in rows if row.measured_gain_pct is not None]
    values = [0.0, *(gain for curve in curves for _, gain in curve), *(gain for _, gain in measured)]
    low, high = min(values), max(values)
    room = 0.06 * (high - low or 1.0)
    low, high = low - room, high + room

    def x(level: float) -> float:
        return round(_LEFT + level / levels[-1] * (_WIDTH - _LEFT - _RIGHT), 1)

    def y(gain: float) -> float:
        return round(_TOP + (high - gain) / (high - low) * (_HEIGHT - _TOP - _BOTTOM), 1)

    title = f"{knob}: {targets[1]} over {targets[0]} on {card.name}, by the wave model"
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}" '
        f'font-family="DejaVu Sans, Arial, sans-serif" font-size="13" fill="{_INK}">'
    )
    return "\n".join([
        head,
        MARK,
        f"<title>{escape(title)}</title>",
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#fff"/>',
        f'<text x="{_LEFT}" y="26" font-size="15">{escape(title)}</text>',
        *_axes(low, high, levels[-1], x, y),
        *(_line(curve, number, x, y) for number, curve in enumerate(curves)),
        *(_point(level, gain, x, y) for level, gain in measured),
        *_legend(drawn, measured=bool(measured)),
        "</svg>",
        "",
    ])  # fmt: skip


def _curve(mapping: MappingFit, card: Card, targets: tuple[int, int], levels: Sequence[int]) -> list[tuple[int, float]]:
    return [
        (level, predicted_gain_pct(level, *targets, mapping.mapping, card.sms, mapping.kernel_share))
        for level in levels
    ]


def _axes(low: float, high: float, last: int, x: Scale, y: Scale) -> Iterator[str]:
    foot = _HEIGHT - _BOTTOM
    for tick in round_ticks(low, high):
        yield f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y(tick)}" y2="{y(tick)}" stroke="{_SOFT if tick == 0 else _LINE}"/>'
        yield f'<text x="{_LEFT - 8}" y="{y(tick) + 4}" text-anchor="end">{f"{tick:+g}" if tick else "0"} %</text>'
    for tick in round_ticks(0, last):
        yield f'<line x1="{x(tick)}" x2="{x(tick)}" y1="{foot}" y2="{foot + 5}" stroke="{_SOFT}"/>'
        yield f'<text x="{x(tick)}" y="{foot + 20}" text-anchor="middle">{tick:g}</text>'
    yield f'<text x="{(_LEFT + _WIDTH - _RIGHT) / 2}" y="{foot + 38}" text-anchor="middle" fill="{_SOFT}">concurrency, taken for the decode batch</text>'


def _line(curve: Sequence[tuple[int, float]], number: int, x: Scale, y: Scale) -> str:
    points = " ".join(f"{x(level)},{y(gain)}" for level, gain in curve)
    return f'<polyline points="{points}" fill="none" stroke="{_COLOURS[number]}" stroke-width="1.5" stroke-dasharray="{_DASHES[number]}"/>'


def _point(level: int, gain: float, x: Scale, y: Scale) -> str:
    return (
        f'<circle cx="{x(level)}" cy="{y(gain)}" r="5" fill="{_INK}"/>'
        f'<text x="{x(level) + 8}" y="{y(gain) - 8}">{gain:+g} %</text>'
    )


def _legend(drawn: Sequence[MappingFit], *, measured: bool) -> Iterator[str]:
    y = _HEIGHT - _BOTTOM + 62
    for number, mapping in enumerate(drawn):
        fit = "" if mapping.rmse_pct is None else f", {mapping.rmse_pct:.2f} points RMSE"
        yield (
            f'<line x1="{_LEFT}" x2="{_LEFT + 34}" y1="{y - 4}" y2="{y - 4}" stroke="{_COLOURS[number]}" stroke-width="2" '
            f'stroke-dasharray="{_DASHES[number]}"/>'
        )
        yield f'<text x="{_LEFT + 42}" y="{y}">{escape(mapping.name)}, kernel share {mapping.kernel_share:.2f}{fit}</text>'
        y += 18
    if measured:
        yield f'<circle cx="{_WIDTH - 110}" cy="{_HEIGHT - _BOTTOM + 58}" r="5"/><text x="{_WIDTH - 98}" y="{_HEIGHT - _BOTTOM + 62}">measured</text>'
