"""A restored system under load, for as long as the statistics ask → it stayed clean, or the symptom came; and what that says of a claim."""

import asyncio
import itertools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import msgspec

from vindicate.clock import utc_now
from vindicate.diagnose.judge import judge
from vindicate.errors import LedgerError, VindicateError
from vindicate.ledger.claim_rules import how_to_count, may_refute, measured_watch, subject_knob, t_star_of
from vindicate.ledger.state import Book
from vindicate.ledger.store import Ledger
from vindicate.load.plan import LoadPlan
from vindicate.load.run import Progress, run_load
from vindicate.observe.record import record_capture
from vindicate.operate.plan import ChangePlan, WatchPlan
from vindicate.record.diagnosis import Diagnosis
from vindicate.record.ledger import Body, ClaimEvent, Evidence
from vindicate.record.load import LoadSummary
from vindicate.stack.model import Stack
from vindicate.units import format_duration

__all__ = ["Outcome", "look_for_fault", "watch_change"]

Say = Callable[[str], None]
CANCEL_SHARE = 0.1  # agents abandon streams; a watch without that would miss what leaks on it
_STALL_S = 20.0
_SAY_EVERY_S = 10.0
_LOOK_S = 6.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How the watch ended. *symptom* says what came; ``None`` when it stayed clean. *facts* are for the ledger."""

    symptom: str | None
    text: str
    facts: tuple[Body, ...]


@dataclass(slots=True)
class _Tally:
    """What the generated load has seen so far."""

    completed: int = 0
    broken: int = 0
    failed: int = 0
    recall_failed: int = 0
    began: float = field(default_factory=time.monotonic)
    simulated: bool = False

    def add(self, run: LoadSummary) -> None:
        for level in run.levels:
            self.completed += level.completed
            self.broken += level.stalled + level.truncated
            self.failed += level.failed
            self.recall_failed += level.recall_failed
        self.simulated = self.simulated or run.simulated

    @property
    def symptom(self) -> str | None:
        """The abort rules: any stalled or broken stream, any lost context, any refused request."""
        if self.broken:
            return f"{self.broken} streams stalled or broke off after {self.completed} clean requests"
        if self.recall_failed:
            return f"{self.recall_failed} answers lost their context after {self.completed} clean requests"
        if self.failed:
            return f"{self.failed} requests failed after {self.completed} clean ones"
        return None


def watch_change(stack: Stack, ledger: Ledger, plan: ChangePlan, watch: WatchPlan, *, say: Say) -> Outcome:
    """Watch until the planned number of clean requests, or the time, is reached, or the symptom comes.

    Clean for T*: the claims are refuted, where the ledger's rules allow it. The symptom: evidence for them, unless a
    diagnosis finds a service outside the change guilty of it.
    """
    if watch.streams == 0:
        return _watch_users(stack, ledger, plan, watch, say)
    tally = _Tally()
    while tally.symptom is None and not _is_over(watch, tally):
        tally.add(asyncio.run(_drive(stack, watch, tally, say, _fresh(stack, plan))))
    if tally.symptom is not None:
        hazards = tally.broken + tally.recall_failed
        return _symptom(
            stack, ledger, plan, watch, tally.symptom, symptoms=hazards, completed=tally.completed, is_hazard=hazards > 0
        )  # fmt: skip
    took = format_duration(time.monotonic() - tally.began)
    simulated = ", on a simulated device" if tally.simulated else ""
    text = f"{tally.completed} requests clean in {took} with {_values(plan)} in place{simulated}"
    return _clean(ledger, plan, watch, text, exposure=tally.completed, unit="req")


def look_for_fault(stack: Stack) -> Diagnosis:
    """A short diagnosis of the chain as it is now, small probes included."""
    began = time.monotonic()
    verdict = judge(record_capture(stack, window_s=_LOOK_S))
    return replace(verdict, took_s=round(time.monotonic() - began, 1))


def _is_over(watch: WatchPlan, tally: _Tally) -> bool:
    enough = watch.requests is not None and tally.completed >= watch.requests
    return enough or (watch.duration_s is not None and time.monotonic() - tally.began >= watch.duration_s)


async def _drive(stack: Stack, watch: WatchPlan, tally: _Tally, say: Say, out: Path) -> LoadSummary:
    """One stretch of load, its rows kept under *out*: what is still missing, stopped early when a stream breaks."""
    entry = stack.service(stack.entry)
    missing = None
    if watch.requests is not None:
        missing = max(watch.streams, math.ceil((watch.requests - tally.completed) / (1 - CANCEL_SHARE)))
    left_s = None if watch.duration_s is None else max(1.0, watch.duration_s - (time.monotonic() - tally.began))
    plan = LoadPlan(
        url=entry.url, levels=(watch.streams,), requests_per_level=missing, duration_s=left_s, rounds=4, max_tokens=16,
        stall_after_s=_STALL_S, deadline_s=120.0, cancel_share=CANCEL_SHARE, api_key_env=entry.api_key_env,
    )  # fmt: skip
    stretch: asyncio.Task[LoadSummary]
    spoken = time.monotonic()
    stopped = False

    def on_progress(progress: Progress) -> None:
        nonlocal spoken, stopped
        if progress.broken and not stopped:
            stopped = True
            stretch.cancel()
        if time.monotonic() - spoken >= _SAY_EVERY_S:
            spoken = time.monotonic()
            say(
                f"  {tally.completed + progress.completed} requests, none broken, {format_duration(spoken - tally.began)}"
            )

    stretch = asyncio.create_task(run_load(plan, out=out, on_progress=on_progress))
    try:
        return await stretch
    except asyncio.CancelledError:
        if not stopped:
            raise
        return msgspec.json.decode((out / "summary.json").read_bytes(), type=LoadSummary)


def _fresh(stack: Stack, plan: ChangePlan) -> Path:
    """A folder that is not there yet, for the rows of one stretch."""
    home = stack.home / "watch"
    return next(path for n in itertools.count(1) if not (path := home / f"{plan.ids[0]}-{n}").exists())


def _watch_users(stack: Stack, ledger: Ledger, plan: ChangePlan, watch: WatchPlan, say: Say) -> Outcome:
    """Watch the users' own traffic by short diagnoses, one after another, until the time is over."""
    began = last = time.monotonic()
    n_looks, healthy_s = 0, 0.0
    while last - began < (watch.duration_s or 0):
        verdict = look_for_fault(stack)
        n_looks += 1
        if verdict.status == "fault":
            return _symptom(
                stack, ledger, plan, watch, verdict.summary, hours=(time.monotonic() - began) / 3600, verdict=verdict
            )
        now = time.monotonic()
        if verdict.status == "healthy":  # what could not be told is no clean time
            healthy_s += now - last
        last = now
        say(f"  {verdict.status} after {format_duration(now - began)}")
    text = (
        f"{format_duration(last - began)} of the users' own traffic, {n_looks} looks, no fault, "
        f"{format_duration(healthy_s)} of it seen to be healthy, with {_values(plan)} in place"
    )
    return _clean(ledger, plan, watch, text, exposure=healthy_s / 3600, unit="h")


def _clean(
    ledger: Ledger, plan: ChangePlan, watch: WatchPlan, text: str, *, exposure: float, unit: Literal["req", "h"]
) -> Outcome:
    """What a clean watch adds to the ledger: evidence against each claim, and its refutation where the rules allow it."""
    book = Book.from_facts(ledger.facts())
    facts: list[Body] = []
    said = [text]
    services = tuple(dict.fromkeys(service for edit in plan.edits for service in edit.services))
    for name in watch.claims:
        record = book.claim(name)
        item = _evidence(
            ledger, plan, name, text, direction="against" if exposure else "neutral",
            measured=measured_watch(suspect=True, symptoms=0, exposure=exposure, unit=unit),
        )  # fmt: skip
        facts.append(item)
        if record.status in ("refuted", "withdrawn", "superseded"):
            continue
        incident = book.incidents[watch.incident].incident if watch.incident else None
        knob = subject_knob(record.claim)
        in_place = book.in_place(knob[0]) if knob else {}
        items = [*book.about(name), item]
        ruling = may_refute(record.claim, items, incident, services=services, in_place=in_place, waived=watch.waived)
        if ruling.allowed:
            facts.append(ClaimEvent(claim=name, status="refuted", reason=ruling.why or text, evidence=ruling.on))
            said.append(f"claim {name} is refuted")
        else:
            step = f"vindicate claim show {name}" if t_star_of(incident) else how_to_count(name, book.incident_of(name))
            said.append(f"claim {name} stays {record.status}: it takes {'; '.join(ruling.missing)}; next: {step}")
    return Outcome(symptom=None, text="; ".join(said), facts=tuple(facts))


def _symptom(
    stack: Stack,
    ledger: Ledger,
    plan: ChangePlan,
    watch: WatchPlan,
    symptom: str,
    *,
    symptoms: int = 1,
    completed: int | None = None,
    hours: float = 0.0,
    is_hazard: bool = True,
    verdict: Diagnosis | None = None,
) -> Outcome:
    """What the symptom adds: it supports the claims, unless a diagnosis convicts a service outside the change, or it was a plain error."""
    try:
        verdict = verdict or look_for_fault(stack)
    except VindicateError:
        verdict = None
    elsewhere = verdict is not None and verdict.status == "fault" and verdict.service not in plan.together
    supports = is_hazard and not elsewhere
    text = f"with {_values(plan)} in place: {symptom}"
    if verdict is not None and verdict.status == "fault":
        text += f"; diagnosis: {verdict.summary}"
    unit, exposure = ("h", hours) if completed is None else ("req", float(completed))
    facts: list[Body] = []
    try:
        for name in watch.claims:
            item = _evidence(
                ledger, plan, name, text, direction="for" if supports else "neutral",
                measured=measured_watch(suspect=True, symptoms=symptoms, exposure=exposure, unit=unit),
            )  # fmt: skip
            facts.append(item)
            if supports:
                facts.append(ClaimEvent(claim=name, status="supported", reason=text, evidence=(item.id,)))
    except LedgerError as error:  # the symptom weighs more: it must be undone, recorded or not
        facts, text = [], f"{text}; not on record: {error.problem}"
    return Outcome(symptom=text, text=text, facts=tuple(facts))


def _evidence(
    ledger: Ledger, plan: ChangePlan, claim: str, text: str, *, direction: Literal["for", "against", "neutral"],
    measured: dict[str, str | float | int | bool | None],
) -> Evidence:  # fmt: skip
    return Evidence(
        id=ledger.next_id("E"),
        kind="intervention",
        text=text,
        claim=claim,
        direction=direction,
        group="watch",
        source=f"vindicate restore, change {', '.join(plan.ids)}",
        measured_at=utc_now(),
        measured=measured,
    )


def _values(plan: ChangePlan) -> str:
    return ", ".join(
        f"{edit.knob} {'unset' if edit.after is None else '=' + edit.after}".replace(" =", "=") for edit in plan.edits
    )
