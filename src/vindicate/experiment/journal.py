"""One experiment's folder: the registered design, trials as they end, and what must be put back."""

import base64
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TypeVar

import msgspec

from vindicate.errors import CannotError, MisuseError
from vindicate.record.experiment import Design, Trial

__all__ = ["Before", "Journal", "KeptFile", "all_journals", "require_put_back"]

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptFile:
    """A file as it was before the first start: its bytes (base64), their SHA-256 and its mode."""

    path: str
    content: str
    sha256: str
    mode: int

    @classmethod
    def of(cls, path: Path) -> Self:
        """Read it now."""
        raw = path.read_bytes()
        return cls(
            path=str(path),
            content=base64.b64encode(raw).decode(),
            sha256=hashlib.sha256(raw).hexdigest(),
            mode=path.stat().st_mode & 0o7777,
        )

    @property
    def raw(self) -> bytes:
        """The bytes."""
        return base64.b64decode(self.content)


@dataclass(frozen=True, slots=True, kw_only=True)
class Before:
    """How the stack stood before the first start.

    Attributes:
        running: Services of the restart set that were up, and will be up again at the end.
        value: What the script set the knob to; ``None`` when it did not.
    """

    files: tuple[KeptFile, ...]
    running: tuple[str, ...]
    value: str | None


class Journal:
    """Files of one experiment. What was appended is on disk when the call returns; a torn last line is dropped on reading."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.id = folder.name

    @classmethod
    def find(cls, home: Path, experiment: str) -> Self:
        """The journal of *experiment* under the stack's *home*.

        Raises:
            MisuseError: There is none of that id.
        """
        journal = cls(home / "experiments" / experiment)
        if not (journal.folder / "design.json").is_file():
            known = ", ".join(item.id for item in all_journals(home)) or "none yet"
            raise MisuseError(f"no experiment {experiment!r} under {home}", remedy=f"known: {known}")
        return journal

    # ---- the design ----------------------------------------------------------------------------------------------

    def register(self, design: Design) -> None:
        """Write the design, once.

        Raises:
            CannotError: It cannot be written, or one is there already.
        """
        try:
            self.folder.mkdir(parents=True)
            _write(self.folder / "design.json", msgspec.json.format(msgspec.json.encode(design), indent=1))
        except OSError as error:
            raise CannotError(
                f"{self.folder} cannot be written: {error.strerror}", remedy="check the folder's permissions"
            ) from error

    def design(self) -> Design:
        """The design as registered.

        Raises:
            CannotError: It cannot be read.
        """
        return _read(self.folder / "design.json", Design)

    @property
    def design_sha256(self) -> str:
        """Hash of the registered design."""
        return hashlib.sha256((self.folder / "design.json").read_bytes()).hexdigest()

    # ---- trials --------------------------------------------------------------------------------------------------

    def append(self, trial: Trial) -> None:
        """Add one trial; it survives a kill from here on.

        Raises:
            CannotError: It cannot be written.
        """
        path = self.folder / "trials.jsonl"
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            try:
                line = msgspec.json.encode(trial) + b"\n"
                size = os.fstat(descriptor).st_size
                if size and os.pread(descriptor, 1, size - 1) != b"\n":
                    line = b"\n" + line  # what a kill tore off stays a line of its own
                os.write(descriptor, line)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise CannotError(
                f"{path} cannot be written: {error.strerror}",
                remedy=f"make room, then: vindicate ab --resume {self.id}",
            ) from error

    def trials(self) -> list[Trial]:
        """All trials so far, in the order they ended."""
        try:
            lines = (self.folder / "trials.jsonl").read_bytes().splitlines()
        except FileNotFoundError:
            return []
        trials = []
        for line in lines:
            try:
                trials.append(msgspec.json.decode(line, type=Trial))
            except (msgspec.MsgspecError, RecursionError):
                continue  # torn by a kill; its start is run again
        return trials

    def requests_folder(self, *, block: int, attempt: int, arm: str) -> Path:
        """A fresh folder for the raw rows of one start; one left by a kill keeps its own."""
        name = f"block{block:02d}-attempt{attempt}-{arm}"
        known = len(list((self.folder / "requests").glob(f"{name}*")))
        return self.folder / "requests" / (f"{name}-again{known}" if known else name)

    # ---- what must be put back -----------------------------------------------------------------------------------

    def keep(self, before: Before) -> None:
        """Write down how the stack stood; until `forget`, it has to be put back."""
        path = self.folder / "before.json"
        if not path.exists():
            _write(path, msgspec.json.encode(before))

    def before(self) -> Before | None:
        """How the stack stood, while it has not been put back."""
        path = self.folder / "before.json"
        if not path.exists():
            return None
        try:
            return msgspec.json.decode(path.read_bytes(), type=Before)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise CannotError(
                f"{path} cannot be read ({error}), and it holds what the start scripts were before {self.id}",
                remedy="put the scripts back by hand, from version control or a copy, and restart the services; "
                f"then: mv {path} {path}.bad",
            ) from error

    def forget(self) -> None:
        """The stack is as it was: nothing has to be put back any more."""
        path = self.folder / "before.json"
        if path.exists():
            path.replace(self.folder / "put_back.json")
            _sync(self.folder)


def all_journals(home: Path) -> list[Journal]:
    """Every experiment of this stack, oldest first."""
    folder = home / "experiments"
    found = [Journal(path.parent) for path in folder.glob("*/design.json")] if folder.is_dir() else []
    return sorted(found, key=lambda journal: (len(journal.id), journal.id))


def require_put_back(home: Path) -> None:
    """No experiment may begin on what another one left behind when it was killed.

    Raises:
        CannotError: One has not put the stack back.
    """
    open_one = next((journal.id for journal in all_journals(home) if journal.before() is not None), None)
    if open_one is not None:
        raise CannotError(
            f"{open_one} was killed and the stack still stands on one of its arms",
            remedy=f"go on with: vindicate ab --resume {open_one}, or only: vindicate ab --put-back {open_one}",
        )


def _write(path: Path, content: bytes) -> None:
    temporary = path.with_name(path.name + ".new")
    with temporary.open("wb") as file:
        os.fchmod(file.fileno(), 0o600)  # a start script may hold what others must not read
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    _sync(path.parent)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read(path: Path, kind: type[_T]) -> _T:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.MsgspecError, RecursionError) as error:
        raise CannotError(f"{path} cannot be read: {error}", remedy="start the experiment anew") from error
