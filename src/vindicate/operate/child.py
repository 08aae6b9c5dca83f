"""A service that is a child of ours → started in a session of its own, and ended by signals with all that it left anywhere."""

import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil

from vindicate.clock import Clock, utc_now
from vindicate.errors import CannotError, EngineError
from vindicate.operate.health import check_health, describe_pid, port_is_taken
from vindicate.operate.launch import environment, launch_of
from vindicate.operate.running import (
    Proc,
    Run,
    end,
    exit_code,
    forget_run,
    identify,
    log_tail,
    members,
    spawn,
    write_run,
)
from vindicate.stack.model import Service, Stack

__all__ = ["is_ready", "log_end", "start_child", "stop_child"]

Say = Callable[[str], None]


def start_child(stack: Stack, service: Service) -> Run:
    """Start it; the record of that is on disk before.

    Raises:
        CannotError: It cannot be started, or the record or the log cannot be written.
        MisuseError: What the stack file says of it cannot be.
    """
    command = launch_of(stack, service).start()[-1]
    log = service.launcher.log or stack.home / "run" / f"{service.name}.log"
    return spawn(
        service.name, command.argv, cwd=command.cwd, env=environment(stack, service), log=log, home=stack.home
    )  # fmt: skip


def log_end(run: Run, say: Say) -> str:
    """Show how the start's log ends, line by line; its last line, for the message."""
    tail = log_tail(run)
    say("\n".join([f"{run.service}: how {run.log} ends:", *(f"  | {line}" for line in tail)]))
    return f"its log ends: {tail[-1] if tail else '(empty)'}"


def is_ready(stack: Stack, service: Service, run: Run, *, patience_s: float, say: Say) -> bool:
    """Whether it is healthy now.

    Raises:
        EngineError: It ended first, or another program answers on its port.
    """
    code = exit_code(run)
    if (code is not None or identify(run.pid) is None) and not members(run):
        raise EngineError(
            f"{service.name}: ended with {_code(code)} before it was healthy; {log_end(run, say)}",
            remedy=f"read what it wrote to {run.log}",
        )
    if not check_health(service, timeout_s=patience_s).good:
        return False
    _, holders = port_is_taken(service)
    if holders and not {proc.pid for proc in members(run)} & set(holders):
        raise EngineError(
            f"{service.name}: port {service.port} is answered by {describe_pid(holders[0])}, which is not what was started",
            remedy="stop that program, or change the port",
        )
    with suppress(CannotError):  # on a full disk: no reason to stop a service that is well
        write_run(stack.home, replace(run, ready_at=utc_now()))
    return True


def _code(code: int | None) -> str:
    if code is None:
        return "an exit code that is not known"
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def stop_child(stack: Stack, service: Service, run: Run | None, *, drain_s: float, say: Say, clock: Clock) -> bool:
    """End everything of its last start by us; whether there was anything.

    Raises:
        CannotError: A process cannot be stopped.
    """
    if run is None:
        forget_run(stack.home, service.name)
        return False
    everything = members(run)
    if everything:
        if service.launcher.stop:
            _own_stop(service, stack.home.parent, drain_s, say)
        end(
            _asked(run, everything), lambda: members(run), drain_s=drain_s, clock=clock, say=say, name=service.name
        )  # fmt: skip
    forget_run(stack.home, service.name)
    return bool(everything)


def _asked(run: Run, everything: Sequence[Proc]) -> list[Proc]:
    """Who gets SIGTERM: the leader and its children (bash waits for its child and passes nothing on), or all when it is gone.

    Workers deeper down are left to their own engine, which drains them; what outlives it is swept.
    """
    leader = next((proc for proc in everything if proc.pid == run.pid), None)
    if leader is None:
        return list(everything)
    asked = []
    for proc in everything:
        try:
            parent = psutil.Process(proc.pid).ppid()
        except psutil.Error:
            continue
        if proc == leader or (parent == leader.pid and _is_shell(leader.pid)):
            asked.append(proc)
    return asked


def _is_shell(pid: int) -> bool:
    try:
        return psutil.Process(pid).name() in ("bash", "sh", "dash", "zsh", "ksh")
    except psutil.Error:
        return False


def _own_stop(service: Service, folder: Path, drain_s: float, say: Say) -> None:
    """Run the launcher's own stop command, bounded; what it leaves is ended by signals."""
    cwd = service.launcher.cwd or (service.launcher.file.parent if service.launcher.file else folder)
    try:
        done = subprocess.run(
            list(service.launcher.stop), cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, timeout=drain_s, check=False
        )  # fmt: skip
        if done.returncode:
            say(f"{service.name}: its stop command ended with {done.returncode}")
    except (OSError, subprocess.TimeoutExpired) as error:
        say(f"{service.name}: its stop command failed ({type(error).__name__}); ending it by signal")
