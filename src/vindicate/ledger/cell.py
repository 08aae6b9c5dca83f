"""One table cell or a few words → a number, a concurrency level, a gain in per cent, or two values compared; pure."""

import re

__all__ = ["arms_in", "gain_in", "is_explicit_level", "level_in", "number_in"]

_UNIT = r"(?:concurrent|concurrency|conc|streams?|users?|clients?|requests?|reqs?|sessions?|parallel|way)"
_LEVEL_BEFORE = re.compile(
    rf"(?:c|n|bs|batch(?:[ _-]?size)?|level|@|{_UNIT}|max[_ -]?concurrency)\s*[=:@_-]?\s*(\d{{1,5}})(?:\s*{_UNIT})?",
    re.IGNORECASE,
)
_LEVEL_AFTER = re.compile(rf"[x@]?\s*(\d{{1,5}})\s*[- ]?\s*(?:c|{_UNIT})(?:\s+{_UNIT})?", re.IGNORECASE)
_LEVEL_BARE = re.compile(r"\d{1,5}")
_NUMBER = re.compile(
    r"[~≈]?\s*([+-]?\d[\d,.\s]*?)\s*(k)?\s*(?:tok(?:ens?)?\s*/\s*s(?:ec)?|t/s|tps|ms|s)?(?:\s*(?:±|\+/-|\().*)?",
    re.IGNORECASE,
)
_PERCENT = re.compile(
    r"[~≈]?\s*([+-]?\s*\d+(?:[.,]\d+)?)\s*(?P<spread>(?:±|\+/-)\s*\d+(?:[.,]\d+)?)?\s*(?:%|pct|percent|per cent)(?P<rest>.*)",
    re.IGNORECASE,
)
_RATIO = re.compile(
    r"[~≈]?\s*(?:[x\u00d7]\s*(\d+(?:[.,]\d+)?)|(\d+(?:[.,]\d+)?)\s*[x\u00d7])(?P<rest>.*)", re.IGNORECASE
)
_VALUE = r"(?:\d+(?:\.\d+)?|on|off|true|false|auto|none|unset)"
_ARMS = re.compile(
    rf"(?<![\w.])({_VALUE})`?\s*(?:\([^)]*\)\s*)?(→|->|=>|⇒|⟶|—>|\bto\b|\bvs\.?|\bversus\b|\bagainst\b|\bover\b)\s*`?(?:[A-Z_]+\s*=\s*)?({_VALUE})(?![\w.]*\w)",
    re.IGNORECASE,
)


def _plain(cell: str) -> str:
    """A cell without marks, with plain minus signs and spaces."""
    return (
        cell.replace("\u2212", "-").replace("\u2013", "-").replace("\u00a0", " ").replace("\u202f", " ").strip("*_` ")
    )


def _short(cell: str) -> str:
    """A cell that may be a figure; one that goes on and on is none."""
    return _plain(cell) if len(cell) <= 80 else ""


def is_explicit_level(cell: str) -> bool:
    """Whether *cell* says by itself that it is a level: ``C48``, ``c=64``, ``64 concurrent``; a bare number does not."""
    return any(pattern.fullmatch(_short(cell)) for pattern in (_LEVEL_BEFORE, _LEVEL_AFTER))


def level_in(cell: str) -> int | None:
    """The concurrency level that *cell* names, bare numbers included; ``None`` when it names none."""
    plain = _short(cell)
    match = _LEVEL_BEFORE.fullmatch(plain) or _LEVEL_AFTER.fullmatch(plain)
    if match:
        return int(match[1])
    return int(plain) if _LEVEL_BARE.fullmatch(plain) else None


def number_in(cell: str) -> float | None:
    """The number of a cell: ``1,234.5``, ``1 234``, ``12,8``, ``1.2k tok/s``; a spread after it is not read. ``None`` without one.

    A comma before three digits separates thousands, before one or two it is a decimal comma.
    """
    match = _NUMBER.fullmatch(_short(cell))
    if match is None:
        return None
    digits = re.sub(r"\s", "", match[1])
    if re.fullmatch(r"[+-]?\d{1,3}(,\d{3})+(\.\d+)?", digits):
        digits = digits.replace(",", "")
    elif re.fullmatch(r"[+-]?\d+,\d{1,2}", digits):
        digits = digits.replace(",", ".")
    try:
        return float(digits) * (1000 if match[2] else 1)
    except ValueError:
        return None


def gain_in(cell: str) -> tuple[float, str] | None:
    """A gain in per cent and what followed it: ``+12.8 %``, ``1.128x``; ``None`` for anything else, a bare number too."""
    plain = _short(cell)
    percent = _PERCENT.fullmatch(plain)
    if percent:
        return float(
            percent[1].replace(" ", "").replace(",", ".")
        ), f"{percent['spread'] or ''} {percent['rest']}".strip()
    ratio = _RATIO.fullmatch(plain)
    if ratio:
        return (float((ratio[1] or ratio[2]).replace(",", ".")) - 1) * 100, ratio["rest"].strip()
    return None


def arms_in(text: str) -> tuple[str, str, bool] | None:
    """The two values that *text* compares, old one first, and whether the order is said: ``256 → 512``, ``from 256 to 512``.

    ``512 vs 256`` reads as 512 over 256, but people write it either way round: its order is not said.
    """
    match = _ARMS.search(_plain(text).replace("`", ""))
    if match is None or match[1] == match[3]:
        return None
    word = match[2].lower().rstrip(".")
    said = word not in ("vs", "versus", "against")
    return (match[1], match[3], said) if said and word != "over" else (match[3], match[1], said)
