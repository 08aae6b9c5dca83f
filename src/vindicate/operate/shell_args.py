"""A shell script → the words with which it starts its service, each with its bytes; or a refusal with file and line.

The service's command is the last program that the script runs in the open. Literal arrays are put in the place of
``"${ARGS[@]}"``. A word that holds an expansion is taken for one word that is no flag where that is likely (the value of another
flag, a quoted text, a path); where it may be more, the script is refused.
"""

import re
from itertools import pairwise
from pathlib import Path

import tree_sitter

from vindicate.errors import MisuseError
from vindicate.operate.shell_array import Word, array_words
from vindicate.operate.shell_run import (
    LANGUAGE,
    WRAPPERS,
    Step,
    line_stop,
    nodes_above,
    redefinitions,
    steps,
    walk,
)
from vindicate.operate.shell_word import literal
from vindicate.redact import redact_text

__all__ = ["CONTAINER_ENGINES", "ELSEWHERE", "ServiceCommand", "Word"]

CONTAINER_ENGINES = frozenset(b"docker podman nerdctl".split())
# What runs another script, a text, or something on another machine: its arguments are not the service's.
ELSEWHERE = CONTAINER_ENGINES | frozenset(
    b"sh bash dash zsh ksh fish eval tmux screen ssh kubectl su runuser xargs parallel watch script at batch systemd-run machinectl"
    b" find sbatch flock coproc".split()
)
_OPEN = {"program", "list", "pipeline", "redirected_statement"}
_SAFE = rb"[A-Za-z0-9_./:,@%+=-]*"
_BLANKS = re.compile(rb"(?:[ \t]|\\\n)+")
_ODD = re.compile(
    rb"[\x01-\x08\x0b-\x1f\x7f]|\xc2[\x80-\xa0]|\xe2\x80|\xe3\x80\x80"
)  # blanks for the grammar, text for bash
_VARIABLE = re.compile(rb"\$(?:(\w+)|\{(\w+)(?::?-(" + _SAFE + rb"))?\})", re.ASCII)
_DEFAULTED = re.compile(rb'"?\$\{\w+:?-(' + _SAFE + rb')\}"?', re.ASCII)
_PATH = re.compile(rb"\$\{?\w+\}?(?:/[\w./${}-]*)+", re.ASCII)
_MANY = re.compile(rb"(?i)arg|opt|flag|extra|param|cmd|command")  # names of variables that hold several words
_ARRAY = re.compile(rb'("?)\$\{(\w+)\[@\]\}\1', re.ASCII)


class ServiceCommand:
    """The one command of a script that starts its service; *what* is looked for in it, and named in refusals."""

    def __init__(self, source: bytes, what: str, path: Path | None, *, container: bool = False) -> None:
        self.source, self.what, self.path = source, what, path
        if b"\0" in source:
            raise self.refusal(source.index(b"\0"), "holds a NUL byte, which bash leaves out")
        self.root = tree_sitter.Parser(LANGUAGE).parse(source).root_node
        if self.root.has_error:
            bad = next((node for node in walk(self.root) if node.is_error or node.is_missing), self.root)
            raise self.refusal(bad.start_byte, "holds shell text that is not understood")
        self.steps = steps(self.root)
        self.step = self._service()
        self.node = self.step.node
        self.check_line(self.node)
        self.words = self._flattened()
        self.program = self._program(container=container)

    @property
    def own(self) -> list[tree_sitter.Node]:
        """The nodes of the command's own words, those of a wrapper before it included."""
        found = [child for child in self.node.children if not child.type.endswith("_redirect")]
        while found and found[0].type == "variable_assignment":
            found.pop(0)
        return found

    # ---- which command ---------------------------------------------------------------------------------------------

    def _service(self) -> Step:
        """The last program, when nothing else may be the service.

        Raises:
            MisuseError: There is none, or it runs only sometimes, more than once, or beside others.
        """
        programs = [step for step in self.steps if step.is_program]
        if not programs:
            raise self.refusal(0, "starts no program")
        last = programs[-1]
        for step in self.steps:
            if step.name in (b"enable", b"alias") or b"expand_aliases" in step.words:
                raise self.refusal(step.at, f"gives a word another meaning: {self.line_text(step.at)}")
            if step.name in (b"exit", b"return") and step.node.parent == self.root and step.at < last.at:
                raise self.refusal(step.at, "ends before it starts its service")
        for node in walk(self.root):
            continued = node.type == "comment" and re.search(
                rb"\\\n[ \t]*$", self.source[max(0, node.start_byte - 200) : node.start_byte]
            )
            if continued and node.parent is not None and node.parent.type != "array":
                raise self.refusal(node.start_byte, "has a comment in a continued line, where bash ends the command")
        for node in redefinitions(self.root):
            raise self.refusal(node.start_byte, f"gives a word another meaning: {self.line_text(node.start_byte)}")
        self._require_open(last)
        for step in programs[:-1]:
            if step.takes_over or step.background or step.name == b"coproc" or step.identity == last.identity:
                raise self.refusal(step.at, f"starts more than one service: {self.line_text(step.at)}")
        return last

    def _require_open(self, step: Step) -> None:
        """Refuse a command that runs only sometimes, more than once, from a function, or with others in one pipeline."""
        if step.at != step.node.start_byte:
            raise self.refusal(step.at, f"starts its service from a function: {self.line_text(step.at)}")
        here = step.node
        while (up := here.parent) is not None:
            if up.type not in _OPEN:
                raise self.refusal(
                    step.at, f"starts its service inside {up.type.replace('_', ' ')}: {self.line_text(step.at)}"
                )
            joint = here.prev_sibling
            if up.type == "list" and joint is not None and joint.type == "||":
                raise self.refusal(step.at, f"starts its service only sometimes: {self.line_text(step.at)}")
            if up.type == "pipeline" and any(
                other.is_program and other is not step and up.start_byte <= other.at < up.end_byte
                for other in self.steps
            ):
                raise self.refusal(step.at, f"runs several programs in one pipeline: {self.line_text(step.at)}")
            if up.type == "redirected_statement":
                for child in up.children:
                    targets = [target for target in child.named_children if target.type != "file_descriptor"]
                    if child.type.startswith("heredoc") or (child.type == "file_redirect" and len(targets) > 1):
                        raise self.refusal(child.start_byte, f"is not understood: {self.line_text(child.start_byte)}")
            self._require_nothing_between(up, here)
            here = up

    def _require_nothing_between(self, up: tree_sitter.Node, here: tree_sitter.Node) -> None:
        """Refuse where the grammar left a word out, as it does with a lone ``-`` before a redirection."""
        edges = [
            (one.end_byte, other.start_byte)
            for one, other in pairwise(up.children)
            if up.type != "program" or here in (one, other)
        ]
        if up.type == "program" and here == up.children[-1]:
            edges.append((here.end_byte, len(self.source)))
        for start, stop in edges:
            if self.source[start:stop].strip(b" \t\r\n\\;"):
                raise self.refusal(start, f"is not understood: {self.line_text(start)}")

    def _program(self, *, container: bool) -> int:
        """Which of the words names the program, behind ``exec``, ``nohup``, ``numactl``, ``env`` and the like."""
        at = 0
        functions = [node for node in walk(self.root) if node.type == "function_definition"]
        defined = {name.text for node in functions if (name := node.child_by_field_name("name"))}
        while at < len(self.words):
            word = self.words[at]
            plain = word.text.rsplit("/", 1)[-1].encode(errors="surrogateescape")
            if plain in WRAPPERS | {b"sudo", b"doas"}:
                if plain == b"exec" and at + 2 < len(self.words) and self.words[at + 1].text == "-a":
                    at += 2
            elif (
                at == 0
                or not re.match(r"[-0-9]|[A-Za-z_]\w*=", word.text, re.ASCII)
                or re.match(r"-\w*S|--split", word.text)
            ):
                break
            at += 1
        if at == len(self.words):
            raise self.refusal(self.node.start_byte, f"names no program: {self.line_text(self.node.start_byte)}")
        program = self.words[at].text.rsplit("/", 1)[-1].encode(errors="surrogateescape")
        wanted = CONTAINER_ENGINES if container else frozenset[bytes]()
        if (container and program not in wanted) or program in ELSEWHERE - wanted or program.startswith(b"-"):
            kind = "no container" if container else "its service through another shell, machine or container"
            raise self.refusal(self.words[at].start, f"starts {kind}: {self.line_text(self.words[at].start)}")
        if self.words[at].text.encode(errors="surrogateescape") in defined:
            raise self.refusal(
                self.words[at].start, f"starts its service from a function: {self.line_text(self.node.start_byte)}"
            )
        return at

    def row(self, word: Word) -> list[tuple[int, int]]:
        """The bytes of the words in whose row *word* stands: the elements of its array, or the words of the command."""
        if word.array is None:
            return [(node.start_byte, node.end_byte) for node in self.own]
        return [(other.start, other.stop) for other in self.words if other.array == word.array]

    # ---- its words -------------------------------------------------------------------------------------------------

    def _flattened(self) -> tuple[Word, ...]:
        words: list[Word] = []
        for node in self.own:
            raw = self.text(node)
            if array := _ARRAY.fullmatch(raw):
                words += array_words(self, node, array[2], quoted=bool(array[1]))
            else:
                words.append(self.word(node, words[-1] if words else None, first=not words))
        self._check_gaps(self.own)
        return tuple(words)

    def _check_gaps(self, nodes: list[tree_sitter.Node]) -> None:
        """Refuse where the grammar ends a word and bash may not."""
        for one, other in pairwise(nodes):
            if not _BLANKS.fullmatch(self.source, one.end_byte, other.start_byte):
                raise self.refusal(one.end_byte, f"is not understood: {self.line_text(one.end_byte)}")

    def word(self, node: tree_sitter.Node, before: Word | None, *, first: bool) -> Word:
        """One word; see the module for what is made of an expansion.

        Raises:
            MisuseError: It may be several words.
        """
        raw = self.text(node)
        start, stop = node.start_byte, node.end_byte
        if re.search(
            rb"[\s;&|]", re.sub(rb"\\.|'[^']*'|\"(?:[^\"\\]|\\.)*\"|\$\(.*\)|`.*`", b"", raw, flags=re.DOTALL)
        ):
            raise self.refusal(start, f"is not understood: {self.line_text(start)}")
        text = literal(raw)
        if text is not None:
            return Word(start, stop, text)
        known = re.match(rb"[\"']?([^$`\"'\\*?\[{~<>()]*)", raw)
        prefix = (known[1] if known else b"").decode(errors="surrogateescape")
        word = Word(start, stop, prefix, known=False)
        if b"[@]" in raw or re.search(rb"\$[@*]|\$\{[@*]|\[\*\]", raw):
            raise self.refusal(start, f"passes on what is only known when it runs: {raw.decode(errors='replace')[:60]}")
        if self._is_one(node) or (prefix and not re.search(rb"[*?\[{]", raw)):
            return word
        value = before is not None and before.known and before.text.startswith("-") and "=" not in before.text
        variable = _VARIABLE.fullmatch(raw)
        name = (variable[1] or variable[2]) if variable else None
        if first or _PATH.fullmatch(raw) or (value and re.fullmatch(rb"\$\(.*\)|`[^`]*`", raw, re.DOTALL)):
            return word
        if name and ((value and not _MANY.search(name)) or (variable and variable[3] and not _MANY.search(name))):
            return word
        if name and self._holds_one_word(name):
            return word
        raise self.refusal(
            start,
            f"has {raw.decode(errors='replace')[:60]} without quotes, which may be several words: {self.line_text(start)}",
        )

    def _is_one(self, node: tree_sitter.Node) -> bool:
        """Whether every expansion of a word stands in double quotes, so that it stays one word."""
        parts = node.children if node.type == "concatenation" else [node]
        return all(
            part.type in ("string", "raw_string", "word", "number", "ansi_c_string") for part in parts
        ) and not re.search(rb"[*?\[{]", b"".join(self.text(part) for part in parts if part.type == "word"))

    def _holds_one_word(self, name: bytes) -> bool:
        """Whether the script gives the variable one plain word, wherever it sets it."""
        assigned = 0
        for node in self.uses(name):
            up = node.parent
            if up is not None and up.type == "variable_assignment" and up.start_byte == node.start_byte:
                value_start = node.end_byte + 1
                value = self.source[value_start : up.end_byte]
                found = _DEFAULTED.fullmatch(value)
                text = found[1] if found else (literal(value) or "").encode(errors="surrogateescape")
                if not re.fullmatch(rb"(?=[^-])" + _SAFE, text) or self.source[node.end_byte : value_start] != b"=":
                    return False
                assigned += 1
            elif up is None or up.type not in ("simple_expansion", "expansion", "declaration_command"):
                return False
        return assigned > 0 and not any(step.may_set_unseen for step in self.steps)

    def uses(self, name: bytes) -> list[tree_sitter.Node]:
        """Every place where a variable is named; a node of another type is one where it may be changed unseen."""
        found = []
        for match in re.finditer(rb"(?<![A-Za-z0-9_])" + name + rb"(?![A-Za-z0-9_])", self.source):
            node = self.root.named_descendant_for_byte_range(match.start(), match.end())
            if node is not None and not any(up.type == "comment" for up in nodes_above(node)):
                found.append(node)
        return found

    def check_line(self, node: tree_sitter.Node) -> None:
        """Refuse bytes around *node*, in its lines, that bash takes for text and the grammar for blanks."""
        since = self.source.rfind(b"\n", 0, node.start_byte) + 1
        if node.prev_sibling is not None:
            since = max(since, node.prev_sibling.end_byte)
        behind = re.compile(rb"(?:\\\n|[^\n])*").match(self.source, node.end_byte)  # lines that are continued included
        after = re.sub(rb"\s#.*", b"", behind[0] if behind else b"")
        if _ODD.search(self.source[since : node.start_byte] + after):
            raise self.refusal(
                node.start_byte, "has a carriage return (CR LF?) or the like in the lines that start its service"
            )

    # ---- saying so ---------------------------------------------------------------------------------------------------

    def text(self, node: tree_sitter.Node) -> bytes:
        """The text of *node*."""
        return self.source[node.start_byte : node.end_byte]

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
            remedy=f"write {self.what} once, in one plain command, or change it by hand; nothing was written",
        )
