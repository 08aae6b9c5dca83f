"""A service's launcher, as the stack file names it → the command that starts it, and the environment it gets."""

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from vindicate.errors import CannotError, MisuseError
from vindicate.stack.model import Service, Stack

__all__ = ["Command", "environment", "start_command"]


@dataclass(frozen=True, slots=True)
class Command:
    """An argument list, and the folder it is run in."""

    argv: tuple[str, ...]
    cwd: Path


def start_command(stack: Stack, service: Service) -> Command:
    """What is run to start *service*: its script with bash in the script's own folder, or the stack file's argument list.

    Raises:
        CannotError: A person must start it, its kind is not supported yet, or it asks for another user.
        MisuseError: The script is missing, unreadable or no shell script, or there is no bash.
    """
    kind = service.launcher.kind
    if kind == "none":
        raise CannotError(
            f"{service.name}: the stack file names no launcher, so it cannot be started or stopped from here",
            remedy=f'start it yourself, or give services.{service.name} a launcher = {{ kind = "script", file = "…" }}',
        )
    if kind not in ("script", "process"):
        raise CannotError(
            f"services.{service.name}: launcher kind {kind!r} is not supported yet",
            remedy='use launcher = { kind = "none" } and start it yourself; then the tool says what to do and verifies it',
        )
    user = service.launcher.user
    if user is not None and user != _user_name():
        raise CannotError(
            f"services.{service.name}: launcher asks for user {user!r}, and starting as another user is not supported yet",
            remedy=f"run vindicate as {user}",
        )
    if kind == "process":
        return Command(service.launcher.start, service.launcher.cwd or stack.home.parent)
    return _script(service)


def _script(service: Service) -> Command:
    """`cd` to its folder, `bash FILE`, as a person would."""
    file = service.launcher.file
    assert file is not None  # the stack file's reader demands it
    if not file.is_file() or not os.access(file, os.R_OK):
        problem = "cannot be read" if file.exists() else "is not there"
        raise MisuseError(
            f"{file}: the start script of {service.name} {problem}",
            remedy=f"mend launcher.file of services.{service.name}",
        )
    with file.open("rb") as source:
        first = source.readline(200)
    if first.startswith(b"#!") and not re.search(rb"\b(?:ba|da|k|z)?sh\b", first):
        raise MisuseError(
            f"{file}:1: {first.decode(errors='replace').strip()!r} makes it no shell script",
            remedy='start it from a shell script, or give the service launcher = { kind = "process", start = ["…"] }',
        )
    bash = shutil.which("bash")
    if bash is None and not service.launcher.start:
        raise MisuseError("there is no bash on the PATH", remedy="install bash, or give launcher.start")
    return Command(service.launcher.start or (str(bash), str(file)), service.launcher.cwd or file.parent)


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
