"""The three standard streams as we were given them → streams that stop no verb: closed, full, read by nobody, or unable to hold an arrow."""

import codecs
import errno
import io
import os
import sys

from vindicate.errors import CannotError, MisuseError

__all__ = ["Outlet", "mend_streams"]

_SIGNS = {
    "→": "->", "…": "...", "\u2013": "-", "—": "-", "\u2212": "-", "·": "-", "\u00d7": "x", "±": "+-", "≥": ">=", "≤": "<=", "≈": "~",
    "µ": "u", "\u203a": ">", "\u2019": "'", "“": '"', "”": '"', "█": "#", "─": "-", "│": "|",
}  # fmt: skip


class Outlet(io.FileIO):
    """A descriptor to write to. Who no longer reads is no fault; any other failure is kept in *problem*, and writing goes on.

    A verb that restarts services must not end in the middle because a disk is full or `head` has seen enough.
    """

    problem: OSError | None = None

    def write(self, data: object, /) -> int:
        """Write, or drop what cannot be written."""
        try:
            return super().write(data)  # type: ignore[arg-type]
        except OSError as error:
            if error.errno != errno.EPIPE:
                self.problem = self.problem or error
            return memoryview(data).nbytes  # type: ignore[arg-type]

    def check(self) -> None:
        """Fail when something could not be written.

        Raises:
            CannotError: The disk is full, or the like.
        """
        if self.problem is not None:
            raise CannotError(
                f"standard output cannot be written: {self.problem.strerror}; the work itself went on to its end",
                remedy="send the output elsewhere, and ask for the state again: vindicate stack status, vindicate change list",
            )


def mend_streams() -> Outlet | None:
    """Put streams that cannot fail in the place of ours; give the outlet of standard output, ``None`` when it is a caller's own.

    Raises:
        MisuseError: Standard output is closed, so that nothing could be reported.
    """
    closed = [number for number in (0, 1, 2) if not _is_open(number)]
    for number in closed:  # else the next file or socket that is opened would be taken for a standard stream
        _open_null(number)
    if 0 in closed:
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 lives as long as the process
    codecs.register_error("vindicate", _plainly)
    outlet = None
    if sys.stdout is sys.__stdout__:
        outlet = Outlet(1, "w", closefd=False)
        sys.stdout = _text(outlet, sys.stdout)
    if sys.stderr is sys.__stderr__:
        sys.stderr = _text(Outlet(2, "w", closefd=False), sys.stderr, line_buffering=True)
    if 1 in closed:
        raise MisuseError("standard output is closed", remedy="let it go somewhere: > FILE, or > /dev/null")
    return outlet


def _text(outlet: Outlet, old: io.TextIOBase | None, *, line_buffering: bool = False) -> io.TextIOWrapper:
    return io.TextIOWrapper(
        io.BufferedWriter(outlet),
        encoding=getattr(old, "encoding", None) or "utf-8",
        errors="vindicate",
        line_buffering=line_buffering or outlet.isatty(),
    )


def _plainly(error: UnicodeError) -> tuple[str, int]:
    """What the stream's encoding cannot hold, in plain signs."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_SIGNS.get(sign, "?") for sign in error.object[error.start : error.end]), error.end


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def _open_null(number: int) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    if null != number:
        os.dup2(null, number)
        os.close(null)
