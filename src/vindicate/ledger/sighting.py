"""What every trace of a past change has in common: where it was found, in which words, and the change that it tells of."""

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from vindicate.clock import iso
from vindicate.errors import MisuseError
from vindicate.ledger.importing import read_text
from vindicate.ledger.settings import Settings, assignments

__all__ = ["Quote", "Sighting", "modified_at", "owner_of", "settings_in"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Quote:
    """Where something was found, in the words found there; *by* is unknown where nobody signed."""

    file: str
    line: int
    date: str
    by: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """A knob went to *to_value*, no later than *at*.

    Attributes:
        from_value: Where it came from; *from_known* is false when the trace does not say.
        reason: Words that give a reason, or nothing.
        says_revert: The words themselves call it a revert.
    """

    knob: str
    from_value: str | None
    to_value: str | None
    at: str
    quote: Quote
    from_known: bool = True
    reason: str = ""
    says_revert: bool = False


def settings_in(path: Path, blind: list[str]) -> Settings | None:
    """What the file sets; ``None`` when it cannot be read, which is told to *blind*."""
    try:
        return assignments(read_text(path))
    except MisuseError as error:
        blind.append(error.problem)
        return None


def modified_at(path: Path) -> str:
    """When the file was last written."""
    return iso(datetime.fromtimestamp(path.stat().st_mtime, UTC))


def owner_of(path: Path) -> str:
    """The name of the file's owner."""
    try:
        return path.owner()
    except (KeyError, OSError):
        return "unknown"
