"""Cleans up after the demo, however it ends: waits for its standard input to close, then stops the stack and removes the folder.

A process of its own, because a demo that is killed with -9 can do nothing itself. Its input is a pipe that the demo holds.
"""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

__all__ = ["start_caretaker"]


def start_caretaker(directory: Path, *, keep: bool) -> "subprocess.Popen[bytes]":
    """Start it; close its `stdin` and wait for it to have everything of *directory* stopped, and removed unless *keep*."""
    return subprocess.Popen(
        [sys.executable, "-m", "vindicate.rehearse.caretaker", str(directory), *(["--keep"] if keep else [])],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def main() -> None:
    """Wait, stop, remove."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    directory = Path(sys.argv[1])
    sys.stdin.buffer.read()
    if (directory / "vindicate.toml").exists():
        subprocess.run(
            [sys.executable, "-m", "vindicate", "stack", "down", "--stack", str(directory / "vindicate.toml")],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/", timeout=60, check=False, env=dict(os.environ),
        )  # fmt: skip
    if "--keep" not in sys.argv[2:]:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
