"""One tree of errors; the type says whose side failed, the message says what was seen and what to do.

VindicateError                 .problem, .remedy, exit_code
├── MisuseError         2      the caller asked for something that cannot be
├── RefusedError        2      the user answered no; nothing was changed
├── UndeterminedError   3      not enough evidence; the remedy says what would settle it
├── CannotError         4      it could not be done: locked, no permission, half done and resumable
│   ├── LedgerError     4      the record cannot be read or written
│   └── EngineError     4      a service did not keep its side
├── UndoneError         1      a change was undone cleanly
└── BugError            70     our own fault
"""

from typing import ClassVar

__all__ = [
    "BugError",
    "CannotError",
    "EngineError",
    "LedgerError",
    "MisuseError",
    "RefusedError",
    "UndeterminedError",
    "UndoneError",
    "VindicateError",
]


class VindicateError(Exception):
    """Something a person must know: what happened with the value seen, and what to do next.

    Attributes:
        problem: Lower case, no full stop, with the offending value and where it stands.
        remedy: The next thing to do, a command where there is one; never empty.
    """

    exit_code: ClassVar[int] = 70

    def __init__(self, problem: str, *, remedy: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.remedy = remedy


class MisuseError(VindicateError):
    """Usage, configuration or input is wrong; nothing was changed."""

    exit_code = 2


class RefusedError(VindicateError):
    """The user answered no, or could not be asked; nothing was changed."""

    exit_code = 2


class UndeterminedError(VindicateError):
    """The evidence is not enough; the remedy names the observation that would settle it."""

    exit_code = 3


class CannotError(VindicateError):
    """It could not be begun, or was left half done and can be resumed with the command in the remedy."""

    exit_code = 4


class LedgerError(CannotError):
    """The ledger cannot be read or written."""


class EngineError(CannotError):
    """A service did not start, died, or answered bytes that mean nothing."""


class UndoneError(VindicateError):
    """A change was undone cleanly, whatever the cause."""

    exit_code = 1


class BugError(VindicateError):
    """Our own fault; please report it."""

    exit_code = 70
