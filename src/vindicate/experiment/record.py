"""Experiments ↔ the ledger: registered before the first start, effects at the end, noise and pace for planning the next."""

import math
import platform
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

from vindicate import __version__
from vindicate.errors import CannotError
from vindicate.experiment.journal import Journal, all_journals
from vindicate.experiment.judge import identity_of, judge_experiment
from vindicate.experiment.price import Noise, Pace
from vindicate.ledger.exchange import EXPERIMENT
from vindicate.ledger.present import versions_now
from vindicate.ledger.store import Ledger
from vindicate.record.experiment import Design, Earlier, Experiment, LevelEffect
from vindicate.record.ledger import ChangeStep, Effect, Evidence, Fact
from vindicate.stack.model import Stack

__all__ = [
    "earlier_experiments",
    "is_recorded",
    "noise_history",
    "pace_history",
    "record_design",
    "record_result",
    "restart_history",
]

_SD, _DF = "sd_block_pct:", "df:"


def record_design(ledger: Ledger, stack: Stack, design: Design, journal: Journal) -> None:
    """Say in the ledger what will be measured, so that a result nobody liked cannot vanish."""
    ledger.append(
        Evidence(
            id=design.id,
            kind="experiment",
            text=f"registered: {design.question}",
            source=f"{EXPERIMENT}{journal.folder}",
            sha256=journal.design_sha256,
            fingerprint=_fingerprint(stack, design, simulated=False),
            measured={"registered_at": design.registered_at, "blocks_planned": design.blocks},
        )
    )


def record_result(ledger: Ledger, stack: Stack, design: Design, result: Experiment, journal: Journal) -> None:
    """Add the effects of a finished experiment; it corrects the registration, which stays readable.

    Every level that could be estimated is kept, whatever its verdict: only those that pleased would overstate the gain.
    """
    ledger.append(
        Evidence(
            id=design.id,
            kind="experiment",
            text=f"{design.question}: {', '.join(f'{item.level} {item.verdict}' for item in result.effects)}",
            source=f"{EXPERIMENT}{journal.folder}",
            sha256=journal.design_sha256,
            measured_at=max((trial.ended_at for trial in journal.trials()), default=design.registered_at),
            effects=() if result.aa else tuple(_kept(design, item, result.simulated) for item in _estimated(result)),
            fingerprint={**versions_now(stack), **_fingerprint(stack, design, simulated=result.simulated)},
            measured={"aa": result.aa, "blocks": result.blocks_done, **_noise_of(result)},
        )
    )


def is_recorded(facts: Iterable[Fact], experiment: str) -> bool:
    """Whether the result of *experiment* is in the ledger, not only its registration."""
    return "blocks" in next((item.measured for item in _experiments(facts) if item.id == experiment), {})


def noise_history(facts: Iterable[Fact], stack: Stack, design: Design) -> Noise | None:
    """Pooled noise of one block over earlier experiments of this stack and metric, A/A ones included.

    Those of the same workload when there are any, because fewer or shorter requests are noisier. Levels of one experiment
    share its starts: their variances are averaged and count once.
    """
    here = [
        item
        for item in _experiments(facts)
        if item.fingerprint.get("stack") == stack.name and item.fingerprint.get("metric") == design.metric
    ]
    alike = [item for item in here if item.fingerprint.get("workload") == _workload(design)]
    pooled, total, used = 0.0, 0, 0
    for item in [item for item in alike if _spread(item)] or here:
        if (spread := _spread(item)) is not None:
            variance, df = spread
            pooled, total, used = pooled + variance * df, total + df, used + 1
    return Noise(sd=math.sqrt(pooled / total) / 100, df=total, experiments=used) if total else None


def _experiments(facts: Iterable[Fact]) -> list[Evidence]:
    """The last word on each experiment."""
    latest: dict[str, Evidence] = {}
    for fact in facts:
        if isinstance(fact.body, Evidence) and fact.body.kind == "experiment":
            latest[fact.body.id] = fact.body
    return list(latest.values())


def _spread(item: Evidence) -> tuple[float, int] | None:
    """Mean variance over the levels, and the fewest degrees of freedom."""
    variances = [float(value) ** 2 for name, value in item.measured.items() if name.startswith(_SD) and value]
    dfs = [int(value) for name, value in item.measured.items() if name.startswith(_DF) and value]
    return (statistics.fmean(variances), min(dfs)) if variances and dfs else None


def pace_history(home: Path) -> Pace | None:
    """Median start and median time of one request over the last trials on this stack; ``None`` before the first."""
    trials = [trial for journal in all_journals(home)[-3:] for trial in journal.trials() if trial.outcome == "ok"]
    starts = [trial.start.took_s for trial in trials if trial.start]
    shares = [cell.duration_s / cell.requests for trial in trials for cell in trial.cells if cell.requests]
    return Pace(start_s=statistics.median(starts), request_s=statistics.median(shares)) if starts and shares else None


def earlier_experiments(home: Path, design: Design) -> tuple[Earlier, ...]:
    """The last three finished experiments on the same knob and metric, for *design* to be held against."""
    found = []
    for journal in all_journals(home):
        try:
            theirs, trials = journal.design(), journal.trials()
        except CannotError:  # a torn design says nothing, and must not stop a new experiment
            continue
        if theirs.knob != design.knob or theirs.metric != design.metric or not trials:
            continue
        result = judge_experiment(theirs, trials)
        if result.complete:
            found.append(
                Earlier(
                    id=theirs.id,
                    measured_at=trials[-1].ended_at,
                    a=theirs.a,
                    b=theirs.b,
                    workload=theirs.workload,
                    identity=identity_of(trials),
                    effects=result.effects,
                )
            )
    return tuple(found[-3:])


def restart_history(facts: Iterable[Fact], together: Sequence[str]) -> float | None:
    """Median time that the last changes took to restart the same services; ``None`` before the first."""
    took = [
        float(value)
        for fact in facts
        if isinstance(fact.body, ChangeStep) and fact.body.data.get("restarted") == list(together)
        if isinstance(value := fact.body.data.get("took_s"), int | float)
    ]
    return statistics.median(took[-5:]) if took else None


def _estimated(result: Experiment) -> Sequence[LevelEffect]:
    return [item for item in result.effects if item.verdict != "invalid" and item.gain_pct is not None]


def _kept(design: Design, item: LevelEffect, simulated: bool) -> Effect:
    assert item.gain_pct is not None  # only estimated levels come here
    return Effect(
        knob=design.knob,
        a=design.a,
        b=design.b,
        level=item.level,
        metric=item.metric,
        gain_pct=item.gain_pct,
        lo90_pct=item.lo90_pct,
        hi90_pct=item.hi90_pct,
        blocks=item.blocks,
        grade=item.grade,
        value_a=item.value_a,
        value_b=item.value_b,
        simulated=simulated,
    )


def _noise_of(result: Experiment) -> dict[str, float | int]:
    measured: dict[str, float | int] = {}
    for item in result.effects:
        if item.sd_block_pct and item.df:
            measured[f"{_SD}{item.level}"] = item.sd_block_pct
            measured[f"{_DF}{item.level}"] = item.df
    return measured


def _fingerprint(stack: Stack, design: Design, *, simulated: bool) -> dict[str, str | None]:
    """What was the same in both arms and may differ next time."""
    return {
        "stack": stack.name,
        "metric": design.metric,
        "engines": " ".join(f"{name}:{service.engine}" for name, service in stack.services.items()),
        "url": design.url,
        "workload": _workload(design),
        "device": "simulated" if simulated else "real",
        "kernel": platform.release(),
        "vindicate": __version__,
    }


def _workload(design: Design) -> str:
    return f"rounds={design.rounds} max_tokens={design.max_tokens} requests={design.requests_per_level}" + (
        " ignore_eos" if design.ignore_eos else ""
    )
