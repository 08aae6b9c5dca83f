"""Runs of benchmarks/diagnosis.py, one JSON line each → how often the verdict was right, with bounds, beside two simple baselines.

    python benchmarks/diagnosis.py --runs 10 --busy half --out runs.jsonl
    python benchmarks/diagnosis.py --report runs.jsonl more.jsonl --cases cases.jsonl

Bounds are Clopper and Pearson's (Biometrika 26, 1934), exact for k of n.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

__all__ = ["bounds", "grade", "read_runs", "report", "right_line"]

Run = dict[str, Any]
KINDS = ({"proxy", "gateway", "router"}, {"engine", "prefill", "decode"})
BINS = ((0.0, 0.8), (0.8, 0.85), (0.85, 0.9), (0.9, 0.95), (0.95, 1.01))
LATE_S = 5.0  # a verdict may take so long after its window


def bounds(k: int, n: int) -> str:
    """Write k of n with its exact 95 % interval."""
    if not n:
        return "0 of 0"
    from scipy.stats import binomtest

    interval = binomtest(k, n).proportion_ci(0.95, "exact")
    return f"{k} of {n} (95 %: {100 * interval.low:.1f} to {100 * interval.high:.1f} %)"


def grade(run: Run, knob: str = "") -> dict[str, bool]:
    """What was right and what was wrong about the verdict of *run*, which deserved ``run["truth"]``.

    Without a stack file nothing outside shows whether a relay is called proxy, gateway or router, or which side of a pair an
    engine is: there the guilty service (``verdict["is"]``, by its port) under any word of its kind is right, or under none where
    it never answered.
    """
    truth, verdict = run["truth"], run["verdict"]
    healthy, status = truth["layer"] == "none", verdict.get("status")
    found = verdict.get("is") is not None and verdict.get("is") == truth["service"] and not run["stack_file"]
    same = verdict.get("layer") == truth["layer"] or (
        found
        and (verdict.get("layer") == "none" or any({verdict.get("layer"), truth["layer"]} <= kind for kind in KINDS))
    )
    right = (truth["may_abstain"] and status == "undetermined") or (
        same and status == ("healthy" if healthy else "fault")
    )
    cleared = any(knob in c["knobs"] for c in verdict.get("cleared") or [])
    return {
        "layer": right,
        "mechanism": right and verdict.get("mechanism") == truth["mechanism"],
        "innocent": status == "fault" and not right,
        "false_alarm": healthy and status == "fault",
        "abstained": status == "undetermined",
        "cleared": not run["stack_file"] or truth["decode_cleared"] in (None, cleared),
        "crash": "crash" in verdict,
        "late": verdict.get("took", 0.0) > verdict.get("window_s", 10.0) + LATE_S,
    }


def read_runs(files: Iterable[Path]) -> list[Run]:
    """All runs of several files."""
    return [json.loads(line) for file in files for line in file.read_text().splitlines() if line.strip()]


def right_line(name: str, runs: list[Run]) -> str:
    """One scenario in a line."""
    grades = [grade(run, run["knob"]) for run in runs]
    marks = " ".join(f"{key} {sum(g[key] for g in grades)}/{len(runs)}" for key in ("layer", "mechanism", "cleared"))
    said = {_said(run["verdict"]) for run in runs}
    confidence = min((float(run["verdict"].get("confidence", 0)) for run in runs), default=0.0)
    return f"{name:22} {marks}  confidence >= {confidence:.2f}  {'; '.join(sorted(said))}"


def _said(verdict: Run) -> str:
    if "crash" in verdict:
        return f"CRASH {verdict['crash']}"
    who = verdict.get("is") or verdict.get("service")
    return f"{verdict.get('status')}/{who}/{verdict.get('mechanism')}"


def report(runs: list[Run], cases: Path | None = None, known: Iterable[str] = ()) -> Iterator[str]:
    """All tables; *known* are the mechanisms that have a scenario, *cases* the published ones, as JSON lines."""
    by_name: dict[str, list[Run]] = {}
    for run in runs:
        by_name.setdefault(run["scenario"], []).append(run)
    yield from (right_line(name, its) for name, its in by_name.items())
    groups = {
        "all runs": runs,
        "with a busy neighbour": [run for run in runs if run["busy"]],
        "without one": [run for run in runs if not run["busy"]],
        "with a stack file": [run for run in runs if run["stack_file"]],
        "without one (discovered)": [run for run in runs if not run["stack_file"]],
    }
    for title, its in groups.items():
        if its and (title == "all runs" or len(its) < len(runs)):
            yield from ("", f"{title}:", *_figures(its))
    yield from ("", "baselines on the same runs (layer right; false alarms):", *_baselines(runs))
    yield from ("", "confidence: what it says and what came true", *_reliability(runs))
    if cases is not None:
        yield from ("", *_covered(cases, known))


def _figures(runs: list[Run]) -> Iterator[str]:
    graded = [(run, grade(run, run["knob"])) for run in runs]
    faulty = [g for run, g in graded if run["truth"]["layer"] != "none"]
    healthy = [g for run, g in graded if run["truth"]["layer"] == "none"]
    grades = [g for _, g in graded]

    def line(title: str, key: str, among: list[dict[str, bool]]) -> str:
        return f"  {title:26}{bounds(sum(g[key] for g in among), len(among))}"

    yield line("layer right", "layer", grades)
    yield line("mechanism right (faults)", "mechanism", faulty)
    yield line("innocents convicted", "innocent", grades)
    yield line("false alarms (healthy)", "false_alarm", healthy)
    yield line("abstained", "abstained", grades)
    yield line("knob cleared as it should", "cleared", grades)
    yield line("no verdict at all", "crash", grades)
    yield line(f"later than window + {LATE_S:.0f} s", "late", grades)
    times = sorted(float(run["verdict"].get("took", 0.0)) for run in runs)
    yield f"  {'time to verdict':26}median {times[len(times) // 2]:.1f} s, worst {times[-1]:.1f} s"


def _baselines(runs: list[Run]) -> Iterator[str]:
    ways: dict[str, Callable[[Run], str | None]] = {
        "blames the newest change": lambda run: run["baselines"]["newest_change"],
        "blames the busiest metric": lambda run: run["baselines"]["busiest_metric"],
    }
    known = [run for run in runs if run.get("baselines")]
    healthy = [run for run in known if run["truth"]["layer"] == "none"]
    for title, blames in ways.items():
        right = sum(blames(run) == run["truth"]["service"] for run in known)
        alarms = sum(blames(run) is not None for run in healthy)
        yield f"  {title:26}{bounds(right, len(known))}; {bounds(alarms, len(healthy))}"


def _reliability(runs: list[Run]) -> Iterator[str]:
    """Of verdicts that name somebody or say healthy: how sure they were, and how many were right."""
    said = [
        (float(run["verdict"]["confidence"]), grade(run)["layer"])
        for run in runs
        if run["verdict"].get("status") in ("fault", "healthy")
    ]
    for low, high in BINS:
        inside = [(sure, right) for sure, right in said if low <= sure < high]
        if inside:
            mean = sum(sure for sure, _ in inside) / len(inside)
            yield f"  {low:.2f} to {min(high, 1.0):.2f}  said {mean:.3f} on average, right {bounds(sum(right for _, right in inside), len(inside))}"


def _covered(cases: Path, known: Iterable[str]) -> Iterator[str]:
    """How many of the published cases that are for a diagnosis have a scenario here."""
    names = set(known)
    wanted = {
        case["id"]: case["mechanism"] for case in read_runs([cases]) if case.get("verb", "diagnose") == "diagnose"
    }
    missing = [f"{number} {name}" for number, name in wanted.items() if name not in names]
    yield f"{len(wanted) - len(missing)} of {len(wanted)} that this machine can show; not: {', '.join(missing) or 'none'}"
    yield f"  besides these: {', '.join(sorted(names - set(wanted.values()) - set(chain([''], ['none']))))}"
