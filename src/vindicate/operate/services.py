"""Services of a stack → started in order and healthy, or stopped with nothing left behind."""

import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import psutil

from vindicate.clock import Clock, SystemClock, utc_now
from vindicate.errors import CannotError, EngineError
from vindicate.operate.health import PATIENT_S, check_health, describe_pid, port_is_taken
from vindicate.operate.interrupt import shielded
from vindicate.operate.launchers import environment, start_command
from vindicate.operate.running import (
    Proc,
    Run,
    end,
    exit_code,
    forget_run,
    identify,
    log_tail,
    members,
    read_run,
    require_room,
    spawn,
    write_run,
)
from vindicate.stack.model import Service, Stack
from vindicate.stack.process import listening_users, process_tree, service_pids
from vindicate.units import format_duration

__all__ = [
    "DRAIN_S",
    "READY_S",
    "bring_down",
    "bring_up",
    "is_there",
    "restart",
    "run_members",
    "running_by_hand",
    "sweep_undeclared",
]

DRAIN_S = 10.0  # an engine may drain for ever after SIGTERM (SGLang with a pinned request does)
READY_S = 600.0  # loading a large model takes minutes
Say = Callable[[str], None]


def bring_up(
    stack: Stack, names: Sequence[str], *, say: Say, timeout_s: float = READY_S, clock: Clock | None = None
) -> tuple[str, ...]:
    """Start what of *names* is not up, callees before callers, and wait until each is healthy.

    Services that do not call one another start at the same time. When one fails, or on Ctrl-C, those that this call
    started are stopped again and the others are left as they were.

    Returns:
        The services that were started.

    Raises:
        EngineError: One ended before it was healthy, or was not healthy in *timeout_s*.
        CannotError: One cannot be started, or its port is held by another program.
    """
    clock = clock or SystemClock()
    found: dict[str, Run] = {}  # earlier starts that are there, and not well yet; they are waited for and never stopped
    waiting = []
    for name in stack.start_order(tuple(names)):
        if not _already_up(stack, stack.service(name), say):
            waiting.append(name)
            if run := _still_there(stack, stack.service(name), say, clock):
                found[name] = run
    for name in [name for name in waiting if name not in found and stack.service(name).launcher.kind == "none"]:
        say(f"{name}: not running, and the stack file gives it no launcher; start it yourself")
        waiting.remove(name)
    for name in waiting:  # whatever is wrong with a launcher is said before anything is started
        start_command(stack, stack.service(name))
    started: list[str] = []
    try:
        _start_all(stack, waiting, started, found, say=say, timeout_s=timeout_s, clock=clock)
    except BaseException:
        with shielded():
            if started:
                say(f"stopping again what was started: {', '.join(reversed(started))}")
                bring_down(stack, started, say=say, clock=clock)
        raise
    return tuple(started)


def _start_all(
    stack: Stack, waiting: list[str], started: list[str], found: Mapping[str, Run], *, say: Say, timeout_s: float, clock: Clock
) -> None:  # fmt: skip
    """Start each of *waiting* when everything below it is ready, until all are; *started* grows before each start.

    One that is *found* running already is only waited for.
    """
    starting: dict[str, Run] = {}
    begun = clock.monotonic()
    while waiting or starting:
        busy = {*waiting, *starting}
        for name in [name for name in waiting if not busy & (set(stack.path_from(name)) - {name})]:
            waiting.remove(name)
            if name in found:
                starting[name] = found[name]
                continue
            started.append(name)
            starting[name] = _start(stack, stack.service(name))
            say(f"{name}: starting, pid {starting[name].pid}, log {starting[name].log}")
        for name in list(starting):
            left_s = timeout_s - (clock.monotonic() - begun)
            patience_s = max(0.5, min(PATIENT_S, left_s))
            if _is_ready(stack, stack.service(name), starting[name], patience_s=patience_s, say=say):
                say(f"{name}: ready after {format_duration(clock.monotonic() - begun)}")
                del starting[name]
        if starting and clock.monotonic() - begun > timeout_s:
            name, run = next(iter(starting.items()))
            raise EngineError(
                f"{name}: not healthy after {format_duration(timeout_s)}: {check_health(stack.service(name)).detail}; "
                + ("it ran before and is left running; " if name in found else "")
                + _log_end(run, say),
                remedy=f"read {run.log}, or give it longer with --timeout"
                + (f", or: vindicate stack restart {name}" if name in found else ""),
            )
        if starting:
            clock.sleep(0.05)


def bring_down(
    stack: Stack, names: Sequence[str], *, say: Say, by_hand: bool = False, clock: Clock | None = None
) -> tuple[str, ...]:
    """Stop *names*, callers before callees, with all the processes they left anywhere; stopping what is down is no error.

    Args:
        by_hand: Also stop a service that was not started from here.

    Returns:
        The services that were running.

    Raises:
        CannotError: A process cannot be stopped.
    """
    clock = clock or SystemClock()
    stopped = []
    for name in reversed(stack.start_order(tuple(names))):
        service = stack.service(name)
        run = read_run(stack.home, name)
        if _stop_run(stack, service, run, say, clock):
            stopped.append(name)
            say(f"{name}: stopped")
        hand = running_by_hand(stack, service)
        if hand and by_hand:
            _stop_by_hand(service, hand, say, clock)
            stopped.append(name)
            say(f"{name}: stopped; it had been started by hand ({', '.join(str(pid) for pid in hand)})")
        elif hand:
            say(f"{name}: {describe_pid(hand[0])} was not started from here and is left running")
    return tuple(stopped)


def restart(
    stack: Stack, names: Sequence[str], *, say: Say, timeout_s: float = READY_S, clock: Clock | None = None
) -> tuple[str, ...]:
    """Stop *names* and all that must restart with them, started by us or by hand, then start them and wait for health.

    Raises:
        EngineError: One did not come up; those that this call started are stopped again.
        CannotError: One cannot be stopped or started.
    """
    together = stack.restart_set(tuple(names))
    for name in together:  # before anything is stopped, it must be known how to start it
        start_command(stack, stack.service(name))
    require_room(stack.home)  # a start that cannot be recorded is not made
    bring_down(stack, together, say=say, by_hand=True, clock=clock)
    return bring_up(stack, together, say=say, timeout_s=timeout_s, clock=clock)


def sweep_undeclared(stack: Stack, *, say: Say, clock: Clock | None = None) -> tuple[str, ...]:
    """Stop what was started from here under a name that the stack file no longer has.

    Returns:
        The names that were running.

    Raises:
        CannotError: A process cannot be stopped.
    """
    swept = []
    for path in sorted((stack.home / "run").glob("*.json")):
        run = read_run(stack.home, path.stem)
        if path.stem in stack.services or run is None:
            continue
        everything = members(run)
        end(everything, partial(members, run), drain_s=DRAIN_S, clock=clock or SystemClock(), say=say, name=path.stem)
        forget_run(stack.home, path.stem)
        if everything:
            swept.append(path.stem)
            say(f"{path.stem}: stopped; the stack file no longer names it")
    return tuple(swept)


def run_members(stack: Stack, service: Service) -> tuple[Proc, ...]:
    """Live processes of the service's last start by us."""
    run = read_run(stack.home, service.name)
    return members(run) if run else ()


def is_there(service: Service) -> bool:
    """Whether a process of it is there, or somebody answers in its name; a slow answer is no absence."""
    return bool(service_pids(service)) or port_is_taken(service)[0] or check_health(service, timeout_s=PATIENT_S).good


def running_by_hand(stack: Stack, service: Service) -> tuple[int, ...]:
    """Pids of the service that were not started from here."""
    ours = {proc.pid for proc in run_members(stack, service)}
    return tuple(pid for pid in service_pids(service) if pid not in ours)


def _folder(stack: Stack) -> Path:
    return stack.home.parent


def _already_up(stack: Stack, service: Service, say: Say) -> bool:
    """Whether it runs already; a port that is held by something else is an error."""
    health = check_health(service)
    ours = {proc.pid for proc in run_members(stack, service)}
    taken, holders = port_is_taken(service)
    if health.good:
        by_hand = "" if ours & set(holders) else ", not started from here"
        say(f"{service.name}: already running{by_hand}{f', pid {holders[0]}' if holders else ''}")
        return True
    strangers = [pid for pid in holders if pid not in ours]
    if taken and not ours & set(holders):
        users = " or ".join(listening_users(service.port))
        who = (
            describe_pid(strangers[0])
            if strangers
            else f"a process of user {users or 'unknown'} that cannot be seen from here"
        )
        raise CannotError(
            f"{service.name}: port {service.port} is held by {who}, and it is not healthy: {health.detail}",
            remedy=f"stop that program, or wait if it is {service.name} itself still loading, or change url of services.{service.name}",
        )
    return False


def _still_there(stack: Stack, service: Service, say: Say, clock: Clock) -> Run | None:
    """The earlier start of a service that is not well yet but may become so: its leader lives, or it holds the port.

    What is left over of a start whose leader is gone is stopped; it would hold what the next start needs.
    """
    run = read_run(stack.home, service.name)
    ours = members(run) if run else ()
    pids = {proc.pid for proc in ours}
    if run is None or not ours:
        return None
    if run.pid in pids or pids & set(port_is_taken(service)[1]):
        say(f"{service.name}: runs already, pid {ours[0].pid}, and is not healthy yet; waiting for it")
        return run
    say(f"{service.name}: {len(ours)} process(es) are left over of an earlier start; stopped first")
    _stop_run(stack, service, run, say, clock)
    return None


def _start(stack: Stack, service: Service) -> Run:
    command = start_command(stack, service)
    log = service.launcher.log or stack.home / "run" / f"{service.name}.log"
    return spawn(
        service.name, command.argv, cwd=command.cwd, env=environment(stack, service), log=log, home=stack.home
    )  # fmt: skip


def _log_end(run: Run, say: Say) -> str:
    """Show how the start's log ends, line by line; its last line, for the message."""
    tail = log_tail(run)
    say("\n".join([f"{run.service}: how {run.log} ends:", *(f"  | {line}" for line in tail)]))
    return f"its log ends: {tail[-1] if tail else '(empty)'}"


def _is_ready(stack: Stack, service: Service, run: Run, *, patience_s: float, say: Say) -> bool:
    """Whether it is healthy now.

    Raises:
        EngineError: It ended first, or another program answers on its port.
    """
    code = exit_code(run)
    if (code is not None or identify(run.pid) is None) and not members(run):
        raise EngineError(
            f"{service.name}: ended with {_code(code)} before it was healthy; {_log_end(run, say)}",
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


def _stop_run(stack: Stack, service: Service, run: Run | None, say: Say, clock: Clock) -> bool:
    if run is None:
        forget_run(stack.home, service.name)
        return False
    everything = members(run)
    if everything:
        if service.launcher.stop:
            _own_stop(service, _folder(stack), say)
        end(
            _asked(run, everything), lambda: members(run), drain_s=DRAIN_S, clock=clock, say=say, name=service.name
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


def _own_stop(service: Service, folder: Path, say: Say) -> None:
    """Run the launcher's own stop command, bounded; what it leaves is ended by signals."""
    cwd = service.launcher.cwd or (service.launcher.file.parent if service.launcher.file else folder)
    try:
        done = subprocess.run(
            list(service.launcher.stop), cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, timeout=DRAIN_S, check=False
        )  # fmt: skip
        if done.returncode:
            say(f"{service.name}: its stop command ended with {done.returncode}")
    except (OSError, subprocess.TimeoutExpired) as error:
        say(f"{service.name}: its stop command failed ({type(error).__name__}); ending it by signal")


def _stop_by_hand(service: Service, pids: Sequence[int], say: Say, clock: Clock) -> None:
    first = [proc for pid in pids if (proc := identify(pid))]
    tree = [proc for pid in process_tree(pids) if (proc := identify(pid))]

    def alive() -> list[Proc]:
        return [proc for proc in tree if identify(proc.pid) == proc]

    end(first, alive, drain_s=DRAIN_S, clock=clock, say=say, name=service.name)
