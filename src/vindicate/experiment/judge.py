"""A design and its trials → what they say at the last look that was reached; a pure function of what is on disk."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from vindicate.experiment.design import ERROR_LIMIT
from vindicate.experiment.metric import higher_is_better
from vindicate.record.experiment import ArmName, Cell, Design, Experiment, LevelEffect, Trial
from vindicate.stats.paired import gain_pct
from vindicate.stats.verdict import LevelRatios, LevelVerdict, Rule, grade, judge

__all__ = ["SCHEMA", "finished_blocks", "hopeless", "judge_experiment", "settled"]

SCHEMA = "vindicate.experiment/1"


@dataclass(frozen=True, slots=True)
class _Pair:
    """Both trials of one block, of the same attempt."""

    block: int
    first: ArmName
    a: Trial
    b: Trial


def judge_experiment(design: Design, trials: Sequence[Trial]) -> Experiment:
    """Judge at the last planned look that was reached; before the first look, and between two, nothing is claimed."""
    pairs = _pairs(trials)
    done = finished_blocks(trials)
    dead = hopeless(trials)
    look = _look(design, done)
    at = design.looks[look - 1] if look else 0
    usable, exclusions = _ratios(design, [pair for pair in pairs if not look or pair.block <= at], trials)
    if dead is not None:
        usable = [replace(item, invalid=dead) for item in usable]
    rule = Rule(
        alpha=design.alpha[max(look, 1) - 1],
        order_adjusted=design.order_adjusted,
        margin=design.margin,
        higher_is_better=higher_is_better(design.metric),
        primary=design.primary,
    )
    primed = {trial.arm for trial in trials if trial.block == 0 and trial.outcome == "ok"} == {"a", "b"}
    effects = tuple(
        _effect(design, verdict, pairs, at=at, rule=rule, primed=primed, early=not look and dead is None)
        for verdict in judge(usable, rule)
    )
    over = dead is not None or (look > 0 and (done >= design.blocks or (done == at and settled(design, effects))))
    return Experiment(
        schema=SCHEMA,
        id=design.id,
        knob=design.knob,
        arms={"a": design.a, "b": design.b},
        design=_published(design),
        blocks_done=done,
        stopped_at_look=look if over and look else None,
        effects=effects,
        complete=over,
        simulated=any(trial.simulated for trial in trials),
        aa=design.a == design.b,
        exclusions=exclusions,
        notes=_notes(design, trials),
        would_change=_would_change(design, effects, over=over, done=done),
    )


def finished_blocks(trials: Sequence[Trial]) -> int:
    """How many blocks, counted from the first on, have both their starts behind them, failed ones included."""
    blocks = {pair.block for pair in _pairs(trials)}
    return next(block for block in range(len(blocks) + 1) if block + 1 not in blocks)


def settled(design: Design, effects: Sequence[LevelEffect]) -> bool:
    """Whether a look may stop: the primary level, or without one every level, has its verdict."""
    asked = [item for item in effects if design.primary is None or item.level == design.primary]
    return all(item.verdict in ("better", "worse", "equivalent") for item in asked)


def hopeless(trials: Sequence[Trial]) -> str | None:
    """Why no further start should be tried: an arm whose start or load failed three times, or the first two times."""
    dead = []
    for arm in ("a", "b"):
        tried = [trial for trial in trials if trial.arm == arm and trial.outcome != "interrupted"]
        failed = [trial for trial in tried if trial.outcome != "ok"]
        if len(failed) >= 3 or (len(failed) == 2 and tried[:2] == failed):
            what = "does not start" if failed[-1].outcome == "failed_start" else "does not survive its load"
            dead.append(f"arm {arm} {what}: {len(failed)} of {len(tried)} trials failed; last: {failed[-1].problem}")
    return "; ".join(dead) or None


# ---- trials → ratios ---------------------------------------------------------------------------------------------


def _pairs(trials: Sequence[Trial]) -> list[_Pair]:
    found: dict[tuple[int, int], dict[ArmName, Trial]] = {}
    for trial in trials:
        if trial.block > 0 and trial.outcome != "interrupted":
            found.setdefault((trial.block, trial.attempt), {})[trial.arm] = trial
    last = {block: attempt for (block, attempt), arms in sorted(found.items()) if len(arms) == 2}
    pairs = []
    for block, attempt in sorted(last.items()):
        arms = found[block, attempt]
        pairs.append(_Pair(block, "a" if arms["a"].position == 1 else "b", arms["a"], arms["b"]))
    return pairs


def _look(design: Design, done: int) -> int:
    return sum(done >= stop for stop in design.looks)


def _ratios(
    design: Design, pairs: Sequence[_Pair], trials: Sequence[Trial]
) -> tuple[list[LevelRatios], tuple[str, ...]]:
    paired = {id(trial) for pair in _pairs(trials) for trial in (pair.a, pair.b)}
    exclusions = [
        f"block {trial.block}, arm {trial.arm}: not counted, because the block was interrupted; it is run again as a whole"
        for trial in trials
        if trial.block > 0 and id(trial) not in paired
    ]
    levels = []
    for level in design.levels:
        ab: list[float] = []
        ba: list[float] = []
        lost: dict[ArmName, list[str]] = {"a": [], "b": []}
        for pair in pairs:
            problems = {"a": _problem(pair.a, level), "b": _problem(pair.b, level)}
            for arm, problem in problems.items():
                if problem is not None:
                    lost["a" if arm == "a" else "b"].append(problem)
                    exclusions.append(f"block {pair.block}, level {level}, arm {arm}: {problem}")
            a, b = _value(pair.a, level), _value(pair.b, level)
            if a and b and not any(problems.values()):
                (ab if pair.first == "a" else ba).append(math.log(b / a))
        invalid = _survivors(lost, len(pairs))
        levels.append(LevelRatios(level=level, ab=tuple(ab), ba=tuple(ba), invalid=invalid))
    return levels, tuple(dict.fromkeys(exclusions))


def _cell(trial: Trial, level: int) -> Cell | None:
    return next((cell for cell in trial.cells if cell.level == level), None)


def _value(trial: Trial, level: int) -> float | None:
    cell = _cell(trial, level)
    return cell.value if cell else None


def _problem(trial: Trial, level: int) -> str | None:
    """The registered rule that takes this level of this trial out, if any does."""
    if trial.outcome == "failed_start":
        return f"did not start: {trial.problem}"
    cell = _cell(trial, level)
    if cell is None:
        return f"was not measured: {trial.problem}"
    broken = cell.requests - cell.completed
    if broken > ERROR_LIMIT * cell.requests:
        return (
            f"{broken} of {cell.requests} requests did not complete "
            f"({cell.failed} failed, {cell.stalled} stalled, {cell.truncated} cut short)"
        )
    if cell.recall_failed > ERROR_LIMIT * cell.recall_asked:
        return f"{cell.recall_failed} of {cell.recall_asked} answers lost what the context held"
    if not cell.value:
        return "its sample does not give the metric"
    return None


def _survivors(lost: dict[ArmName, list[str]], blocks: int) -> str | None:
    """A verdict over what one arm survived would flatter that arm."""
    for arm, other in (("a", "b"), ("b", "a")):
        mine, theirs = lost["a" if arm == "a" else "b"], lost["a" if other == "a" else "b"]
        if len(mine) * 3 > blocks and len(mine) > len(theirs):
            return f"arm {arm} lost {len(mine)} of {blocks} blocks, arm {other} {len(theirs)}; the rest is what survived: {mine[0]}"
    return None


# ---- verdicts → the published document ---------------------------------------------------------------------------


def _effect(
    design: Design, verdict: LevelVerdict, pairs: Sequence[_Pair], *, at: int, rule: Rule, primed: bool, early: bool
) -> LevelEffect:
    estimate, interval = verdict.estimate, verdict.interval
    blocks = estimate.n if estimate else 0
    name, reason = verdict.verdict, verdict.reason
    if early:
        name = "unresolved"
        reason = f"{blocks} blocks so far; the first planned look is after {design.looks[0]}, and nothing is claimed before it"
    outer = estimate.interval(0.90) if estimate else None
    values = [
        (a, b)
        for pair in pairs
        if (not at or pair.block <= at)
        and not (_problem(pair.a, verdict.level) or _problem(pair.b, verdict.level))
        and (a := _value(pair.a, verdict.level))
        and (b := _value(pair.b, verdict.level))
    ]
    return LevelEffect(
        level=verdict.level,
        metric=design.metric,
        gain_pct=gain_pct(estimate.log_gain) if estimate else None,
        lo_pct=interval.lo_pct if interval else None,
        hi_pct=interval.hi_pct if interval else None,
        confidence_pct=round((1 - rule.alpha) * 100, 3),
        p=verdict.p,
        p_holm=verdict.p_holm,
        verdict=name,
        reason=reason,
        mde_pct=verdict.mde_pct,
        more_blocks=max(1, design.looks[0] - blocks) if early else verdict.more_blocks,
        grade=grade(blocks, registered=True, read_back=True, primed=primed),
        blocks=blocks,
        lo90_pct=outer.lo_pct if outer else None,
        hi90_pct=outer.hi_pct if outer else None,
        value_a=_geometric_mean([a for a, _ in values]),
        value_b=_geometric_mean([b for _, b in values]),
        sd_block_pct=estimate.sd * 100 if estimate else None,
        df=estimate.df if estimate else None,
        p_equivalence=verdict.p_equivalence,
        p_sign_flip=verdict.sign_flip_p,
        hodges_lehmann_pct=gain_pct(verdict.hodges_lehmann.log_gain) if verdict.hodges_lehmann else None,
        block_gains_pct=tuple(round((b / a - 1) * 100, 4) for a, b in values),
    )


def _geometric_mean(values: Sequence[float]) -> float | None:
    return math.exp(math.fsum(map(math.log, values)) / len(values)) if values else None


def _published(design: Design) -> dict[str, object]:
    return {
        "blocks": design.blocks,
        "looks": list(design.looks),
        "alpha": list(design.alpha),
        "seed": design.seed,
        "order": " ".join(design.order),
        "analysis": "order-adjusted t, df = n - 2" if design.order_adjusted else "paired t, df = n - 1",
        "levels": list(design.levels),
        "primary": design.primary,
        "metric": design.metric,
        "margin_pct": round(design.margin * 100, 6),
        "requests_per_level": design.requests_per_level,
        "rounds": design.rounds,
        "max_tokens": design.max_tokens,
        "services": list(design.services),
        "restarted": list(design.restarted),
        "url": design.url,
        "rules": list(design.rules),
        "registered_at": design.registered_at,
    }


def _notes(design: Design, trials: Sequence[Trial]) -> tuple[str, ...]:
    """What does not take a trial out, and a reader should know."""
    notes = [
        f"the priming start of arm {trial.arm} failed: {trial.problem}"
        for trial in trials
        if trial.block == 0 and trial.outcome not in ("ok", "interrupted")
    ]
    for level in design.levels:
        cells = [cell for trial in trials if trial.block > 0 and (cell := _cell(trial, level))]
        short = [cell for cell in cells if cell.achieved_concurrency < 0.8 * level]
        if cells and len(short) * 2 > len(cells):
            notes.append(
                f"level {level}: only {_middle([cell.achieved_concurrency for cell in short]):.0f} requests were in flight; "
                "more requests a level make the steady part longer"
            )
    if len({trial.attempt for trial in trials if trial.outcome != "interrupted"}) > 1:
        notes.append("it was interrupted and resumed; blocks never span an interruption")
    return tuple(notes)


def _middle(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]


def _would_change(design: Design, effects: Sequence[LevelEffect], *, over: bool, done: int) -> tuple[str, ...]:
    lines = []
    for item in effects:
        if item.verdict in ("better", "worse"):
            lines.append(
                f"level {item.level}: another driver, engine, workload or card; and a repetition in which the interval holds 0"
            )
        elif item.verdict == "equivalent":
            lines.append(f"level {item.level}: a margin below {design.margin * 100:g} %, or another stack or workload")
        elif item.verdict == "unresolved" and item.more_blocks:
            more = "1000 or more" if item.more_blocks >= 1000 else f"about {item.more_blocks}"
            lines.append(f"level {item.level}: {more} more blocks, or a wider --margin")
        else:
            lines.append(f"level {item.level}: a run in which what made it invalid does not happen")
    if not over:
        lines.append(f"{design.blocks - done} blocks are still planned: vindicate ab --resume {design.id}")
    return tuple(lines)
