"""SIGTERM and a closed terminal → the same orderly end as Ctrl-C, while a stack is being changed."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["interruptible", "shielded"]


@contextmanager
def interruptible() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into `KeyboardInterrupt` inside the block, so that what was begun is undone or kept resumable."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def shielded() -> Iterator[None]:
    """Let the block, which must end by itself, run to its end; an interruption that comes meanwhile is delivered after it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[int] = []
    before = {
        number: signal.signal(number, lambda came, _frame: held.append(came))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for came in dict.fromkeys(held):
            signal.raise_signal(came)
