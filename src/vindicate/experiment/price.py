"""A design, and what earlier experiments on this stack measured → its price, before anything is touched."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from vindicate.experiment.design import FEWEST_WARM_UPS
from vindicate.record.experiment import Design, Price
from vindicate.stats.paired import gain_pct
from vindicate.stats.planning import minimum_detectable, upper_sd

__all__ = ["ASSUMED_SD", "ASSUMED_START_S", "Noise", "Pace", "price", "warm_up_requests"]

# sqrt(2 (0.02**2 + 0.01**2 / 20)): starts that differ by 2 %, windows by 1 %; assumed for planning, measured nowhere
ASSUMED_SD = 0.0285
ASSUMED_START_S = 60.0


@dataclass(frozen=True, slots=True)
class Noise:
    """Pooled standard deviation of a block's log ratio over earlier experiments on this stack, with its degrees of freedom."""

    sd: float
    df: int
    experiments: int


@dataclass(frozen=True, slots=True)
class Pace:
    """Medians of earlier trials on this stack: one start, and one request's share of a trial's load."""

    start_s: float
    request_s: float


def warm_up_requests(levels: Sequence[int]) -> int:
    """Requests of one round of a start's discarded warm-up, at the highest level."""
    return max(levels)


def price(
    design: Design, *, noise: Noise | None = None, pace: Pace | None = None, restart_s: float | None = None
) -> Price:
    """What *design* costs at most; planned with the upper 80 % bound of the noise seen, or an assumption that says so.

    Args:
        restart_s: What a change took to restart the same services, where no trial has timed a start yet.
    """
    starts = 2 + 2 * design.blocks + 1
    warm_up = FEWEST_WARM_UPS * warm_up_requests(design.levels)
    each = len(design.levels) * design.requests_per_level + warm_up
    loaded = 2 + 2 * design.blocks
    requests = loaded * warm_up + 2 * design.blocks * len(design.levels) * design.requests_per_level
    start_s = pace.start_s if pace else restart_s
    sd = upper_sd(noise.sd, noise.df) if noise else ASSUMED_SD
    said = (
        f"upper 80 % bound of {noise.sd * 100:.2f} % over {noise.experiments} earlier "
        f"{'experiment' if noise.experiments == 1 else 'experiments'} here, {noise.df} degrees of freedom"
        if noise
        else "assumed: starts that differ by 2 %; nothing was measured on this stack yet"
    )
    return Price(
        starts=starts,
        restarts=starts * len(design.restarted),
        start_s=ASSUMED_START_S if start_s is None else start_s,
        start_known=start_s is not None,
        load_s=pace.request_s * each * 2 * (design.blocks + 1) if pace else None,
        requests=requests,
        requests_are=f"{loaded} starts x {warm_up} to warm up (or more, until it is flat; 2 of them priming) + {2 * design.blocks} measured "
        f"starts x {len(design.levels)} levels x {design.requests_per_level}",
        sd_block_pct=sd * 100,
        sd_known=noise is not None,
        noise=said,
        detectable_pct=_detectable(design, sd, family=1),
        detectable_holm_pct=_detectable(design, sd, family=len(design.levels)),
        alternatives=_alternatives(design, sd),
    )


def _detectable(design: Design, sd: float, *, family: int) -> tuple[float, ...]:
    lost = 2 if design.order_adjusted else 1
    return tuple(
        gain_pct(minimum_detectable(sd, stop, alpha / family, df=stop - lost))
        for stop, alpha in zip(design.looks, design.alpha, strict=True)
    )


def _alternatives(design: Design, sd: float) -> tuple[str, ...]:
    lines = []
    if design.blocks > 3:
        at_three = gain_pct(minimum_detectable(sd, 3, 0.05))
        seen = f"finds {at_three:.1f} %" if math.isfinite(at_three) else "finds little"
        lines.append(f"--blocks 3: {2 + 2 * 3 + 1} starts, grade B, {seen} or more at a level judged by itself")
    if len(design.levels) > 1:
        lines.append("fewer levels: no fewer starts, but less load a start and a milder correction over levels")
    if design.a != design.b:
        lines.append(
            "vindicate restore CHANGE --watch 10m: when the value was there before, the restore that tests itself"
        )
    return tuple(lines)
