"""YAML text and a node of it → the text with that node's scalar, item or pair changed, put in or taken out; every other byte stays."""

import json
import re

import yaml

__all__ = [
    "is_plain",
    "with_block",
    "with_items",
    "with_pair",
    "with_scalar",
    "without_items",
    "without_pair",
]

Pair = tuple[yaml.Node, yaml.Node]
_PLAIN = re.compile(r"(?:0|[1-9]\d{0,17}|-{0,2}[A-Za-z_/][A-Za-z0-9_./@%+=-]*)", re.ASCII)


def is_plain(value: str) -> bool:
    """Whether every reader of YAML takes the bare word for this text, or for the same whole number."""
    return _PLAIN.fullmatch(value) is not None and str(yaml.safe_load(value)) == value


def with_scalar(text: str, node: yaml.Node, value: str) -> str:
    """With another scalar, in the quotes that the old one had."""
    start, stop = node.start_mark.index, node.end_mark.index
    return text[:start] + _scalar(value, getattr(node, "style", None)) + text[stop:]


def with_pair(text: str, node: yaml.MappingNode, key: str, value: str) -> str:
    """With a further pair at the end of a mapping."""
    quoted = bool(node.value) and node.value[-1][0].style == '"'
    name = json.dumps(key) if quoted else key
    scalar = _scalar(value, '"' if quoted or not node.value else node.value[-1][1].style)
    if node.flow_style:
        return _in_flow(text, node, f"{name}: {scalar}", [value.end_mark.index for _, value in node.value])
    last = node.value[-1]
    indent = " " * last[0].start_mark.column
    return _behind_line(text, last[1].end_mark.index, f"{indent}{name}: {scalar}")


def with_items(text: str, node: yaml.Node, at: int, words: list[str]) -> str:
    """With further items before the one at *at* of a sequence."""
    assert isinstance(node, yaml.SequenceNode)
    style = node.value[at - 1].style if at else node.value[0].style if node.value else '"'
    scalars = [_scalar(word, style) for word in words]
    ends = [item.end_mark.index for item in node.value[:at]]
    if node.flow_style or not at:
        return _in_flow(text, node, ", ".join(scalars), ends)
    before = node.value[at - 1]
    start = text.rfind("\n", 0, before.start_mark.index) + 1
    lead = re.sub(r"[^\s-]", " ", text[start : before.start_mark.index])
    return _behind_line(text, ends[-1], "\n".join(f"{lead}{scalar}" for scalar in scalars))


def without_pair(text: str, outer: Pair, pair: Pair) -> str:
    """Without one pair of the mapping that is the value of *outer*; the last one of a block takes its key with it."""
    node = outer[1]
    at = [key for key, _ in node.value].index(pair[0])
    spans = [(key.start_mark.index, value.end_mark.index) for key, value in node.value]
    return _without(text, outer, spans, at, 1)


def without_items(text: str, outer: Pair, at: int, count: int) -> str:
    """The same for items of a sequence."""
    node = outer[1]
    assert isinstance(node, yaml.SequenceNode)
    spans = []
    for item in node.value:
        dash = text.rfind("-", 0, item.start_mark.index) if not node.flow_style else item.start_mark.index
        spans.append((dash, item.end_mark.index))
    return _without(text, outer, spans, at, count)


def with_block(text: str, node: yaml.MappingNode, key: str, name: str, value: str) -> str:
    """With a further mapping of one pair under *key*, behind the first plain pair of *node*."""
    scalar = _scalar(value, None)
    if node.flow_style:
        inner = f"{json.dumps(key)}: {{{json.dumps(name)}: {_scalar(value, chr(34))}}}"
        return _in_flow(text, node, inner, [other.end_mark.index for _, other in node.value])
    indent = " " * node.value[0][0].start_mark.column
    block = f"{indent}{key}:\n{indent}  {name}: {scalar}"
    for _, other in node.value:
        if isinstance(other, yaml.ScalarNode) and other.style not in ("|", ">") and other.value:
            return _behind_line(text, other.end_mark.index, block)
    start = text.rfind("\n", 0, node.value[0][0].start_mark.index) + 1
    return text[:start] + block + "\n" + text[start:]


def _without(text: str, outer: Pair, spans: list[tuple[int, int]], at: int, count: int) -> str:
    node, last = outer[1], at + count - 1
    assert isinstance(node, yaml.CollectionNode)
    start, stop = spans[at][0], spans[last][1]
    if node.flow_style:
        if at:
            return text[: spans[at - 1][1]] + text[stop:]
        return text[:start] + text[spans[last + 1][0] if last + 1 < len(spans) else stop :]
    if count == len(spans):
        start = outer[0].start_mark.index
    line_start = text.rfind("\n", 0, start) + 1
    line_stop = text.find("\n", stop) + 1 or len(text)
    return text[:line_start] + text[line_stop:]


def _in_flow(text: str, node: yaml.CollectionNode, words: str, ends: list[int]) -> str:
    """Put *words* behind the last of *ends* in a flow collection."""
    if ends:
        return f"{text[: ends[-1]]}, {words}{text[ends[-1] :]}"
    start = node.start_mark.index + 1
    return text[:start] + words + (", " if node.value else "") + text[start:]


def _behind_line(text: str, at: int, lines: str) -> str:
    """Put lines behind the one that byte *at* stands in."""
    stop = text.find("\n", at)
    stop = len(text) if stop < 0 else stop
    if text[stop - 1 : stop] == "\r":
        return text[:stop] + "\n" + lines.replace("\n", "\r\n") + "\r" + text[stop:]
    return text[:stop] + "\n" + lines + text[stop:]


def _scalar(value: str, style: str | None) -> str:
    """*value* as a scalar that every reader of YAML takes for this text."""
    if style is None and is_plain(value):
        return value
    if style == "'" and value.isprintable():
        return "'" + value.replace("'", "''") + "'"
    return json.dumps(value, ensure_ascii=False)
