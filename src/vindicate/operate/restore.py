"""A revert in the ledger → the ground that putting it back stands on, what is weak in it, and how long it must be watched."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from vindicate.clock import utc_now
from vindicate.errors import CannotError, MisuseError, UndeterminedError
from vindicate.ledger.claim_rules import t_star_of, t_star_text
from vindicate.ledger.clawback import Candidate, candidates
from vindicate.ledger.live import live_value
from vindicate.ledger.standing import standing_of
from vindicate.ledger.state import Book
from vindicate.operate.plan import WatchPlan
from vindicate.operate.watch import look_for_fault
from vindicate.record.ledger import Incident
from vindicate.stack.model import Stack
from vindicate.units import format_duration

__all__ = ["Ground", "ground_of", "plan_watch", "require_cause_gone", "require_ground"]

DEFAULT_WATCH_S = 600.0
_FIRM = ("justified", "still_justified_by_other")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """Why a revert may be undone: the candidate as `clawback` sees it, and everything weak in it."""

    candidate: Candidate
    weaknesses: tuple[str, ...]


def ground_of(stack: Stack, book: Book, change: str) -> Ground:
    """The ground for putting *change* back.

    Raises:
        MisuseError: It is no revert, is not the last word on its knob, or its own ground still holds.
    """
    record = book.change(change)
    if record.change.kind != "revert":
        raise MisuseError(
            f"{change} is of kind {record.change.kind}, and only a revert can be restored",
            remedy="see: vindicate clawback",
        )
    if not record.in_effect:
        raise MisuseError(
            f"{change} never took effect: it is {record.state}", remedy=f"see: vindicate change show {change}"
        )
    later = book.later_than(record)
    if later is not None:
        raise MisuseError(
            f"{change} is no longer the last word on {record.change.knob}: {later.change.id} ({later.change.kind}) came after it",
            remedy="see: vindicate clawback",
        )
    standing = standing_of(record, book)
    if standing.name in _FIRM:
        holding = [c for ground in standing.grounds if ground.strength == "firm" for c in ground.justification.claims]
        shown = ", ".join(f"{claim} is {book.claims[claim].status}" for claim in dict.fromkeys(holding))
        raise MisuseError(
            f"the ground of {change} still holds: {shown}",
            remedy=f"settle that first: vindicate claim show {holding[0]}; or vindicate diagnose --save, then: "
            f"vindicate claim displace {holding[0]} --evidence ID",
        )
    knob = record.change.knob
    defaults = {name: item.default for name, item in stack.knobs.items()}
    found = candidates(
        book, now=utc_now(), live={knob: live_value(stack, knob)} if knob in stack.knobs else None, defaults=defaults
    )
    candidate = next((item for item in found if item.change == change), None)
    if candidate is None:
        raise MisuseError(f"{change} is not among the reverts in force", remedy="see: vindicate clawback")
    weaknesses = list(candidate.weaknesses)
    if candidate.standing == "never_justified":
        weaknesses.append(f"{change} names no reason, so nothing can be shown to have fallen")
    if candidate.next == "leave" and not weaknesses:
        weaknesses.append("the value given up was measured, and is not better")
    if candidate.next == "experiment" and not weaknesses:
        weaknesses.append("no figure on record settles which value is better")
    return Ground(candidate=candidate, weaknesses=tuple(weaknesses))


def require_ground(ground: Ground, *, accept: str | None) -> None:
    """Insist on a ground without weakness, or on somebody's reason to accept it.

    Raises:
        UndeterminedError: The evidence is not enough; says what is missing, and the command that accepts or mends it.
    """
    if accept is not None or (not ground.weaknesses and ground.candidate.next == "restore"):
        return
    item = ground.candidate
    fresh = (
        f"vindicate ab {item.knob}={item.to_value}..{item.from_value} --plan"
        if item.to_value and item.from_value
        else "vindicate clawback"
    )
    raise UndeterminedError(
        f"the ground for restoring {item.change} is not enough: {'; '.join(ground.weaknesses)}",
        remedy=f'accept that, watched: vindicate restore {item.change} --accept "REASON"   or measure afresh: {fresh}',
    )


def require_cause_gone(stack: Stack, *, accept: str | None) -> str:
    """Look at the chain as it is now: what made the symptom must be gone, or the restore would be blamed for it.

    Returns:
        What was seen, in a line.

    Raises:
        CannotError: A fault is there now, or our own small request did not come back whole; accepting does not help.
        UndeterminedError: It cannot be told, and nobody accepted that.
    """
    verdict = look_for_fault(stack)
    if verdict.status == "fault":
        raise CannotError(
            f"the cause is not gone: {verdict.summary} ({verdict.service}: {verdict.mechanism})",
            remedy="mend that first, and see it sound: vindicate diagnose",
        )
    failed = next((it for it in verdict.findings if it.kind == "probe" and it.direction == "implicates"), None)
    if verdict.status == "undetermined" and failed is not None:
        raise CannotError(
            f"the cause is not gone, or another one has come: {failed.text}",
            remedy=verdict.next[0] if verdict.next else "look longer: vindicate diagnose --window 30s",
        )
    if verdict.status == "undetermined" and accept is None:
        raise UndeterminedError(
            f"whether the cause is gone cannot be told: {verdict.summary}",
            remedy=f'{verdict.next[0] if verdict.next else "vindicate diagnose"}; or accept it with --accept "REASON"',
        )
    return f"{verdict.status}: {verdict.summary}"


def plan_watch(
    book: Book, changes: Sequence[str], *, duration_s: float | None, n_requests: int | None, streams: int, waived: bool
) -> WatchPlan:
    """How long a restore of *changes* is watched: until T* requests are clean, unless a shorter time is asked for.

    T* comes from the incident's count and exposure (see `claim_rules.t_star`), the longest where there are several;
    without them, or with an exposure in hours, a time is watched.

    Args:
        duration_s: The longest time, where given.
        n_requests: Clean requests to reach instead of T*, where given.
        waived: Somebody accepted the weaknesses of the ground.
    """
    because = tuple(dict.fromkeys(claim for change in changes for claim in book.change(change).because))
    named = [book.claims[claim].claim.incident or "" for claim in because if claim in book.claims]
    found: list[Incident] = [book.incidents[name].incident for name in named if name in book.incidents]
    incident = max(found, key=lambda item: t_star_of(item) or 0.0, default=None)
    needed = t_star_of(incident)
    formula = ""
    if needed is not None and incident is not None:
        formula = (
            f"T* = {t_star_text(incident)} = E * (20^(1/m) - 1), with m = {incident.count} events in "
            f"E = {incident.exposure:g} {incident.exposure_unit} of {incident.id}: silence that long comes by luck in 5 %"
        )
    unit = incident.exposure_unit if incident else "req"
    goal = n_requests
    if goal is None and needed is not None and unit == "req":
        goal = math.ceil(needed)
    if goal is None and duration_s is None:
        duration_s = needed * 3600 if needed is not None else DEFAULT_WATCH_S
    generated = goal is not None
    how = f"{goal} clean requests in {streams} streams" if generated else "the users' own traffic"
    limit = f", at most {format_duration(duration_s)}" if duration_s is not None else ""
    why = f"{how}{limit}; {formula or f'T* is {t_star_text(incident)}'}"
    if needed is not None and (
        (unit == "req" and (goal or 0) < needed) or (unit == "h" and (duration_s or 0) < needed * 3600)
    ):
        why += "; that is shorter than T*, so the claim will stay as it is"
    return WatchPlan(
        requests=goal,
        duration_s=duration_s,
        streams=streams if generated else 0,
        needed=needed,
        unit=unit,
        why=why,
        incident=incident.id if incident else None,
        claims=because,
        waived=waived,
    )
