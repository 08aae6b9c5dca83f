"""What a stack is: services that call one another, the knobs they hold, and how each is started."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from vindicate.errors import MisuseError
from vindicate.stack.flag import same_flag

__all__ = ["ENGINES", "ROLES", "Client", "Knob", "Launcher", "Service", "Stack"]

ROLES = ("proxy", "gateway", "router", "prefill", "decode", "engine")
ENGINES = (
    "generic",
    "sglang",
    "vllm",
    "llama.cpp",
    "sglang-router",
    "smg",
    "vllm-router",
    "nginx",
    "haproxy",
    "litellm",
    "reference",
)
LAUNCHERS = ("process", "script", "systemd", "docker", "compose", "none")


@dataclass(frozen=True, slots=True, kw_only=True)
class Launcher:
    """How a service is started and stopped. Paths are absolute.

    Attributes:
        kind: One of LAUNCHERS; ``none`` means that a person does it.
        file: The script, unit drop-in or compose file that holds the knobs.
        log: Where standard output and error go.
        start, stop: Argument lists that replace the kind's own way.
        unit: Of `systemd`; default: the service's name.
        container: Of `docker`, or the service's name in the compose file; default: the service's name.
    """

    kind: Literal["process", "script", "systemd", "docker", "compose", "none"] = "none"
    file: Path | None = None
    log: Path | None = None
    start: tuple[str, ...] = ()
    stop: tuple[str, ...] = ()
    cwd: Path | None = None
    user: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    unit: str | None = None
    container: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """One service of the chain; *url* has no trailing slash.

    *opaque*: found, and it may call services that were not. *is_side*: found as one side of a split pair, not known which; it
    takes no whole request.
    """

    name: str
    role: str
    engine: str
    url: str
    metrics: str
    health: str
    upstream: tuple[str, ...] = ()
    gpus: tuple[int, ...] = ()
    launcher: Launcher = Launcher()
    restart_with: tuple[str, ...] = ()
    api_key_env: str | None = None
    pid: int | None = None
    pidfile: Path | None = None
    match: str | None = None
    bootstrap_port: int | None = None
    opaque: bool = False
    is_side: bool = False

    @property
    def host(self) -> str:
        """Host part of *url*."""
        from urllib.parse import urlsplit

        return urlsplit(self.url).hostname or ""

    @property
    def port(self) -> int:
        """Port part of *url*, 80 or 443 when it names none."""
        from urllib.parse import urlsplit

        parts = urlsplit(self.url)
        return parts.port or (443 if parts.scheme == "https" else 80)

    def auth(self) -> dict[str, str]:
        """The bearer header, from the environment variable that *api_key_env* names; the key is never stored."""
        key = os.environ.get(self.api_key_env) if self.api_key_env else None
        return {"Authorization": f"Bearer {key}"} if key else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """A setting that several services must hold at one value. *default* is what the engine takes when it is unset."""

    name: str
    services: tuple[str, ...]
    kind: Literal["env", "arg"] = "env"
    default: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """Processes that call the entry: those whose command line holds *match*, or *pid*."""

    name: str
    match: str | None = None
    pid: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """A chain of services, from the entry down; *file* is the stack file, ``None`` when it was discovered.

    *others*: URLs of further chains seen then; *notes*: what could not be seen then, in sentences; *spent*: tokens asked for then.
    """

    name: str
    entry: str
    services: Mapping[str, Service]
    knobs: Mapping[str, Knob] = field(default_factory=dict)
    clients: Mapping[str, Client] = field(default_factory=dict)
    file: Path | None = None
    others: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    spent: int = 0

    @property
    def home(self) -> Path:
        """Where this stack's own state is kept: `.vindicate` beside the stack file."""
        return (self.file.parent if self.file else Path.cwd()) / ".vindicate"

    def service(self, name: str) -> Service:
        """The service of that name.

        Raises:
            MisuseError: There is none; the remedy lists the names there are.
        """
        try:
            return self.services[name]
        except KeyError:
            raise MisuseError(
                f"no service {name!r} in {self.file}", remedy=f"one of: {', '.join(self.services)}"
            ) from None

    def knob(self, name: str) -> Knob:
        """The knob of that name.

        Raises:
            MisuseError: There is none; the remedy lists the names there are.
        """
        try:
            return self.knobs[self.knob_name(name)]
        except KeyError:
            known = ", ".join(self.knobs) or "none yet"
            raise MisuseError(
                f"no knob {name!r} in {self.file}",
                remedy=f"declare [knobs.{name}] with the services that hold it; declared: {known}",
            ) from None

    def knob_name(self, spelling: str) -> str:
        """The declared name of the knob that *spelling* means: a flag may be written with or without its dashes; else *spelling*."""
        if spelling in self.knobs:
            return spelling
        alike = (knob.name for knob in self.knobs.values() if knob.kind == "arg" and same_flag(knob.name, spelling))
        return next(alike, spelling)

    def restart_set(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """*names* and all that must be restarted with them, directly or not, in stack-file order."""
        todo, done = list(names), set[str]()
        while todo:
            name = todo.pop()
            if name not in done:
                done.add(name)
                todo.extend(self.service(name).restart_with)
        return tuple(name for name in self.services if name in done)

    def start_order(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """*names* so that whatever a service calls comes before it; stopping goes the other way."""
        order: list[str] = []
        visiting: set[str] = set()

        def visit(name: str) -> None:
            if name in visiting:
                return
            visiting.add(name)
            for below in self.service(name).upstream:
                visit(below)
            if name in names:
                order.append(name)

        for name in self.services:
            visit(name)
        return tuple(order)

    def path_from(self, name: str) -> tuple[str, ...]:
        """*name* and every service below it, nearest first."""
        path: list[str] = []
        todo = [name]
        while todo:
            here = todo.pop(0)
            if here not in path:
                path.append(here)
                todo.extend(self.service(here).upstream)
        return tuple(path)
