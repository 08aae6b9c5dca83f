"""A service and a flag → the value that its live processes were given on their command lines; nothing but reading."""

from collections.abc import Iterable, Iterator

import psutil

from vindicate.wire.flags import find_flag

__all__ = ["Given", "given_by"]

Given = tuple[int, str | None, str | None]  # a process, the value, and why it is not known

_SPAWNED = ("multiprocessing.spawn", "multiprocessing.forkserver", "multiprocessing.resource_tracker")


def given_by(listening: Iterable[int], tree: Iterable[int], name: str) -> tuple[Given, ...]:
    """What every process of a service that was given the flag has; where none was, those that listen have ``None``.

    A worker that Python's multiprocessing started has no command line of its own, nor has one that wrote a title over it: then
    that of the nearest process above it that has one counts.

    Args:
        listening: Processes that listen at the service's port.
        tree: These and all below them.
    """
    held = [(pid, value) for pid in tree if (value := _value(_words(pid), name)) is not None]
    if held:
        return tuple((pid, value, None) for pid, value in held)
    return tuple(_above(pid, name) for pid in listening)


def _above(pid: int, name: str) -> Given:
    for here, words in _own_and_above(pid):
        if words and not _is_no_command(words):
            return here, _value(words, name), None
    return pid, None, "it has written over its command line, and no process above it has one"


def _own_and_above(pid: int) -> Iterator[tuple[int, list[str]]]:
    here: int | None = pid
    while here is not None and here > 1:
        yield here, _words(here)
        try:
            here = psutil.Process(here).ppid()
        except psutil.Error:
            return


def _words(pid: int) -> list[str]:
    try:
        return psutil.Process(pid).cmdline()
    except psutil.Error:
        return []


def _is_no_command(words: list[str]) -> bool:
    """Whether it is a title, or the start of a worker by multiprocessing."""
    title = len([word for word in words if word]) == 1 and ("::" in words[0] or " " in words[0])
    return title or any(part in word for word in words for part in _SPAWNED)


def _value(words: list[str], name: str) -> str | None:
    """The last one counts, as for argparse."""
    found = find_flag(words[1:], name)
    return found[-1].value if found else None
