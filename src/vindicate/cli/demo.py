"""`vindicate demo`: the story on the reference stack, act by act."""

import contextlib
import shlex
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import NoReturn

import click

from vindicate.cli.option import example, say
from vindicate.errors import CannotError, MisuseError
from vindicate.units import format_duration

__all__ = ["demo"]

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@click.command(epilog=example("vindicate demo --keep /tmp/story"))
@click.option(
    "--full", is_flag=True, help="Also measure the knob honestly: 12 fresh starts and more, several minutes longer."
)
@click.option(
    "--keep",
    "keep",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Play in DIR, and keep everything for looking at.",
)
def demo(full: bool, keep: Path | None) -> int:
    """Play the whole story on a reference stack, by the commands a user would type.

    Six acts: a tuning, a hang, a wrongful revert, the truth, the claw-back, the recovery. Nothing leaves this machine;
    every figure comes from the simulated reference stack. Exits 0 only if every act did what it says.
    """
    from vindicate.rehearse.caretaker import start_caretaker
    from vindicate.rehearse.story import Story

    directory = _directory(keep)
    began = time.monotonic()
    for number in _ENDING:
        signal.signal(number, _interrupt)
    caretaker = start_caretaker(directory, keep=keep is not None)
    story = Story(directory=directory, show=_show, full=full)
    try:
        try:
            _show(f"The story of a knob that was innocent, played in {directory} on a simulated stack.")
            story.play()
        finally:
            for number in _ENDING:  # from here on it ends by itself, and in bounded time
                signal.signal(number, signal.SIG_IGN)
            with contextlib.suppress(OSError):  # the terminal may be gone
                say("cleaning up ...")
            story.end()
    finally:
        _finish(caretaker, directory, keep=keep is not None)
    _show(
        f"\n== What was measured, in {format_duration(time.monotonic() - began)} (all figures from the simulated reference stack)"
    )
    for act in story.acts:
        _show(f"{act.number}. {act.title}\n     {act.measured}")
    if keep is not None:
        _show(
            f"\nEverything is in {directory}. Look around: cd {directory}; vindicate clawback; vindicate knob list; vindicate change list"
        )
    else:
        _show("\nNext, on your own stack: vindicate diagnose http://HOST:PORT")
    return 0


def _directory(keep: Path | None) -> Path:
    if keep is None:
        return Path(tempfile.mkdtemp(prefix="vindicate-demo-"))
    try:
        keep.mkdir(parents=True, exist_ok=True)
        if any(keep.iterdir()):
            raise MisuseError(f"{keep} is not empty", remedy="name a new or an empty folder after --keep")
        (keep / ".try").touch()
        (keep / ".try").unlink()
    except OSError as error:
        raise CannotError(f"{keep}: {error.strerror}", remedy="name a folder you may write to after --keep") from error
    return keep.absolute()


def _show(line: str) -> None:
    print(line, flush=True)


def _finish(caretaker: "subprocess.Popen[bytes]", directory: Path, *, keep: bool) -> None:
    """Have everything stopped, by the caretaker or, when that was killed, from here.

    Raises:
        CannotError: Something still runs.
    """
    from vindicate.rehearse.caretaker import clean_up

    caretaker.communicate()
    if caretaker.returncode != 0 and not clean_up(directory, keep=keep):
        raise CannotError(
            f"the demo's stack in {directory} could not be stopped",
            remedy=f"vindicate stack down --stack {shlex.quote(str(directory / 'vindicate.toml'))}",
        )


def _interrupt(_number: int, _frame: object) -> NoReturn:
    for number in _ENDING:  # a second one must not break into the cleaning up
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt
