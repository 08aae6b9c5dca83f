"""A knob of a service → where it stands, what it is set to there, and the bytes that set it otherwise; by kind of launcher and knob.

The one place that says, for (launcher.kind, knob.kind), in which file a knob stands. A further pair is one more class and a
branch in `holder_of`.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

from vindicate.errors import CannotError, MisuseError
from vindicate.operate.unit_file import UnitText, drop_in, is_drop_in, unit_setting
from vindicate.stack.keeper import kept_name, unit_properties
from vindicate.stack.model import Knob, Service, Stack
from vindicate.stack.process import live_readings
from vindicate.units import shown

__all__ = ["Held", "Holder", "holder_of"]


@dataclass(frozen=True, slots=True)
class Held:
    """A knob's *value*, ``None`` for not set, and *where* that is said, for a person."""

    value: str | None
    where: str


class Holder(Protocol):
    """Where one knob of one service stands. Its methods raise MisuseError for what is not understood, with file and line."""

    @property
    def path(self) -> Path | None:
        """The file that is edited, links followed, which may not be there yet; ``None`` when a person must set the value."""

    def read(self) -> Held:
        """What the next start would have, as the files say."""

    def edit(self, source: bytes | None, value: str | None) -> bytes | None:
        """The file with the value set, where *source* is what it holds now; ``None`` stands for no file."""


def holder_of(stack: Stack, service: Service, knob: Knob) -> Holder:
    """Where *knob* of *service* stands.

    Raises:
        CannotError: Knobs of that kind cannot be read or edited yet where that launcher keeps them.
        MisuseError: The file cannot be found.
    """
    kind, file = service.launcher.kind, service.launcher.file
    if kind in ("script", "none") and file is not None:
        return (ScriptLine if knob.kind == "env" else ScriptArg)(file.resolve(), knob.name)
    if kind == "docker" and file is not None:
        return RunEnv(file.resolve(), knob.name) if knob.kind == "env" else RunArg(file.resolve(), knob.name)
    if kind == "compose" and file is not None:
        return ComposeEntry(file.resolve(), kept_name(service), knob)
    if kind == "none":
        return InHands(service, knob)
    if kind == "systemd" and knob.kind == "env":
        return DropIn.of(service, knob.name)
    if kind == "process" and stack.file is not None:
        return StackEntry(stack.file.resolve(), service, knob)
    raise CannotError(
        f"{stack.file}: services.{service.name} has a launcher of kind {kind!r}"
        f"{' without a file' if kind == 'docker' else ''}, and a knob of kind {knob.kind} cannot be changed there",
        remedy='give it launcher = { kind = "script", file = "…" }, or change it by hand',
    )


@dataclass(frozen=True, slots=True)
class ScriptLine:
    """An environment variable in a start script."""

    path: Path
    knob: str

    def read(self) -> Held:
        """What the script sets it to."""
        from vindicate.operate.script import read_value

        found = read_value(self.path, self.knob)
        return Held(found.value, f"{self.path.name}:{found.line}") if found else Held(None, self.path.name)

    def edit(self, source: bytes | None, value: str | None) -> bytes | None:
        """The script with that value changed."""
        from vindicate.operate.script import edit_value

        return edit_value(_there(source, self.path), self.knob, value, path=self.path)


@dataclass(frozen=True, slots=True)
class ScriptArg:
    """A flag of the service's command in a start script."""

    path: Path
    knob: str
    container: ClassVar[bool] = False

    def read(self) -> Held:
        """What the script sets it to."""
        from vindicate.operate.script_arg import read_arg

        found = read_arg(self.path, self.knob, container=self.container)
        return Held(found.value, f"{self.path.name}:{found.line}") if found else Held(None, self.path.name)

    def edit(self, source: bytes | None, value: str | None) -> bytes | None:
        """The script with that flag changed."""
        from vindicate.operate.script_arg import edit_arg

        return edit_arg(_there(source, self.path), self.knob, value, path=self.path, container=self.container)


@dataclass(frozen=True, slots=True)
class RunArg(ScriptArg):
    """A flag of the program that a script's ``docker run`` starts, behind the image."""

    container = True


@dataclass(frozen=True, slots=True)
class RunEnv:
    """An environment variable that a script's ``docker run`` sets by ``-e``."""

    path: Path
    knob: str

    def read(self) -> Held:
        """What it sets it to."""
        from vindicate.operate.docker_run import read_run_env

        found = read_run_env(self.path, self.knob)
        return Held(found[0], f"{self.path.name}:{found[1]}") if found else Held(None, self.path.name)

    def edit(self, source: bytes | None, value: str | None) -> bytes | None:
        """The script with that value changed."""
        from vindicate.operate.docker_run import edit_run_env

        return edit_run_env(_there(source, self.path), self.knob, value, path=self.path)


def _there(source: bytes | None, path: Path) -> bytes:
    """The file's bytes.

    Raises:
        MisuseError: There is no such file.
    """
    if source is None:
        raise MisuseError(f"{path}: is not there", remedy="mend launcher.file in the stack file")
    return source


@dataclass(frozen=True, slots=True)
class InHands:
    """A knob that a person sets; all that can be told of it is what live processes hold."""

    service: Service
    knob: Knob
    path: None = None

    def read(self) -> Held:
        """What the live processes hold.

        Raises:
            CannotError: There are none, they differ, or they cannot be read.
        """
        readings = live_readings(self.service, self.knob)
        values = {reading.value for reading in readings}
        problem = next((reading.problem for reading in readings if reading.problem), None)
        if problem or len(values) != 1:
            seen = ", ".join(sorted(shown(value) for value in values)) or "no live process"
            raise CannotError(
                f"{self.service.name}: what {self.knob.name} is set to cannot be told: {problem or seen}",
                remedy="give the service a launcher, or start it",
            )
        return Held(values.pop(), "its live processes")

    def edit(self, source: bytes | None, value: str | None) -> bytes | None:
        """Nothing: there is no file."""
        del value
        return source


@dataclass(frozen=True, slots=True)
class StackEntry:
    """A knob in the stack file itself: in `launcher.env`, or in the argument list `launcher.start`."""

    path: Path
    service: Service
    knob: Knob

    def read(self) -> Held:
        """What the stack file sets it to."""
        from vindicate.operate.stack_entry import read_entry

        env = self.knob.kind == "env"
        value = read_entry(self.path, self.service.name, self.knob.name, env=env)
        return Held(value, f"{self.path.name}: services.{self.service.name}.launcher.{'env' if env else 'start'}")

    def edit(self, source: bytes | None, value: str | None) -> bytes | None:
        """The stack file with that value changed; the stack must be read again before anything is started from it."""
        from vindicate.operate.stack_entry import edit_entry

        return edit_entry(
            _there(source, self.path), self.path, self.service.name, self.knob.name, value, env=self.knob.kind == "env"
        )


@dataclass(frozen=True, slots=True)
class ComposeEntry:
    """A knob in a compose file: in `environment`, or in `command`."""

    path: Path
    service: str
    knob: Knob

    def read(self) -> Held:
        """What the compose file sets it to."""
        from vindicate.operate.compose_file import read_compose

        try:
            source = self.path.read_bytes()
        except OSError as error:
            raise MisuseError(
                f"{self.path}: cannot be read: {error.strerror}", remedy="check the path and its permissions"
            ) from error
        value, line = read_compose(source, self.path, self.service, self.knob.name, env=self.knob.kind == "env")
        return Held(value, f"{self.path.name}:{line}")

    def edit(self, source: bytes | None, value: str | None) -> bytes | None:
        """The compose file with that value changed."""
        from vindicate.operate.compose_file import edit_compose

        env = self.knob.kind == "env"
        return edit_compose(_there(source, self.path), self.path, self.service, self.knob.name, value, env=env)


@dataclass(frozen=True, slots=True)
class DropIn:
    """An environment variable in a drop-in file of its own, beside a systemd unit; *others* are the unit's other files."""

    path: Path
    knob: str
    unit: str
    others: tuple[Path, ...]

    @classmethod
    def of(cls, service: Service, knob: str) -> "DropIn":
        """The drop-in for *knob* of the unit that *service* is."""
        ctl, found = unit_properties(kept_name(service))
        unit, fragment = found.get("Id") or kept_name(service), found.get("FragmentPath", "")
        path = (
            _folder_for(Path(fragment) if fragment else None, user="--user" in ctl)
            / f"{unit}.d"
            / f"vindicate-{knob}.conf"
        )
        others = [Path(name) for name in (fragment, *found.get("DropInPaths", "").split()) if name]
        return cls(path, knob, unit, tuple(other for other in others if other != path))

    def read(self) -> Held:
        """What the unit's files set it to, whether or not systemd has read them yet."""
        setting = unit_setting(self._files(self.path.read_bytes() if self.path.exists() else None), self.knob)
        return Held(setting.value, f"{setting.path.name}:{setting.line}" if setting.path else self.unit)

    def edit(self, source: bytes | None, value: str | None) -> bytes | None:
        """The drop-in with *value*; none where the unit alone already leaves the variable unset."""
        if source is not None and not is_drop_in(source, self.knob):
            raise MisuseError(
                f"{self.path}: holds more than this tool writes there",
                remedy="rename it, or set the variable by hand in it",
            )
        if unit_setting(self._files(source), self.knob).value == value:
            return source
        if value is None and unit_setting(self._files(None), self.knob).value is None:
            return None
        content = drop_in(self.knob, value)
        setting = unit_setting(self._files(content), self.knob)
        if setting.value == value:
            return content
        raise MisuseError(
            f"{setting.path}:{setting.line}: has the last word on {self.knob}: {shown(setting.value)}",
            remedy=f"take that line out, then systemctl daemon-reload; drop-ins are read by name, and {self.path.name} before it",
        )

    def _files(self, ours: bytes | None) -> list[UnitText]:
        """The unit's files as systemd reads them: the unit, then its drop-ins by name."""
        unit, drop_ins = self.others[:1], [*self.others[1:], *([self.path] if ours is not None else [])]
        texts = []
        for path in (*unit, *sorted(drop_ins, key=lambda path: path.name)):
            try:
                content = ours if path == self.path else path.read_bytes()
            except FileNotFoundError:
                continue  # systemd has not noticed yet that it is gone
            except OSError as error:
                raise MisuseError(
                    f"{path}: cannot be read: {error.strerror}", remedy="check its permissions"
                ) from error
            texts.append(UnitText(path, (content or b"").decode(errors="replace")))
        return texts


def _folder_for(fragment: Path | None, *, user: bool) -> Path:
    """Where drop-ins of a unit belong: beside it, unless it stands where packages and generators write (systemd.unit(5))."""
    if (
        fragment is not None
        and not fragment.is_relative_to("/usr")
        and not fragment.is_relative_to("/lib")
        and not fragment.is_relative_to("/run")
    ):
        return fragment.parent
    if not user:
        return Path("/etc/systemd/system")
    import os

    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "systemd" / "user"
