"""What the verbs that change something share: stack, ledger and lock, and the way from a plan to a change done."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vindicate.cli.option import agree, ledger_file, print_json, say

if TYPE_CHECKING:
    from vindicate.ledger.state import Book, ChangeRecord
    from vindicate.ledger.store import Ledger
    from vindicate.operate.plan import ChangePlan, KnobEdit
    from vindicate.record.ledger import Body
    from vindicate.stack.model import Stack

__all__ = ["ChangeBench", "change_bench", "change_entry"]


@dataclass(frozen=True, slots=True)
class ChangeBench:
    """A stack, its ledger and what the ledger says, held for one change."""

    stack: "Stack"
    ledger: "Ledger"
    book: "Book"
    dry_run: bool

    def ids(self, n: int) -> list[str]:
        """The ids that *n* new changes will most likely get, for showing."""
        from vindicate.operate.begin import expected_ids

        return expected_ids(self.book, n)

    def run(
        self, plan: "ChangePlan", grounds: "Callable[[ChangePlan], list[Body]]", *, reason: str, timeout_s: float, yes: bool,
        as_json: bool, undoes: Mapping[str, str] | None = None, accepted: Sequence[str] = (),
    ) -> int:  # fmt: skip
        """Show the plan, ask, and carry it out; with *as_json* the document is `vindicate.changes/1`, as far as it came."""
        from vindicate.ledger.state import Book
        from vindicate.operate import journal
        from vindicate.operate.begin import already_so, hand_started, numbered, with_baseline
        from vindicate.operate.change import Operation
        from vindicate.view.change import plan_lines

        if already_so(self.stack, plan):
            knobs = ", ".join(edit.knob for edit in plan.edits)
            _tell([], [f"{knobs}: already so, in the scripts and in every live process"], as_json=as_json)
            return 0
        outage = journal.expected_outage(self.book, plan.together)
        say("\n".join(plan_lines(plan, by_hand=hand_started(self.stack, plan), outage=outage, accepted=accepted)))
        if self.dry_run:
            if as_json:
                _tell([_planned(plan, edit) for edit in plan.edits], [], as_json=True)
            return 0
        agree("Do this?", yes=yes)
        plan, notes = with_baseline(self.stack, numbered(self.ledger, plan))
        for note in notes:
            say(f"note: {note}")
        progress = journal.begin(self.ledger, plan, reason=reason, undoes=undoes or {}, more=grounds(plan))
        operation = Operation(self.stack, self.ledger, progress, say, timeout_s)
        operation.go_on()
        made = Book.from_facts(self.ledger.facts())
        told = [f"{', '.join(plan.ids)}: done", *operation.told]
        _tell([change_entry(made.change(name)) for name in plan.ids], told, as_json=as_json)
        return 0


def change_entry(record: "ChangeRecord") -> dict[str, object]:
    """A change as `vindicate.changes/1` names its fields."""
    made = record.change
    return {
        "id": made.id,
        "kind": made.kind,
        "knob": made.knob,
        "services": made.services,
        "from": made.from_value,
        "to": made.to_value,
        "state": record.state,
        "because": record.because,
        "at": record.at,
        "undoes": made.undoes,
        "recorded": made.recorded,
    }


def _planned(plan: "ChangePlan", edit: "KnobEdit") -> dict[str, object]:
    """The same of a change that is only planned: nothing of it is on record."""
    return {
        "id": edit.change, "kind": plan.kind, "knob": edit.knob, "services": edit.services, "from": edit.before,
        "to": edit.after, "state": "planned", "restarts": plan.together, "files": [file.path for file in plan.files],
    }  # fmt: skip


def _tell(changes: Sequence[Mapping[str, object]], told: Sequence[str], *, as_json: bool) -> None:
    if as_json:
        print_json({"schema": "vindicate.changes/1", "changes": changes, "told": told})
    else:
        print("\n".join(told))


@contextmanager
def change_bench(
    stack_file: str | None, ledger_path: str | None, command: str, *, dry_run: bool, half_done_is_fine: bool = False
) -> Iterator[ChangeBench]:
    """Open stack and ledger; for more than a dry run, under the stack's lock."""
    from contextlib import ExitStack

    from vindicate.experiment.journal import require_put_back
    from vindicate.ledger.present import seen_now
    from vindicate.ledger.state import Book
    from vindicate.ledger.store import Ledger
    from vindicate.operate.interrupt import interruptible
    from vindicate.operate.journal import require_nothing_half_done
    from vindicate.operate.lock import locked
    from vindicate.stack.file import load_stack

    declared = load_stack(stack_file)
    with ExitStack() as held:
        if not dry_run:
            held.enter_context(locked(declared, command))
            held.enter_context(interruptible())
        path = ledger_file(ledger_path, stack_file)
        ledger = held.enter_context(Ledger.open(path, create=not dry_run, read_only=dry_run))
        book = seen_now(declared, Book.from_facts(ledger.facts()))
        if not half_done_is_fine:
            require_put_back(declared.home)
            require_nothing_half_done(book)
        yield ChangeBench(declared, ledger, book, dry_run)
