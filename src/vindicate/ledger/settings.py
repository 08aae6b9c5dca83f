"""The text of a script, unit, compose file or values file → the value and line of each variable and option that it sets; pure."""

import re
from collections.abc import Iterator

from vindicate.redact import is_secret_name

__all__ = ["Settings", "assignments", "differences", "every_assignment"]

Settings = dict[str, tuple[str, int]]
"""Name → value and line."""

_NAME = r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+"
_VALUE = r"(?:\"([^\"\n]*)\"|'([^'\n]*)'|([^\s;#\"'`\\]*))"
_ASSIGN = re.compile(rf"^\s*(?:export\s+|declare\s+-x\s+|ENV\s+|env\s+|-\s*)?({_NAME})\s*[=:]\s*{_VALUE}")
_QUOTED = re.compile(rf"^\s*-\s*([\"'])({_NAME})=(.*)\1\s*$")  # a quoted item of a compose file's list
_UNIT = re.compile(r"^\s*Environment\s*=\s*(.*)")
_UNIT_PAIR = re.compile(rf"\"({_NAME})=([^\"]*)\"|'({_NAME})=([^']*)'|(?<!\S)({_NAME})=(\S*)")
_NAMED = re.compile(rf"^\s*(?:-\s*)?name:\s*[\"']?({_NAME})[\"']?\s*$")
_ITS_VALUE = re.compile(rf"^\s*value:\s*{_VALUE}")
_IN_BRACES = re.compile(rf"\{{\s*name:\s*[\"']?({_NAME})[\"']?\s*,\s*value:\s*[\"']?([^\"'\s,}}]*)")
_UNSET = re.compile(rf"^\s*unset\s+({_NAME})\s*$")
_FALLBACK = re.compile(rf"\$\{{({_NAME}):?[-=]([^}}]*)\}}")  # the value when nobody else gives one
_OPTION = re.compile(
    r"(?<![\w-])(--[a-z][a-z0-9]*(?:-[a-z0-9]+)+)(?:=|\s+)([\"']?)(\d[\w.]*|on|off|true|false|auto)\2(?=[\s\\\"',\])]|$)"
)


def assignments(text: str) -> Settings:
    """What *text* plainly sets, whoever wrote it; the last one counts, names of secrets are left out."""
    found: Settings = {}
    for name, value, line in every_assignment(text):
        if value is None:
            found.pop(name, None)
        else:
            found[name] = (value, line)
    return found


def every_assignment(text: str) -> Iterator[tuple[str, str | None, int]]:
    """Name, value and line of each one in turn, for a file may set one name for several services; ``None`` is an ``unset``."""
    name: str | None = None
    for number, line in enumerate(text.splitlines(), start=1):
        if line.lstrip().startswith(("#", ";", "//")):
            continue
        gone = _UNSET.match(line)
        if gone:
            yield gone[1], None, number
        its_value = _ITS_VALUE.match(line) if name else None
        here = [(name, _first(its_value.groups()))] if name and its_value else []
        named = _NAMED.match(line)
        name = named[1] if named else name if name and line.strip() and not its_value else None
        yield from ((key, value, number) for key, value in (*here, *_set_in(line)) if not is_secret_name(key))


def _set_in(line: str) -> Iterator[tuple[str, str]]:
    unit, quoted, plain = _UNIT.match(line), _QUOTED.match(line), _ASSIGN.match(line)
    if unit:
        for pair in _UNIT_PAIR.finditer(unit[1]):
            key, value = (group for group in pair.groups() if group is not None)
            yield key, value
    elif quoted:
        yield quoted[2], quoted[3]
    elif plain:
        value = _first(plain.groups()[1:])
        fallback = _FALLBACK.fullmatch(value)
        yield plain[1], fallback[2] if fallback else value
    else:
        yield from ((match[1], match[2]) for match in _FALLBACK.finditer(line))
    yield from ((match[1], match[2]) for match in _IN_BRACES.finditer(line))
    yield from ((match[1], match[3]) for match in _OPTION.finditer(line))


def _first(groups: tuple[str | None, ...]) -> str:
    return next((group for group in groups if group is not None), "")


def differences(old: Settings, new: Settings) -> Iterator[tuple[str, str | None, str | None, int]]:
    """Name, old value, new value and line of what the two set differently; ``None`` is not set."""
    for name in dict.fromkeys([*old, *new]):
        was, now = old.get(name), new.get(name)
        if (was and was[0]) != (now and now[0]):
            yield name, was[0] if was else None, now[0] if now else None, (now or was or ("", 1))[1]
