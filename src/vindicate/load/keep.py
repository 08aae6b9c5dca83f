"""Records and summaries → files that survive whatever happens next: a line a request, the summary after each level."""

import os
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from vindicate.errors import CannotError, MisuseError
from vindicate.record.load import LoadSummary, RequestRecord

__all__ = ["Keeper", "fresh_folder"]


def fresh_folder(home: Path) -> Path:
    """A name for a new run's folder under *home*; it sorts by time."""
    return home / "load" / f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{os.getpid()}"


class Keeper:
    """Writes a run's files; with *folder* ``None`` it keeps nothing.

    The files are made before the first request, so that a bad path fails then and not after an hour.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self._lines: int | None = None
        if folder is None:
            return
        try:
            folder.mkdir(parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
            self._lines = os.open(folder / "requests.jsonl", flags, 0o644)
        except FileExistsError as error:
            raise MisuseError(
                f"{folder} already holds a run, or is no folder", remedy="choose another --out, or leave it out"
            ) from error
        except OSError as error:
            raise CannotError(
                f"cannot write to {folder}: {error.strerror}", remedy="try: --out DIR elsewhere"
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._lines is not None:
            os.close(self._lines)
            self._lines = None

    def request(self, record: RequestRecord) -> None:
        """Append one line in one write, so that a kill leaves whole lines only.

        Raises:
            CannotError: The disk is full, or gone.
        """
        if self._lines is None:
            return
        line = msgspec.json.encode(record) + b"\n"
        try:
            written = os.write(self._lines, line)
            if written < len(line):
                os.write(self._lines, line[written:])
        except OSError as error:
            raise self._lost("requests.jsonl", error) from error

    def summary(self, summary: LoadSummary) -> None:
        """Replace `summary.json` as a whole.

        Raises:
            CannotError: It cannot be written.
        """
        if self.folder is None:
            return
        path = self.folder / "summary.json"
        fresh = path.with_suffix(".json.new")
        try:
            fresh.write_bytes(msgspec.json.format(msgspec.json.encode(summary), indent=1) + b"\n")
            fresh.replace(path)
        except OSError as error:
            raise self._lost("summary.json", error) from error

    def _lost(self, name: str, error: OSError) -> CannotError:
        return CannotError(
            f"cannot write {self.folder}/{name}: {error.strerror}", remedy="free some space; what was written is kept"
        )
