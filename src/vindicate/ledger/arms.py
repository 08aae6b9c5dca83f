"""Files to import → evidence: runs of benchmark tools paired into two arms a level, every other file read for itself."""

import hashlib
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from vindicate.ledger.importing import Imported, read_evidence, stored_name
from vindicate.ledger.results import Run, runs_in
from vindicate.ledger.table import Comparison
from vindicate.record.ledger import Effect, Evidence

__all__ = ["read_files"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Placed:
    """A run and the value of the knob that it was under; *guess* is how that was guessed, empty where the file says it."""

    run: Run
    arm: str
    guess: str


def read_files(
    files: Sequence[Path], *, known: Collection[str] = (), said: Comparison | None = None, home: Path | None = None
) -> list[Imported]:
    """Read the files of one import.

    Args:
        known: Names that are knobs for certain.
        said: Knob and values, without which runs of benchmark tools cannot be compared: their files name none.
        home: Folder that stored file names are relative to, where they lie in it.

    Raises:
        MisuseError: A file cannot be read, is of no kind known here, or a field of it is missing or wrong.
    """
    read: list[Imported] = []
    runs: list[Run] = []
    for file in files:
        found = runs_in(file)
        if found is None:
            read.append(read_evidence(file, known=known, said=said, home=home))
        else:
            runs += found
    by_tool = {tool: [run for run in runs if run.tool == tool] for tool in dict.fromkeys(run.tool for run in runs)}
    return [*read, *(_compared(tool, found, said, home) for tool, found in by_tool.items())]


def _compared(tool: str, runs: Sequence[Run], said: Comparison | None, home: Path | None) -> Imported:
    if said is None:
        lines = [f"{run.where}: {tool} at {run.level}: {_figures(run)}" for run in runs]
        return Imported(
            items=(),
            said=tuple(lines),
            passed_over=(f"{len(runs)} runs of {tool} do not say what they compare; say so with --knob NAME=A..B",),
        )
    placed, passed = [], []
    for run in runs:
        found = _arm(run, said)
        if found is None:
            passed.append(
                f"{run.where}: neither the file nor its name says whether {said.knob} was {said.a} or {said.b}; put the value into the name"
            )
        else:
            placed.append(_Placed(run=run, arm=found[0], guess=found[1]))
    effects, notes = _effects(placed, said)
    passed += [line for run in runs for line in run.warnings]
    if not effects:
        return Imported(items=(), said=(), passed_over=(*passed, *notes))
    used = list(dict.fromkeys(item.run.file for item in placed))
    notes += [f"guessed: {item.run.where} is {said.knob}={item.arm}, {item.guess}" for item in placed if item.guess]
    names = [stored_name(file, home) for file in used]
    text = (
        f"{said.knob} {said.a} → {said.b} at {len(effects)} {'figure' if len(effects) == 1 else 'figures'}, by {tool}"
    )
    item = Evidence(
        id="",
        kind="observation",
        text=text,
        source=", ".join(names),
        group=f"load:{tool}",
        sha256=hashlib.sha256(b"".join(file.read_bytes() for file in sorted(used))).hexdigest(),
        measured_at=max(item.run.measured_at for item in placed),
        effects=tuple(effects),
        measured={"notes": "; ".join([*notes, *passed])} if notes or passed else {},
    )
    lines = [
        f"  level {effect.level}: {effect.gain_pct:+.1f} % {effect.metric}, {said.b} over {said.a} ({effect.value_a:g} → {effect.value_b:g})"
        for effect in effects
    ]
    grade = "  grade D: the files do not say that each run had a fresh start, nor in which order they ran"
    return Imported(
        items=(item,),
        said=(f"{text}: {item.source}", *lines, grade, *(f"  {note}" for note in notes)),
        passed_over=tuple(passed),
    )


def _figures(run: Run) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in run.figures.items())


def _arm(run: Run, said: Comparison) -> tuple[str, str] | None:
    """The value that a run was under, and how it was guessed: by the file's own words, else by its name or its folder's."""
    wanted = said.knob.lstrip("-").replace("-", "_").lower()
    own = next(
        (value for name, value in run.told.items() if name.lstrip("-").replace("-", "_").lower() == wanted), None
    )
    if own is not None:
        return (own, "") if own in {said.a, said.b} else None
    for words, what in (
        (run.told.get("tag", ""), "by its tag"),
        (run.file.stem, "by its name"),
        *((folder.name, "by its folder's name") for folder in run.file.absolute().parents[:2]),
    ):
        plain = re.sub(rf"(?<![A-Za-z])(?:c|n|bs|conc|concurrency|users|level)[-_=]?{run.level}(?!\d)", "", words)
        named = [
            arm
            for arm in (said.a, said.b)
            if re.search(rf"(?<![A-Za-z\d.]){re.escape(arm)}(?![\w.]*\d)|(?<=[a-z=_-]){re.escape(arm)}(?!\d)", plain)
        ]
        if len(named) == 1:
            return named[0], what
    return None


def _effects(placed: Sequence[_Placed], said: Comparison) -> tuple[list[Effect], list[str]]:
    effects, notes = [], []
    for level in sorted({item.run.level for item in placed}):
        arms = {
            arm: [item.run for item in placed if item.run.level == level and item.arm == arm]
            for arm in (said.a, said.b)
        }
        missing = [arm for arm, runs in arms.items() if not runs]
        if missing:
            notes.append(f"level {level} has no run with {said.knob}={missing[0]}; left out")
            continue
        counts = [len(runs) for runs in arms.values()]
        if max(counts) > 1:
            notes.append(f"level {level}: means over {counts[0]} and {counts[1]} runs")
        for metric in arms[said.a][0].figures:
            a, b = (_mean(runs, metric) for runs in arms.values())
            if a is None or b is None or a == 0:
                notes.append(f"level {level}: {metric} is not given by every run; left out")
                continue
            effects.append(
                Effect(knob=said.knob, a=said.a, b=said.b, level=level, metric=metric, gain_pct=round((b / a - 1) * 100, 3), grade="D", value_a=round(a, 6), value_b=round(b, 6))
            )  # fmt: skip
    return effects, notes


def _mean(runs: Sequence[Run], metric: str) -> float | None:
    values = [run.figures.get(metric) for run in runs]
    known = [value for value in values if value is not None]
    return fmean(known) if len(known) == len(values) else None
