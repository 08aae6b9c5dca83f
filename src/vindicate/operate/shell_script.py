"""A shell script and a variable's name → the one place that sets it, or a refusal with file and line.

The script is read with a real shell grammar. Every place where the name occurs must be understood, or the script is
refused: a knob that is written where it has no effect is worse than one that is not written.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tree_sitter

from vindicate.errors import MisuseError
from vindicate.operate.shell_run import (
    LANGUAGE,
    WRAPPERS,
    Step,
    knows_sourced,
    line_stop,
    nodes_above,
    redefinitions,
    steps,
    walk,
    words_of,
)
from vindicate.operate.shell_word import literal, quoting
from vindicate.redact import redact_text

__all__ = ["Form", "ScriptValue", "ShellScript", "Site"]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
# Where a statement may stand so that it runs once, always, in the script's own shell.
_OPEN = {"program", "list", "pipeline", "redirected_statement"}
# What stands between a word and the command it belongs to, and where a text that is put out is read again.
_SAYING = {"string", "string_content", "word", "raw_string", "concatenation"}
_CAUGHT = {"command_substitution", "process_substitution", "pipeline", "heredoc_body", "function_definition"}

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
        self.root = tree_sitter.Parser(LANGUAGE).parse(source).root_node
        self.steps = steps(self.root)
        self.exported: int | None = None

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
        """The one place that sets the variable; every place where its name is written is understood, and so is what runs when."""
        if b"\0" in self.source:
            raise self.refusal(self.source.index(b"\0"), "holds a NUL byte, which bash leaves out")
        joined = self.source.replace(b"\\\n", b"")
        if (self.root.has_error and self._mentions()) or len(self._mentions(joined)) != len(self._mentions()):
            bad = next((node for node in walk(self.root) if node.is_error or node.is_missing), self.root)
            raise self.refusal(bad.start_byte, "holds shell text that is not understood")
        sites = [site for start in self._mentions() if (site := self._classify(start))]
        if len(sites) > 1:
            lines = " and ".join(str(self.line(site.start)) for site in sites)
            raise self.refusal(sites[1].start, f"sets {self.name} more than once (lines {lines})")
        unseen = self._unseen()
        site = sites[0] if sites else None
        if site is None:
            self._refuse_unseen(unseen, since=-1)
        else:
            self._check_line(site.node, site.start, site.stop)
            self._check_order(site, unseen)
        return site

    def _mentions(self, source: bytes | None = None) -> list[int]:
        pattern = rb"(?<![A-Za-z0-9_])" + self.name.encode() + rb"(?![A-Za-z0-9_])"
        return [match.start() for match in re.finditer(pattern, self.source if source is None else source)]

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
        if parent.type == "expansion" and self.source[parent.start_byte + 2 : start] in (b"", b"!", b"#"):
            return self._default_site(node, parent)
        if parent.type == "variable_assignment" and parent.start_byte == start:
            return self._assignment_site(parent)
        if parent.type == "declaration_command" and self._exports(parent):
            self._require_open(parent, start)
            self._check_line(parent, start, start)
            self.exported = max(self.exported or 0, start)
            return None
        raise self.refusal(start, f"does something to {self.name} that is not understood: {self.line_text(start)}")

    def _exports(self, declaration: tree_sitter.Node) -> bool:
        """Whether a declaration puts its names in the environment, and does nothing else to them."""
        words = words_of(declaration)
        options = [word for word in words[1:] if word[:1] in (b"-", b"+")]
        return options == ([] if words[0] == b"export" else [b"-x"]) and words[0] in (b"export", b"declare", b"typeset")

    def _default_site(self, node: tree_sitter.Node, expansion: tree_sitter.Node) -> Site | None:
        """``${N:=V}`` sets; every other expansion uses."""
        operator = self.source[node.end_byte : expansion.end_byte - 1]
        width = 2 if operator.startswith(b":=") else 1 if operator.startswith(b"=") else 0
        if not width:
            return None
        command = next((up for up in nodes_above(expansion) if up.type == "command"), None)
        if command is None or words_of(command)[0] not in (b":", b"true"):
            raise self.refusal(node.start_byte, f"sets {self.name} in the middle of something else")
        self._require_open(command, node.start_byte, program=False)
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
            if not self._exports(statement):
                raise self.refusal(
                    start, f"declares {self.name} in a way that is not understood: {self.line_text(start)}"
                )
            form = "export"
            self._require_open(statement, start)
        elif statement.type == "command":
            form = "prefix"
            name = statement.child_by_field_name("name") or statement
            if re.search(rb"(?<!\\)\n", self.source[assignment.end_byte : name.start_byte]):
                raise self.refusal(start, f"sets {self.name} beside another variable, on a line without a command")
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
        """A mention inside a word or a text: ``env N=V command`` sets, ``echo`` and ``[[ -v N ]]`` only name it, the rest is refused."""
        if self._is_own_value(node):
            return None
        command = next((up for up in nodes_above(node) if up.type == "command"), None)
        if command is not None and self.source[stop : stop + 1] == b"=":
            word = next((child for child in command.children if child.start_byte == start), None)
            if word is not None and self._is_for_env(command, word):
                self._require_open(command, start)
                return self._with_self_default(word, "env", stop + 1, word.end_byte)
        tested = any(up.type == "test_command" for up in nodes_above(node))
        if (tested and re.search(rb"-v\s+$", self.source[:start])) or (
            command is not None and self._only_says(command, node)
        ):
            return None
        raise self.refusal(start, f"names {self.name} where it may be set unseen: {self.line_text(start)}")

    def _is_own_value(self, node: tree_sitter.Node) -> bool:
        """Whether the name stands in the text that is assigned to it: ``N="N"``."""
        outer = next((up for up in nodes_above(node) if up.type not in _SAYING), None)
        return (
            outer is not None
            and outer.type == "variable_assignment"
            and self.text(outer).startswith(self.name.encode() + b"=")
        )

    def _is_for_env(self, command: tree_sitter.Node, word: tree_sitter.Node) -> bool:
        """Whether *word* is an assignment of an ``env``: between them stand only such words, ``-u NAME`` and ``--unset=NAME``."""
        words = [self.text(child) for child in command.children if child.end_byte <= word.start_byte]
        while words and re.match(rb"[A-Za-z_][A-Za-z0-9_]*=|--unset=", words[-1]):
            words.pop()
        while len(words) > 2 and words[-2] == b"-u":
            words = words[:-2]
        last = command.children[-1].start_byte == word.start_byte
        return (
            bool(words)
            and not last
            and words[-1].rsplit(b"/", 1)[-1] == b"env"
            and (len(words) == 1 or words[0] in WRAPPERS)
        )

    def _only_says(self, command: tree_sitter.Node, node: tree_sitter.Node) -> bool:
        """Whether an ``echo`` or ``printf`` puts the text out where nobody reads it as a script."""
        words = words_of(command)
        if words[0] not in (b"echo", b"printf") or (
            words[0] == b"printf" and words[1][:2] in (b"-v", b'"$', b"'-", b'"-')
        ):
            return False
        redirects = [child for up in nodes_above(node) for child in up.children if child.type.endswith("_redirect")]
        return not any(up.type in _CAUGHT for up in nodes_above(node)) and all(
            re.fullmatch(rb"1?>\s*(?:&\s*2|/dev/(?:stderr|null))", self.text(child)) for child in redirects
        )

    def _require_open(self, statement: tree_sitter.Node, start: int, *, program: bool | None = None) -> None:
        """Refuse what runs only sometimes, more than once, or in another shell; a *program* may run only sometimes."""
        program = statement.type == "command" if program is None else program
        here: tree_sitter.Node = statement
        while (up := here.parent) is not None:
            if up.type not in _OPEN:
                raise self.refusal(
                    start, f"sets {self.name} inside a {up.type.replace('_', ' ')}: {self.line_text(start)}"
                )
            if not program:
                if here.next_sibling is not None and here.next_sibling.type == "&":
                    raise self.refusal(start, f"sets {self.name} in the background: {self.line_text(start)}")
                if up.type == "pipeline":
                    raise self.refusal(start, f"sets {self.name} inside a pipeline: {self.line_text(start)}")
                if up.type == "list" and up.start_byte != here.start_byte and not self._list_runs_service(up):
                    raise self.refusal(start, f"sets {self.name} only sometimes: {self.line_text(start)}")
            here = up

    def _list_runs_service(self, node: tree_sitter.Node) -> bool:
        """Whether ``A && N=V && B`` holds the last program, so that B runs only after N is set."""
        whole = [up for up in nodes_above(node) if up.type == "list"][-1]
        joined = any(child.type == "||" for up in nodes_above(node) for child in up.children)
        programs = [step for step in self.steps if step.is_program]
        return not joined and bool(programs) and whole.start_byte <= programs[-1].at < whole.end_byte

    # ---- what runs when --------------------------------------------------------------------------------------------

    def _check_line(self, node: tree_sitter.Node, start: int, stop: int) -> None:
        """Refuse bytes around *start* to *stop*, in the lines of *node*, that bash takes for text and the grammar for blanks."""
        since = self.source.rfind(b"\n", 0, node.start_byte) + 1
        if node.prev_sibling is not None:
            since = max(since, node.prev_sibling.end_byte)
        before = self.source[since:start]
        after = re.sub(rb"\s#.*", b"", self.source[stop : line_stop(self.source, node.end_byte)])
        if re.search(rb"[\x01-\x08\x0b-\x1f\x7f]|\xc2[\x80-\xa0]|\xe2\x80|\xe3\x80\x80", before + after):
            raise self.refusal(start, f"has a carriage return (CR LF?) or the like in a line that sets {self.name}")

    def _check_order(self, site: Site, unseen: list[Step]) -> None:
        """Refuse a value that comes too late, that something unseen may replace, or that the service does not get."""
        programs = [step for step in self.steps if step.is_program]
        since = site.node.start_byte
        own = next((step for step in programs if step.node.start_byte <= since < step.node.end_byte), None)
        if site.form in ("prefix", "env"):
            if own is None:
                raise self.refusal(
                    site.start, f"sets {self.name} for a command that is no service: {self.line_text(site.start)}"
                )
            later = [step for step in programs if step.at > own.node.start_byte]
            if later:
                raise self.refusal(
                    later[0].at,
                    f"runs another program after the one it sets {self.name} for: {self.line_text(later[0].at)}",
                )
        elif site.form != "export" and not self._all_exported(since):
            if self.exported is None:
                raise self.refusal(site.start, f"sets {self.name} and never exports it, so no program gets it")
            since = max(since, self.exported)
        for step in self.steps:
            ends = step.name in (b"exit", b"return") and step.node.parent == self.root
            if (
                step.at < since
                and step is not own
                and (step.takes_over or ends or (step.background and step.is_program and own is None))
            ):
                raise self.refusal(
                    site.start,
                    f"sets {self.name} too late, behind line {self.line(step.at)}: {self.line_text(step.at)}",
                )
        if programs and own is None and programs[-1].at < since:
            raise self.refusal(
                site.start, f"sets {self.name} behind the last program it runs, in line {self.line(programs[-1].at)}"
            )
        last = own or (programs[-1] if programs else None)
        for step in [own] if own else [step for step in programs if step.at >= since]:
            if not step.passes_environment and (step is last or step.name != b"sudo"):
                raise self.refusal(
                    step.at, f"starts a program in a way that does not pass {self.name} on: {self.line_text(step.at)}"
                )
        takes_earlier = site.form == "default" or self.source[site.stop : site.stop + 1] == b"}"
        if takes_earlier or own is None:
            self._refuse_unseen(unseen, since=-1 if takes_earlier else site.node.start_byte)

    def _refuse_unseen(self, unseen: list[Step], *, since: int) -> None:
        """Refuse when something that cannot be read off may set the variable behind byte *since*, before the last program."""
        last = max((step.at for step in self.steps if step.is_program), default=len(self.source))
        for step in unseen:
            if since < step.at <= last:
                raise self.refusal(
                    step.at, f"may set {self.name} there, which is only known when it runs: {self.line_text(step.at)}"
                )

    def _all_exported(self, at: int) -> bool:
        """Whether ``set -a`` holds at byte *at*."""
        on = False
        for step in self.steps:
            if step.at < at and step.name == b"set":
                options = b" ".join(step.words[1:])
                if re.search(rb"(?:^| )\+(?:\w*a|o allexport)", options):
                    on = False
                elif re.search(rb"(?:^| )-(?:\w*a|o allexport)", options):
                    on = step.node.parent == self.root
        return on

    def _unseen(self) -> list[Step]:
        """What may set the variable without its name being written in the script.

        Raises:
            MisuseError: A file that the script sources names it, or the script gives a word of the shell another meaning.
        """
        found = []
        for number, step in enumerate(self.steps):
            if step.name in (b"enable", b"alias") or b"expand_aliases" in step.words:
                raise self.refusal(step.at, f"gives a word another meaning: {self.line_text(step.at)}")
            sources = step.name in (b"source", b".")
            if step.may_set_unseen or (sources and not knows_sourced(step, self.steps[:number], self.name, self.path)):
                found.append(step)
        for node in redefinitions(self.root):
            raise self.refusal(node.start_byte, f"gives a word another meaning: {self.line_text(node.start_byte)}")
        return found

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
            remedy=f"set it in one plain line, export {self.name}=VALUE, or change it by hand; nothing was written",
        )
