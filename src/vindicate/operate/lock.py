"""A stack → one operator at a time; the lock dies with its owner, so it is never stale."""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from vindicate.clock import utc_now
from vindicate.errors import CannotError
from vindicate.stack.model import Stack

__all__ = ["locked"]


@contextmanager
def locked(stack: Stack, command: str) -> Iterator[None]:
    """Hold the stack's lock (`.vindicate/lock`, `flock`) while its services or scripts are changed.

    Raises:
        CannotError: Somebody else holds it (the error names pid, command and since when), or it cannot be made.
    """
    path = stack.home / "lock"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise CannotError(
            f"{path}: cannot be made: {error.strerror}", remedy="make that folder writable for this user"
        ) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise CannotError(
                f"the stack {stack.name} is being changed by {_owner(descriptor)}",
                remedy="wait until it has ended; the lock goes with it",
            ) from error
        os.ftruncate(descriptor, 0)
        with suppress(
            OSError
        ):  # a full disk: the lock holds without its owner's name, and services can still be stopped
            os.pwrite(descriptor, json.dumps({"pid": os.getpid(), "command": command, "since": utc_now()}).encode(), 0)
        yield
        os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def _owner(descriptor: int) -> str:
    try:
        owner = json.loads(os.pread(descriptor, 4096, 0))
        return f"pid {owner['pid']} (vindicate {owner['command']}) since {owner['since']}"
    except (ValueError, KeyError, TypeError):
        return "another vindicate"
