"""The steps of a change ↔ the ledger: each is announced before it is done and recorded after; from that alone any process goes on, or back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from vindicate.errors import CannotError, LedgerError, MisuseError
from vindicate.ledger.state import Book, ChangeRecord
from vindicate.ledger.store import Ledger
from vindicate.operate.plan import ChangePlan, KnobEdit
from vindicate.record.ledger import Body, Change, ChangeState, ChangeStep
from vindicate.units import format_duration

__all__ = [
    "FINAL",
    "Progress",
    "announce",
    "begin",
    "expected_outage",
    "half_done",
    "progress_of",
    "reach",
    "require_nothing_half_done",
]

FINAL: tuple[ChangeState, ...] = ("done", "rolled_back", "failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a change came: its *state*, the steps that were *announced* so far, done or not, and when its restart began.

    Attributes:
        since_uptime_s: Seconds since boot; a process that is older does not count.
    """

    plan: ChangePlan
    state: ChangeState
    announced: frozenset[str]
    since_uptime_s: float | None = None


def begin(
    ledger: Ledger, plan: ChangePlan, *, reason: str, undoes: Mapping[str, str], more: Sequence[Body]
) -> Progress:
    """Record the change as planned, with its grounds, in one transaction.

    Args:
        undoes: The change that is taken back, by knob.

    Raises:
        LedgerError: It cannot be written; nothing was begun.
    """
    data = {"plan": msgspec.to_builtins(replace(plan, diffs={}))}
    bodies: list[Body] = []
    for edit in plan.edits:
        bodies.append(
            Change(
                id=edit.change, kind=plan.kind, knob=edit.knob, services=edit.services,
                from_value=_from(edit), to_value=edit.after, undoes=undoes.get(edit.knob), reason=reason, source="vindicate",
            )
        )  # fmt: skip
        bodies.append(ChangeStep(change=edit.change, state="planned", detail=_planned(plan), data=data))
    ledger.append_all([*bodies, *more])
    return Progress(plan=plan, state="planned", announced=frozenset())


def announce(ledger: Ledger, progress: Progress, state: ChangeState, detail: str) -> Progress:
    """Record that the step to *state* is about to be done."""
    _append(
        ledger,
        [
            ChangeStep(change=change, state=progress.state, detail=detail, data={"next": state})
            for change in progress.plan.ids
        ],
    )
    return replace(progress, announced=progress.announced | {state})


def reach(
    ledger: Ledger,
    progress: Progress,
    state: ChangeState,
    detail: str,
    *,
    data: dict[str, object] | None = None,
    more: Sequence[Body] = (),
) -> Progress:
    """Record that *state* was reached, together with *more* facts."""
    steps = [ChangeStep(change=change, state=state, detail=detail, data=data or {}) for change in progress.plan.ids]
    _append(ledger, [*steps, *more])
    uptime = (data or {}).get("uptime_s")
    since = uptime if isinstance(uptime, float) else progress.since_uptime_s
    return replace(progress, state=state, since_uptime_s=since)


def _append(ledger: Ledger, bodies: Sequence[Body]) -> None:
    """Record them, unless the file was deleted meanwhile: SQLite would go on writing into what nobody can open again.

    Raises:
        LedgerError: It is gone, or cannot be written.
    """
    if not ledger.path.exists():
        raise LedgerError(
            f"{ledger.path} is gone, and with it the journal of this change",
            remedy="put it back from a copy (vindicate ledger import); the scripts' backups stand beside them (*.bak)",
        )
    ledger.append_all(bodies)


def progress_of(book: Book, change: str) -> Progress:
    """Read a change's plan and progress back.

    Raises:
        MisuseError: There is no such change, or it was not made with this tool.
    """
    record = book.change(change)
    plan = _plan_of(record)
    if plan is None:
        raise MisuseError(
            f"{change} was found in the past, not made with this tool, so it has no journal",
            remedy=f"see: vindicate change show {change}",
        )
    steps = [step for _, step in record.steps]
    uptimes = [value for step in steps if isinstance(value := step.data.get("uptime_s"), int | float)]
    return Progress(
        plan=plan,
        state=record.state,
        announced=frozenset(str(step.data["next"]) for step in steps if "next" in step.data),
        since_uptime_s=float(uptimes[-1]) if uptimes else None,
    )


def half_done(book: Book) -> tuple[ChangeRecord, ...]:
    """Changes of this tool that were begun and neither finished nor undone."""
    return tuple(
        record for record in book.changes.values() if record.state not in FINAL and _plan_of(record) is not None
    )


def require_nothing_half_done(book: Book) -> None:
    """Refuse to begin a change while another one stands half done.

    Raises:
        CannotError: There is one; the remedy names the commands that finish it.
    """
    for record in half_done(book):
        change = record.change
        raise CannotError(
            f"{change.id} ({change.kind} of {change.knob}) was begun at {record.at} and stands half done: {record.state}",
            remedy=f"finish it: vindicate change resume {change.id}   or undo it: vindicate change rollback {change.id}",
        )


def expected_outage(book: Book, together: Sequence[str]) -> str:
    """How long the last restart of the same services took, for a person."""
    took = [
        (at, value)
        for record in book.changes.values()
        for at, step in record.steps
        if step.data.get("restarted") == list(together) and isinstance(value := step.data.get("took_s"), int | float)
    ]
    return f"{format_duration(max(took)[1])} at the last change" if took else "no restart of these is on record yet"


def _from(edit: KnobEdit) -> str | None:
    """Where the knob comes from: the script's value, or the live one when only the processes have to follow the script."""
    drifted = edit.before == edit.after and len(edit.was_live) == 1
    return edit.was_live[0] if drifted else edit.before


def _plan_of(record: ChangeRecord) -> ChangePlan | None:
    for _, step in record.steps:
        if "plan" in step.data:
            return msgspec.convert(step.data["plan"], ChangePlan)
    return None


def _planned(plan: ChangePlan) -> str:
    files = ", ".join(file.path for file in plan.files) or "no file"
    return f"edit {files}; restart {', '.join(plan.together)} together"
