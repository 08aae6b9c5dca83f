"""A systemd unit or a container → what systemd, docker or podman says of it, and the processes it has; nothing but reading.

Read against the manuals of systemd 252 and docker 28; exercised in tests by small stand-ins for `systemctl` and `docker`.
"""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from vindicate.errors import CannotError, MisuseError
from vindicate.redact import redact_text
from vindicate.stack.model import Service

__all__ = [
    "ANSWER_S",
    "Answer",
    "answer",
    "compose_argv",
    "container_engine",
    "container_pids",
    "container_state",
    "is_port_proxy",
    "kept_name",
    "unit_properties",
]

ANSWER_S = 20.0  # a busy docker daemon answers an inspect in seconds
_UNIT_SUFFIX = re.compile(r"\.(service|socket|scope|target|timer)$")
_PROPERTIES = (
    "Id,LoadState,MainPID,ActiveState,SubState,Result,NRestarts,FragmentPath,DropInPaths,ControlGroup,NeedDaemonReload"
)
_PROXIES = ("docker-proxy", "rootlessport", "rootlesskit", "slirp4netns", "pasta", "pasta.avx2")


@dataclass(frozen=True, slots=True)
class Answer:
    """How a command ended, and its output; *error* is redacted, one line."""

    code: int
    text: str
    error: str


def answer(argv: Sequence[str], *, cwd: Path | None = None, timeout_s: float = ANSWER_S) -> Answer:
    """Run a keeper's own command to its end.

    Raises:
        CannotError: There is no such program, or it gave no answer in *timeout_s*.
    """
    words = " ".join(argv)
    try:
        done = subprocess.run(
            list(argv), cwd=cwd, env={**os.environ, "LC_ALL": "C"}, stdin=subprocess.DEVNULL, capture_output=True,
            timeout=timeout_s, check=False,
        )  # fmt: skip
    except FileNotFoundError as error:
        raise CannotError(
            f"there is no {argv[0]} on the PATH", remedy="install it, or give the service another launcher"
        ) from error
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = f"no answer in {timeout_s:g} s" if isinstance(error, subprocess.TimeoutExpired) else error.strerror
        raise CannotError(f"`{words}`: {reason}", remedy=f"try it by hand: {words}") from error
    said = [line for line in done.stderr.decode(errors="replace").splitlines() if line.strip()]
    said = [line for line in said if not line.startswith(("Run '", "See '", "Usage:"))]
    return Answer(
        done.returncode, done.stdout.decode(errors="replace"), redact_text(said[-1].strip())[:300] if said else ""
    )


def kept_name(service: Service) -> str:
    """The unit, container or compose service that *service* is."""
    launcher = service.launcher
    if launcher.kind == "systemd":
        unit = launcher.unit or service.name
        return unit if _UNIT_SUFFIX.search(unit) else f"{unit}.service"
    return launcher.container or service.name


def unit_properties(unit: str) -> tuple[tuple[str, ...], dict[str, str]]:
    """How systemctl is called for the manager that knows *unit* (the system's is asked first, then this user's), and what it says.

    Raises:
        CannotError: systemd does not run here.
        MisuseError: Neither manager knows the unit, or it cannot be loaded.
    """
    problems = []
    for scope in ((), ("--user",)):
        asked = answer(["systemctl", *scope, "show", "-p", _PROPERTIES, "--", unit])
        found = dict(line.split("=", 1) for line in asked.text.splitlines() if "=" in line)
        state = found.get("LoadState", "")
        if asked.code == 0 and state in ("loaded", "masked", "bad-setting", "error"):
            if state != "loaded":
                raise MisuseError(
                    f"systemd says that {unit} is {state}",
                    remedy=f"see: systemctl {' '.join([*scope, 'status', unit])}",
                )
            return ("systemctl", *scope), found
        problems.append(asked.error if asked.code else "")
    if all(problems):
        raise CannotError(
            f"systemd cannot be asked for {unit}: {problems[0]}",
            remedy="run this where systemd runs, as a user who may ask it",
        )
    raise MisuseError(
        f"systemd knows no unit {unit}",
        remedy='name it: launcher = { kind = "systemd", unit = "…" }; see: systemctl list-units',
    )


def container_engine() -> str:
    """`docker`, or `podman` where there is no docker.

    Raises:
        CannotError: There is neither.
    """
    for name in ("docker", "podman"):
        if shutil.which(name):
            return name
    raise CannotError(
        "there is neither docker nor podman on the PATH", remedy="install one, or give the service another launcher"
    )


def container_state(name: str) -> Mapping[str, Any] | None:
    """What ``docker inspect`` says of a container; ``None`` when there is none of that name.

    Raises:
        CannotError: The engine cannot be asked.
    """
    engine = container_engine()
    asked = answer([engine, "inspect", "--type", "container", name])
    if asked.code:
        if "no such" in asked.error.lower():
            return None
        raise engine_refusal(engine, asked.error)
    try:
        found = json.loads(asked.text)
        return dict(found[0]) if found else None
    except (ValueError, LookupError, TypeError) as error:
        raise CannotError(
            f"`{engine} inspect {name}` answers what is no description of a container",
            remedy=f"try it: {engine} inspect {name}",
        ) from error


def engine_refusal(engine: str, said: str) -> CannotError:
    """The error for an engine that did not do what it was asked."""
    if "permission denied" in said.lower():
        remedy = f"run this as a user who may use {engine} (root, or the group docker), or name your own engine in DOCKER_HOST"
    elif "cannot connect" in said.lower() or "is the docker daemon running" in said.lower():
        remedy = f"start {engine}, or name where it listens in DOCKER_HOST"
    elif "docker compose" in said.lower() or "shorthand flag" in said.lower():
        remedy = f"install the compose plugin of {engine}"
    else:
        remedy = f"see: {engine} ps -a"
    return CannotError(f"{engine} refuses: {said or 'it ended with an error and said nothing'}", remedy=remedy)


def compose_argv(service: Service) -> tuple[str, ...]:
    """``docker compose -f FILE`` of the service."""
    assert service.launcher.file is not None  # the stack file's reader demands it
    return (container_engine(), "compose", "-f", str(service.launcher.file))


def container_names(service: Service) -> tuple[str, ...]:
    """The container that *service* is; for compose those of its compose service, which may be none or several.

    Raises:
        CannotError: The engine cannot be asked, or does not understand the compose file.
    """
    if service.launcher.kind != "compose":
        return (kept_name(service),)
    asked = answer([*compose_argv(service), "ps", "-a", "-q", kept_name(service)])
    if asked.code:
        if "no such service" in asked.error.lower():
            raise MisuseError(
                f"{service.launcher.file}: no service {kept_name(service)!r} in it",
                remedy=f"name it in the launcher of services.{service.name}: container = …",
            )
        raise engine_refusal(container_engine(), asked.error)
    return tuple(asked.text.split())


def container_pids(service: Service) -> tuple[int, ...]:
    """The first process of each running container of *service*, as this host numbers it.

    Raises:
        CannotError: The engine cannot be asked.
    """
    pids = []
    for name in container_names(service):
        state = container_state(name)
        pid = state.get("State", {}).get("Pid") if state else None
        if isinstance(pid, int) and pid > 0:
            pids.append(pid)
    return tuple(pids)


def is_port_proxy(pid: int) -> bool:
    """Whether it is the program with which docker or podman forwards a published port into a container."""
    try:
        return psutil.Process(pid).name() in _PROXIES
    except psutil.Error:
        return False
