"""Cleans up after the demo, however it ends: waits for its standard input to close, then stops the stack and removes the folder.

A process of its own, because a demo that is killed with -9 can do nothing itself. Its input is a pipe that the demo holds.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

__all__ = ["clean_up", "start_caretaker"]

_PATIENCE_S = 120.0


def start_caretaker(directory: Path, *, keep: bool) -> "subprocess.Popen[bytes]":
    """Start it; close its `stdin` and wait for it to have everything of *directory* stopped, and removed unless *keep*."""
    return subprocess.Popen(
        [sys.executable, "-m", "vindicate.rehearse.caretaker", str(directory), *(["--keep"] if keep else [])],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def clean_up(directory: Path, *, keep: bool) -> bool:
    """Stop the stack in *directory*, and remove the folder unless *keep*; whether nothing is left to stop.

    What still runs can be stopped only while its folder is there, so then the folder stays.
    """
    down = not (directory / "vindicate.toml").exists()
    deadline = time.monotonic() + _PATIENCE_S
    while not down and time.monotonic() < deadline:  # a command that outlived the demo may still hold the stack's lock
        try:
            done = subprocess.run(
                [sys.executable, "-m", "vindicate", "stack", "down", "--stack", str(directory / "vindicate.toml")],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/", timeout=60, check=False,
                env=dict(os.environ), start_new_session=True,
            )  # fmt: skip
            down = done.returncode == 0
        except subprocess.TimeoutExpired:
            continue
        time.sleep(0.0 if down else 1.0)
    if down and not keep:
        shutil.rmtree(directory, ignore_errors=True)
    return down


def main() -> int:
    """Wait, stop, remove; 1 when something could not be stopped."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()
    return 0 if clean_up(Path(sys.argv[1]), keep="--keep" in sys.argv[2:]) else 1


if __name__ == "__main__":
    sys.exit(main())
