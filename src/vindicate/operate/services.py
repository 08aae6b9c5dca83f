"""Services of a stack → started in order and healthy, or stopped with nothing left behind."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from vindicate.clock import Clock, SystemClock
from vindicate.errors import CannotError, EngineError, VindicateError
from vindicate.operate import child, kept
from vindicate.operate.health import PATIENT_S, check_health, describe_pid, port_is_taken
from vindicate.operate.interrupt import shielded
from vindicate.operate.launch import Person, keeper_of, require_startable
from vindicate.operate.running import Proc, Run, end, forget_run, identify, members, read_run, require_room
from vindicate.stack.keeper import is_port_proxy
from vindicate.stack.model import Service, Stack
from vindicate.stack.process import listening_users, process_tree, service_pids
from vindicate.units import format_duration

__all__ = [
    "DRAIN_S",
    "READY_S",
    "Asked",
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
TELL_EACH_S = 15.0  # how often a wait for a person says what is still missing
Say = Callable[[str], None]
Values = Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class Asked:
    """What a person is asked to restart: knob values by service, and since when, in seconds since boot, it counts as restarted."""

    values: Mapping[str, Values]
    since_uptime_s: float | None


def bring_up(
    stack: Stack, names: Sequence[str], *, say: Say, timeout_s: float = READY_S, clock: Clock | None = None,
    asked: Asked | None = None,
) -> tuple[str, ...]:  # fmt: skip
    """Start what of *names* is not up, callees before callers, and wait until each is healthy.

    Services that do not call one another start at the same time. When one fails, or on Ctrl-C, those that this call
    started are stopped again and the others are left as they were.

    Args:
        asked: What a person is asked to restart, and waited for; without this, what a person starts is only named.

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
        if stack.service(name).launcher.kind == "none" and asked is not None:
            waiting.append(name)
        elif not _already_up(stack, stack.service(name), say):
            waiting.append(name)
            if run := _still_there(stack, stack.service(name), say, clock):
                found[name] = run
    for name in [name for name in waiting if name not in found and stack.service(name).launcher.kind == "none"]:
        if asked is None:
            say(f"{name}: not running, and the stack file gives it no launcher; start it yourself")
            waiting.remove(name)
    for name in waiting:  # whatever is wrong with a launcher is said before anything is started
        require_startable(stack, stack.service(name), by_person=True)
    started: list[str] = []
    try:
        _start_all(stack, waiting, started, found, asked, say=say, timeout_s=timeout_s, clock=clock)
    except BaseException:
        with shielded():
            if started:
                say(f"stopping again what was started: {', '.join(reversed(started))}")
                bring_down(stack, started, say=say, clock=clock)
        raise
    return tuple(started)


def _start_all(
    stack: Stack, waiting: list[str], started: list[str], found: Mapping[str, Run], asked: Asked | None,
    *, say: Say, timeout_s: float, clock: Clock,
) -> None:  # fmt: skip
    """Start each of *waiting* when everything below it is ready, until all are; *started* grows before each start.

    One that is *found* running already is only waited for, and so is one that a person is asked for.
    """
    starting: dict[str, Callable[[float], bool]] = {}
    begun = clock.monotonic()
    while waiting or starting:
        busy = {*waiting, *starting}
        for name in [name for name in waiting if not busy & (set(stack.path_from(name)) - {name})]:
            waiting.remove(name)
            service = stack.service(name)
            if service.launcher.kind == "none" and asked is not None:
                starting[name] = _asked_for(stack, service, asked, say, clock)
                continue
            if name not in found:
                started.append(name)
            run = found[name] if name in found else _start(stack, service, say)
            starting[name] = partial(_is_ready, stack, service, run, say)
        for name in list(starting):
            left_s = timeout_s - (clock.monotonic() - begun)
            if starting[name](max(0.5, min(PATIENT_S, left_s))):
                say(f"{name}: ready after {format_duration(clock.monotonic() - begun)}")
                del starting[name]
        if starting and clock.monotonic() - begun > timeout_s:
            name = next(iter(starting))
            raise _too_late(stack, stack.service(name), timeout_s, found=name in found, say=say)
        if starting:
            clock.sleep(0.05)


def _too_late(stack: Stack, service: Service, timeout_s: float, *, found: bool, say: Say) -> EngineError:
    name, keeper, run = service.name, keeper_of(stack, service), read_run(stack.home, service.name)
    health = check_health(service)
    problem = f"not healthy after {format_duration(timeout_s)}: {health.detail}"
    if service.launcher.kind == "none":
        problem = f"not restarted as asked in {format_duration(timeout_s)}" if health.good else problem
        return EngineError(
            f"{name}: {problem}", remedy="do it, or give it longer with --timeout, and run the command again"
        )
    left = "it ran before and is left running; " if found else ""
    end_of_log = (
        kept.log_end(service, keeper, say) if keeper else child.log_end(run, say) if run else "its log is not known"
    )
    where = f"its log: {keeper.log()}" if keeper else run.log if run else "its log"
    return EngineError(
        f"{name}: {problem}; {left}{end_of_log}",
        remedy=f"read {where}, or give it longer with --timeout{f', or: vindicate stack restart {name}' if found else ''}",
    )


def _start(stack: Stack, service: Service, say: Say) -> Run:
    keeper = keeper_of(stack, service)
    if keeper:
        run = kept.start_kept(stack, service, keeper)
        say(f"{service.name}: starting, by: {' '.join(run.argv)}")
        return run
    run = child.start_child(stack, service)
    say(f"{service.name}: starting, pid {run.pid}, log {run.log}")
    return run


def _is_ready(stack: Stack, service: Service, run: Run, say: Say, patience_s: float) -> bool:
    keeper = keeper_of(stack, service)
    if keeper:
        return kept.is_ready(stack, service, keeper, run, patience_s=patience_s, say=say)
    return child.is_ready(stack, service, run, patience_s=patience_s, say=say)


def _asked_for(stack: Stack, service: Service, asked: Asked, say: Say, clock: Clock) -> Callable[[float], bool]:
    """Ask a person to restart *service*, unless that is done; and then, again and again, whether it is."""
    person, wanted = Person(stack, service), asked.values.get(service.name, {})
    told_at = clock.monotonic()
    if person.still_missing(wanted, since_uptime_s=asked.since_uptime_s):
        say(person.what_to_do(wanted))

    def is_done(patience_s: float) -> bool:
        nonlocal told_at
        missing = person.still_missing(wanted, since_uptime_s=asked.since_uptime_s)
        if missing is None and check_health(service, timeout_s=patience_s).good:
            return True
        if clock.monotonic() - told_at >= TELL_EACH_S:
            told_at = clock.monotonic()
            say(f"{service.name}: still waiting for you: {missing or 'it is not healthy yet'}")
        return False

    return is_done


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
    failed: VindicateError | None = None
    for name in reversed(stack.start_order(tuple(names))):
        service = stack.service(name)
        try:
            was_running = _stop(stack, service, say, clock, anyway=by_hand)
        except VindicateError as error:
            if by_hand or keeper_of(stack, service) is None:  # a restart is no good without this
                raise
            failed = error
            say(f"{name}: not stopped: {error.problem}")
            continue
        if was_running:
            stopped.append(name)
            say(f"{name}: stopped")
        hand = running_by_hand(stack, service)
        if hand and by_hand:
            _stop_by_hand(service, hand, say, clock)
            stopped.append(name)
            say(f"{name}: stopped; it had been started by hand ({', '.join(str(pid) for pid in hand)})")
        elif hand:
            say(f"{name}: {describe_pid(hand[0])} was not started from here and is left running")
    if failed:  # the others are stopped all the same
        raise failed
    return tuple(stopped)


def restart(
    stack: Stack, names: Sequence[str], *, say: Say, timeout_s: float = READY_S, clock: Clock | None = None,
    by_person: Mapping[str, Values] | None = None, all_new: bool = True,
) -> tuple[str, ...]:  # fmt: skip
    """Stop *names* and all that must restart with them, started by us or by hand, then start them and wait for health.

    Args:
        by_person: Knob values, by service: a service that only a person can restart is asked for, and waited for until every
            live process is new and holds its values; without this, such a service is an error.
        all_new: Whether a person's processes that hold the values already must be restarted all the same.

    Raises:
        EngineError: One did not come up; those that this call started are stopped again.
        CannotError: One cannot be stopped or started.
    """
    together = stack.restart_set(tuple(names))
    for name in together:  # before anything is stopped, it must be known how to start it
        require_startable(stack, stack.service(name), by_person=by_person is not None)
    require_room(stack.home)  # a start that cannot be recorded is not made
    began = time.clock_gettime(time.CLOCK_BOOTTIME)
    ours = [name for name in together if stack.service(name).launcher.kind != "none"]
    bring_down(stack, ours, say=say, by_hand=True, clock=clock)
    asked = None if by_person is None else Asked(by_person, began if all_new else None)
    return bring_up(stack, together, say=say, timeout_s=timeout_s, clock=clock, asked=asked)


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
    """Live processes of the service's last start by us, or, of a service that is kept, those that its keeper names."""
    keeper = keeper_of(stack, service)
    if keeper:
        return kept.kept_procs(keeper.stand())
    run = read_run(stack.home, service.name)
    return members(run) if run else ()


def is_there(service: Service) -> bool:
    """Whether a process of it is there, or somebody answers in its name; a slow answer is no absence."""
    return bool(service_pids(service)) or port_is_taken(service)[0] or check_health(service, timeout_s=PATIENT_S).good


def running_by_hand(stack: Stack, service: Service) -> tuple[int, ...]:
    """Pids of the service that were not started from here, and are not with its keeper; none when that cannot be asked."""
    if service.launcher.kind == "none":
        return ()
    try:
        ours = {proc.pid for proc in run_members(stack, service)}
    except VindicateError:
        return ()
    return tuple(pid for pid in service_pids(service) if pid not in ours)


def _already_up(stack: Stack, service: Service, say: Say) -> bool:
    """Whether it runs already; a port that is held by something else is an error."""
    health = check_health(service)
    ours = {proc.pid for proc in run_members(stack, service)}
    taken, holders = port_is_taken(service)
    if ours and keeper_of(stack, service) and all(is_port_proxy(pid) for pid in holders):
        taken, holders = False, tuple(sorted(ours))
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
    keeper = keeper_of(stack, service)
    if keeper:
        stand = keeper.stand()
        if not stand.running:
            return None
        say(f"{service.name}: runs already ({stand.state}), and is not healthy yet; waiting for it")
        return kept.found_running(stack, service)
    run = read_run(stack.home, service.name)
    ours = members(run) if run else ()
    pids = {proc.pid for proc in ours}
    if run is None or not ours:
        return None
    if run.pid in pids or pids & set(port_is_taken(service)[1]):
        say(f"{service.name}: runs already, pid {ours[0].pid}, and is not healthy yet; waiting for it")
        return run
    say(f"{service.name}: {len(ours)} process(es) are left over of an earlier start; stopped first")
    child.stop_child(stack, service, run, drain_s=DRAIN_S, say=say, clock=clock)
    return None


def _stop(stack: Stack, service: Service, say: Say, clock: Clock, *, anyway: bool) -> bool:
    """Stop what was started from here, or *anyway* also what its keeper runs by itself; whether something ran."""
    keeper = keeper_of(stack, service)
    run = read_run(stack.home, service.name)
    if keeper is None:
        return child.stop_child(stack, service, run, drain_s=DRAIN_S, say=say, clock=clock)
    stand = keeper.stand()
    if stand.running and not anyway and not kept.is_ours(stack, service, stand):
        say(f"{service.name}: {stand.state}, not started from here, and left running")
        return False
    if stand.running:
        kept.stop_kept(stack, service, keeper, drain_s=DRAIN_S, clock=clock, say=say)
    if run and (left := members(run)):  # the command that started it, where that stays in the foreground
        end(left, partial(members, run), drain_s=DRAIN_S, clock=clock, say=say, name=service.name)
    forget_run(stack.home, service.name)
    return stand.running


def _stop_by_hand(service: Service, pids: Sequence[int], say: Say, clock: Clock) -> None:
    first = [proc for pid in pids if (proc := identify(pid))]
    tree = [proc for pid in process_tree(pids) if (proc := identify(pid))]

    def alive() -> list[Proc]:
        return [proc for proc in tree if identify(proc.pid) == proc]

    end(first, alive, drain_s=DRAIN_S, clock=clock, say=say, name=service.name)
