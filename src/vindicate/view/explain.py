"""A fit of the wave model → the table and the `vindicate.explain/1` document; what the fit proves is said, not hidden."""

from typing import Any

from vindicate.stats.wavefit import MappingFit, WaveFit
from vindicate.stats.waves import Card

__all__ = ["explain_document", "explain_lines"]

_SHOWN = 5


def explain_document(knob: str, card: Card, targets: tuple[int, int], fit: WaveFit) -> dict[str, Any]:
    """The published document, best mapping first."""
    return {
        "schema": "vindicate.explain/1",
        "knob": knob,
        "card": card.name,
        "values": targets,
        "mappings": [_mapping(mapping) for mapping in fit.mappings],
        "says": _says(card, fit),
        "decides": fit.decides,
    }


def _mapping(mapping: MappingFit) -> dict[str, Any]:
    return {
        "name": mapping.name,
        "rmse_pct": None if mapping.rmse_pct is None else round(mapping.rmse_pct, 2),
        "kernel_share": mapping.kernel_share,
        "levels": [
            {
                "level": row.level,
                "ctas": row.ctas,
                "waves": [round(value, 2) for value in row.waves],
                "efficiency": [round(value, 2) for value in row.efficiency],
                "predicted_gain_pct": round(row.predicted_gain_pct, 1),
                "measured_gain_pct": row.measured_gain_pct,
            }
            for row in mapping.levels
        ],
    }


def explain_lines(knob: str, card: Card, targets: tuple[int, int], fit: WaveFit) -> list[str]:
    """For a terminal: the best mapping level by level, the others in a line each, and what to make of it."""
    a, b = targets
    best = fit.mappings[0]
    measured = best.rmse_pct is not None
    lines = [f"{knob}: {b} over {a} on {card.name} ({card.sms} SMs), by the wave model", ""]
    lines.append(f"{'best fit' if measured else 'for example'}: {_title(best)}")
    lines.append("  level        CTAs         waves    efficiency  predicted  measured")
    lines += [
        f"  {row.level:>5}  {row.ctas[0]:>4} → {row.ctas[1]:<4}  {row.waves[0]:>4.2f} → {row.waves[1]:<4.2f}  "
        f"{100 * row.efficiency[0]:>3.0f} → {100 * row.efficiency[1]:<3.0f} %  {row.predicted_gain_pct:>+7.1f} %  "
        + (f"{row.measured_gain_pct:>+6.1f} %" if row.measured_gain_pct is not None else "      -")
        for row in best.levels
    ]
    lines += ["", "other mappings:"]
    for mapping in fit.mappings[1:_SHOWN]:
        gains = ", ".join(f"{row.predicted_gain_pct:+.1f} at {row.level}" for row in mapping.levels)
        lines.append(f"  {_title(mapping)}: {gains}")
    left = len(fit.mappings) - _SHOWN
    return [*lines, f"  and {left} more, see --json", "", *(f"- {text}" for text in _says(card, fit))]


def _title(mapping: MappingFit) -> str:
    fit = "" if mapping.rmse_pct is None else f", {mapping.rmse_pct:.2f} points RMSE"
    return f"{mapping.name}, kernel share {mapping.kernel_share:.2f}{fit}"


def _says(card: Card, fit: WaveFit) -> list[str]:
    best = fit.mappings[0]
    if best.rmse_pct is None:
        return [
            "nothing measured was given: these are predictions at an assumed kernel share; add --fit LEVEL:GAIN,…",
            "which mapping the kernel uses is not known from outside",
        ]
    says = [
        f"{best.name} misses the measured gains by {best.rmse_pct:.2f} points RMSE with one free number, the kernel share"
    ]
    if fit.chance is not None:
        says.append(
            f"{100 * fit.chance:.0f} % of random gains are fitted that well by one of these {len(fit.mappings)} mappings: "
            + ("weak evidence" if fit.chance > 0.05 else "evidence, not proof")
        )
    says.append(
        f"another level would decide between the mappings that fit: measure {fit.decides}"
        if fit.decides is not None
        else "no level of those asked would decide between the mappings: try others with --levels"
    )
    says.append(f"it holds for equal context lengths and {card.sms} SMs; concurrency is not the decode batch")
    return says
