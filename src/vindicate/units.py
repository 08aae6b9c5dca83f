"""Text ↔ seconds and bytes; inside the program there are only seconds and bytes."""

import re
from typing import NewType

from vindicate.errors import MisuseError

__all__ = ["Bytes", "Seconds", "format_bytes", "format_duration", "parse_duration", "shown"]

Seconds = NewType("Seconds", float)
Bytes = NewType("Bytes", int)

_SECONDS_PER = {"ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|min|m|h|d)?\s*", re.ASCII)


def parse_duration(text: str) -> Seconds:
    """Read a duration such as ``10s``, ``250ms``, ``5m``, ``12h`` or ``2d``; a bare number is seconds.

    Raises:
        MisuseError: *text* is not a number with one of these units.

    Example:
        >>> parse_duration("1.5m")
        90.0
    """
    match = _DURATION.fullmatch(text)
    if match is None:
        raise MisuseError(f"{text!r} is no duration", remedy="try: a number with ms, s, m, h or d, for example 10s")
    return Seconds(float(match[1]) * _SECONDS_PER[match[2] or "s"])


def format_duration(seconds: float) -> str:
    """Write *seconds* the way a person says it: ``340 ms``, ``8.2 s``, ``2 m 05 s``, ``3 h 10 m``.

    Example:
        >>> format_duration(125)
        '2 m 05 s'
    """
    if seconds < 0:
        return "-" + format_duration(-seconds)
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 99.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} m {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} m"


def format_bytes(n_bytes: float) -> str:
    """Write a size with a decimal unit: ``812 B``, ``48.2 kB``, ``1.3 MB``."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(n_bytes) >= size:
            return f"{n_bytes / size:.1f} {unit}"
    return f"{n_bytes:.0f} B"


def shown(value: str | None) -> str:
    """A knob's value for a person: unset, empty and a text are three things.

    Example:
        >>> shown(None), shown(""), shown("256")
        ('unset', '"" (empty)', '256')
    """
    return "unset" if value is None else value or '"" (empty)'
