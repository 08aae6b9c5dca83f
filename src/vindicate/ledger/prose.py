"""Markdown text → its sentences, each with its line and place, the headings above it, and the knobs in sight; pure."""

import re
from bisect import bisect_right
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import pairwise

__all__ = ["KNOB_NAME", "Sentence", "knob_near", "sentences", "without_marked"]

KNOB_NAME = re.compile(
    r"(?<![A-Za-z0-9_])[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+(?![A-Za-z0-9_])|(?<![\w-])--[a-z][a-z0-9]*(?:-[a-z0-9]+)+"
)
_MARKED = re.compile(r"<!--\s*vindicate:begin\b.*?<!--\s*vindicate:end\s*-->", re.DOTALL)
_FENCE = re.compile(r"\s{0,3}(```+|~~~+)")
_BREAK = re.compile(r"(?<=[.!?])[\"')*_`~]*\s+(?=[\"'(*_`~]*[A-Z0-9])|\n(?=\s*(?:[-*+]|\d+[.)])\s)")
_ITEM = re.compile(r"\s*(?:>\s?)*(?:[-*+]|\d+[.)])\s+(?:\[[ xX]\]\s+)?|\s*(?:>\s?)+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentence:
    """One sentence of a document: *start* and *stop* are offsets into its text; *above* are headings and earlier prose, nearest first."""

    text: str
    line: int
    start: int
    stop: int
    above: tuple[str, ...] = ()


def without_marked(text: str) -> str:
    """The text with our own marked sections blanked out, every other character where it was."""
    return _MARKED.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


def sentences(text: str) -> Iterator[Sentence]:
    """The sentences of running text and lists; code, tables, HTML comments and what is struck through are passed over."""
    headings: list[tuple[int, str]] = []
    earlier: list[str] = []
    ends = [match.end() for match in re.finditer("\n", text)]
    for start, block in _blocks(without_marked(text)):
        heading = re.match(r"\s{0,3}(#{1,6})\s+(.*)", block)
        if heading:
            level = len(heading[1])
            headings = [entry for entry in headings if entry[0] < level] + [(level, heading[2])]
            earlier = []
            continue
        for offset, sentence in _split(block):
            if sentence.strip("*_ ").startswith("~~"):
                continue
            yield Sentence(
                text=" ".join(re.sub(r"\n\s*>", "\n", sentence).split()),
                line=bisect_right(ends, start + offset) + 1,
                start=start + offset,
                stop=start + offset + len(sentence),
                above=(*reversed(earlier), *(name for _, name in reversed(headings))),
            )
            earlier = [*earlier[-7:], sentence]


def _blocks(text: str) -> Iterator[tuple[int, str]]:
    """Paragraphs, list runs and headings with their offsets."""
    position, start, lines = 0, 0, list[str]()
    fence: str | None = None
    for line in [*text.splitlines(keepends=True), "\n"]:
        bare, mark = line.strip(), _FENCE.match(line)
        in_code = fence is not None or mark is not None
        if fence is None:
            fence = mark[1] if mark else None
        elif bare.startswith(fence) and set(bare) == {fence[0]}:
            fence = None
        is_heading = not in_code and bare.startswith("#")
        ends = in_code or is_heading or not bare or bare.startswith(("|", "<!--"))
        if ends and lines:
            yield start, "".join(lines)
            lines = []
        if is_heading:
            yield position, line.rstrip("\n")
        elif not ends:
            start = start if lines else position
            lines.append(line)
        position += len(line)


def _split(block: str) -> Iterator[tuple[int, str]]:
    cuts = [0, *(match.end() for match in _BREAK.finditer(block)), len(block)]
    for start, stop in pairwise(cuts):
        item = _ITEM.match(block, start, stop)
        first = item.end() if item else start
        piece = block[first:stop]
        lead = len(piece) - len(piece.lstrip())
        if piece.strip():
            yield first + lead, piece.strip()


def knob_near(sentence: Sentence, known: Collection[str] = ()) -> str | None:
    """The one knob that the sentence names, or else the nearest text above it; ``None`` when it names none, or several.

    Args:
        known: Names that are knobs for certain; where one is in sight, others do not count.
    """
    for text in (sentence.text, *sentence.above):
        named = knobs_in(text, known)
        if named:
            return named[0] if len(named) == 1 else None
    return None


def knobs_in(text: str, known: Collection[str] = ()) -> list[str]:
    """The knobs that *text* names, each once: the known ones, or else what looks like one."""
    certain = [name for name in known if re.search(rf"(?<![\w-]){re.escape(name)}(?![\w])", text)]
    return certain or list(dict.fromkeys(KNOB_NAME.findall(text)))
