"""A launcher of kind `process` → the argument list of the stack file, run as a child of ours."""

import os
import shutil
from dataclasses import dataclass

from vindicate.errors import CannotError, MisuseError
from vindicate.operate.launch.command import Command
from vindicate.stack.model import Service, Stack

__all__ = ["Process", "as_user", "environment"]


@dataclass(frozen=True, slots=True)
class Process:
    """Our own child, by argument list and environment of the stack file."""

    stack: Stack
    service: Service

    def start(self) -> tuple[Command, ...]:
        """What is run, one after another; see `Launch`."""
        launcher = self.service.launcher
        return (as_user(self.service, Command(launcher.start, launcher.cwd or self.stack.home.parent)),)

    def told(self) -> str:
        """How it is started and stopped, for the plan."""
        user = self.service.launcher.user
        return f"is started as user {user}" if user and user != _user_name() else ""


def as_user(service: Service, command: Command) -> Command:
    """*command* as the launcher's `user`: as it is for ourselves, by setpriv(1) when we are root.

    Raises:
        CannotError: We are neither, so that what it starts could not be looked at or stopped from here.
        MisuseError: There is no such user.
    """
    import pwd

    user = service.launcher.user
    if user is None or user == _user_name():
        return command
    try:
        entry = pwd.getpwnam(user)
    except KeyError:
        raise MisuseError(
            f"services.{service.name}: launcher asks for user {user!r}, and there is none of that name here",
            remedy="mend launcher.user",
        ) from None
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        raise CannotError(
            f"services.{service.name}: launcher asks for user {user!r}, and only root can start, look at and stop what is another's",
            remedy=f"run vindicate as {user}, or as root where there is a setpriv",
        )
    words = ("setpriv", f"--reuid={entry.pw_uid}", f"--regid={entry.pw_gid}", "--init-groups", "--")
    named = ("env", f"HOME={entry.pw_dir}", f"USER={user}", f"LOGNAME={user}")
    return Command((*words, *named, *command.argv), command.cwd)


def environment(stack: Stack, service: Service) -> dict[str, str]:
    """What a started service inherits: this process's environment, less the knobs of the stack file, plus the launcher's `env`.

    A knob left over in the operator's shell must not reach the service past its script.

    Raises:
        MisuseError: The launcher's `env` sets a knob.
    """
    knobs = {knob.name for knob in stack.knobs.values() if knob.kind == "env"}
    both = sorted(knobs & set(service.launcher.env))
    if both and service.launcher.kind == "script":
        raise MisuseError(
            f"{stack.file}: services.{service.name}.launcher.env sets {both[0]}, which is a knob",
            remedy=f"set it in {service.launcher.file}",
        )
    kept = {name: value for name, value in os.environ.items() if name not in knobs}
    return {**kept, **service.launcher.env}


def _user_name() -> str:
    import pwd

    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())
