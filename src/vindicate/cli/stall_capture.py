"""A stream of a load run falls silent → the chain, recorded by `diagnose capture` in a process of its own while it still is."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Self

from vindicate.cli.option import say

__all__ = ["StallCapture"]

_SHARE = 0.3  # of the stall time: with what it has been silent for, the recording ends before the stream is given up
_LEAST_S, _MOST_S = 2.0, 10.0
_TO_END_S = 30.0


class StallCapture:
    """Records once; what it could not record is said and changes nothing else.

    Args:
        where: How the chain is named to `diagnose capture`: a URL, or ``--stack FILE``.
    """

    def __init__(self, where: list[str], folder: Path, *, stall_after_s: float) -> None:
        self.file = folder / "stall.capture.json"
        self._where = where
        self._log = folder / "stall.capture.log"
        self._window_s = min(_MOST_S, max(_LEAST_S, _SHARE * stall_after_s))
        self._child: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Begin to record; called from the run's own loop, so it only starts a process."""
        words = ["diagnose", "capture", *self._where, "--out", str(self.file), "--client-pid", str(os.getpid())]
        command = [sys.executable, "-m", "vindicate", *words, "--window", f"{self._window_s:g}s"]
        with contextlib.suppress(OSError), self._log.open("wb") as log:
            self._child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            say(f"a stream is silent: recording the chain for {self._window_s:.0f} s while it is")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Let the recording end, and say where it is; when the run was broken off, so is the recording."""
        child = self._child
        if child is None:
            return
        try:
            if kind is None:
                child.wait(timeout=_TO_END_S)
        except subprocess.TimeoutExpired:
            pass
        finally:
            if child.poll() is None:
                child.terminate()
                child.wait()
        if child.returncode == 0 and self.file.exists():
            self._log.unlink(missing_ok=True)
            say(f"recorded while it was silent: {self.file}; next: vindicate diagnose --replay {self.file}")
        elif kind is None:
            said = self._log.read_text(errors="replace").strip().splitlines() if self._log.exists() else []
            say(f"the chain could not be recorded: {said[-1] if said else f'exit code {child.returncode}'}")
