"""A shell word as it stands in a script ↔ the value that bash makes of it; anything that bash would expand is no value."""

import re
import shlex

from vindicate.errors import MisuseError

__all__ = ["literal", "quoted", "quoting", "with_tail"]

_BARE = re.compile(r"[A-Za-z0-9_./:,@%+=-]*", re.ASCII)
_EXPANDS = re.compile(rb"\$[A-Za-z_0-9{(*@#?!$'\"-]|`")


def literal(word: bytes) -> str | None:
    r"""The value of an assignment's right-hand side, or ``None`` when bash would expand something in it.

    Knows bare text, backslashes, single and double quotes, and their concatenation (bash manual, 3.1.2 Quoting).

    Example:
        >>> literal(b"'a b'c"), literal(b'"$HOME/x"')
        ('a bc', None)
    """
    out = bytearray()
    rest = word
    if rest.startswith(b"~"):
        return None
    while rest:
        if rest.startswith(b"'"):
            inner, closed, rest = rest[1:].partition(b"'")
            if not closed:
                return None
            out += inner
        elif rest.startswith(b'"'):
            match = re.match(rb'"((?:[^"\\]|\\.)*)"', rest, re.DOTALL)
            if match is None or _EXPANDS.search(re.sub(rb"\\.", b"", match[1], flags=re.DOTALL)):
                return None
            # Inside double quotes a backslash escapes only these; before anything else it stays.
            out += re.sub(rb'\\([$`"\\])|\\\n', lambda found: found[1] or b"", match[1])
            rest = rest[match.end() :]
        else:
            match = re.match(rb"(?:[^'\"\\]|\\.)+", rest, re.DOTALL)
            if match is None or _EXPANDS.search(re.sub(rb"\\.", b"", match[0], flags=re.DOTALL)):
                return None
            if re.search(rb"(?<!\\)(?:[:=]~|[*?[{<>()])", match[0]) or (
                match[0].endswith(b"$") and len(match[0]) < len(rest)
            ):
                return None
            out += re.sub(rb"\\(.)", lambda found: b"" if found[1] == b"\n" else found[1], match[0], flags=re.DOTALL)
            rest = rest[match.end() :]
    return out.decode(errors="surrogateescape")


def quoting(word: bytes) -> str:
    """How *word* is quoted: ``"``, ``'``, or nothing."""
    for mark in ('"', "'"):
        if len(word) >= 2 and word[:1] == word[-1:] == mark.encode() and mark.encode() not in word[1:-1]:
            return mark
    return ""


def quoted(value: str, style: str = "") -> bytes:
    """Write *value* as one shell word in the given quoting, or in a stronger one where it needs it.

    Whatever the value is, bash reads back exactly that value and runs nothing.

    Raises:
        MisuseError: It holds a NUL, or text that UTF-8 cannot hold; no environment variable can.
    """
    if "\0" in value:
        raise MisuseError(f"the value {value!r} holds a NUL", remedy="an environment variable cannot hold one")
    bare = _BARE.fullmatch(value) is not None
    if bare:
        text = f"{style}{value}{style}"
    elif style == '"' and re.fullmatch(r"[^\"\\$`!\r\n]*", value):
        text = f'"{value}"'
    else:
        text = shlex.quote(value)
    try:
        return text.encode(errors="surrogateescape")
    except UnicodeEncodeError as error:
        raise MisuseError(
            f"the value {value!r} is no text that UTF-8 can hold", remedy="give it as plain text"
        ) from error


def with_tail(raw: bytes, head: str, value: str) -> bytes | None:
    """The word *raw*, whose text begins with *head*, with *value* behind that, in the quotes that it had; ``None`` when it is quoted otherwise.

    Example:
        >>> with_tail(b'--a="1"', "--a=", "2"), with_tail(b"'K=1'", "K=", "2 3")
        (b'--a="2"', b"'K=2 3'")
    """
    start = head.encode(errors="surrogateescape")
    if raw.startswith(start):
        return start + quoted(value, quoting(raw[len(start) :]))
    style = quoting(raw)
    text = quoted(head + value, style) if style else b""
    return text if style and text.startswith(style.encode() + start) else None
