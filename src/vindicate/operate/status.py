"""A Stack → how each service stands now, and whether its live processes hold what its script says."""

from dataclasses import dataclass, field
from typing import Literal

from vindicate.errors import VindicateError
from vindicate.operate.health import check_health, port_is_taken
from vindicate.operate.running import read_run
from vindicate.operate.services import run_members, running_by_hand
from vindicate.stack.model import Knob, Service, Stack
from vindicate.stack.process import live_readings, service_pids, started_at, why_unseen

__all__ = ["KnobStand", "ServiceStand", "State", "live_readings", "look", "look_at"]

State = Literal["ready", "starting", "unhealthy", "down"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobStand:
    """A knob in one service: *declared* by its script, *live* in each of its processes (`vindicate.stack/1`).

    Attributes:
        drift: A live process holds another value than the script declares.
        problem: Why the script or a process could not be read.
        declared_known: Whether the script's value could be read; without that *declared* says nothing.
        unread: Processes whose value could not be read; they are not in *live*.
        read_from: By process, where its value was read when that is not its own environment or command line.
        unseen: Why there is no process to read it from, where there is none.
    """

    declared: str | None
    live: dict[str, str | None]
    drift: bool
    problem: str | None = None
    declared_known: bool = True
    unread: tuple[int, ...] = ()
    unseen: str = ""
    read_from: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceStand:
    """One service of `vindicate.stack/1`. *detail* says why it is not ready, *unseen* why what keeps it could not be asked."""

    name: str
    role: str
    engine: str
    pids: tuple[int, ...]
    url: str
    state: State
    started_at: str | None
    knobs: dict[str, KnobStand] = field(default_factory=dict)
    detail: str = ""
    by_hand: bool = False
    unseen: str = ""


def look(stack: Stack) -> tuple[ServiceStand, ...]:
    """How every service stands, in stack-file order. Reads only."""
    return tuple(look_at(stack, service) for service in stack.services.values())


def look_at(stack: Stack, service: Service) -> ServiceStand:
    """How one service stands."""
    try:
        ours, unseen = [proc.pid for proc in run_members(stack, service)], ""
    except VindicateError as error:  # what keeps it cannot be asked
        ours, unseen = [], error.problem
    pids = service_pids(service)
    health = check_health(service)
    taken, _ = port_is_taken(service)
    run = read_run(stack.home, service.name)
    state: State
    if health.good:
        state = "ready"
    elif not (ours or pids or taken) and health.detail == "refuses connections":
        state = "down"
    elif ours and not (run and run.ready_at):
        state = "starting"
    elif ours or pids or taken:
        state = "unhealthy"
    else:
        state = "down"
    shown = pids or tuple(ours)
    return ServiceStand(
        name=service.name,
        role=service.role,
        engine=service.engine,
        pids=shown,
        url=service.url,
        state=state,
        started_at=started_at(shown[0]) if shown else None,
        knobs={knob.name: knob_stand(stack, knob, service) for knob in stack.knobs.values() if service.name in knob.services},
        detail="; ".join(text for text in ("" if health.good else health.detail, unseen) if text),
        unseen=unseen,
        by_hand=not set(pids) & set(ours) and bool(running_by_hand(stack, service)),
    )  # fmt: skip


def knob_stand(stack: Stack, knob: Knob, service: Service) -> KnobStand:
    """What the script declares and what each live process holds."""
    declared, problem = declared_value(stack, knob, service)
    readings = live_readings(service, knob)
    unreadable = next((reading.problem for reading in readings if reading.problem), None)
    live = {str(reading.pid): reading.value for reading in readings if not reading.problem}
    return KnobStand(
        declared=declared,
        live=live,
        drift=problem is None and any(value != declared for value in live.values()),
        problem=problem or unreadable,
        declared_known=problem is None,
        unread=tuple(reading.pid for reading in readings if reading.problem),
        unseen="" if readings else why_unseen(service),
        read_from={str(reading.pid): reading.elsewhere for reading in readings if reading.elsewhere},
    )


def declared_value(stack: Stack, knob: Knob, service: Service) -> tuple[str | None, str | None]:
    """The value that the service's script or stack-file entry gives the knob, and why it cannot be told."""
    if service.launcher.kind == "none" and service.launcher.file is None:
        return None, f"launcher kind {service.launcher.kind!r} declares no value that can be read"
    from vindicate.operate.holder import holder_of

    try:
        return holder_of(stack, service, knob).read().value, None
    except VindicateError as error:
        return None, error.problem
