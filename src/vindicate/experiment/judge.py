"""A design and its trials → what they say at the last look that was reached; a pure function of what is on disk."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from vindicate.experiment.design import LOST_SHARE, is_flat
from vindicate.experiment.doubt import Doubted, client_floor_pct, doubt
from vindicate.experiment.fair import covariates, difference_in, problem_in, reused_prompts
from vindicate.experiment.metric import higher_is_better
from vindicate.experiment.pairs import Pair, cell_of, finished_blocks, pairs_of, value_of
from vindicate.record.experiment import Design, Experiment, LevelEffect, Trial
from vindicate.stats.paired import gain_pct
from vindicate.stats.verdict import FEWEST_BLOCKS, LevelRatios, LevelVerdict, Rule, grade, judge

__all__ = ["SCHEMA", "finished_blocks", "hopeless", "identity_of", "judge_experiment", "settled"]

SCHEMA = "vindicate.experiment/1"


@dataclass(slots=True)
class _Level:
    """One level's blocks: those that count, and why the others do not."""

    level: int
    counted: list[Pair] = field(default_factory=list)
    exclusions: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    invalid: str | None = None

    def ratios(self) -> LevelRatios:
        """Log of B over A of the blocks that count, apart by order."""
        found: dict[str, list[float]] = {"a": [], "b": []}
        for pair in self.counted:
            a, b = value_of(pair.a, self.level), value_of(pair.b, self.level)
            assert a is not None and b is not None  # noqa: PT018 what counts has both
            found[pair.first].append(math.log(b / a))
        return LevelRatios(level=self.level, ab=tuple(found["a"]), ba=tuple(found["b"]), invalid=self.invalid)


def judge_experiment(design: Design, trials: Sequence[Trial]) -> Experiment:
    """Judge at the last planned look that was reached; before the first look, and between two, nothing is claimed."""
    pairs = pairs_of(trials)
    done = finished_blocks(trials)
    dead = hopeless(trials)
    look = _look(design, done)
    at = design.looks[look - 1] if look else 0
    levels = [
        _level(design, [pair for pair in pairs if not look or pair.block <= at], level) for level in design.levels
    ]
    early = not look and dead is None
    rule = Rule(
        alpha=design.alpha[max(look, 1) - 1],
        order_adjusted=design.order_adjusted,
        margin=design.margin,
        higher_is_better=higher_is_better(design.metric),
        primary=design.primary,
    )
    verdicts = judge([item.ratios() if dead is None else replace(item.ratios(), invalid=dead) for item in levels], rule)
    identity = identity_of(trials)
    doubted = [
        Doubted(verdict=verdict) if early else doubt(design, item.counted, verdict, identity=identity)
        for item, verdict in zip(levels, verdicts, strict=True)
    ]
    primed = {trial.arm for trial in trials if trial.block == 0 and trial.outcome == "ok"} == {"a", "b"}
    effects = tuple(
        _effect(design, item, seen.verdict, rule=rule, primed=primed, early=early)
        for item, seen in zip(levels, doubted, strict=True)
    )
    over = dead is not None or (look > 0 and (done >= design.blocks or (done == at and settled(design, effects))))
    notes = [*_notes(design, trials, primed=primed), *(note for item in levels for note in item.notes)]
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
        exclusions=tuple(
            dict.fromkeys([*_interrupted(trials, pairs), *(line for item in levels for line in item.exclusions)])
        ),
        notes=tuple(dict.fromkeys([*notes, *(note for seen in doubted for note in seen.notes)])),
        would_change=_would_change(design, effects, over=over, done=done),
    )


def settled(design: Design, effects: Sequence[LevelEffect]) -> bool:
    """Whether a look may stop: the primary level, or without one every level, has its verdict, or one that blocks do not change."""
    asked = [item for item in effects if design.primary is None or item.level == design.primary]
    return all(
        item.verdict in ("better", "worse", "equivalent") or (item.verdict == "unresolved" and item.more_blocks is None)
        for item in asked
    )


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


def identity_of(trials: Sequence[Trial]) -> dict[str, str]:
    """What the services said of themselves at the last start."""
    return next((dict(trial.start.identity) for trial in reversed(trials) if trial.start), {})


# ---- trials → the blocks that count ------------------------------------------------------------------------------


def _look(design: Design, done: int) -> int:
    return sum(done >= stop for stop in design.looks)


def _interrupted(trials: Sequence[Trial], pairs: Sequence[Pair]) -> list[str]:
    paired = {id(trial) for pair in pairs for trial in (pair.a, pair.b)}
    return [
        f"block {trial.block}, arm {trial.arm}: not counted, because the block was interrupted; it is run again as a whole"
        for trial in trials
        if trial.block > 0 and id(trial) not in paired
    ]


def _level(design: Design, pairs: Sequence[Pair], level: int) -> _Level:
    """Apply every registered rule to the blocks of one level; both arms of a block fall together."""
    item = _Level(level)
    lost: dict[str, list[str]] = {"a": [], "b": []}
    unlike: dict[int, str] = {}
    reused = reused_prompts(pairs, level)
    whole = []
    for pair in pairs:
        problems = [(arm, problem_in(design, trial, level)) for arm, trial in (("a", pair.a), ("b", pair.b))]
        for arm, problem in problems:
            if problem is not None:
                lost[arm].append(problem)
                item.exclusions.append(f"block {pair.block}, level {level}, arm {arm}: {problem}")
        if any(problem for _, problem in problems):
            continue
        whole.append(pair)
        if pair.block in reused:
            unlike[pair.block] = f"its prompts were those of block {reused[pair.block]}, which a cache may hold"
        elif (difference := difference_in(pair, level)) is not None:
            unlike[pair.block] = difference
    for seen in covariates(whole, level):
        for block, words in seen.unequal.items():
            unlike.setdefault(block, words)
        if seen.follows is not None:
            item.notes.append(f"level {level}: {seen.follows}")
    item.exclusions += [f"block {block}, level {level}: {words}" for block, words in sorted(unlike.items())]
    item.counted = [pair for pair in whole if pair.block not in unlike]
    item.invalid = _too_few(item, lost, list(unlike.values()), len(pairs))
    return item


def _too_few(item: _Level, lost: dict[str, list[str]], unlike: list[str], blocks: int) -> str | None:
    """A verdict over what survived would flatter the arm that survived less, or rest on blocks that happened to be alike."""
    for arm, other in (("a", "b"), ("b", "a")):
        mine, theirs = lost[arm], lost[other]
        if len(mine) > LOST_SHARE * blocks and len(mine) > len(theirs):
            return f"arm {arm} lost {len(mine)} of {blocks} blocks, arm {other} {len(theirs)}; the rest is what survived: {mine[0]}"
    if len(unlike) > LOST_SHARE * blocks:
        return f"the arms were not alike in {len(unlike)} of {blocks} blocks: {Counter(unlike).most_common(1)[0][0]}"
    reasons = [*lost["a"], *lost["b"], *unlike]
    if reasons and len(item.counted) < FEWEST_BLOCKS:
        return (
            f"{len(item.counted)} of {blocks} blocks count, and a verdict needs at least {FEWEST_BLOCKS}: "
            f"{Counter(reasons).most_common(1)[0][0]}"
        )
    return None


# ---- verdicts → the published document ---------------------------------------------------------------------------


def _effect(
    design: Design, item: _Level, verdict: LevelVerdict, *, rule: Rule, primed: bool, early: bool
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
        for pair in item.counted
        if (a := value_of(pair.a, item.level)) is not None and (b := value_of(pair.b, item.level)) is not None
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
        grade=grade(blocks, registered=True, read_back=bool(values), primed=primed),
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
        client_error_pct=client_floor_pct(design, item.counted, item.level),
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
        "ignore_eos": design.ignore_eos,
        "services": list(design.services),
        "restarted": list(design.restarted),
        "url": design.url,
        "rules": list(design.rules),
        "registered_at": design.registered_at,
        "client_error": [
            {"level": item.level, "ttft_ms": item.ttft_ms, "itl_ms": item.itl_ms, "e2e_ms": item.e2e_ms}
            for item in design.client_error
        ],
        "held_against": [item.id for item in design.earlier],
    }


def _notes(design: Design, trials: Sequence[Trial], *, primed: bool) -> tuple[str, ...]:
    """What does not take a trial out, and a reader should know."""
    notes = [
        f"the priming start of arm {trial.arm} failed: {trial.problem}"
        for trial in trials
        if trial.block == 0 and trial.outcome not in ("ok", "interrupted")
    ]
    for level in design.levels:
        cells = [cell for trial in trials if trial.block > 0 and (cell := cell_of(trial, level))]
        short = [cell for cell in cells if cell.achieved_concurrency < 0.8 * level]
        if cells and len(short) * 2 > len(cells):
            notes.append(
                f"level {level}: only {_middle([cell.achieved_concurrency for cell in short]):.0f} requests were in flight; "
                "more requests a level make the steady part longer"
            )
        asked_alike = [
            (a, b)
            for pair in pairs_of(trials)
            if (a := cell_of(pair.a, level))
            and (b := cell_of(pair.b, level))
            and a.asked_sha256
            and a.asked_sha256 == b.asked_sha256
        ]
        if unequal := sum(a.answers_sha256 != b.answers_sha256 for a, b in asked_alike):
            notes.append(
                f"level {level}: the answers of the two arms were not equal, word for word, in {unequal} of {len(asked_alike)} blocks"
            )
    still = [trial for trial in trials if trial.start and not is_flat(trial.start.warm_up)]
    if still:
        notes.append(f"{len(still)} of {len(trials)} starts were still getting faster at the end of their warm-up")
    said: dict[str, list[str]] = {}
    for name, value in (pair for trial in trials if trial.start for pair in trial.start.identity.items()):
        said.setdefault(name, []).append(value)
    notes += [
        f"{name} was {' and '.join(found)}"
        for name, values in said.items()
        if len(found := list(dict.fromkeys(values))) > 1
    ]
    if not primed and any(trial.block > 0 for trial in trials):
        notes.append(
            "not both arms had a discarded first start, which may be slower than every later one: grade C at most"
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
            lines.append(f"level {item.level}: a run in which what its reason names does not happen")
    if not over:
        lines.append(f"{design.blocks - done} blocks are still planned: vindicate ab --resume {design.id}")
    return tuple(lines)
