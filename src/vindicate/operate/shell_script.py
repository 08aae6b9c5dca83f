"""A shell script and a variable's name → the one place that sets it, or a refusal with file and line.

The script is read with a real shell grammar. Every place where the name occurs must be understood, or the script is
refused: a knob that is written where it has no effect is worse than one that is not written.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tree_sitter
import tree_sitter_bash

from vindicate.errors import MisuseError
from vindicate.operate.shell_word import literal, quoting
from vindicate.redact import redact_text

__all__ = ["Form", "ScriptValue", "ShellScript", "Site", "line_stop", "nodes_above"]

_LANGUAGE = tree_sitter.Language(tree_sitter_bash.language())
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
# Where a statement may stand so that it runs once, always, in the script's own shell.
_OPEN = {"program", "list", "pipeline", "redirected_statement"}
# Commands that set the variables they are given the names of.
_SETTERS = {b"read", b"printf", b"mapfile", b"readarray", b"getopts", b"eval", b"let", b"unset", b"local", b"trap"}

Form = Literal["export", "assign", "prefix", "env", "default"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptValue:
    """What a script sets a variable to.

    Attributes:
        value: ``""`` is empty; a variable that the script does not set has no `ScriptValue` at all.
        line: Counted from 1.
        start, stop: Bytes of the value in the file, quotes included.
        quote: ``"``, ``'`` or nothing.
        form: ``export N=V``, ``N=V`` and a later ``export N``, ``N=V command``, ``env N=V command``, or the default in ``${N:-V}``.
    """

    value: str
    line: int
    start: int
    stop: int
    quote: str
    form: Form


@dataclass(frozen=True, slots=True)
class Site:
    """One place that sets the variable: *node* is the assignment (or the expansion that assigns)."""

    node: tree_sitter.Node
    form: Form
    start: int
    stop: int


class ShellScript:
    """One parsed script, asked about one variable."""

    def __init__(self, source: bytes, name: str, path: Path | None) -> None:
        if not _NAME.fullmatch(name):
            raise MisuseError(f"{name!r} is no name of an environment variable", remedy="letters, digits and _ only")
        self.source, self.name, self.path = source, name, path
        self.root = tree_sitter.Parser(_LANGUAGE).parse(source).root_node
        self.exported = False

    # ---- reading ------------------------------------------------------------------------------------------------

    def value(self) -> ScriptValue | None:
        """What the script sets the variable to; ``None`` when it does not.

        Raises:
            MisuseError: How it is set is not understood.
        """
        site = self.site()
        if site is None:
            return None
        word = self.source[site.start : site.stop]
        value = literal(word)
        if value is None:
            raise self.refusal(
                site.start,
                f"sets {self.name} to {word.decode(errors='replace')[:60]}, which is only known when it runs",
            )
        return ScriptValue(
            value=value, line=self.line(site.start), start=site.start, stop=site.stop, quote=quoting(word), form=site.form
        )  # fmt: skip

    def site(self) -> Site | None:
        """The one place that sets the variable."""
        if self.root.has_error and self._mentions():
            bad = next((node for node in _walk(self.root) if node.is_error or node.is_missing), self.root)
            raise self.refusal(bad.start_byte, "holds shell text that is not understood")
        sites = [site for start in self._mentions() if (site := self._classify(start))]
        self._check_sourced(self.path, self.source)
        if len(sites) > 1:
            lines = " and ".join(str(self.line(site.start)) for site in sites)
            raise self.refusal(sites[1].start, f"sets {self.name} more than once (lines {lines})")
        if not sites:
            return None
        site = sites[0]
        if site.form in ("assign", "default") and not self.exported and not self._all_exported():
            raise self.refusal(site.start, f"sets {self.name} and never exports it, so no program gets it")
        if self.source[site.node.end_byte : site.node.end_byte + 2] == b"\r\n":
            raise self.refusal(
                site.start, f"ends the line that sets {self.name} with CR LF, and bash makes the CR part of the value"
            )
        return site

    def _mentions(self) -> list[int]:
        pattern = rb"(?<![A-Za-z0-9_])" + self.name.encode() + rb"(?![A-Za-z0-9_])"
        return [match.start() for match in re.finditer(pattern, self.source)]

    def _classify(self, start: int) -> Site | None:
        """What the mention of the name at *start* does: a site that sets it, or ``None`` for one that only uses it."""
        stop = start + len(self.name)
        node = self.root.named_descendant_for_byte_range(start, stop)
        if node is None or any(up.type == "comment" for up in nodes_above(node)):
            return None
        parent = node.parent
        if node.type == "variable_name" and parent is not None:
            return self._classify_name(node, parent, start)
        return self._classify_text(node, start, stop)

    def _classify_name(self, node: tree_sitter.Node, parent: tree_sitter.Node, start: int) -> Site | None:
        if parent.type == "simple_expansion":
            return None
        if parent.type == "expansion":
            return self._default_site(node, parent)
        if parent.type == "variable_assignment":
            return self._assignment_site(parent)
        if parent.type == "subscript" and parent.parent is not None and parent.parent.type != "variable_assignment":
            return None
        if parent.type == "declaration_command":
            words = self.text(parent).split()
            if words[0] == b"export" or (words[0] in (b"declare", b"typeset") and b"x" in words[1]):
                if b"-n" in words:
                    raise self.refusal(start, f"takes {self.name} out of the environment again")
                self._require_open(parent, start)
                self.exported = True
                return None
        raise self.refusal(start, f"does something to {self.name} that is not understood: {self.line_text(start)}")

    def _default_site(self, node: tree_sitter.Node, expansion: tree_sitter.Node) -> Site | None:
        """``${N:=V}`` sets; every other expansion uses."""
        operator = self.source[node.end_byte : expansion.end_byte - 1]
        width = 2 if operator.startswith(b":=") else 1 if operator.startswith(b"=") else 0
        if not width:
            return None
        command = next((up for up in nodes_above(expansion) if up.type == "command"), None)
        if command is None or self.text(command).split()[0] not in (b":", b"true"):
            raise self.refusal(node.start_byte, f"sets {self.name} in the middle of something else")
        self._require_open(command, node.start_byte)
        return Site(expansion, "default", node.end_byte + width, expansion.end_byte - 1)

    def _assignment_site(self, assignment: tree_sitter.Node) -> Site:
        start = assignment.start_byte
        value_start = start + len(self.name) + 1
        if self.source[value_start - 1 : value_start] != b"=":
            raise self.refusal(start, f"adds to {self.name} instead of setting it")
        if any(child.type == "array" for child in assignment.children):
            raise self.refusal(start, f"makes {self.name} an array")
        statement = assignment.parent or assignment
        if statement.type == "variable_assignments":
            statement = statement.parent or statement
        form: Form = "assign"
        if statement.type == "declaration_command":
            words = self.text(statement).split()
            if words[0] == b"local":
                raise self.refusal(start, f"sets {self.name} inside a function")
            if words[0] == b"export" or b"x" in (words[1] if words[1].startswith(b"-") else b""):
                form = "export"
            self._require_open(statement, start)
        elif statement.type == "command":
            form = "prefix"
            self._require_open(statement, start)
        else:
            self._require_open(assignment, start)
        return self._with_self_default(assignment, form, value_start, assignment.end_byte)

    def _with_self_default(self, node: tree_sitter.Node, form: Form, start: int, stop: int) -> Site:
        """``N=${N:-V}``: the value to read and to change is V."""
        pattern = rb'("?)\$\{' + self.name.encode() + rb':?-([^}"\'\\$`]*)\}("?)'
        match = re.fullmatch(pattern, self.source[start:stop])
        if match and match[1] == match[3]:
            return Site(node, form, start + match.start(2), start + match.end(2))
        return Site(node, form, start, stop)

    def _classify_text(self, node: tree_sitter.Node, start: int, stop: int) -> Site | None:
        """A mention inside a word or a text: `env N=V command` sets; a text that could set is refused; the rest only names it."""
        sets = re.match(rb"\+?=", self.source[stop : stop + 2]) is not None
        command = next((up for up in nodes_above(node) if up.type == "command"), None)
        if sets and command is not None:
            word = next((child for child in command.children if child.start_byte == start), None)
            if word is not None and self.source[stop : stop + 1] == b"=" and self._follows_env(command, word):
                self._require_open(command, start)
                return self._with_self_default(word, "env", stop + 1, word.end_byte)
        if sets:
            where = (
                "a here-document"
                if any(up.type.startswith("heredoc") for up in nodes_above(node))
                else "a text or an argument"
            )
            raise self.refusal(start, f"sets {self.name} inside {where}: {self.line_text(start)}")
        if command is not None and self.text(command).split()[0] in _SETTERS:
            raise self.refusal(start, f"may set {self.name} in a way that is not understood: {self.line_text(start)}")
        return None

    def _follows_env(self, command: tree_sitter.Node, word: tree_sitter.Node) -> bool:
        """Whether only options and assignments stand between a word ``env`` and *word*."""
        before = [self.text(child) for child in command.children if child.end_byte <= word.start_byte]
        while before and re.match(rb"[A-Za-z_][A-Za-z0-9_]*=|-", before[-1]):
            before.pop()
        if len(before) >= 2 and before[-2] in (b"-u", b"--unset"):
            return self._follows_env_words(before[:-2])
        return self._follows_env_words(before)

    def _follows_env_words(self, words: list[bytes]) -> bool:
        while words and re.match(rb"[A-Za-z_][A-Za-z0-9_]*=|-", words[-1]):
            words.pop()
        return bool(words) and words[-1].rsplit(b"/", 1)[-1] == b"env"

    def _require_open(self, statement: tree_sitter.Node, start: int) -> None:
        """Refuse what runs only sometimes, more than once, or in another shell."""
        up = statement.parent
        while up is not None:
            if up.type not in _OPEN:
                raise self.refusal(
                    start, f"sets {self.name} inside a {up.type.replace('_', ' ')}: {self.line_text(start)}"
                )
            if up.type == "list" and statement.type != "command" and any(child.type == "||" for child in up.children):
                raise self.refusal(start, f"sets {self.name} only sometimes: {self.line_text(start)}")
            if up.type == "pipeline" and statement.type != "command":
                raise self.refusal(start, f"sets {self.name} inside a pipeline: {self.line_text(start)}")
            up = up.parent

    def _all_exported(self) -> bool:
        return any(
            node.type == "command" and re.match(rb"set\s+(-[a-z]*a|-o\s+allexport)", self.text(node))
            for node in self.root.children
        )

    def _check_sourced(self, path: Path | None, source: bytes, depth: int = 0) -> None:
        """Refuse when a file that the script sources, by a path that can be read off, names the variable too."""
        if path is None or depth > 4:
            return
        root = self.root if source is self.source else tree_sitter.Parser(_LANGUAGE).parse(source).root_node
        for node in _walk(root):
            if node.type != "command" or node.child_count < 2:
                continue
            if self.text(node.children[0], source) not in (b"source", b"."):
                continue
            where = literal(self.text(node.children[1], source))
            sourced = (self.path or path).parent / where if where else None
            if sourced is None or not sourced.is_file():
                continue
            text = sourced.read_bytes()
            pattern = rb"(?<![A-Za-z0-9_$])" + self.name.encode() + rb"\+?="
            for number, line in enumerate(text.splitlines(), 1):
                if re.search(pattern, re.sub(rb"(?:^|\s)#.*", b"", line)):
                    raise MisuseError(
                        f"{sourced}:{number}: sets {self.name}, and {path.name} sources that file",
                        remedy=f"set {self.name} in one place: move it into {self.path or path}",
                    )
            self._check_sourced(sourced, text, depth + 1)

    # ---- saying where -------------------------------------------------------------------------------------------

    def text(self, node: tree_sitter.Node, source: bytes | None = None) -> bytes:
        """The text of *node*."""
        return (self.source if source is None else source)[node.start_byte : node.end_byte]

    def line(self, at: int) -> int:
        """The number of the line that holds byte *at*, from 1."""
        return self.source[:at].count(b"\n") + 1

    def line_text(self, at: int) -> str:
        """That line, shortened and without secrets, for a message."""
        start = self.source.rfind(b"\n", 0, at) + 1
        return redact_text(self.source[start : line_stop(self.source, at)].decode(errors="replace").strip())[:100]

    def refusal(self, at: int, problem: str) -> MisuseError:
        """The error that names file and line."""
        return MisuseError(
            f"{self.path or 'script'}:{self.line(at)}: the script {problem}",
            remedy=f"set it in one plain line, export {self.name}=VALUE, or change it by hand; nothing was written",
        )


def _walk(node: tree_sitter.Node) -> Iterator[tree_sitter.Node]:
    todo = [node]
    while todo:
        here = todo.pop()
        yield here
        todo.extend(reversed(here.children))


def nodes_above(node: tree_sitter.Node) -> Iterator[tree_sitter.Node]:
    """*node* and all that holds it, innermost first."""
    here: tree_sitter.Node | None = node
    while here is not None:
        yield here
        here = here.parent


def line_stop(source: bytes, at: int) -> int:
    """Where the line of byte *at* ends, its newline included."""
    newline = source.find(b"\n", at)
    return len(source) if newline < 0 else newline + 1
