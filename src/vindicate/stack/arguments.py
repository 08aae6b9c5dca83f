"""A service and a flag → what its live processes were started with, read from their command lines; nothing but reading.

The process that listens is asked first, then those above it that belong to the service: an engine's workers are started without
its flags, and write a title over their command lines.
"""

import asyncio
import os
import shlex
from collections.abc import Iterable
from pathlib import Path

import psutil

from vindicate.stack.flag import UnclearFlagError, find_flag, spelled
from vindicate.stack.model import Service
from vindicate.stack.process import KnobReading, process_tree, service_pids

__all__ = ["argument_readings", "read_arguments", "read_flag"]

_SHELLS = frozenset("sh bash dash zsh ksh fish tmux screen login sshd su sudo".split())


def argument_readings(service: Service, name: str) -> tuple[KnobReading, ...]:
    """What each process of the service that listens, or that the stack file names, was started with.

    Raises:
        MisuseError: Its pidfile is there and holds no number.
    """
    readings = []
    for pid in service_pids(service):
        reading = read_flag(pid, name)
        if reading.problem and service.engine == "sglang" and not reading.problem.endswith("is gone"):
            reading = _as_it_says(service, reading) or reading
        readings.append(reading)
    return tuple(reading for reading in readings if not (reading.problem or "").endswith("is gone"))


def read_flag(pid: int, name: str, *, within: Iterable[int] = ()) -> KnobReading:
    """What a process was started with: by its own command line, by those above it in its session, or by those below.

    A shell above it is another program, and so is whatever started that.

    Args:
        within: Processes known to be of its service, in whatever session.
    """
    flag, problem, whole = spelled(name), None, None
    for here in _upwards(pid, {*within}):
        try:
            words = read_arguments(here)
        except PermissionError:
            return _unknown(pid, name, f"no permission to read /proc/{here}/cmdline; run as its user or root")
        except OSError:
            if here == pid:
                return _unknown(pid, name, f"process {here} is gone")
            break
        if words is None:
            continue
        if here != pid and Path(words[0]).name.lstrip("-") in _SHELLS:
            break
        whole = whole or here
        try:
            value = _value(words, flag)
        except UnclearFlagError as error:
            problem = f"the command line of pid {here} {error.problem}"
            break
        if value is not None:
            return KnobReading(pid=pid, name=name, value=value, where=_where(here))
    if problem is None and (below := _below(pid, flag)):
        return KnobReading(pid=pid, name=name, value=below[1], where=_where(below[0]))
    if problem is None and whole is not None:
        return KnobReading(pid=pid, name=name, value=None, where=_where(whole))
    return _unknown(
        pid, name, problem or "it has written over its command line, and no process of the service above it is whole"
    )


def read_arguments(pid: int) -> list[str] | None:
    """The words a live process was started with; ``None`` when it has written a title over them, or is ending.

    The title is text with NULs over the rest (setproctitle), or one word that names no program.

    Raises:
        OSError: It is gone, or cannot be read.
    """
    raw = Path(f"/proc/{pid}/cmdline").read_bytes()
    if not raw.endswith(b"\0"):
        return None
    words = [word.decode(errors="surrogateescape") for word in raw[:-1].split(b"\0")]
    if len([word for word in words if word]) < 2:
        try:
            program = Path(f"/proc/{pid}/exe").readlink().name
        except OSError:
            program = ""
        if Path(words[0]).name.lstrip("-") != program.removesuffix(" (deleted)"):
            return None
    return words


def _value(words: list[str], flag: str) -> str | None:
    """What the words set the flag to; what stands behind ``--`` is another program's, which is asked itself."""
    own = words[: words.index("--")] if "--" in words else words
    site = find_flag(own, flag, since=1)
    return site.value if site else None


def _upwards(pid: int, within: set[int]) -> Iterable[int]:
    """*pid*, and what started it in the same session, as far as that is not what looks at it now."""
    try:
        session = os.getsid(pid)
        above = [process.pid for process in psutil.Process(pid).parents()]
        ours = {os.getpid(), *(process.pid for process in psutil.Process().parents())}
    except (OSError, psutil.Error):
        session, above, ours = 0, [], set()
    yield pid
    for here in above:
        try:
            if here in ours or here == 1 or (here not in within and os.getsid(here) != session):
                return
        except OSError:
            return
        yield here


def _below(pid: int, flag: str) -> tuple[int, str] | None:
    """A process below *pid* that was started with the flag: *pid* may be a wrapper, or the first process of a container."""
    for here in process_tree([pid])[1:]:
        try:
            value = _value(read_arguments(here) or [""], flag)
        except (OSError, UnclearFlagError):
            continue
        if value is not None:
            return here, value
    return None


def _as_it_says(service: Service, reading: KnobReading) -> KnobReading | None:
    """What SGLang itself says: the command that it was started with, or else the argument that came of it, which may be a default."""
    from vindicate.stack.ask import read_json

    for path in ("/server_info", "/get_server_info"):
        info = asyncio.run(read_json(service.url + path))
        command = info.get("launch_command")
        if command and isinstance(command, str | list):
            words = shlex.split(command) if isinstance(command, str) else [str(word) for word in command]
            try:
                value = _value(words, spelled(reading.name))
            except (UnclearFlagError, ValueError):
                return None
            return KnobReading(pid=reading.pid, name=reading.name, value=value, where=f"launch_command in {path}")
        known = info.get("server_args")
        told = known if isinstance(known, dict) else info
        key = reading.name.lstrip("-").replace("-", "_")
        if key in told and (told[key] is None or isinstance(told[key], bool | int | float | str)):
            said = told[key]
            value = None if said is None or said is False else "" if said is True else str(said)
            where = f"{path}, which shows a default as if it were set"
            return KnobReading(pid=reading.pid, name=reading.name, value=value, where=where)
    return None


def _where(pid: int) -> str:
    return f"/proc/{pid}/cmdline"


def _unknown(pid: int, name: str, problem: str) -> KnobReading:
    return KnobReading(pid=pid, name=name, value=None, problem=problem)
