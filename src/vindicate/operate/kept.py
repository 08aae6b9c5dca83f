"""A service that systemd or docker keeps → started and stopped by asking its keeper, never by a signal from here."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from vindicate.clock import Clock, utc_now
from vindicate.errors import CannotError, EngineError
from vindicate.operate.health import check_health, describe_pid, port_is_taken
from vindicate.operate.launch import Command, Keeper, Stand, environment
from vindicate.operate.running import Proc, Run, exit_code, identify, log_tail, plain_tail, read_run, spawn, write_run
from vindicate.stack.keeper import answer, engine_refusal, is_port_proxy
from vindicate.stack.model import Service, Stack

__all__ = ["ask", "found_running", "is_ours", "is_ready", "kept_procs", "log_end", "start_kept", "stop_kept"]

Say = Callable[[str], None]


def ask(commands: Sequence[Command], *, timeout_s: float = 60.0) -> None:
    """Run a keeper's commands, one after another, each to its end.

    Raises:
        CannotError: One did not end in time, or ended with an error.
    """
    for command in commands:
        done = answer(command.argv, cwd=command.cwd, timeout_s=timeout_s)
        if done.code:
            raise refusal(command, done.error)


def refusal(command: Command, said: str) -> CannotError:
    """The error for a command that its keeper did not carry out."""
    if command.argv[0] in ("docker", "podman"):
        refused = engine_refusal(command.argv[0], said)
        return CannotError(f"`{command}`: {refused.problem}", remedy=refused.remedy)
    denied = any(word in said.lower() for word in ("access denied", "authentication required", "permission denied"))
    return CannotError(
        f"`{command}` failed: {said or 'it said nothing'}",
        remedy="run this as root, or as a user who may do that" if denied else f"try it by hand: {command}",
    )


def kept_procs(stand: Stand) -> tuple[Proc, ...]:
    """The live processes among those that the keeper names, the main one first."""
    return tuple(proc for pid in stand.pids if (proc := identify(pid)))


def is_ours(stack: Stack, service: Service, stand: Stand) -> bool:
    """Whether the keeper runs it because it was asked to from here, and nobody started it anew since."""
    run = read_run(stack.home, service.name)
    if run is None:
        return False
    return not run.main_pid or Proc(run.main_pid, run.main_ticks) in kept_procs(stand)


def found_running(stack: Stack, service: Service) -> Run:
    """A record to wait with, for a service that its keeper runs already."""
    return read_run(stack.home, service.name) or Run(
        service=service.name, mark="", argv=(), log="", started_at=utc_now(), boot_id=""
    )


def start_kept(stack: Stack, service: Service, keeper: Keeper) -> Run:
    """Ask the keeper to start it; the record of that is on disk before it is asked.

    Raises:
        CannotError: It cannot be asked, or refuses at once.
    """
    launcher = service.launcher
    own = (Command(launcher.start, launcher.cwd or stack.home.parent),) if launcher.start else ()
    *first, last = own or keeper.start()
    ask(first)
    log = stack.home / "run" / f"{service.name}.log"
    return spawn(service.name, last.argv, cwd=last.cwd, env=environment(stack, service), log=log, home=stack.home)


def is_ready(stack: Stack, service: Service, keeper: Keeper, run: Run, *, patience_s: float, say: Say) -> bool:
    """Whether it is healthy now, and it is what the keeper keeps that answers.

    Raises:
        EngineError: The start failed, it ended, or another program answers on its port.
    """
    code = exit_code(run)
    if code:
        for line in log_tail(run):
            say(f"  | {line}")
        said = (log_tail(run, lines=1) or ["nothing"])[-1]
        raise EngineError(f"{service.name}: its start ended with {code} and said: {said}", remedy=_look(keeper))
    asked = run.pid == 0 or code == 0 or identify(run.pid) is None
    stand = keeper.stand()
    if stand.over is not None and (asked or stand.running):
        raise EngineError(
            f"{service.name}: not healthy, and it will not be: {stand.over}; {log_end(service, keeper, say)}",
            remedy=_look(keeper),
        )
    if not check_health(service, timeout_s=patience_s).good:
        return False
    _, holders = port_is_taken(service)
    strangers = [pid for pid in holders if pid not in stand.pids and not is_port_proxy(pid)]
    if strangers and len(strangers) == len(holders):
        raise EngineError(
            f"{service.name}: port {service.port} is answered by {describe_pid(strangers[0])}, which is not what was started",
            remedy="stop that program, or change the port",
        )
    main = next(iter(kept_procs(stand)), None)
    if run.boot_id and main:
        with suppress(CannotError):  # on a full disk: no reason to stop a service that is well
            write_run(stack.home, replace(run, ready_at=utc_now(), main_pid=main.pid, main_ticks=main.start_ticks))
    return True


def stop_kept(
    stack: Stack, service: Service, keeper: Keeper, *, drain_s: float, clock: Clock, say: Say
) -> None:  # fmt: skip
    """Ask the keeper to stop it; when that takes longer than *drain_s*, make the keeper kill it.

    Raises:
        CannotError: The keeper cannot be asked, or it runs all the same.
    """
    launcher = service.launcher
    own = (Command(launcher.stop, launcher.cwd or stack.home.parent),) if launcher.stop else ()
    began = clock.monotonic()
    try:
        ask(own or keeper.stop(), timeout_s=drain_s + 5.0)
    except CannotError as error:
        if not keeper.stand().running:
            return
        if clock.monotonic() - began < drain_s:  # it refused; killing is no answer to that
            raise
        say(f"{service.name}: {error.problem}; its keeper is told to kill it")
    else:
        if _is_gone(keeper, clock, within_s=5.0):
            return
        say(f"{service.name}: its keeper stopped it, and it still runs; its keeper is told to kill it")
    ask(keeper.kill(), timeout_s=drain_s)
    if not _is_gone(keeper, clock, within_s=10.0):
        raise CannotError(
            f"{service.name}: its keeper was told to kill it, and says that it is {keeper.stand().state}",
            remedy=_look(keeper),
        )


def log_end(service: Service, keeper: Keeper, say: Say) -> str:
    """Show how its log ends, line by line; its last line, for the message."""
    command = keeper.log()
    try:
        tail = plain_tail(answer(command.argv, cwd=command.cwd).text)
    except CannotError as error:
        return f"its log cannot be read: {error.problem}"
    say("\n".join([f"{service.name}: how its log ends ({command}):", *(f"  | {line}" for line in tail)]))
    return f"its log ends: {tail[-1] if tail else '(empty)'}"


def _is_gone(keeper: Keeper, clock: Clock, *, within_s: float) -> bool:
    deadline = clock.monotonic() + within_s
    while (stand := keeper.stand()).running or kept_procs(stand):
        if clock.monotonic() > deadline:
            return False
        clock.sleep(0.05)
    return True


def _look(keeper: Keeper) -> str:
    return f"read its log: {keeper.log()}"
