"""The options of a ledger verb → an open ledger, the book in it, and the stack where there is one."""

from dataclasses import dataclass
from pathlib import Path

from vindicate.cli.option import ledger_file, say
from vindicate.ledger.state import Book
from vindicate.ledger.store import Ledger
from vindicate.stack.model import Stack

__all__ = ["Desk", "knob_services", "open_desk"]


@dataclass(frozen=True, slots=True)
class Desk:
    """Where a ledger verb works: close *ledger* when done."""

    ledger: Ledger
    stack: Stack | None
    home: Path

    def book(self) -> Book:
        """What the ledger adds up to now."""
        return Book.from_facts(self.ledger.facts())

    def known_knobs(self, book: Book) -> tuple[str, ...]:
        """Names that are knobs for certain: declared in the stack file, or in the ledger."""
        from vindicate.ledger.documents import known_knobs

        return tuple(dict.fromkeys([*(self.stack.knobs if self.stack else ()), *known_knobs(book)]))


def open_desk(ledger_path: str | None, stack_file: str | None, *, write: bool) -> Desk:
    """Open the ledger that the options name, and the stack file where there is one.

    Raises:
        LedgerError: The ledger cannot be opened.
        MisuseError: The stack file cannot be read, or the ledger is named in a way that is not known.
    """
    from vindicate.stack.file import find_stack_file, read_stack

    path = find_stack_file(stack_file)
    file = ledger_file(ledger_path, stack_file).absolute()
    home = file.parent.parent if file.parent.name == ".vindicate" else file.parent
    stack = read_stack(path) if path else None
    if ledger_path is not None and not write and not file.exists():
        say(f"there is no ledger at {file} yet")
    return Desk(
        Ledger.open(file, create=write, read_only=not write), stack, stack.file.parent if stack and stack.file else home
    )


def knob_services(desk: Desk, book: Book, knob: str) -> tuple[str, ...]:
    """The services that hold *knob*, by the stack file or by the changes on record."""
    declared = desk.stack.knobs[knob].services if desk.stack and knob in desk.stack.knobs else ()
    changed = [
        name for record in book.changes.values() if record.change.knob == knob for name in record.change.services
    ]
    return tuple(dict.fromkeys([*declared, *changed]))
