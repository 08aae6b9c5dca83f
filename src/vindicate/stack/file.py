"""Reads and checks a stack file; every complaint names file, line and key."""

import os
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from vindicate.errors import MisuseError
from vindicate.redact import is_secret_name, redact_text
from vindicate.stack.flag import same_flag
from vindicate.stack.model import ENGINES, LAUNCHERS, ROLES, Client, Knob, Launcher, Service, Stack

__all__ = ["find_stack_file", "load_stack", "read_stack"]

_SERVICE_KEYS = {
    "role", "engine", "url", "metrics", "health", "upstream", "gpus", "launcher", "restart_with", "api_key_env",
    "pid", "pidfile", "match", "bootstrap_port",
}  # fmt: skip
_LAUNCHER_KEYS = {"kind", "file", "log", "start", "stop", "cwd", "user", "env", "unit", "container"}
_MOST_PIDS = 2**22  # of Linux
_T = TypeVar("_T")
_KEPT = re.compile(
    r"[A-Za-z0-9_][A-Za-z0-9_.@:\\-]*", re.ASCII
)  # what systemd and docker take for a name, and no option
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*", re.ASCII)


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        return False
    return good and not re.search(r"[\s\0-\x1f]", text)


def find_stack_file(given: str | None) -> Path | None:
    """The stack file to use: *given*, else `./vindicate.toml`, else `$VINDICATE_STACK`, else ``None``.

    Raises:
        MisuseError: The file that was named, on the command line or in the environment, is not there.
    """
    if given is not None:
        path = Path(given)
        if os.path.isfile(path / "vindicate.toml"):  # noqa: PTH113 Path.is_file raises for a name that is too long
            return path / "vindicate.toml"
        if not os.path.isfile(path):  # noqa: PTH113
            raise MisuseError(
                f"no stack file {given}",
                remedy="name the file that declares your services, or write one to try things on: vindicate stack init --reference DIR",
            )
        return path
    here = Path("vindicate.toml")
    if here.is_file():
        return here
    named = os.environ.get("VINDICATE_STACK")
    if named:
        if not os.path.isfile(named):  # noqa: PTH113
            raise MisuseError(
                f"$VINDICATE_STACK is {named!r}, and that is no file", remedy="unset it, or name a stack file"
            )
        return Path(named)
    return None


def load_stack(given: str | None) -> Stack:
    """Find and read the stack file.

    Raises:
        MisuseError: There is none, or it cannot be read or understood.
    """
    path = find_stack_file(given)
    if path is None:
        raise MisuseError(
            "no stack file: neither ./vindicate.toml nor $VINDICATE_STACK",
            remedy="name one with --stack FILE, or write one to try things on: vindicate stack init --reference DIR",
        )
    return read_stack(path)


def read_stack(path: Path) -> Stack:
    """Read and check one stack file; relative paths in it are taken from its own folder.

    Raises:
        MisuseError: It cannot be read, is no TOML, or says something that cannot be.
    """
    path = path.absolute()
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        raise MisuseError(f"{path}: cannot be read: {reason}", remedy="check the path and its permissions") from error
    try:
        data = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # the latter: brackets nested a thousand deep
        raise MisuseError(f"{path}: no valid TOML: {error}", remedy="mend that line") from error
    return _Reader(path, text, data).stack()


class _Reader:
    """Walks the parsed file once; keeps the text to name lines."""

    def __init__(self, path: Path, text: str, data: dict[str, Any]) -> None:
        self.path = path
        self.lines = text.splitlines()
        self.data = data

    def fail(self, table: str, key: str | None, problem: str, remedy: str) -> MisuseError:
        """Build the error for *key* of *table*, with the line it stands on."""
        where = f"{table}.{key}" if key else table
        line = self.line_of(table, key)
        return MisuseError(f"{self.path}:{line}: {where} {problem}", remedy=remedy)

    def line_of(self, table: str, key: str | None) -> int:
        """The line of *key* in the block ``[table]``, or of the block, or 1."""
        header = re.compile(
            r"\s*\[\s*" + r"\s*\.\s*".join(f"[\"']?{re.escape(part)}[\"']?" for part in table.split(".", 1)) + r"\s*\]"
        )
        start = next((index for index, line in enumerate(self.lines) if header.match(line)), None)
        if start is None:  # the table is only there through its own tables, or as a key
            inside = re.compile(rf"\s*(?:\[\s*{re.escape(table)}\s*\.|{re.escape(table)}\s*=)")
            start = next((index for index, line in enumerate(self.lines) if inside.match(line)), None)
        if start is None:
            return 1
        if key is not None:
            for index in range(start + 1, len(self.lines)):
                if self.lines[index].lstrip().startswith("["):
                    break
                if re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*=", self.lines[index]):
                    return index + 1
        return start + 1

    def stack(self) -> Stack:
        for name in self.data:
            if name not in ("stack", "services", "knobs", "clients"):
                raise self.fail(
                    name,
                    None,
                    "is no part of a stack file",
                    "known: [stack], [services.NAME], [knobs.NAME], [clients.NAME]",
                )
        head = self.table("stack", self.data.get("stack", {}))
        self.only_keys("stack", head, {"name", "entry"})
        services_data = self.table("services", self.data.get("services", {}))
        if not services_data:
            raise self.fail(
                "services", None, "is missing or empty", "declare at least one [services.NAME] with role and url"
            )
        services = {
            name: self.service(name, self.table(f"services.{name}", raw)) for name, raw in services_data.items()
        }
        entry = self.text("stack", head, "entry") if "entry" in head else next(iter(services))
        self.known("stack", "entry", [entry], services)
        for name, service in services.items():
            self.known(f"services.{name}", "upstream", service.upstream, services)
            self.known(f"services.{name}", "restart_with", service.restart_with, services)
        knobs = {
            name: self.knob(name, self.table(f"knobs.{name}", raw), services)
            for name, raw in self.table("knobs", self.data.get("knobs", {})).items()
        }
        self.only_once([knob.name for knob in knobs.values() if knob.kind == "arg"])
        return Stack(
            name=self.text("stack", head, "name") or self.path.parent.name,
            entry=str(entry),
            services=services,
            knobs=knobs,
            clients={
                name: self.client(name, self.table(f"clients.{name}", raw))
                for name, raw in self.table("clients", self.data.get("clients", {})).items()
            },
            file=self.path,
        )

    def service(self, name: str, raw: Mapping[str, Any]) -> Service:
        table = f"services.{name}"
        if not _NAME.fullmatch(name):
            raise self.fail(
                table, None, "has a name that cannot be used on a command line", "letters, digits, '.', '_' and '-'"
            )
        self.only_keys(table, raw, _SERVICE_KEYS)
        role = self.choice(table, raw, "role", ROLES, None)
        engine = self.choice(table, raw, "engine", ENGINES, "generic")
        url = self.url(table, raw, "url")
        metrics = self.url(table, raw, "metrics") if "metrics" in raw else url + "/metrics"
        health = self.text(table, raw, "health") or "/health"
        if re.search(r"[\s\0-\x1f]", health):
            raise self.fail(table, "health", f"is {health!r}; a path holds no blanks", 'try: health = "/health"')
        key_env = self.text(table, raw, "api_key_env")
        if key_env is not None and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", key_env):
            raise self.fail(
                table,
                "api_key_env",
                "is not the NAME of an environment variable",
                "name the variable; never put the key itself here",
            )
        return Service(
            name=name,
            role=role,
            engine=engine,
            url=url,
            metrics=metrics,
            health=health if health.startswith("/") else "/" + health,
            upstream=self.texts(table, raw, "upstream"),
            gpus=tuple(self.numbers(table, raw, "gpus")),
            launcher=self.launcher(table, raw.get("launcher", {})),
            restart_with=self.texts(table, raw, "restart_with"),
            api_key_env=key_env,
            pid=self.number(table, raw, "pid", 1, _MOST_PIDS),
            pidfile=self.file(table, raw, "pidfile"),
            match=self.text(table, raw, "match"),
            bootstrap_port=self.number(table, raw, "bootstrap_port", 1, 65535),
        )

    def launcher(self, table: str, value: Any) -> Launcher:
        if not isinstance(value, dict):
            raise self.fail(
                table,
                "launcher",
                f"is {value!r}",
                'try: launcher = { kind = "script", file = "serve.sh", log = "serve.log" }',
            )
        self.only_keys(table, value, _LAUNCHER_KEYS, inside="launcher")
        kind = value.get("kind", "none")
        if kind not in LAUNCHERS:
            raise self.fail(table, "launcher", f"has kind {kind!r}", f"one of: {', '.join(LAUNCHERS)}")
        env = value.get("env", {})
        if not isinstance(env, dict) or not all(isinstance(item, str) and "\0" not in item for item in env.values()):
            raise self.fail(
                table, "launcher", "has an env that is no table of strings", 'try: env = { NAME = "value" }'
            )
        if kind == "script" and not value.get("file"):
            raise self.fail(table, "launcher", "is a script without a file", 'try: file = "serve.sh"')
        if kind == "process" and not value.get("start"):
            raise self.fail(table, "launcher", "is a process without a start", 'try: start = ["python", "-m", "…"]')
        if kind == "compose" and not value.get("file"):
            raise self.fail(table, "launcher", "is of kind compose without a file", 'try: file = "compose.yaml"')
        named = {key: self.text(table, value, key) for key in ("unit", "container")}
        odd = next((key for key, name in named.items() if name is not None and not _KEPT.fullmatch(name)), None)
        if odd is not None:
            raise self.fail(
                table,
                "launcher",
                f"has the {odd} {named[odd]!r}",
                f'a name without blanks or slashes: {odd} = "decode"',
            )
        secret = next((name for name, inner in env.items() if is_secret_name(name) and inner), None)
        if secret is not None:
            raise self.fail(
                table,
                "launcher",
                f"holds a secret in env.{secret}",
                "a secret never stands in this file; name its variable in api_key_env",
            )
        return Launcher(
            kind=kind,
            file=self.file(table, value, "file"),
            log=self.file(table, value, "log"),
            start=self.texts(table, value, "start"),
            stop=self.texts(table, value, "stop"),
            cwd=self.file(table, value, "cwd"),
            user=self.text(table, value, "user"),
            env=env,
            unit=named["unit"],
            container=named["container"],
        )

    def knob(self, name: str, raw: Mapping[str, Any], services: Mapping[str, Service]) -> Knob:
        table = f"knobs.{name}"
        self.only_keys(table, raw, {"services", "kind", "default"})
        holders = self.texts(table, raw, "services")
        if not holders:
            raise self.fail(
                table, "services", "is empty", f"name the services that must hold it: {', '.join(services)}"
            )
        self.known(table, "services", holders, services)
        default = raw.get("default")
        if default is not None and not isinstance(default, str):
            raise self.fail(
                table, "default", f"is {default!r}, and a knob's value is text", f'try: default = "{default}"'
            )
        kind = self.choice(table, raw, "kind", ("env", "arg"), "env")
        if kind == "env" and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise self.fail(table, None, "is no name of an environment variable", 'rename it, or say kind = "arg"')
        if kind == "arg" and not re.fullmatch(r"--?[A-Za-z][\w.-]*|[A-Za-z]\w*-[\w.-]*", name, re.ASCII):
            raise self.fail(
                table, None, "is of kind arg, and no flag", f'write it as a flag: [knobs."--{name.lstrip("-")}"]'
            )
        return Knob(name=name, services=holders, kind="arg" if kind == "arg" else "env", default=default)

    def only_once(self, flags: list[str]) -> None:
        """Insist that no two knobs are spellings of one flag."""
        for number, name in enumerate(flags):
            other = next((earlier for earlier in flags[:number] if same_flag(earlier, name)), None)
            if other is not None:
                raise self.fail(f"knobs.{name}", None, f"is the same flag as knobs.{other}", "keep one of them")

    def client(self, name: str, raw: Mapping[str, Any]) -> Client:
        table = f"clients.{name}"
        self.only_keys(table, raw, {"match", "pid"})
        return Client(
            name=name, match=self.text(table, raw, "match"), pid=self.number(table, raw, "pid", 1, _MOST_PIDS)
        )

    # ---- one value at a time -------------------------------------------------------------------------------------

    def table(self, name: str, value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self.fail(name, None, f"is {value!r}, and should be a table", f"write it as [{name}]")
        return value

    def only_keys(self, table: str, raw: Mapping[str, Any], known: set[str], inside: str | None = None) -> None:
        for key in raw:
            if key not in known:
                raise self.fail(
                    table,
                    inside or key,
                    f"{f'has {key!r}, which' if inside else ''} is not known here".strip(),
                    f"known: {', '.join(sorted(known))}",
                )

    def known(self, table: str, key: str, names: Any, services: Mapping[str, Service]) -> None:
        for name in names:
            if name not in services:
                raise self.fail(
                    table, key, f"names {name!r}, and there is no such service", f"one of: {', '.join(services)}"
                )

    def choice(
        self, table: str, raw: Mapping[str, Any], key: str, choices: tuple[str, ...], default: str | None
    ) -> str:
        value = raw.get(key, default)
        if value not in choices:
            problem = "is missing" if value is None else f"is {value!r}"
            raise self.fail(table, key, problem, f"one of: {', '.join(choices)}")
        return str(value)

    def url(self, table: str, raw: Mapping[str, Any], key: str) -> str:
        value = raw.get(key)
        example = f'try: {key} = "http://127.0.0.1:30000"'
        if not isinstance(value, str):
            raise self.fail(table, key, "is missing" if value is None else f"is {value!r}", example)
        if not _is_url(value):
            raise self.fail(table, key, f"is {value!r}; expected http://HOST:PORT", example)
        if "@" in urlsplit(value).netloc or redact_text(value) != value:
            raise self.fail(
                table, key, "holds a login, a password or a key",
                "a secret never stands in this file; name its variable in api_key_env",
            )  # fmt: skip
        if key == "url" and ("?" in value or "#" in value):
            raise self.fail(table, key, "holds more than a path", f"leave out what follows the ? or #; {example}")
        return value.rstrip("/")

    def text(self, table: str, raw: Mapping[str, Any], key: str) -> str | None:
        return self.typed(table, raw, key, str, "text")

    def number(self, table: str, raw: Mapping[str, Any], key: str, least: int, most: int) -> int | None:
        value = self.typed(table, raw, key, int, "a whole number")
        if value is not None and not least <= value <= most:
            raise self.fail(table, key, "is out of range", f"a number from {least} to {most}")
        return value

    def file(self, table: str, raw: Mapping[str, Any], key: str) -> Path | None:
        value = self.text(table, raw, key)
        return None if value is None else (self.path.parent / value).absolute()

    def texts(self, table: str, raw: Mapping[str, Any], key: str) -> tuple[str, ...]:
        return tuple(
            self.items(table, raw, key, lambda item: isinstance(item, str) and "\0" not in item, "a list of texts")
        )

    def numbers(self, table: str, raw: Mapping[str, Any], key: str) -> list[int]:
        return self.items(
            table,
            raw,
            key,
            lambda item: isinstance(item, int) and not isinstance(item, bool),
            "a list of whole numbers",
        )

    def items(self, table: str, raw: Mapping[str, Any], key: str, good: Callable[[Any], bool], what: str) -> list[Any]:
        value = raw.get(key, [])
        if not isinstance(value, list) or not all(good(item) for item in value):
            raise self.fail(table, key, f"is {value!r}, and should be {what}", f"try: {key} = []")
        return value

    def typed(self, table: str, raw: Mapping[str, Any], key: str, kind: type[_T], what: str) -> _T | None:
        value = raw.get(key)
        if value is None:
            return None
        if not isinstance(value, kind) or isinstance(value, bool):
            raise self.fail(table, key, f"is {value!r}, and should be {what}", f"mend {key}")
        if isinstance(value, str) and "\0" in value:
            raise self.fail(table, key, "holds a NUL character", f"mend {key}")
        return value  # type: ignore[return-value]
