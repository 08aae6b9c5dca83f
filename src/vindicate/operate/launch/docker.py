"""A launcher of kind `docker` → docker, or podman where there is no docker, by the container's name.

Without a `file` the container is started and stopped as it is. With one, a run script, the container is made anew by it at
each start, since a container's environment is fixed when it is made. Written to the manual of docker 28; tested with a small
stand-in for `docker` that really starts and stops processes, not with a real engine.
"""

from dataclasses import dataclass

from vindicate.errors import CannotError
from vindicate.operate.launch.command import Command, Stand
from vindicate.operate.launch.script import script_command
from vindicate.stack.keeper import container_engine, container_state, kept_name
from vindicate.stack.model import Service, Stack
from vindicate.stack.process import process_tree

__all__ = ["STOP_S", "Docker", "container_stand", "refuse_user"]

STOP_S = 10  # what `docker stop` waits after SIGTERM; then it sends SIGKILL itself


@dataclass(frozen=True, slots=True)
class Docker:
    """A container; its processes belong to its engine and are only ever stopped by it."""

    stack: Stack
    service: Service

    def start(self) -> tuple[Command, ...]:
        """What is run, one after another; see `Launch`."""
        refuse_user(self.service)
        engine, name = container_engine(), kept_name(self.service)
        there = container_state(name)
        if self.service.launcher.file is not None:
            remove = (self._command(engine, "rm", name),) if there is not None else ()
            return (*remove, script_command(self.service))
        if there is None:
            raise CannotError(
                f"{self.service.name}: {engine} has no container {name!r}, and the stack file names no script that makes one",
                remedy=f'name its run script: launcher = {{ kind = "docker", file = "run.sh" }}, or: container = "…"; see: {engine} ps -a',
            )
        return (self._command(engine, "start", name),)

    def stop(self) -> tuple[Command, ...]:
        """What asks its keeper to stop it."""
        return (self._command(container_engine(), "stop", "-t", str(STOP_S), kept_name(self.service)),)

    def kill(self) -> tuple[Command, ...]:
        """What makes its keeper end it at once."""
        return (self._command(container_engine(), "kill", kept_name(self.service)),)

    def stand(self) -> Stand:
        """What its keeper says of it now."""
        return container_stand((kept_name(self.service),))

    def reload(self) -> tuple[Command, ...]:
        """What makes its keeper read edited files again; nothing needs to be told."""
        return ()

    def log(self) -> Command:
        """What shows the end of its log."""
        return self._command(container_engine(), "logs", "--tail", "20", kept_name(self.service))

    def told(self) -> str:
        """How it is started and stopped, for the plan."""
        engine, name, file = container_engine(), kept_name(self.service), self.service.launcher.file
        if file is None:
            return f"is stopped and started by: {engine} stop -t {STOP_S} {name}; {engine} start {name}"
        return (
            f"is stopped by: {engine} stop -t {STOP_S} {name}; the container is removed and made anew by {file.name}, "
            "and what was written inside it, outside its volumes, is lost"
        )

    def _command(self, *argv: str) -> Command:
        return Command(argv, self.stack.home.parent)


def container_stand(names: tuple[str, ...]) -> Stand:
    """How these containers of one service stand together.

    Raises:
        CannotError: The engine cannot be asked.
    """
    pids: list[int] = []
    states, over = [], None
    for name in names:
        found = container_state(name)
        if found is None:
            continue
        state = found.get("State", {})
        status = str(state.get("Status", ""))
        if found.get("HostConfig", {}).get("AutoRemove") and status in ("exited", "dead"):
            status = "exited, and is being removed"
        states.append(status)
        if (pid := int(state.get("Pid") or 0)) > 0:
            pids += process_tree([pid])
        restarts = int(found.get("RestartCount") or 0)
        if status.startswith(("exited", "dead")):
            killed = ", out of memory" if state.get("OOMKilled") else ""
            over = f"the container {name} is {status}, exit code {state.get('ExitCode')}{killed}"
        elif status == "restarting" and restarts > 1:
            over = f"the container {name} ended {restarts} times since it was started, and is restarted each time"
    running = [status for status in states if status not in ("exited", "dead", "created")]
    return Stand(
        pids=tuple(pids), state=", ".join(states) or "not there", running=bool(running),
        over=over or (None if states else "there is no such container"),
    )  # fmt: skip


def refuse_user(service: Service) -> None:
    """Insist that the launcher names no user.

    Raises:
        CannotError: It does.
    """
    if service.launcher.user is not None:
        raise CannotError(
            f"services.{service.name}: a container runs as the user that it was made for, and launcher.user is {service.launcher.user!r}",
            remedy="take user out of the launcher",
        )
