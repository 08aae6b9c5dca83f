"""``"${ARGS[@]}"`` in a service's command → the words that the script's array literals put there; or a refusal with file and line."""

import re
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import tree_sitter

from vindicate.operate.shell_run import knows_sourced, nodes_above

if TYPE_CHECKING:
    from vindicate.operate.shell_args import ServiceCommand

__all__ = ["Word", "array_words"]

_UNSPLIT = re.compile(rb"[A-Za-z0-9_./:,@%+=-]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class Word:
    """One word as bash passes it.

    Attributes:
        start, stop: Its bytes in the script.
        text: Its text; where that is only known when it runs, the beginning up to there.
        known: Whether *text* is all of it.
        array: The array literal that it stands in.
        maybe: It is added to an array in a place that may not be reached, or be reached more than once.
    """

    start: int
    stop: int
    text: str
    known: bool = True
    array: tree_sitter.Node | None = None
    maybe: bool = False


def array_words(command: "ServiceCommand", use: tree_sitter.Node, name: bytes, *, quoted: bool) -> list[Word]:
    """The words that a literal array holds where *use* puts it in, and those that ``+=`` adds to it.

    Raises:
        MisuseError: It is not set in one place in the open, or may be changed in another way.
    """
    literals = _literals(command, use, name)
    _require_only_these(command, literals[0], name)
    words: list[Word] = []
    for number, assignment in enumerate(literals):
        array = next(child for child in assignment.children if child.type == "array")
        _check_gaps(command, array)
        maybe = number > 0 and not _is_open(command, assignment)
        for node in array.children:
            if node.type in ("(", ")", "comment"):
                continue
            word = command.word(node, words[-1] if words else None, first=False)
            if not quoted and not _UNSPLIT.fullmatch(command.text(node)):
                raise command.refusal(
                    use.start_byte, f"has {command.text(use).decode()} without quotes, which would split its words"
                )
            words.append(Word(word.start, word.stop, word.text, known=word.known, array=array, maybe=maybe))
    return words


def _literals(command: "ServiceCommand", use: tree_sitter.Node, name: bytes) -> list[tree_sitter.Node]:
    """The assignments of the array: one ``=(…)`` in the open, and then ``+=(…)`` anywhere."""
    found = []
    for node in command.uses(name):
        up = node.parent
        if node.type == "variable_name" and up is not None:
            if up.type == "variable_assignment":
                found.append(up)
                continue
            above = up.parent if up.type == "subscript" else up
            if above is not None and above.type == "expansion" and b"=" not in command.text(above):
                continue
        raise command.refusal(
            node.start_byte,
            f"does something to {name.decode()} that is not understood: {command.line_text(node.start_byte)}",
        )
    if not found:
        raise command.refusal(use.start_byte, f"does not set {name.decode()} itself")
    for number, assignment in enumerate(found):
        start = assignment.start_byte + len(name)
        joint = command.source[start : start + 3]
        array = any(child.type == "array" for child in assignment.children)
        sets, adds = joint.startswith(b"=("), joint.startswith(b"+=(")
        beside = assignment.parent is not None and assignment.parent.type in ("command", "variable_assignments")
        declared = assignment.parent is not None and assignment.parent.type == "declaration_command"
        if number == 0 and sets and array and _is_open(command, assignment):
            continue
        if number and sets:
            raise command.refusal(assignment.start_byte, f"sets {name.decode()} more than once")
        if number == 0 or not (adds and array) or beside or declared:
            raise command.refusal(
                assignment.start_byte,
                f"sets {name.decode()} in a way that is not understood: {command.line_text(assignment.start_byte)}",
            )
        command.check_line(assignment)
    return found


def _is_open(command: "ServiceCommand", assignment: tree_sitter.Node) -> bool:
    """Whether an assignment is reached once, always, before the service starts, in the script's own shell."""
    statement, plain = assignment, True
    up = assignment.parent
    if up is not None and up.type == "declaration_command":
        statement = up
        plain = command.text(up).split()[:2] in ([b"declare", b"-a"], [b"typeset", b"-a"]) and up.named_child_count == 2
    joint, behind = statement.prev_sibling, statement.next_sibling
    return (
        plain
        and all(above.type in ("program", "list") for above in nodes_above(statement) if above != statement)
        and assignment.start_byte < command.step.at
        and not (joint is not None and joint.type in ("&&", "||"))
        and not (behind is not None and behind.type == "&")
    )


def _require_only_these(command: "ServiceCommand", assignment: tree_sitter.Node, name: bytes) -> None:
    """Refuse what may change the array between its assignment and the service, unseen."""
    up = assignment.parent
    command.check_line(up if up is not None and up.type == "declaration_command" else assignment)
    before = [step for step in command.steps if step.at < command.step.at]
    for number, step in enumerate(before):
        sources = step.name in (b"source", b".")
        if step.at > assignment.start_byte and (
            step.may_set_unseen
            or (sources and not knows_sourced(step, tuple(before[:number]), name.decode(), command.path))
        ):
            raise command.refusal(
                step.at,
                f"may change {name.decode()} there, which is only known when it runs: {command.line_text(step.at)}",
            )


def _check_gaps(command: "ServiceCommand", array: tree_sitter.Node) -> None:
    """Refuse where the grammar ends an element and bash may not."""
    for one, other in pairwise(array.children):
        gap = command.source[one.end_byte : other.start_byte]
        edge = one.type == "(" or other.type == ")"
        if not re.fullmatch(rb"(?:[ \t\n]|\\\n)*", gap) or not (gap or edge):
            raise command.refusal(one.end_byte, f"is not understood: {command.line_text(one.end_byte)}")
