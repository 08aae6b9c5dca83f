"""A Markdown document → its tables as text, each with the words around it; pure."""

import re
from dataclasses import dataclass, field

from markdown_it import MarkdownIt
from markdown_it.token import Token

from vindicate.ledger.listing import listed_table

__all__ = ["Grid", "tables"]

_DIRECTION = re.compile("[\u200b\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_RULE = re.compile(r"^[ \t]*\|?[ \t]*:?-{2,}:?[ \t]*(?:\|[ \t]*:?-{2,}:?[ \t]*)+\|?[ \t]*$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """A table as text: *near* are the words around it, nearest first; *lines* the document's line of each row.

    Attributes:
        below: The paragraph right below, where captions are also put.
        section: The running text of the table's section, the nearest 12 paragraphs of it, for what the table itself does not say.
        unread: Why it was not read, where it was not; then it has no rows.
    """

    line: int
    header: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    lines: tuple[int, ...] = ()
    near: tuple[str, ...] = ()
    below: str = ""
    section: str = ""
    unread: str = ""


@dataclass(slots=True)
class _Walk:
    """What has been passed so far: the headings that hold here and the paragraphs since the last of them."""

    headings: list[tuple[int, str]] = field(default_factory=list)
    prose: list[str] = field(default_factory=list)
    found: list[Grid] = field(default_factory=list)


def tables(text: str) -> list[Grid]:
    """Every table of the document, in order; one written in HTML is named, and not read."""
    tokens = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text)
    walk = _Walk()
    index = 0
    while index < len(tokens):
        token = tokens[index]
        if token.type == "heading_open":
            level = int(token.tag[1])
            walk.headings = [entry for entry in walk.headings if entry[0] < level]
            walk.headings.append((level, _plain(tokens[index + 1])))
            walk.prose = []
            index += 1
        elif token.type == "inline" and token.map:
            broken = _RULE.search(token.content)
            if broken:
                walk.found.append(Grid(line=_line(token), unread=_uneven(token.content[: broken.start()], broken[0])))
            walk.prose.append(_plain(token))
        elif token.type in {"bullet_list_open", "ordered_list_open"}:
            grid = _listed(tokens, index, walk)
            if grid is not None:
                walk.found.append(grid)
        elif token.type == "html_block" and "<table" in token.content.lower():
            walk.found.append(Grid(line=_line(token), unread="it is written in HTML; write it as a Markdown table"))
        elif token.type == "table_open":
            stop = next(at for at in range(index, len(tokens)) if tokens[at].type == "table_close")
            walk.found.append(_grid(tokens[index:stop], walk, _after(tokens, stop + 1)))
            index = stop
        index += 1
    return walk.found


def _grid(tokens: list[Token], walk: _Walk, after: str) -> Grid:
    rows: list[tuple[int, list[str]]] = []
    for token in tokens:
        if token.type == "tr_open":
            rows.append((_line(token), []))
        elif token.type == "inline" and rows:
            rows[-1][1].append(_plain(token))
    near = [*reversed(walk.prose[-3:]), *(name for _, name in reversed(walk.headings))]
    return Grid(
        line=_line(tokens[0]),
        header=tuple(rows[0][1]),
        rows=tuple(tuple(cells) for _, cells in rows[1:]),
        lines=tuple(line for line, _ in rows[1:]),
        near=tuple(text for text in near if text),
        below=after,
        section=" ".join([*walk.prose[-12:], after]),
    )


def _listed(tokens: list[Token], index: int, walk: _Walk) -> Grid | None:
    """The table that the items of the list at *index* spell out, or nothing."""
    level = tokens[index].level
    stop = next(at for at in range(index + 1, len(tokens)) if tokens[at].level == level and tokens[at].nesting == -1)
    items = [token for token in tokens[index:stop] if token.type == "inline"]
    rows = listed_table([_plain(token) for token in items])
    if rows is None:
        return None
    near = [*reversed(walk.prose[-3:]), *(name for _, name in reversed(walk.headings))]
    return Grid(
        line=_line(tokens[index]),
        header=("concurrency", "before", "after", "change"),
        rows=rows,
        lines=(_line(tokens[index]),) * len(rows),
        near=tuple(text for text in near if text),
        section=" ".join(walk.prose[-12:]),
    )


def _uneven(above: str, rule: str) -> str:
    head = above.strip().splitlines()[-1:] or [""]
    counts = [len(line.strip().strip("|").split("|")) for line in (head[0], rule)]
    return f"its head has {counts[0]} cells and the line under it {counts[1]}, so that it is no Markdown table; give them as many"


def _after(tokens: list[Token], index: int) -> str:
    """The paragraph that begins at *index*, or nothing."""
    if index + 1 < len(tokens) and tokens[index].type == "paragraph_open":
        return _plain(tokens[index + 1])
    return ""


def _plain(token: Token) -> str:
    """The words of an inline token without its marks and marks of direction; what is struck through counts for nothing."""
    words, struck = [], 0
    for child in token.children or []:
        if child.type in ("s_open", "s_close"):
            struck += 1 if child.type == "s_open" else -1
        elif not struck:
            words.append(
                " "
                if child.type in ("softbreak", "hardbreak")
                else child.content
                if child.type in ("text", "code_inline")
                else ""
            )
    return " ".join(_DIRECTION.sub("", "".join(words)).split())


def _line(token: Token) -> int:
    return token.map[0] + 1 if token.map else 1
