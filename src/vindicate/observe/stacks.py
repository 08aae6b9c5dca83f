"""Python processes of the chain → what each of their threads was doing, twice some seconds apart, where py-spy is installed and allowed."""

import asyncio
import contextlib
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from vindicate.record.observation import StackLook, ThreadStack

__all__ = ["LOOKS_APART_S", "StackWatch"]

LOOKS_APART_S = 5.0
_DEADLINE_S = 4.0
_MOST_PROCESSES, _MOST_THREADS, _MOST_FRAMES, _TEXT = 10, 24, 24, 120
_MOST_BYTES = 2_000_000


class _Frame(msgspec.Struct):
    name: str
    filename: str
    short_filename: str | None = None
    line: int = 0


class _Thread(msgspec.Struct):
    """One thread of `py-spy dump --json`; the innermost frame comes first."""

    thread_name: str | None = None
    frames: list[_Frame] = []


class StackWatch:
    """Looks twice at the stacks of those processes that run Python; *looks* and *notes* hold what there was.

    py-spy reads another process's memory from outside (`--nonblocking`: without stopping it), some milliseconds for each.
    """

    def __init__(self, began: float, window_s: float) -> None:
        self.began = began
        first = min(1.0, 0.2 * window_s)
        self.times = (first, max(first, min(first + LOOKS_APART_S, window_s - 0.3)))
        self.looks: list[StackLook] = []
        self.notes: list[str] = []
        beside = Path(sys.executable).with_name("py-spy")
        self.program = str(beside) if beside.exists() else shutil.which("py-spy")

    async def run(self, pids: Callable[[], Iterable[int]]) -> None:
        """Look at what *pids* gives at that time, the first of them if they are many."""
        if self.program is None:
            return
        for at in self.times:
            await asyncio.sleep(max(0.0, at - (time.monotonic() - self.began)))
            for pid in [pid for pid in pids() if _runs_python(pid)][:_MOST_PROCESSES]:
                await self._look(self.program, pid)

    async def _look(self, program: str, pid: int) -> None:
        t_s = round(time.monotonic() - self.began, 3)
        process = await asyncio.create_subprocess_exec(
            program, "dump", "--json", "--nonblocking", "--pid", str(pid),
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            async with asyncio.timeout(_DEADLINE_S):
                said, problem = await process.communicate()
        except TimeoutError:
            self._note("py-spy did not answer in time")
            return
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        if process.returncode == 0 and len(said) <= _MOST_BYTES:
            with contextlib.suppress(msgspec.MsgspecError):
                threads = msgspec.json.decode(said, type=list[_Thread])
                self.looks.append(StackLook(pid=pid, t_s=t_s, threads=tuple(map(_seen, threads[:_MOST_THREADS]))))
        elif b"ermission" in problem or b"not permitted" in problem:
            self._note("py-spy may not look into some processes: as root, or with kernel.yama.ptrace_scope=0, it may")

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


def _seen(thread: _Thread) -> ThreadStack:
    frames = [f"{frame.name} ({frame.short_filename or frame.filename}:{frame.line})" for frame in thread.frames]
    return ThreadStack(
        name=(thread.thread_name or "")[:_TEXT], frames=tuple(text[-_TEXT:] for text in frames[:_MOST_FRAMES])
    )


def _runs_python(pid: int) -> bool:
    """By its executable; a compiled program that embeds Python is not looked for."""
    with contextlib.suppress(OSError):
        return Path(os.readlink(f"/proc/{pid}/exe")).name.startswith(("python", "pypy"))
    return False
