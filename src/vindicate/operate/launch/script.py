"""A launcher of kind `script` → bash with the start script, in the script's own folder, as a child of ours."""

import os
import re
import shutil
from dataclasses import dataclass

from vindicate.errors import MisuseError
from vindicate.operate.launch.command import Command
from vindicate.operate.launch.process import Process, as_user
from vindicate.stack.model import Service, Stack

__all__ = ["Script", "script_command"]


@dataclass(frozen=True, slots=True)
class Script:
    """Our own child: `cd` to the script's folder, `bash FILE`, as a person would."""

    stack: Stack
    service: Service

    def start(self) -> tuple[Command, ...]:
        """What is run, one after another; see `Launch`."""
        return (as_user(self.service, script_command(self.service)),)

    def told(self) -> str:
        """How it is started and stopped, for the plan."""
        return Process(self.stack, self.service).told()


def script_command(service: Service) -> Command:
    """What runs the launcher's file with bash, or the launcher's `start` in its place.

    Raises:
        MisuseError: The script is missing, unreadable or no shell script, or there is no bash.
    """
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
