"""The files of a systemd unit and a variable's name → what the unit sets it to, and where; and a drop-in that sets it.

Follows systemd.syntax(7), systemd.unit(5) and systemd.exec(5) of systemd 252. What is not understood is refused with file and line.
"""

import glob
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from vindicate.errors import MisuseError

__all__ = ["Setting", "UnitText", "drop_in", "is_drop_in", "unit_setting"]

_KEYS = ("Environment", "UnsetEnvironment", "EnvironmentFile", "PassEnvironment")
_WORD = re.compile(r'"(?P<double>(?:[^"\\]|\\.)*)"(?=\s|$)|\'(?P<single>(?:[^\'\\]|\\.)*)\'(?=\s|$)|(?P<bare>\S+)')
_ESCAPES = {"\\": "\\", '"': '"', "'": "'", "s": " ", "t": "\t", "n": "\n"}


@dataclass(frozen=True, slots=True)
class UnitText:
    """One file of a unit, in the order in which systemd reads them."""

    path: Path
    text: str


@dataclass(frozen=True, slots=True)
class Setting:
    """What a unit sets a variable to, ``None`` for not at all, and the file and line that have the last word on it."""

    value: str | None
    path: Path | None = None
    line: int = 0


@dataclass(frozen=True, slots=True)
class _Line:
    path: Path
    number: int
    key: str
    value: str

    def refusal(self, problem: str) -> MisuseError:
        return MisuseError(
            f"{self.path}:{self.number}: {problem}", remedy="set that variable by hand; nothing was written"
        )


def unit_setting(files: Sequence[UnitText], name: str) -> Setting:
    """What the unit made of *files* sets *name* to.

    Raises:
        MisuseError: It sets it in a way that is not understood, or in an environment file, over which no drop-in has a say.
    """
    setting, unset, passed = Setting(None), dict[str, _Line](), list[_Line]()
    sources: list[_Line] = []
    for line in (line for file in files for line in _lines(file)):
        if not line.value:  # an empty assignment forgets all before it
            setting = Setting(None) if line.key == "Environment" else setting
            unset = {} if line.key == "UnsetEnvironment" else unset
            sources = [] if line.key == "EnvironmentFile" else sources
            passed = [] if line.key == "PassEnvironment" else passed
        elif line.key == "Environment":
            for word in _words(line, name):
                if word.startswith(f"{name}="):
                    setting = Setting(word.partition("=")[2], line.path, line.number)
        elif line.key == "UnsetEnvironment":
            unset |= dict.fromkeys(_words(line, name), line)
        elif line.key == "PassEnvironment":
            passed += [line for word in _words(line, name) if word == name]
        else:
            sources.append(line)
    for source in sources:
        _require_silent(source, name)
    for word, line in unset.items():
        if word == name or (setting.value is not None and word == f"{name}={setting.value}"):
            return Setting(None, line.path, line.number)
    if passed and setting.value is None:
        raise passed[-1].refusal(f"passes {name} on from systemd's own environment, and its value there is not known")
    return setting


def drop_in(name: str, value: str | None) -> bytes:
    """A drop-in that sets *name* to *value*, or takes it away for ``None``.

    Raises:
        MisuseError: *value* cannot be written in a unit.
    """
    if value is not None and not value.isprintable():
        raise MisuseError(
            f"{name}: {value!r} cannot be written in a systemd unit", remedy="take a value without control characters"
        )
    escaped = (value or "").replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    line = f"UnsetEnvironment={name}" if value is None else f'Environment="{name}={escaped}"'
    return f"# Made by vindicate for this one variable; `vindicate knob show {name}` says why.\n[Service]\n{line}\n".encode()


def is_drop_in(content: bytes, name: str) -> bool:
    """Whether *content* is what `drop_in` makes for *name*, with any value."""
    lines = content.decode(errors="replace").split("\n")
    if lines[:2] != drop_in(name, None).decode().split("\n")[:2] or len(lines) != 4 or lines[3]:
        return False
    found = unit_setting([UnitText(Path("-"), content.decode(errors="replace"))], name)
    return content == drop_in(name, found.value)


def _lines(file: UnitText) -> Iterator[_Line]:
    """Its lines of section Service that touch the environment; continued ones joined, at the number of their first."""
    section, pending, began = "", "", 0
    for number, raw in enumerate(file.text.splitlines(), 1):
        stripped = raw.strip()
        if stripped.startswith(("#", ";")) or (not stripped and not pending):
            continue
        began = began if pending else number
        if raw.endswith("\\"):
            pending += raw[:-1] + " "
            continue
        whole, pending = (pending + raw).strip(), ""
        if whole.startswith("["):
            section = whole
            continue
        key, equals, value = whole.partition("=")
        if section == "[Service]" and equals and key.strip() in _KEYS:
            yield _Line(file.path, began, key.strip(), value.strip())


def _words(line: _Line, name: str) -> Iterator[str]:
    """The words of a line, unquoted; only those that name *name* must be understood."""
    for match in _WORD.finditer(line.value):
        quoted = match["double"] if match["double"] is not None else match["single"]
        text = match["bare"] if quoted is None else quoted
        if name not in text:
            continue
        if quoted is None and re.search(r"[\"']", text):
            raise line.refusal(f"quotes a part of {text[:60]!r}, which is not understood")
        yield _specified(line, _unescaped(line, text))


def _unescaped(line: _Line, text: str) -> str:
    def plain(match: re.Match[str]) -> str:
        if match[1] not in _ESCAPES:
            raise line.refusal(f"holds the escape {match[0]!r}, which is not understood")
        return _ESCAPES[match[1]]

    return re.sub(r"\\(.?)", plain, text)


def _specified(line: _Line, text: str) -> str:
    if re.search(r"%(?!%)", text.replace("%%", "")):
        raise line.refusal(f"holds a specifier of systemd in {text[:60]!r}, whose value is not known")
    return text.replace("%%", "%")


def _require_silent(line: _Line, name: str) -> None:
    """Insist that no environment file sets *name*: it would win over every Environment= line.

    Raises:
        MisuseError: One does, or it cannot be told.
    """
    optional, pattern = line.value.startswith("-"), line.value.removeprefix("-")
    if "%" in pattern:
        raise line.refusal(f"names the environment file {pattern!r} by a specifier, and it may set {name}")
    for found in sorted(glob.glob(pattern)):  # noqa: PTH207 the pattern is absolute
        try:
            text = Path(found).read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            if optional and isinstance(error, FileNotFoundError):
                continue
            raise line.refusal(
                f"names the environment file {found}, which cannot be read ({error.strerror}) and may set {name}"
            ) from error
        for number, content in enumerate(text.splitlines(), 1):
            if re.match(rf"\s*(?:export\s+)?{re.escape(name)}\s*=", content):
                raise MisuseError(
                    f"{found}:{number}: sets {name}, and an environment file wins over what a drop-in sets",
                    remedy="take the line out of that file, or change the value there by hand and restart the unit",
                )
