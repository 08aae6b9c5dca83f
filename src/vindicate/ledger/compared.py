"""A table and the words around it → which knob it is about and which two of its values it compares; pure."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from vindicate.ledger.cell import arms_in
from vindicate.ledger.column import Column
from vindicate.ledger.markdown import Grid
from vindicate.ledger.prose import knobs_in

__all__ = ["NEW", "OLD", "Arms", "arms_of", "knob_of", "value_in"]

OLD = re.compile(r"\b(?:baseline|base|before|old|default|control|off|orig(?:inal)?|stock|was|(?-i:A))\b", re.IGNORECASE)
NEW = re.compile(r"\b(?:after|new|tuned|candidate|treatment|test|patched|on|now|(?-i:B))\b", re.IGNORECASE)
_DEFAULT = re.compile(
    r"default\D{0,16}?(\d\w*(?:\.\w+)*)|(?<![\w.])(\d\w*(?:\.\w+)*)`?\s+(?:is|was)\s+(?:the\s+)?default", re.IGNORECASE
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arms:
    """The old and the new value of the knob; *guess* says what of it was not said, and is empty where all was."""

    a: str
    b: str
    guess: str = ""


def knob_of(grid: Grid, known: Collection[str]) -> str | None:
    """The one knob that the table, or else the nearest words around it, name; ``None`` for none or several."""
    for text in (" ".join(grid.header), *grid.near, grid.below, grid.section):
        named = knobs_in(text, known)
        if named:
            return named[0] if len(named) == 1 else None
    return None


def arms_of(grid: Grid, columns: Sequence[Column], knob: str, levels: set[str]) -> Arms | None:
    """The two values that the table compares; ``None`` where nothing tells them, or more than two could be meant."""
    texts = (*grid.header, *grid.near, grid.below, grid.section)
    told, where = next(
        ((arms, text) for text in texts if (arms := arms_in(text)) and not {*arms[:2]} <= levels), (None, "")
    )
    heads = [value for column in columns if not column.is_gain for value in [value_in(column.head, knob)] if value]
    distinct = tuple(dict.fromkeys(heads))
    if told and told[2]:
        a, b, _ = told
        sure = knob in where or where in grid.header or {a, b} <= {*distinct} or _first_heading(grid) == where
        return Arms(a=a, b=b, guess="" if sure else f"{a} and {b} are values of {knob}, from the words {where[:80]!r}")
    if len(distinct) > 2:
        return None
    default = next((match[1] or match[2] for text in texts if (match := _DEFAULT.search(text))), None)
    marked = next(
        (value for column in columns if (value := value_in(column.head, knob)) and OLD.search(column.head)), None
    )
    if len(distinct) == 2:
        return _ordered(distinct, marked or default)
    if told:
        return _ordered((told[0], told[1]), default)
    stated = next((found for text in texts if (found := _stated(text, knob))), [])
    values = tuple(dict.fromkeys(value for value, _ in stated))
    if len(values) == 2:
        return _ordered(values, next((value for value, is_old in stated if is_old), default))
    if len(values) == 1 and default and values[0] != default:
        return Arms(a=default, b=values[0])
    return None


def _first_heading(grid: Grid) -> str:
    """What stands right above the table: a caption belongs to it."""
    return grid.near[0] if grid.near else ""


def _ordered(values: Sequence[str], old: str | None) -> Arms:
    a, b = values if old != values[1] else (values[1], values[0])
    return Arms(a=a, b=b, guess="" if old == a else f"{b} over {a}, since the text does not say which came first")


def _stated(text: str, knob: str) -> list[tuple[str, bool]]:
    """Each ``KNOB=value`` in *text*, and whether the words beside it call it the old one: ``(baseline)``, ``A is …``."""
    found = []
    for match in re.finditer(rf"{re.escape(knob)}`?\s*=\s*`?(\w+(?:\.\w+)*)`?", text):
        before, after = (
            re.split(r"[.,;]", text[: match.start()])[-1][-16:],
            re.match(r"\s*\(([^)]{1,20})\)", text[match.end() :]),
        )
        found.append((match[1], bool(OLD.search(before) or (after and OLD.search(after[1])))))
    return found


def value_in(head: str, knob: str) -> str | None:
    """The value of the knob that a column's head names: ``512``, ``CTAS=512``, ``tok/s (512)``."""
    plain = head.replace("`", "").replace("\\_", "_")
    match = (
        re.search(rf"{re.escape(knob)}\s*=\s*([\w.]+)", plain)
        or re.search(r"=\s*(\d[\w.]*|on|off|true|false)\b", plain, re.IGNORECASE)
        or re.search(r"(?<![\w.])(\d+(?:\.\d+)?|on|off|true|false)(?![\w%]|\.\d)", plain, re.IGNORECASE)
    )
    return match[1] if match else None
