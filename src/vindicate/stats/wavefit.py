"""Measured gains per level → which split mappings of the wave model explain them, how well, and how little that proves; pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from vindicate.errors import MisuseError
from vindicate.stats.waves import (
    HEAD_BLOCKS,
    RULES,
    SplitMapping,
    ctas,
    efficiency,
    predicted_gain_pct,
    relative_time,
    waves,
)

__all__ = ["LevelFit", "MappingFit", "WaveFit", "fit_waves"]

_SHARES = tuple(share / 100 for share in range(1, 100))
_DRAWS = 2000
_SEED = 7
_WITHIN_PCT = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelFit:
    """What a mapping says of one level; pairs are for the two targets, in their order."""

    level: int
    ctas: tuple[int, int]
    waves: tuple[float, float]
    efficiency: tuple[float, float]
    predicted_gain_pct: float
    measured_gain_pct: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MappingFit:
    """One mapping with the kernel share that fits best; *rmse_pct* in percentage points, ``None`` when nothing was measured."""

    mapping: SplitMapping
    name: str
    rmse_pct: float | None
    kernel_share: float
    levels: tuple[LevelFit, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WaveFit:
    """All mappings, best first.

    Attributes:
        chance: Share of random gains (uniform between 0 and the largest measured, rounded up to 2 points) that some
            mapping of these fits at least as well as the best one fits the measured; ``None`` below two measured levels.
        decides: The unmeasured level at which the mappings that fit within 2 points differ most; ``None`` when fewer
            than two do.
    """

    mappings: tuple[MappingFit, ...]
    chance: float | None
    decides: int | None


def fit_waves(
    a: int, b: int, *, sms: int, levels: Sequence[int], measured: Mapping[int, float], kernel_share: float = 0.46
) -> WaveFit:
    """Fit one kernel share per mapping to the measured gains of target *b* over *a*.

    Args:
        a, b: The two targets, in thread blocks.
        sms: Multiprocessors of the card.
        levels: Concurrency levels to predict; concurrency stands for the decode batch, which it is not exactly.
        measured: Level → gain in per cent; may be empty, then *kernel_share* is taken as it is.

    Raises:
        MisuseError: A target or a level is below 1, or there is no level.
    """
    if min(a, b, *levels, *measured, 1) < 1 or not (levels or measured):
        raise MisuseError("targets and levels are whole numbers of at least 1", remedy="try: --levels 48,64,80,96")
    wanted = sorted({*levels, *measured})
    mappings = [SplitMapping(rule, head_blocks) for rule, head_blocks in product(RULES, HEAD_BLOCKS)]
    fits = [
        _fit(mapping, (a, b), sms=sms, levels=wanted, measured=measured, share=kernel_share) for mapping in mappings
    ]
    fits.sort(key=lambda fit: (fit.rmse_pct is None, fit.rmse_pct or 0.0))
    return WaveFit(
        mappings=tuple(fits),
        chance=_chance(mappings, (a, b), sms, measured, fits[0].rmse_pct),
        decides=_decides(fits, measured),
    )


def _fit(
    mapping: SplitMapping,
    targets: tuple[int, int],
    *,
    sms: int,
    levels: Sequence[int],
    measured: Mapping[int, float],
    share: float,
) -> MappingFit:
    a, b = targets
    rmse = None
    if measured:
        rmse, share = min((_rmse(mapping, targets, sms, measured, each), each) for each in _SHARES)
    return MappingFit(
        mapping=mapping,
        name=mapping.name,
        rmse_pct=rmse,
        kernel_share=share,
        levels=tuple(
            LevelFit(
                level=level,
                ctas=(ctas(level, a, mapping), ctas(level, b, mapping)),
                waves=(waves(level, a, mapping, sms), waves(level, b, mapping, sms)),
                efficiency=(efficiency(level, a, mapping, sms), efficiency(level, b, mapping, sms)),
                predicted_gain_pct=predicted_gain_pct(level, a, b, mapping, sms, share),
                measured_gain_pct=measured.get(level),
            )
            for level in levels
        ),
    )


def _rmse(
    mapping: SplitMapping, targets: tuple[int, int], sms: int, measured: Mapping[int, float], share: float
) -> float:
    misses = [predicted_gain_pct(level, *targets, mapping, sms, share) - gain for level, gain in measured.items()]
    return float((sum(miss * miss for miss in misses) / len(misses)) ** 0.5)


def _chance(
    mappings: Sequence[SplitMapping],
    targets: tuple[int, int],
    sms: int,
    measured: Mapping[int, float],
    best: float | None,
) -> float | None:
    """How often pure chance is fitted as well: the look-elsewhere check of the fit, by simulation with a fixed seed."""
    if best is None or len(measured) < 2:
        return None
    import numpy as np

    levels = list(measured)
    ratio = np.array([
        [relative_time(n, targets[1], m, sms) / relative_time(n, targets[0], m, sms) for n in levels] for m in mappings
    ])  # fmt: skip
    share = np.array(_SHARES)[:, None, None]
    gains = (100 / (1 - share + share * ratio[None]) - 100).reshape(-1, len(levels))
    top = 2 * (max(*measured.values(), 2.0) // 2 + 1)
    drawn = np.random.default_rng(_SEED).uniform(0, top, size=(_DRAWS, len(levels)))
    misses = np.sqrt(((gains[None] - drawn[:, None]) ** 2).mean(axis=2)).min(axis=1)
    return float((misses <= best + 1e-9).mean())


def _decides(fits: Sequence[MappingFit], measured: Mapping[int, float]) -> int | None:
    near = [fit for fit in fits if fit.rmse_pct is not None and fit.rmse_pct <= _WITHIN_PCT]
    if len(near) < 2:
        return None
    spread = {
        row.level: max(gains) - min(gains)
        for index, row in enumerate(near[0].levels)
        if row.level not in measured
        for gains in [[fit.levels[index].predicted_gain_pct for fit in near]]
    }
    best = max(spread, key=lambda level: spread[level], default=None)
    return best if best is not None and spread[best] >= 1.0 else None
