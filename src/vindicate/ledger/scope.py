"""The scope of a claim, such as ``nccl < 2.22.3``, and what is so now → whether the claim still speaks of this system; pure."""

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from vindicate.errors import MisuseError

__all__ = ["EXAMPLE", "Condition", "Known", "Scoped", "parse_scope", "same", "scoped"]

EXAMPLE = '"nccl < 2.22.3", or several: "nccl >= 2.19, nccl < 2.22.3"'
_CONDITION = re.compile(r"(?P<field>[A-Za-z][\w.-]*)\s*(?P<op><=|>=|==|!=|<|>)\s*(?P<value>[^\s<>=!].*)")
_JOINT = re.compile(r"\s*[,;]\s*|\s+and\s+", re.IGNORECASE)
_VERSION = re.compile(
    r"v?(?P<release>\d{1,18}(?:\.\d{1,18})*)(?:[._-]?(?P<stage>dev|alpha|a|beta|b|preview|pre|rc|c|post)[._-]?(?P<number>\d{0,18}))?(?:\+(?P<local>[\w.-]+))?",
    re.IGNORECASE,
)
_STAGES = {
    "dev": -4,
    "alpha": -3,
    "a": -3,
    "beta": -2,
    "b": -2,
    "": 0,
    "post": 1,
}  # any other is before the release: -1
_Version = tuple[tuple[int, ...], int, int]
_COMPARE: dict[str, Callable[[_Version, _Version], bool]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """*field* is a name such as ``nccl``, in lower case."""

    field: str
    op: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What a field of the system's identity is now, and how that is known; *value* is ``None`` where what was seen contradicts itself."""

    value: str | None
    how: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Scoped:
    """Where a claim with a scope stands: *outside* holds why it is out of scope, *unknown* what could not be told.

    A claim is out of scope by a condition that is known not to hold, never by one that nobody can tell.
    """

    outside: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


def parse_scope(text: str) -> tuple[Condition, ...]:
    """The conditions of a scope, all of which must hold: ``FIELD OP VALUE``, joined by a comma or ``and``.

    Versions are compared as versions (see `_version`); a value that is none can only be ``==`` or ``!=``.

    Raises:
        MisuseError: It cannot be read so.
    """
    found = []
    for part in _JOINT.split(text.strip()):
        match = _CONDITION.fullmatch(part.strip())
        if match is None:
            raise MisuseError(
                f"the scope {text!r} cannot be read at {part!r}", remedy=f"write FIELD OP VALUE, such as {EXAMPLE}"
            )
        condition = Condition(field=match["field"].lower(), op=match["op"], value=match["value"].strip("\"' "))
        if condition.op not in ("==", "!=") and _version(condition.value) is None:
            raise MisuseError(
                f"{condition.value!r} is no version, and {condition.op} compares versions",
                remedy=f"write a version, or == or !=; for example {EXAMPLE}",
            )
        found.append(condition)
    return tuple(found)


def scoped(text: str, present: Mapping[str, Known]) -> Scoped:
    """Whether what is *present* is in the scope *text*; one that cannot be read (an older ledger took any words) limits nothing."""
    try:
        conditions = _parsed(text)
    except MisuseError as error:
        return Scoped(unknown=(f"{error.problem}, so it limits nothing",))
    outside, unknown = [], []
    for item in conditions:
        known = present.get(item.field)
        if known is None:
            unknown.append(f"{item.field} is not known here")
        elif known.value is None:
            unknown.append(f"{item.field} is not known here: {known.how}")
        elif (holds := _holds(item, known.value)) is None:
            unknown.append(f"{item.field} is {known.value!r} ({known.how}), which is no version to compare")
        elif not holds:
            outside.append(f"{item.field} {known.value} is not {item.op} {item.value} ({known.how})")
    return Scoped(outside=tuple(outside), unknown=tuple(unknown))


def same(one: str, other: str) -> bool:
    """Whether two values are one: as versions where both are, else as words, whatever their case. A build (``+cu128``) does not count."""
    mine, theirs = _version(one), _version(other)
    return mine == theirs if mine and theirs else one.strip().casefold() == other.strip().casefold()


_parsed = lru_cache(maxsize=4096)(parse_scope)


def _holds(item: Condition, value: str) -> bool | None:
    if item.op in ("==", "!="):
        return same(value, item.value) == (item.op == "==")
    mine, theirs = _version(value), _version(item.value)
    return _COMPARE[item.op](mine, theirs) if mine and theirs else None


def _version(text: str) -> _Version | None:
    """A version in an order: its numbers without zeros at the end, then ``dev`` < ``a`` < ``b`` < ``rc`` < none < ``post``.

    A leading ``v`` and a build after ``+`` do not count; epochs, and several stages at once (``1.0rc1.post2``), are not read.
    """
    match = _VERSION.fullmatch(text.strip())
    if match is None:
        return None
    numbers = [int(part) for part in match["release"].split(".")]
    while len(numbers) > 1 and not numbers[-1]:
        numbers.pop()
    return tuple(numbers), _STAGES.get((match["stage"] or "").lower(), -1), int(match["number"] or 0)
