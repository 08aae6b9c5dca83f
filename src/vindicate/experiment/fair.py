"""Two trials of one block → why a level of them does not count: what one failed at, or what differed besides the knob; pure.

Every rule here is registered, in words, with the design (`design.RULES`).
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from vindicate.experiment.design import BUSY_SHARE, COVARIATE_LIMIT, ERROR_LIMIT, HIT_LIMIT, LAG_SHARE, WORK_LIMIT
from vindicate.experiment.metric import clock_of
from vindicate.experiment.pairs import Pair, cell_of
from vindicate.record.experiment import Cell, Design, Trial
from vindicate.units import shown

__all__ = ["Covariate", "covariates", "difference_in", "problem_in", "reused_prompts"]

_LAG_MS = 5.0
_NO_KNOB_SETS = ("version", "model_path")  # an attention backend or a type of numbers may be what the knob is for


def problem_in(design: Design, trial: Trial, level: int) -> str | None:
    """What takes this level of this trial out by itself, if anything does."""
    if trial.outcome == "failed_start":
        return f"did not start: {trial.problem}"
    cell = cell_of(trial, level)
    if cell is None:
        return f"was not measured: {trial.problem}"
    return next(_problems(design, trial, cell), None)


def _problems(design: Design, trial: Trial, cell: Cell) -> Iterator[str]:
    held = dict(trial.start.read_back) if trial.start else {}
    if not held:
        yield f"no process was asked what it holds, so that {design.knob} may be anything"
    for process, value in held.items():
        if value != design.value(trial.arm):
            yield f"{process} held {shown(value)}, and the arm is {shown(design.value(trial.arm))}"
    broken = cell.requests - cell.completed
    if broken > ERROR_LIMIT * cell.requests:
        yield (
            f"{broken} of {cell.requests} requests did not complete "
            f"({cell.failed} failed, {cell.stalled} stalled, {cell.truncated} cut short)"
        )
    if cell.recall_failed > ERROR_LIMIT * cell.recall_asked:
        yield f"{cell.recall_failed} of {cell.recall_asked} answers lost what the context held"
    if cell.client_cpu_share is not None and cell.client_cpu_share > BUSY_SHARE and cell.duration_s >= 1:
        yield f"the client was the bottleneck: it used {100 * cell.client_cpu_share:.0f} % of a core"
    latency: float | None = getattr(cell, f"{clock_of(design.metric)}_ms")
    if cell.client_lag_ms is not None and latency and cell.client_lag_ms > max(_LAG_MS, LAG_SHARE * latency):
        yield f"the client was the bottleneck: its event loop was {cell.client_lag_ms:.0f} ms late in the mean, of {latency:.0f} ms measured"
    if not cell.value:
        yield "its sample does not give the metric"


def difference_in(pair: Pair, level: int) -> str | None:
    """What differed between the arms of one block that no value of a knob can have changed, if anything did."""
    a, b = cell_of(pair.a, level), cell_of(pair.b, level)
    return next(_differences(pair, a, b), None) if a and b else None


def _differences(pair: Pair, a: Cell, b: Cell) -> Iterator[str]:
    if a.seed != b.seed:
        yield "the arms were asked different prompts"
    said = [trial.start.identity if trial.start else {} for trial in (pair.a, pair.b)]
    for name in said[0].keys() & said[1].keys():
        if said[0][name] != said[1][name] and name.rsplit(" ", maxsplit=1)[-1] in _NO_KNOB_SETS:
            yield f"the arms differ in more than the knob: {name} is {said[0][name]} in a and {said[1][name]} in b"
    work = [cell.tokens / cell.completed if cell.tokens and cell.completed else None for cell in (a, b)]
    if work[0] and work[1] and _apart(work[0], work[1]) > WORK_LIMIT:
        yield f"unequal work: {work[0]:.1f} tokens a request in a, {work[1]:.1f} in b"
    load = a.achieved_concurrency, b.achieved_concurrency
    if all(load) and _apart(*load) > 3 * WORK_LIMIT:
        yield f"unequal load: {load[0]:.1f} requests in flight in a, {load[1]:.1f} in b"


def reused_prompts(pairs: Sequence[Pair], level: int) -> dict[int, int]:
    """Blocks whose prompts an earlier block had asked already → that block."""
    seen: dict[int, int] = {}
    reused: dict[int, int] = {}
    for pair in pairs:
        for cell in {cell.seed: cell for trial in (pair.a, pair.b) if (cell := cell_of(trial, level))}.values():
            if seen.setdefault(cell.seed, pair.block) != pair.block:
                reused[pair.block] = seen[cell.seed]
    return reused


# ---- what the knob itself may move -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Covariate:
    """A figure beside the metric, in both arms of each block that gives it.

    Attributes:
        unequal: Block → what differed, in words; empty when it is alike, or follows the arm.
        follows: How it follows the arm in every block, whichever ran first: the knob may move it, and it is part of the effect.
    """

    name: str
    unequal: Mapping[int, str]
    follows: str | None = None


def covariates(pairs: Sequence[Pair], level: int) -> list[Covariate]:
    """Judge cache hits, clocks and every covariate of the starts, over the blocks of one level."""
    kinds = [
        _Kind(
            "prefix cache hits",
            _of_cell(level, "cache_hit_share", 100),
            lambda a, b: b - a,
            100 * HIT_LIMIT,
            "{:.0f} %",
        ),
        _Kind("SM clock", _of_cell(level, "sm_clock_mhz"), _log_ratio, COVARIATE_LIMIT, "{:.0f} MHz"),
    ]
    names = dict.fromkeys(
        name for pair in pairs for trial in (pair.a, pair.b) if trial.start for name in trial.start.covariates
    )
    kinds += [_Kind(name, _of_start(name), _log_ratio, COVARIATE_LIMIT, "{:g}") for name in names]
    return [_covariate(pairs, kind) for kind in kinds]


class _Kind(NamedTuple):
    """A covariate: where it stands, how far apart two of it are, how far they may be, and how it is written."""

    name: str
    of: Callable[[Trial], float | None]
    apart: Callable[[float, float], float]
    limit: float
    form: str


def _covariate(pairs: Sequence[Pair], kind: _Kind) -> Covariate:
    name, of, apart, limit, form = kind
    known = [(pair, a, b) for pair in pairs if (a := of(pair.a)) is not None and (b := of(pair.b)) is not None]
    gaps = [apart(a, b) for _, a, b in known]
    unequal = {
        pair.block: f"{name} unequal: {form.format(a)} in a, {form.format(b)} in b"
        for (pair, a, b), gap in zip(known, gaps, strict=True)
        if abs(gap) > limit
    }
    one_way = all(gap > 0 for gap in gaps) or all(gap < 0 for gap in gaps)
    if unequal and one_way and len(gaps) >= 3 and len({pair.first for pair, _, _ in known}) == 2:
        middle = sorted(known, key=lambda each: apart(each[1], each[2]))[len(known) // 2]
        follows = (
            f"{name}: {form.format(middle[1])} in a and {form.format(middle[2])} in b, whichever ran first; "
            "if the knob does not cause that, it is no effect of the knob"
        )
        return Covariate(name=name, unequal={}, follows=follows)
    return Covariate(name=name, unequal=unequal)


def _of_cell(level: int, field: str, scale: float = 1) -> Callable[[Trial], float | None]:
    def of(trial: Trial) -> float | None:
        cell = cell_of(trial, level)
        value: float | None = getattr(cell, field) if cell else None
        return None if value is None else scale * value

    return of


def _of_start(name: str) -> Callable[[Trial], float | None]:
    return lambda trial: trial.start.covariates.get(name) if trial.start else None


def _log_ratio(a: float, b: float) -> float:
    return math.log(b / a) if a > 0 and b > 0 else 0.0 if a == b else math.inf


def _apart(a: float, b: float) -> float:
    return abs(a / b - 1)
