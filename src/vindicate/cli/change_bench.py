"""What the verbs that change something share: stack, ledger and lock, and the way from a plan to a change done."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vindicate.cli.option import agree, ledger_file, say

if TYPE_CHECKING:
    from vindicate.ledger.state import Book
    from vindicate.ledger.store import Ledger
    from vindicate.operate.plan import ChangePlan
    from vindicate.record.ledger import Body
    from vindicate.stack.model import Stack

__all__ = ["ChangeBench", "change_bench"]


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
        undoes: Mapping[str, str] | None = None, accepted: Sequence[str] = (),
    ) -> int:  # fmt: skip
        """Show the plan, ask, and carry it out."""
        from vindicate.operate import journal
        from vindicate.operate.begin import already_so, hand_started, numbered, with_baseline
        from vindicate.operate.change import Operation
        from vindicate.view.change import plan_lines

        if already_so(self.stack, plan):
            print(
                f"{', '.join(edit.knob for edit in plan.edits)}: already so, in the scripts and in every live process"
            )
            return 0
        outage = journal.expected_outage(self.book, plan.together)
        say("\n".join(plan_lines(plan, by_hand=hand_started(self.stack, plan), outage=outage, accepted=accepted)))
        if self.dry_run:
            return 0
        agree("Do this?", yes=yes)
        plan, notes = with_baseline(self.stack, numbered(self.ledger, plan))
        for note in notes:
            say(f"note: {note}")
        progress = journal.begin(self.ledger, plan, reason=reason, undoes=undoes or {}, more=grounds(plan))
        operation = Operation(self.stack, self.ledger, progress, say, timeout_s)
        operation.go_on()
        print("\n".join([f"{', '.join(plan.ids)}: done", *operation.told]))
        return 0


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
