"""Words that stand in a row in a script (a command's, an array's) → the script with some put in or taken out, in the file's style."""

import re
from collections.abc import Sequence
from itertools import pairwise

from vindicate.operate.shell_args import Word
from vindicate.operate.shell_run import line_stop

__all__ = ["indent_of", "with_words", "without_words"]


def indent_of(source: bytes, row: Sequence[tuple[int, int]]) -> bytes | None:
    """What stands before the last word that begins a line of its own; ``None`` when all stand on one line."""
    for (_, stop), (start, _) in reversed(list(pairwise(row))):
        if b"\n" in source[stop:start]:
            return source[source.rfind(b"\n", 0, start) + 1 : start]
    return None


def with_words(source: bytes, at: int, indent: bytes | None, text: bytes) -> bytes:
    """Put *text* behind the word of a command that ends at byte *at*: on the same line, or on a continued one."""
    return source[:at] + (b" " if indent is None else b" \\\n" + indent) + text + source[at:]


def without_words(source: bytes, row: Sequence[tuple[int, int]], first: Word, last: Word) -> bytes:
    """Take out the words from *first* to *last*, and their line when they are alone on it; comments stay."""
    at, to = row.index((first.start, first.stop)), row.index((last.start, last.stop))
    before = row[at - 1][1] if at else None
    after = row[to + 1][0] if to + 1 < len(row) else None
    line_start, line_end = source.rfind(b"\n", 0, first.start) + 1, line_stop(source, last.stop)
    behind = source[last.stop : line_end]
    if not source[line_start : first.start].strip():
        if re.fullmatch(rb"[ \t]*\\\n" if first.array is None else rb"[ \t]*\\?\n", behind):
            return source[:line_start] + source[line_end:]
        if after is not None and after < line_end:
            return source[: first.start] + source[after:]
    commented = behind.lstrip().startswith(b"#") and first.array is not None
    if before is not None and not source[before : first.start].strip(b" \t\n\\") and not commented:
        return source[:before] + source[last.stop :]
    if after is not None and not source[last.stop : after].strip(b" \t\n\\"):
        return source[: first.start] + source[after:]
    return source[: first.start] + source[last.stop :].lstrip(b" \t")
