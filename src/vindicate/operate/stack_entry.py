"""A knob that stands in the stack file itself (`launcher.env`, `launcher.start`) → its value there, and the file with only that changed."""

import re
import tomllib
from collections.abc import MutableMapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from vindicate.errors import MisuseError
from vindicate.stack.flag import Splice, UnclearFlagError, find_flag, spelled, splice_for

__all__ = ["edit_entry", "read_entry"]

_MARK = "here stands what is looked for"
_STRING = re.compile(r"""(?P<string>"(?:[^"\\\n]|\\.)*"|'[^'\n]*')|#[^\n]*""")
_SHELLS = frozenset("sh bash dash zsh ksh fish".split())


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a knob stands in a stack file, for messages."""

    path: Path
    service: str
    key: str

    def refusal(self, problem: str) -> MisuseError:
        return MisuseError(
            f"{self.path}: services.{self.service}.launcher.{self.key} {problem}",
            remedy="write it once, in one plain way, or change it by hand; nothing was written",
        )


def read_entry(path: Path, service: str, name: str, *, env: bool) -> str | None:
    """What the stack file gives a service, for its variable (*env*) or its flag *name*; ``None`` when that is not there.

    Raises:
        MisuseError: That cannot be told.
    """
    place = _Place(path, service, "env" if env else "start")
    try:
        launcher = tomllib.loads(path.read_text(encoding="utf-8"))["services"][service]["launcher"]
    except (OSError, ValueError, KeyError) as error:
        raise MisuseError(f"{path}: holds no launcher of services.{service}", remedy="mend the stack file") from error
    if env:
        value = launcher.get("env", {}).get(name)
        return None if value is None else str(value)
    _require_no_shell(place, launcher["start"])
    try:
        site = find_flag(launcher["start"], spelled(name), since=1)
    except UnclearFlagError as error:
        raise place.refusal(error.problem) from error
    return site.value if site else None


def edit_entry(source: bytes, path: Path, service: str, name: str, value: str | None, *, env: bool) -> bytes:
    """The stack file *source* with a service's variable (*env*) or flag at *value*, or not there for ``None``; every other byte stays.

    Raises:
        MisuseError: It is no stack file with such a service, or how the knob is set is not understood.
    """
    from tomlkit.exceptions import TOMLKitError

    place = _Place(path, service, "env" if env else "start")
    try:
        text = source.decode()
        wanted = tomllib.loads(text)
        launcher = wanted["services"][service]["launcher"]
        edited = _with_variable(text, place, name, value) if env else _with_flag(text, place, name, value)
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, TOMLKitError, KeyError) as error:
        raise MisuseError(f"{path}: holds no launcher of services.{service}", remedy="mend the stack file") from error
    if env:
        table = launcher.setdefault("env", {})
        table.pop(name, None) if value is None else table.update({name: value})
    else:
        launcher["start"] = splice_for(launcher["start"], name, value).done(launcher["start"])
    now = tomllib.loads(edited)
    now["services"][service]["launcher"].setdefault("env", {}) if env else None
    if now != wanted:
        raise place.refusal(f"would not come out as it should with {name} at {value!r}")
    return edited.encode()


def _with_variable(text: str, place: _Place, name: str, value: str | None) -> str:
    import tomlkit

    document = tomlkit.parse(text)
    launcher: Any = document["services"][place.service]["launcher"]
    held = launcher.get("env", {}).get(name)
    if held == value:
        return text
    if held is not None and value is not None:
        start, stop = _bytes_of(text, document, launcher["env"], name, place)
        return text[:start] + _string(value, text[start:stop]) + text[stop:]
    if value is None:
        del launcher["env"][name]
    else:
        if "env" not in launcher:
            launcher["env"] = tomlkit.inline_table()
        launcher["env"][name] = value
    return tomlkit.dumps(document)


def _with_flag(text: str, place: _Place, name: str, value: str | None) -> str:
    import tomlkit

    document = tomlkit.parse(text)
    launcher: Any = document["services"][place.service]["launcher"]
    words = [str(word) for word in launcher["start"]]
    _require_no_shell(place, words)
    try:
        splice = splice_for(words, name, value)
    except UnclearFlagError as error:
        raise place.refusal(error.problem) from error
    start, stop = _bytes_of(text, document, launcher, "start", place)
    spans = [
        (start + match.start(), start + match.end()) for match in _STRING.finditer(text[start:stop]) if match["string"]
    ]
    if len(spans) != len(words):
        raise place.refusal("is written in a way that is not understood")
    return _spliced(text, spans, splice)


def _bytes_of(text: str, document: Any, table: MutableMapping[str, Any], key: str, place: _Place) -> tuple[int, int]:
    """Where the value of *key* stands in *text*; the document is used up by that."""
    import tomlkit

    table[key] = _MARK
    marked, mark = tomlkit.dumps(document), f'"{_MARK}"'
    start = marked.find(mark)
    stop = len(text) - (len(marked) - start - len(mark))
    if start < 0 or marked[:start] != text[:start] or marked[start + len(mark) :] != text[stop:]:
        raise place.refusal("is written in a way that is not understood")
    return start, stop


def _string(value: str, like: str) -> str:
    """*value* as a TOML string, in the quotes of *like* where it can stand in them."""
    import tomlkit

    if like.startswith("'") and not like.startswith("'''") and value.isprintable() and "'" not in value:
        return f"'{value}'"
    return tomlkit.string(value).as_string()


def _spliced(text: str, spans: list[tuple[int, int]], splice: Splice) -> str:
    """Carry the edit out on the strings of an array, of which *spans* are the places; what stands between them stays."""
    shared = min(splice.removed, len(splice.words))
    at = splice.at
    gone, new = spans[at + shared : at + splice.removed], splice.words[shared:]
    if gone:
        text = _without(text, spans, at + shared, gone)
    elif new:
        text = _with(text, spans, at + shared, [_string(word, "") for word in new])
    for offset in reversed(range(shared)):
        start, stop = spans[at + offset]
        text = text[:start] + _string(splice.words[offset], text[start:stop]) + text[stop:]
    return text


def _without(text: str, spans: list[tuple[int, int]], at: int, gone: list[tuple[int, int]]) -> str:
    """Without the strings *gone*, of which *at* is the first, and without their line where nothing else is on it."""
    start, stop = gone[0][0], gone[-1][1]
    before = spans[at - 1][1]
    if "\n" not in text[before:start]:
        return text[:before] + text[stop:]
    comma = re.compile(r"\s*,[ \t]*").match(text, stop)
    stop = comma.end() if comma else stop
    line_start, line_stop = text.rfind("\n", 0, start) + 1, text.find("\n", stop) + 1
    if line_stop and not text[stop:line_stop].strip():
        return text[:line_start] + text[line_stop:]
    return text[:start] + text[stop:]


def _with(text: str, spans: list[tuple[int, int]], at: int, words: list[str]) -> str:
    """With *words* behind the string before *at*: on a line of their own where they come last in an array of several lines."""
    before = spans[at - 1][1]
    first = next(
        (start for (_, stop), (start, _) in reversed(list(pairwise(spans[:at]))) if "\n" in text[stop:start]), None
    )
    if at < len(spans) or first is None or "\n" not in text[before : text.find("]", before)]:
        return text[:before] + "".join(f", {word}" for word in words) + text[before:]
    indent = text[text.rfind("\n", 0, first) + 1 : first]
    comma = re.compile(r"[ \t]*,").match(text, before)
    text = text if comma else text[:before] + "," + text[before:]
    line_stop = text.find("\n", before) + 1
    return text[:line_stop] + indent + ", ".join(words) + ",\n" + text[line_stop:]


def _require_no_shell(place: _Place, start: tuple[str, ...] | list[str]) -> None:
    if start and start[0].rsplit("/", 1)[-1] in _SHELLS:
        raise place.refusal(f"runs a shell ({start[0]}), whose arguments are not the service's")
