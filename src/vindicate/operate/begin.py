"""A wish to apply or revert a knob → its plan with ids, grounds and a baseline, ready to be carried out."""

from collections.abc import Sequence
from dataclasses import replace

from vindicate.errors import MisuseError
from vindicate.ledger.state import Book, ChangeRecord
from vindicate.ledger.store import Ledger
from vindicate.operate.answers import take_baseline
from vindicate.operate.health import place_of
from vindicate.operate.plan import ChangePlan, with_ids
from vindicate.operate.services import running_by_hand
from vindicate.operate.status import live_readings
from vindicate.record.ledger import Body, Justification, Waiver
from vindicate.stack.model import Stack

__all__ = [
    "already_so",
    "before_last_apply",
    "expected_ids",
    "grounds_for",
    "hand_started",
    "numbered",
    "with_baseline",
]


def expected_ids(book: Book, n: int) -> list[str]:
    """The ids that the next *n* changes will most likely get; for a plan that is only shown."""
    numbers = [int(name[1:]) for name in book.changes if name[:1] == "C" and name[1:].isdecimal()]
    return [f"C{max(numbers, default=0) + k}" for k in range(1, n + 1)]


def numbered(ledger: Ledger, plan: ChangePlan) -> ChangePlan:
    """The plan under ids that nobody else gets."""
    return with_ids(plan, [ledger.next_id("C") for _ in plan.edits])


def with_baseline(stack: Stack, plan: ChangePlan) -> tuple[ChangePlan, tuple[str, ...]]:
    """The plan with answers taken before the change, and what to say about them."""
    baseline, notes = take_baseline(stack)
    return replace(plan, baseline=baseline), notes


def hand_started(stack: Stack, plan: ChangePlan) -> dict[str, str]:
    """Services of the restart set that were not started from here, with a pid and the terminal program it runs in."""
    found = {name: running_by_hand(stack, stack.service(name)) for name in plan.together}
    return {name: place_of(pids[0]) for name, pids in found.items() if pids}


def already_so(stack: Stack, plan: ChangePlan) -> bool:
    """Whether the scripts and every live process hold the wanted values already."""
    if plan.files:
        return False
    for edit in plan.edits:
        for name in edit.services:
            readings = live_readings(stack.service(name), stack.knob(edit.knob))
            if not readings or any(reading.problem or reading.value != edit.after for reading in readings):
                return False
    return True


def last_applied(book: Book, knob: str) -> ChangeRecord | None:
    """The last apply or restore of *knob* that took effect."""
    applied = [record for record in book.in_effect.get(knob, ()) if record.change.kind in ("apply", "restore")]
    return applied[-1] if applied else None


def before_last_apply(book: Book, knob: str) -> str | None:
    """The value before the last apply or restore of *knob* that took effect, absence included.

    Raises:
        MisuseError: The ledger knows of none.
    """
    record = last_applied(book, knob)
    if record is None:
        raise MisuseError(
            f"the ledger knows of no apply of {knob}, so there is no state before it",
            remedy=f"name the value: vindicate revert {knob}=VALUE --because CLAIM",
        )
    return record.change.from_value


def grounds_for(
    book: Book,
    plan: ChangePlan,
    because: Sequence[str],
    *,
    waiver: tuple[str, Sequence[str]] | None = None,
) -> list[Body]:
    """The justification, and the waiver, of each change of the plan.

    A revert takes a risk away, and for that a claim that is not refuted is enough.

    Raises:
        MisuseError: A claim is not in the ledger.
    """
    for claim in because:
        book.claim(claim)
    bodies: list[Body] = []
    for change in plan.ids:
        if because:
            bodies.append(
                Justification(
                    change=change, claims=tuple(because), need="not_refuted" if plan.kind == "revert" else "live"
                )
            )
        if waiver is not None:
            bodies.append(Waiver(change=change, reason=waiver[0], weaknesses=tuple(waiver[1])))
    return bodies
