"""A launcher of kind `compose` → `docker compose -f FILE`, or podman's, by the name of the service in that file.

Written to the manual of docker compose 2; tested with a small stand-in for `docker`, not with a real engine.
"""

from dataclasses import dataclass

from vindicate.errors import MisuseError
from vindicate.operate.launch.command import Command, Stand
from vindicate.operate.launch.docker import STOP_S, container_stand, refuse_user
from vindicate.stack.keeper import compose_argv, container_names, kept_name
from vindicate.stack.model import Service, Stack

__all__ = ["Compose"]


@dataclass(frozen=True, slots=True)
class Compose:
    """A service of a compose file; `up` makes its container anew when what the file says of it has changed."""

    stack: Stack
    service: Service

    def start(self) -> tuple[Command, ...]:
        """What is run, one after another; see `Launch`."""
        refuse_user(self.service)
        file = self.service.launcher.file
        if file is None or not file.is_file():
            raise MisuseError(
                f"{file}: the compose file of {self.service.name} is not there",
                remedy=f"mend launcher.file of services.{self.service.name}",
            )
        return (self._command("up", "-d", kept_name(self.service)),)

    def stop(self) -> tuple[Command, ...]:
        """What asks its keeper to stop it."""
        return (self._command("stop", "-t", str(STOP_S), kept_name(self.service)),)

    def kill(self) -> tuple[Command, ...]:
        """What makes its keeper end it at once."""
        return (self._command("kill", kept_name(self.service)),)

    def stand(self) -> Stand:
        """What its keeper says of it now."""
        return container_stand(container_names(self.service))

    def reload(self) -> tuple[Command, ...]:
        """What makes its keeper read edited files again; nothing needs to be told."""
        return ()

    def log(self) -> Command:
        """What shows the end of its log."""
        return self._command("logs", "--no-color", "--tail", "20", kept_name(self.service))

    def told(self) -> str:
        """How it is started and stopped, for the plan."""
        return f"is stopped and started by: {self._command('stop', kept_name(self.service))}; {self.start()[0]}"

    def _command(self, *words: str) -> Command:
        assert self.service.launcher.file is not None
        return Command((*compose_argv(self.service), *words), self.service.launcher.file.parent)
