"""Log ratios a block and level, and a rule fixed beforehand → better, worse, equivalent, unresolved or invalid, and why."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from vindicate.stats.equivalence import equivalence_p, margin_bounds
from vindicate.stats.exact import HodgesLehmann, hodges_lehmann, sign_flip_p
from vindicate.stats.holm import holm
from vindicate.stats.paired import Estimate, Interval, gain_pct, order_adjusted_estimate, paired_estimate
from vindicate.stats.planning import MOST_BLOCKS, blocks_needed, equivalence_blocks, minimum_detectable, upper_sd

__all__ = ["FEWEST_BLOCKS", "Grade", "LevelRatios", "LevelVerdict", "Rule", "VerdictName", "grade", "judge"]

VerdictName = Literal["better", "worse", "equivalent", "unresolved", "invalid"]
Grade = Literal["A", "B", "C", "D"]
FEWEST_BLOCKS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """How the samples will be read; fixed before the first of them.

    Attributes:
        alpha: What this look may spend.
        order_adjusted: Whether the order of the arms was balanced by design.
        margin: Share of A inside which a difference does not matter.
        primary: A level named beforehand: judged by its own p. The other levels are then read only once it is better or
            worse, which keeps the chance of any false claim at *alpha*. ``None``: all levels are judged by Holm's p.
    """

    alpha: float
    order_adjusted: bool
    margin: float
    higher_is_better: bool = True
    primary: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelRatios:
    """Log of B over A, one a block, apart by which arm ran first; *invalid* says why they must not be judged."""

    level: int
    ab: tuple[float, ...]
    ba: tuple[float, ...]
    invalid: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelVerdict:
    """What one level says.

    Attributes:
        mde_pct: Gain that these blocks find with 80 % chance, at the strictest step this level may be judged by.
        more_blocks: How many more would likely settle it, were the estimate the truth and the noise at the upper 80 %
            bound of what was seen; 0 when it is settled, ``None`` when more of the same would not help.
        sign_flip_p, hodges_lehmann: Second opinions without a normal law; the verdict does not use them.
    """

    level: int
    verdict: VerdictName
    reason: str | None = None
    estimate: Estimate | None = None
    interval: Interval | None = None
    p: float | None = None
    p_holm: float | None = None
    p_equivalence: float | None = None
    mde_pct: float | None = None
    more_blocks: int | None = None
    sign_flip_p: float | None = None
    hodges_lehmann: HodgesLehmann | None = None


def grade(blocks: int, *, registered: bool, read_back: bool, primed: bool) -> Grade:
    """What the evidence is good for: A and B can carry a change, C and D only an experiment.

    *blocks*: usable, in random order, a fresh start per arm. A needs six, B three, and all three of the flags.
    """
    if blocks >= FEWEST_BLOCKS and registered and read_back and primed:
        return "A" if blocks >= 6 else "B"
    return "C" if blocks >= 2 else "D"


def judge(levels: Sequence[LevelRatios], rule: Rule) -> list[LevelVerdict]:
    """One verdict a level, in the order given."""
    reasons = {item.level: _unusable(item) for item in levels}
    estimates = {item.level: _estimate(item, rule) for item in levels if reasons[item.level] is None}
    adjusted = dict(zip(estimates, holm([estimate.p for estimate in estimates.values()]), strict=True))
    gate = estimates.get(rule.primary) if rule.primary is not None else None
    closed = rule.primary is not None and (gate is None or gate.p > rule.alpha)
    verdicts = []
    for item in levels:
        if (reason := reasons[item.level]) is not None:
            verdicts.append(LevelVerdict(level=item.level, verdict="invalid", reason=reason))
            continue
        is_primary = item.level == rule.primary
        estimate = estimates[item.level]
        p = estimate.p if is_primary else adjusted[item.level]
        step_alpha = rule.alpha if is_primary else rule.alpha / len(estimates)
        verdict = _decide(item, estimate, rule, p_judged=p, step_alpha=step_alpha, closed=closed and not is_primary)
        verdicts.append(replace(verdict, p_holm=adjusted[item.level]))
    return verdicts


def _unusable(item: LevelRatios) -> str | None:
    n = len(item.ab) + len(item.ba)
    if item.invalid is not None:
        return item.invalid
    if n < FEWEST_BLOCKS:
        return f"{n} usable {'block' if n == 1 else 'blocks'}; a verdict needs at least {FEWEST_BLOCKS}"
    if not (item.ab and item.ba):
        return f"all {n} usable blocks ran the arms in one order; order and arm cannot be told apart"
    if len(set(item.ab + item.ba)) == 1:
        return "every block gave exactly the same ratio; figures that never vary were not measured"
    return None


def _estimate(item: LevelRatios, rule: Rule) -> Estimate:
    return order_adjusted_estimate(item.ab, item.ba) if rule.order_adjusted else paired_estimate(item.ab + item.ba)


def _decide(
    item: LevelRatios, estimate: Estimate, rule: Rule, *, p_judged: float, step_alpha: float, closed: bool
) -> LevelVerdict:
    ratios = item.ab + item.ba
    p_equivalence = equivalence_p(estimate, rule.margin)
    interval = estimate.interval(1 - rule.alpha)
    mde = minimum_detectable(estimate.sd, estimate.n, step_alpha, df=estimate.df)
    name: VerdictName = "unresolved"
    more: int | None = 0
    reason = None
    if p_judged <= rule.alpha and not closed:
        name = "better" if (estimate.log_gain > 0) == rule.higher_is_better else "worse"
    elif p_equivalence <= rule.alpha:
        name = "equivalent"
    else:
        more = _more_blocks(estimate, rule, step_alpha)
        reason = _unresolved(interval, mde, more, estimate, rule, closed=closed)
    return LevelVerdict(
        level=item.level,
        verdict=name,
        reason=reason,
        estimate=estimate,
        interval=interval,
        p=estimate.p,
        p_equivalence=p_equivalence,
        mde_pct=gain_pct(mde),
        more_blocks=more,
        sign_flip_p=sign_flip_p(ratios),
        hodges_lehmann=hodges_lehmann(ratios, 1 - rule.alpha),
    )


def _more_blocks(estimate: Estimate, rule: Rule, step_alpha: float) -> int:
    sd = upper_sd(estimate.sd, estimate.df)
    wanted = min(
        blocks_needed(estimate.log_gain, sd, step_alpha),
        equivalence_blocks(estimate.log_gain, sd, margin_bounds(rule.margin), rule.alpha),
    )
    return MOST_BLOCKS if wanted == MOST_BLOCKS else max(1, wanted - estimate.n)


def _unresolved(interval: Interval, mde: float, more: int, estimate: Estimate, rule: Rule, *, closed: bool) -> str:
    if closed:
        return (
            f"not read: level {rule.primary} was named as the one to read first, and it is neither better nor worse; "
            "without --primary every level is judged"
        )
    holds = "holds 0" if interval.lo_pct <= 0 <= interval.hi_pct else "leaves 0 out, but not after Holm's correction"
    count = f"{MOST_BLOCKS} or more" if more >= MOST_BLOCKS else f"about {more}"
    return (
        f"{interval.lo_pct:+.1f} to {interval.hi_pct:+.1f} % {holds} and is wider than {rule.margin * 100:g} % either way; "
        f"{estimate.n} blocks this noisy find {gain_pct(mde):.1f} % or more; {count} more blocks would likely settle it"
    )
