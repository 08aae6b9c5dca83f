"""The event loop that streams are driven in: uvloop's where it is installed (the extra ``fast``), else asyncio's own."""

import asyncio
import contextlib
from importlib import import_module

__all__ = ["new_loop"]


def new_loop() -> asyncio.AbstractEventLoop:
    """A loop for `asyncio.Runner(loop_factory=new_loop)`."""
    with contextlib.suppress(ImportError):
        loop: asyncio.AbstractEventLoop = import_module("uvloop").new_event_loop()
        return loop
    return asyncio.new_event_loop()
