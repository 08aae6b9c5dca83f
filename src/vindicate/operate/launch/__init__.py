"""A service → how its kind of launcher starts and stops it, where its processes and its log are found, and what a person is told.

One file for each kind, behind `Launch`, and behind `Keeper` where something else keeps the processes. A further kind is one more
file, an entry in a table below, and its name in `stack.model.LAUNCHERS`.
"""

from collections.abc import Mapping
from typing import Protocol

from vindicate.operate.launch.command import Command, Stand
from vindicate.operate.launch.compose import Compose
from vindicate.operate.launch.docker import Docker
from vindicate.operate.launch.none import Person
from vindicate.operate.launch.process import Process, environment
from vindicate.operate.launch.script import Script
from vindicate.operate.launch.systemd import Systemd
from vindicate.stack.model import Service, Stack

__all__ = [
    "Command",
    "Keeper",
    "Launch",
    "Person",
    "Stand",
    "environment",
    "keeper_of",
    "launch_of",
    "require_startable",
]


class Launch(Protocol):
    """How one service is started, as a person would do it."""

    def start(self) -> tuple[Command, ...]:
        """What is run, one after another; without a keeper the last one goes on as the service, a child of ours.

        Raises:
            CannotError: It cannot be started from here, or its keeper cannot be asked.
            MisuseError: What the stack file says of it cannot be.
        """

    def told(self) -> str:
        """How it is started and stopped, for the plan; empty when there is nothing to say."""


class Keeper(Launch, Protocol):
    """What keeps a service (systemd, docker) and is asked to start and stop it; no process of it is signalled from here.

    Every method may raise the errors of `start`.
    """

    def stop(self) -> tuple[Command, ...]:
        """What asks it to stop the service, which it may do in its own time."""

    def kill(self) -> tuple[Command, ...]:
        """What makes it end the service at once."""

    def stand(self) -> Stand:
        """What it says of the service now."""

    def reload(self) -> tuple[Command, ...]:
        """What makes it read edited files again."""

    def log(self) -> Command:
        """What shows the end of the service's log."""


def launch_of(stack: Stack, service: Service) -> Launch:
    """The way in which *service* is started."""
    return keeper_of(stack, service) or _OURS[service.launcher.kind](stack, service)


def keeper_of(stack: Stack, service: Service) -> Keeper | None:
    """What keeps *service*; ``None`` when it runs as a child of ours, or a person starts it."""
    kind = _KEEPERS.get(service.launcher.kind)
    return kind(stack, service) if kind else None


def require_startable(stack: Stack, service: Service, *, by_person: bool = False) -> None:
    """Find out whether *service* can be started and stopped, before anything is done to it; reads only.

    Args:
        by_person: One that only a person can start is no error.

    Raises:
        CannotError: It cannot be started from here, or its keeper cannot be asked.
        MisuseError: What the stack file says of it cannot be.
    """
    launch = launch_of(stack, service)
    if not (by_person and isinstance(launch, Person)):
        launch.start()


_OURS: Mapping[str, type[Process | Script | Person]] = {"process": Process, "script": Script, "none": Person}
_KEEPERS: Mapping[str, type[Systemd | Docker | Compose]] = {"systemd": Systemd, "docker": Docker, "compose": Compose}
