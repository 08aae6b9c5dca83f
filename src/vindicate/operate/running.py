"""A command → a service's processes, with a record that lets any later process find and stop all of them.

Every process that is started here, and whatever it starts in turn, carries a mark in its environment. By that mark,
and by the session it was started in, nothing that belongs to the run is missed and nothing else is touched, also after
this program was killed. A number alone is never trusted: a process is its pid *and* its start time.
"""

import contextlib
import os
import secrets
import signal
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from vindicate.clock import Clock, utc_now
from vindicate.errors import CannotError
from vindicate.redact import redact_argv, redact_text
from vindicate.stack.process import read_environment

__all__ = [
    "Proc",
    "Run",
    "end",
    "exit_code",
    "forget_run",
    "identify",
    "log_tail",
    "members",
    "plain_tail",
    "read_run",
    "require_room",
    "spawn",
    "write_run",
]

MARK = "VINDICATE_RUN"
# What this process started itself: kept, so that an ended one can be asked for its exit code and is no zombie for long.
_CHILDREN: dict[int, subprocess.Popen[bytes]] = {}


@dataclass(frozen=True, slots=True)
class Proc:
    """One process: its pid and its start in clock ticks since boot, so that a reused pid is another process."""

    pid: int
    start_ticks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One start of one service by us, as kept in `.vindicate/run/NAME.json`.

    Attributes:
        mark: Value of `VINDICATE_RUN` in the environment of all its processes.
        pid: Leader of its session and process group; 0 while it is not known yet.
        start_ticks: The leader's start; with *boot_id* it tells a reused pid.
        ready_at: When its health was first good, ISO 8601 UTC.
        log_from: Bytes that the log held before; what it says of this start comes after them.
        main_pid, main_ticks: The first process of what systemd or docker keeps for it, when that was first well.
    """

    service: str
    mark: str
    argv: tuple[str, ...]
    log: str
    started_at: str
    boot_id: str
    pid: int = 0
    start_ticks: int = 0
    ready_at: str | None = None
    log_from: int = 0
    main_pid: int = 0
    main_ticks: int = 0


def spawn(service: str, argv: Sequence[str], *, cwd: Path, env: Mapping[str, str], log: Path, home: Path) -> Run:
    """Start *argv* in a session of its own, its output appended to *log*; the record is on disk before it starts.

    Raises:
        CannotError: It cannot be started, or the log or the record cannot be written.
    """
    mark = secrets.token_hex(8)
    run = Run(
        service=service, mark=mark, argv=tuple(redact_argv(argv)), log=str(log), started_at=utc_now(), boot_id=_boot_id(),
        log_from=log.stat().st_size if log.is_file() else 0,
    )  # fmt: skip
    write_run(home, run)
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as sink:
            child = subprocess.Popen(
                list(argv),
                cwd=cwd,
                env={**env, MARK: mark},
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                close_fds=True,
            )
    except OSError as error:
        forget_run(home, service)
        raise CannotError(
            f"{service}: cannot start {argv[0]}: {error.strerror}: {error.filename}",
            remedy="check the launcher's file, cwd and log in the stack file, and their permissions",
        ) from error
    found = identify(child.pid)
    run = replace(run, pid=child.pid, start_ticks=found.start_ticks if found else 0)
    _CHILDREN[child.pid] = child
    write_run(home, run)
    return run


def exit_code(run: Run) -> int | None:
    """How the run's leader ended, negative for a signal; ``None`` while it lives, or when it is no child of ours."""
    child = _CHILDREN.get(run.pid)
    return None if child is None else child.poll()


def _run_file(home: Path, service: str) -> Path:
    return home / "run" / f"{service}.json"


def write_run(home: Path, run: Run) -> None:
    """Keep *run* on disk, whole or not at all.

    Raises:
        CannotError: The folder cannot be written.
    """
    path = _run_file(home, run.service)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.write_bytes(msgspec.json.format(msgspec.json.encode(run), indent=1))
        part.replace(path)
    except OSError as error:
        raise CannotError(
            f"{path}: cannot be written: {error.strerror}", remedy="make that folder writable for this user"
        ) from error


def require_room(home: Path) -> None:
    """Try whether a start can be recorded.

    Raises:
        CannotError: The disk is full, or the folder cannot be written.
    """
    trial = home / "run" / ".room"
    try:
        trial.parent.mkdir(parents=True, exist_ok=True)
        try:
            trial.write_bytes(bytes(8192))
        finally:
            trial.unlink(missing_ok=True)
    except OSError as error:
        raise CannotError(
            f"{trial.parent}: no start can be recorded there: {error.strerror}; nothing was stopped",
            remedy="free space on that disk, or make that folder writable for this user",
        ) from error


def read_run(home: Path, service: str) -> Run | None:
    """The record of the service's last start by us; ``None`` when there is none, or one from before a reboot."""
    try:
        run = msgspec.json.decode(_run_file(home, service).read_bytes(), type=Run)
    except (OSError, msgspec.DecodeError, RecursionError):
        return None
    return run if run.boot_id == _boot_id() else None


def forget_run(home: Path, service: str) -> None:
    """Remove the record."""
    _run_file(home, service).unlink(missing_ok=True)


def identify(pid: int) -> Proc | None:
    """The live process of that pid; ``None`` when it is gone or a zombie."""
    stat = _stat(pid)
    return None if stat is None or stat[0] in ("Z", "X") else Proc(pid, int(stat[19]))


def members(run: Run) -> tuple[Proc, ...]:
    """Every live process of *run*, wherever it moved itself.

    By the mark in its environment; a process whose environment cannot be read or was overwritten counts when it is
    still in the run's session, and the session is still ours (its leader's pid has not been given to somebody else).
    """
    leader = _stat(run.pid) if run.pid else None
    ours = run.pid > 0 and (leader is None or int(leader[19]) == run.start_ticks)
    found = []
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        stat = _stat(pid)
        if stat is None or stat[0] in ("Z", "X") or pid == os.getpid():
            continue
        marked = _is_marked(pid, run.mark)
        if marked or (marked is None and ours and int(stat[3]) == run.pid):
            found.append(Proc(pid, int(stat[19])))
    return tuple(sorted(found, key=lambda proc: (proc.start_ticks, proc.pid)))


def end(
    first: Iterable[Proc],
    alive: Callable[[], Sequence[Proc]],
    *,
    drain_s: float,
    clock: Clock,
    say: Callable[[str], None],
    name: str,
) -> None:
    """Ask *first* to end, wait a bounded time, then kill whatever *alive* still finds, until nothing is left.

    An engine may drain for ever when one request is pinned, so the wait is bounded and it is said when it runs out.

    Raises:
        CannotError: Something survived SIGKILL for 10 s (a process in uninterruptible sleep, or of another user).
    """
    for proc in first:
        _signal(proc, signal.SIGTERM, name)
    deadline = clock.monotonic() + drain_s
    while (left := alive()) and clock.monotonic() < deadline:
        asked = set(first)
        if not any(proc in asked for proc in left):  # only those are left that outlived their leader
            for proc in left:
                _signal(proc, signal.SIGTERM, name)
            deadline = min(deadline, clock.monotonic() + 2.0)
            first = left
        clock.sleep(0.05)
    if left:
        say(
            f"{name}: {len(left)} process(es) still there after SIGTERM and {drain_s:g} s of draining; killing pid {_pids(left)}"
        )
    deadline = clock.monotonic() + 10.0
    while left := alive():
        if clock.monotonic() > deadline:
            raise CannotError(
                f"{name}: pid {_pids(left)} cannot be killed",
                remedy="look at that process; it may be stuck in the kernel",
            )
        for proc in left:
            _signal(proc, signal.SIGKILL, name)
        clock.sleep(0.02)
    for pid in [pid for pid, child in _CHILDREN.items() if child.poll() is not None]:
        del _CHILDREN[pid]


def log_tail(run: Run, *, lines: int = 5) -> list[str]:
    """The last lines that this start wrote to its log, redacted, control characters escaped; empty when it cannot be read."""
    try:
        with Path(run.log).open("rb") as source:
            size = source.seek(0, os.SEEK_END)
            source.seek(max(run.log_from if run.log_from <= size else 0, size - 16384))  # smaller: it was rotated
            text = source.read().decode(errors="replace")
    except OSError:
        return []
    return plain_tail(text, lines=lines)


def plain_tail(text: str, *, lines: int = 5) -> list[str]:
    """The last lines of a log, redacted, control characters escaped."""
    return [_plain(redact_text(line))[:300] for line in text.splitlines() if line.strip()][-lines:]


def _plain(text: str) -> str:
    """The text with everything spelled out that a terminal would obey."""
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)


def _pids(procs: Sequence[Proc]) -> str:
    return ", ".join(str(proc.pid) for proc in procs)


def _signal(proc: Proc, number: signal.Signals, name: str) -> None:
    """Send a signal to that very process; a pid that was reused meanwhile is left alone."""
    try:
        descriptor = os.pidfd_open(proc.pid)
    except ProcessLookupError:
        return
    try:
        if identify(proc.pid) == proc:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, number)
    except PermissionError as error:
        raise CannotError(
            f"{name}: no permission to stop pid {proc.pid}",
            remedy="run it as the user who started that process, or as root",
        ) from error
    finally:
        os.close(descriptor)


def _stat(pid: int) -> list[str] | None:
    """Fields of `/proc/PID/stat` from the third on: state, ppid, pgrp, session … starttime at 19 (proc_pid_stat(5))."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()


def _is_marked(pid: int, mark: str) -> bool | None:
    """Whether the process carries *mark*; ``None`` when its environment cannot be told."""
    try:
        found = read_environment(pid)
    except OSError:
        return None
    return None if found is None else found.get(MARK.encode()) == mark.encode()


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""
