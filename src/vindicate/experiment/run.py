"""A registered design and a bench → trials on disk, one a start; whatever happens, the stack is put back as it was."""

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from vindicate.clock import Clock, iso
from vindicate.errors import EngineError
from vindicate.experiment.design import MOST_WARM_UPS, is_flat, level_order, level_seed
from vindicate.experiment.journal import Before, Journal
from vindicate.experiment.judge import finished_blocks, hopeless, judge_experiment
from vindicate.experiment.metric import mean_of_kind, metric_value
from vindicate.record.experiment import ArmName, Cell, Design, Experiment, Outcome, Start, Trial
from vindicate.record.load import LevelSummary
from vindicate.units import format_duration

__all__ = ["Bench", "Drive", "put_back", "run_experiment"]

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Drive:
    """What one level of load gave; the last three where they could be seen from outside the load."""

    summary: LevelSummary
    client_cpu_s: float
    simulated: bool
    cache_hit_share: float | None = None
    sm_clock_mhz: float | None = None
    gpu_celsius: float | None = None


class Bench(Protocol):
    """The stack as an experiment sees it; tests pass one with a virtual clock."""

    def look(self) -> Before:
        """How the stack stands now; changes nothing."""
        ...

    def start(self, before: Before, value: str | None) -> Start:
        """Set the knob, start afresh all that restarts together, and read the value back in every process.

        Raises:
            EngineError: It did not start, or a process holds another value.
            CannotError: The script is not as the experiment left it.
        """
        ...

    def warm_up(self, level: int, seed: int) -> float | None:
        """Drive one round of load that does not count; its tokens a second, ``None`` when it gave none."""
        ...

    def drive(self, level: int, seed: int, out: Path) -> Drive:
        """Drive one level; raw rows go to *out*."""
        ...

    def put_back(self, before: Before) -> None:
        """Make scripts and processes what they were.

        Raises:
            CannotError: That failed; the remedy finishes it.
        """
        ...


@dataclass(frozen=True, slots=True)
class _Step:
    """One start to be made; block 0 is a priming start."""

    block: int
    position: int
    arm: ArmName


def run_experiment(design: Design, bench: Bench, journal: Journal, *, clock: Clock, say: Say) -> Experiment:
    """Run what is missing of *design* up to the look that stops it, and judge it.

    Raises:
        KeyboardInterrupt: It was interrupted; the start in progress is recorded as such, the stack is as it was before.
        MisuseError: The load cannot be driven at all; likewise.
        CannotError: The stack could not be put back, and the remedy finishes it; or a script was changed by somebody else.
    """
    trials = journal.trials()
    before = journal.before() or bench.look()
    journal.keep(before)
    attempt = 1 + max((trial.attempt for trial in trials), default=0)
    began, n_before = clock.monotonic(), len(trials)
    try:
        while (steps := _next_steps(design, trials)) and not judge_experiment(design, trials).complete:
            for step in steps:
                say(_step_line(design, step, clock.monotonic() - began, len(trials) - n_before))
                trial = _run_trial(design, bench, journal, before=before, step=step, attempt=attempt, clock=clock)
                journal.append(trial)
                trials.append(trial)
                say(_trial_line(trial))
                if trial.outcome == "interrupted":
                    raise KeyboardInterrupt
    finally:
        put_back(bench, journal, say=say)
    return judge_experiment(design, trials)


def put_back(bench: Bench, journal: Journal, *, say: Say) -> None:
    """Make the stack what it was before the experiment, undisturbed by Ctrl-C; nothing to do when it is already.

    Raises:
        CannotError: That failed; the remedy finishes it.
    """
    with _undisturbed(say):
        before = journal.before()
        if before is not None:
            say("putting the stack back as it was")
            bench.put_back(before)
            journal.forget()


def _next_steps(design: Design, trials: Sequence[Trial]) -> list[_Step]:
    """The priming starts that are missing, or else both starts of the next block; empty when there is none."""
    if hopeless(trials) is not None:
        return []
    primed = {trial.arm for trial in trials if trial.block == 0 and trial.outcome != "interrupted"}
    arms: tuple[ArmName, ...] = ("a", "b")
    priming = [_Step(0, position, arm) for position, arm in enumerate(arms, start=1) if arm not in primed]
    if priming:
        return priming
    block = finished_blocks(trials) + 1
    if block > design.blocks:
        return []
    return [
        _Step(block, position, "a" if arm == "a" else "b") for position, arm in enumerate(design.order[block - 1], 1)
    ]


def _run_trial(
    design: Design, bench: Bench, journal: Journal, *, before: Before, step: _Step, attempt: int, clock: Clock
) -> Trial:
    """One start with its load; what the arm fails at becomes part of the record."""
    value = design.value(step.arm)
    began = iso(clock.now())
    start: Start | None = None
    drives: list[Drive] = []
    seeds: list[int] = []
    outcome: Outcome = "failed_start"
    problem = None
    folder = journal.requests_folder(block=step.block, attempt=attempt, arm=step.arm)
    try:
        start = bench.start(before, value)
        outcome = "failed_load"
        start = replace(start, warm_up=_warm_up(design, bench, step.block))
        for level in level_order(design.levels, design.seed, step.block) if step.block else ():
            seed = level_seed(design.seed, step.block, level)
            drives.append(bench.drive(level, seed, folder / f"level{level}"))
            seeds.append(seed)
        outcome = "ok"
    except EngineError as error:  # any other error is not the arm's: it ends the run, and the stack is put back
        problem = error.problem
    except KeyboardInterrupt:
        outcome, problem = "interrupted", "interrupted"
    return Trial(
        block=step.block,
        attempt=attempt,
        position=step.position,
        arm=step.arm,
        value=value,
        outcome=outcome,
        problem=problem,
        started_at=began,
        ended_at=iso(clock.now()),
        start=start,
        cells=tuple(_cell(drive, design.metric, seed) for drive, seed in zip(drives, seeds, strict=False)),
        client_cpu_s=sum(drive.client_cpu_s for drive in drives),
        simulated=any(drive.simulated for drive in drives),
    )


def _warm_up(design: Design, bench: Bench, block: int) -> tuple[float, ...]:
    """Rounds at the highest level, whose batches hold all smaller ones, until no round is faster than those before."""
    rates: list[float] = []
    for number in range(MOST_WARM_UPS):
        rate = bench.warm_up(max(design.levels), level_seed(design.seed, block, -number))
        if rate is None or (rates and is_flat([*rates, rate])):
            return (*rates, *([] if rate is None else [rate]))
        rates.append(rate)
    return tuple(rates)


def _cell(drive: Drive, metric: str, seed: int) -> Cell:
    summary = drive.summary
    return Cell(
        level=summary.level,
        value=metric_value(summary, metric),
        seed=seed,
        requests=summary.requests,
        completed=summary.completed,
        failed=summary.failed,
        stalled=summary.stalled,
        truncated=summary.truncated,
        recall_asked=summary.recall_asked,
        recall_failed=summary.recall_failed,
        achieved_concurrency=summary.achieved_concurrency,
        duration_s=summary.duration_s,
        tokens=summary.tokens or None,
        halves=summary.halves.get(mean_of_kind(metric)),
        ttft_ms=summary.ttft_ms.mean,
        itl_ms=summary.itl_ms.mean,
        e2e_ms=summary.e2e_ms.mean,
        cache_hit_share=drive.cache_hit_share if summary.cache_hit_share is None else summary.cache_hit_share,
        client_cpu_share=round(drive.client_cpu_s / summary.duration_s, 4) if summary.duration_s > 0 else None,
        client_lag_ms=summary.client_lag_ms,
        sm_clock_mhz=drive.sm_clock_mhz,
        gpu_celsius=drive.gpu_celsius,
        asked_sha256=summary.asked_sha256,
        answers_sha256=summary.answers_sha256,
    )


def _step_line(design: Design, step: _Step, elapsed_s: float, n_done: int) -> str:
    """What comes now, and how long it may last; a measured start takes longer than a priming one, so nothing is said early."""
    where = f"block {step.block} of {design.blocks}" if step.block else "priming, not counted"
    value = design.value(step.arm)
    line = f"{where}: arm {step.arm}, {design.knob} {'unset' if value is None else f'= {value!r}'}"
    left = 2 * (design.blocks - step.block) + 3 - step.position
    if step.block and n_done > 2:
        line += f", about {format_duration(elapsed_s / n_done * left)} to go at most"
    return line


def _trial_line(trial: Trial) -> str:
    took = f"started in {format_duration(trial.start.took_s)}" if trial.start else "no start"
    cells = "  ".join(
        f"{cell.level}: {'nothing completed' if cell.value is None else f'{cell.value:.4g}'}" for cell in trial.cells
    )
    return "  " + "  ".join(part for part in (took, cells, trial.problem) if part)


@contextmanager
def _undisturbed(say: Say) -> Iterator[None]:
    """Hold back signals that would end the program; they are answered, and dropped once the work is done."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def answer(_number: int, _frame: object) -> None:
        say("the stack is being put back; this ends by itself")

    held = {number: signal.signal(number, answer) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in held.items():
            signal.signal(number, handler)
