"""A planned change, or changes on record → lines for a terminal."""

from collections.abc import Mapping, Sequence

from vindicate.ledger.state import Book, ChangeRecord
from vindicate.ledger.worth import Worth
from vindicate.operate.plan import ChangePlan
from vindicate.units import shown
from vindicate.view import ledger

__all__ = ["change_lines", "change_list_lines", "plan_lines", "worth_lines"]


def plan_lines(plan: ChangePlan, *, by_hand: Mapping[str, str], outage: str, accepted: Sequence[str] = ()) -> list[str]:
    """The whole plan on one screen.

    Args:
        outage: How long the restart is expected to take.
        by_hand: Services that were started by hand and will run under their launcher afterwards, with a pid and where it runs.
        accepted: Weaknesses that a waiver will name.
    """
    lines = [f"plan: {plan.kind}"]
    lines += [
        f"  {edit.knob}: {shown(edit.before)} -> {shown(edit.after)} in {', '.join(edit.services)}"
        for edit in plan.edits
    ]
    for file in plan.files:
        kept = f"backup {file.backup.rpartition('/')[2]}" if file.sha_before else "new; undoing takes it away"
        lines.append(f"  file {file.path}{'' if file.sha_after else ', taken away'}, {kept}")
        lines += [f"    {line}" for line in plan.diffs.get(file.path, [])]
    if not plan.files and plan.by_person:
        lines.append(f"  no file changes: you start {', '.join(plan.by_person)}, and set its value there")
    elif not plan.files:
        lines.append("  no script changes: they say so already, and the live processes do not")
    lines.append(f"  stop:  {', '.join(reversed(plan.together))}")
    lines.append(f"  start: {', '.join(plan.together)}   (together; no answers meanwhile: {outage})")
    lines += [
        f"  note:  {name} ({where}) was started by hand; it will not come back there, but run under its launcher"
        for name, where in by_hand.items()
    ]
    lines += [f"  note:  {name} {text}" for name, text in plan.told.items()]
    down = [name for name in plan.together if name not in plan.was_up]
    if down:
        lines.append(f"  note:  {', '.join(down)} is not running now, and will be started")
    lines.append(
        "  check: the value in every live process, younger than the change; health; answers as before; a short load"
    )
    if plan.watch:
        lines.append(f"  watch: {plan.watch.why}")
        lines.append(
            "  abort: any stalled, broken or failed stream, a lost context, a service that dies; then it is undone"
        )
    else:
        lines.append("  abort: whatever of that fails; then it is undone")
    lines += [f"  accepted: {weakness}" for weakness in accepted]
    return lines


def worth_lines(worth: Sequence[Worth], what: str) -> list[str]:
    """What the evidence says *what* is worth, a line for each level."""
    if not worth:
        return [f"{what}: nothing on record says what it is worth"]
    return [f"{what}, by the evidence on record:", *(f"  {line}" for line in ledger.worth_lines(worth))]


def change_list_lines(book: Book) -> list[str]:
    """One line a change, oldest first."""
    if not book.changes:
        return ["no change on record"]
    return [_line(record) for record in sorted(book.changes.values(), key=lambda record: record.when)]


def _line(record: ChangeRecord) -> str:
    change = record.change
    because = f" because {', '.join(record.because)}" if record.because else ""
    return (
        f"{change.id}  {record.at[:19]}Z  {change.kind} {change.knob} {shown(change.from_value)} -> "
        f"{shown(change.to_value)} in {', '.join(change.services)}  [{record.state}]{because}"
    )


def change_lines(record: ChangeRecord) -> list[str]:
    """One change with its grounds, waivers and every step."""
    lines = [_line(record)]
    if record.change.reason:
        lines.append(f"  reason: {record.change.reason}")
    if record.change.undoes:
        lines.append(f"  undoes: {record.change.undoes}")
    lines += [
        f"  rests on {', '.join(ground.claims)} ({ground.need}, recorded {ground.recorded})"
        + (f": {ground.quote!r}" if ground.quote else "")
        for ground in record.grounds
    ]
    for waiver in record.waivers:
        lines.append(f"  waiver: {waiver.reason}")
        lines += [f"    accepted: {weakness}" for weakness in waiver.weaknesses]
    for at, step in record.steps:
        mark = f"{step.state} ..." if "next" in step.data else step.state
        what = f"next: {step.data['next']}: {step.detail}" if "next" in step.data else step.detail
        lines.append(f"  {at[11:19]}  {mark:<14} {what}")
    return lines
