"""A start script and a flag of the command that it runs → the flag's value; and the script with only that flag changed.

The service's command is the last program that the script runs. Every word of it must be known, or known not to hold the flag;
what may hold it unseen is refused with file and line.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import tree_sitter

from vindicate.errors import MisuseError
from vindicate.operate.shell_run import LANGUAGE, WRAPPERS, Step, line_stop, nodes_above, redefinitions, steps, walk
from vindicate.operate.shell_syntax import require_parsed
from vindicate.operate.shell_word import literal, quoted, quoting
from vindicate.redact import redact_text
from vindicate.wire.flags import find_flag, is_flag, same_flag, spelled

__all__ = ["FlagValue", "edit_flag", "read_flag"]

_OPEN = {"program", "list", "pipeline", "redirected_statement"}
_OTHER_SHELLS = re.compile(
    rb"(?:.*/)?(?:sudo|su|doas|runuser|ssh|docker|podman|nerdctl|kubectl|tmux|screen|systemd-run|machinectl|at|batch|(?:ba|da|z|k)?sh)"
)
_FILLERS = (b"read", b"mapfile", b"readarray", b"unset")
_ARRAY = re.compile(rb'("?)\$\{([A-Za-z_]\w*)\[@\]\}("?)')
_UNSPLIT = re.compile(r"[A-Za-z0-9_./:,@%+=-]+", re.ASCII)
_OWN_ARGUMENTS = (b'"$@"', b"$@", b'"${@}"', b"$*")
_OPTIONAL = re.compile(rb'"?\$\{[A-Za-z_]\w*:?\+[^}]*\}+"?')


@dataclass(frozen=True, slots=True, kw_only=True)
class FlagValue:
    """What a script gives a flag: ``""`` when it stands there without a value; *line* counts from 1."""

    value: str
    line: int


@dataclass(frozen=True, slots=True)
class _Word:
    """A word of the command as it reaches the program; *text* is ``None`` where only the run knows it."""

    text: str | None
    start: int
    stop: int
    raw: bytes

    @property
    def looks(self) -> str:
        """What it can be taken for, where only the run knows it: a flag when it begins like one."""
        if self.text is not None:
            return self.text
        return "--unknown" if self.raw.lstrip(b'"').startswith(b"-") or _OPTIONAL.fullmatch(self.raw) else "unknown"


def read_flag(path: Path, name: str) -> FlagValue | None:
    """The value that the script at *path* gives the flag *name*; ``None`` when it does not give it.

    Raises:
        MisuseError: The file cannot be read, or its command is not understood; says file and line.
    """
    try:
        source = path.read_bytes()
    except OSError as error:
        raise MisuseError(
            f"{path}: cannot be read: {error.strerror}", remedy="check the path and its permissions"
        ) from error
    return _FlagScript(source, name, path).value()


def edit_flag(source: bytes, name: str, value: str | None, *, path: Path | None = None) -> bytes:
    """The script *source* with the flag at *value*, without a value for ``""``, without the flag for ``None``; every other byte stays.

    Raises:
        MisuseError: The command is not understood, or *value* cannot be written there.
    """
    script = _FlagScript(source, name, path)
    before = script.value()
    if (before.value if before else None) == value:
        return source
    edited = script.without() if value is None else script.replaced(value) if before else script.appended(value)
    after = _FlagScript(edited, name, path)
    held = after.value()
    if (held.value if held else None) != value or after.others() != script.others():
        raise script.refusal(script.command.start_byte, f"cannot be given {spelled(name)} {value or ''} safely")
    require_parsed(source, edited, script.refusal)
    return edited


class _FlagScript:
    """One parsed script, asked about one flag."""

    def __init__(self, source: bytes, name: str, path: Path | None) -> None:
        self.source, self.name, self.path = source, name, path
        self.root = tree_sitter.Parser(LANGUAGE).parse(source).root_node
        self._require_understood()
        self.steps = steps(self.root)
        step = self._service()
        self.command = step.node
        self.words = self._words(step)
        self._require_known_mentions()

    # ---- reading -------------------------------------------------------------------------------------------------

    def value(self) -> FlagValue | None:
        """What the command gives the flag."""
        at = self._at()
        if at is None:
            return None
        word = self.words[at]
        found = find_flag([one.looks for one in self.words], self.name)[0]
        if not found.joined and found.n_values > 1:
            raise self.refusal(word.start, f"gives {spelled(self.name)} several words, or words of nobody behind it")
        if found.n_values and not found.joined and self.words[at + 1].text is None:
            raw = self.words[at + 1].raw.decode(errors="replace")[:60]
            raise self.refusal(word.start, f"gives {spelled(self.name)} {raw}, which is only known when it runs")
        return FlagValue(value=found.value, line=self.line(word.start))

    def others(self) -> list[bytes]:
        """Every other word of the command."""
        at = self._at()
        skip = range(0) if at is None else range(at, at + self._width())
        return [word.raw for number, word in enumerate(self.words) if number not in skip]

    def _at(self) -> int | None:
        """The index of the flag's word."""
        texts = [word.looks for word in self.words]
        found = find_flag(texts, self.name)
        if len(found) > 1:
            lines = " and ".join(str(self.line(self.words[one.at].start)) for one in found)
            raise self.refusal(
                self.words[found[1].at].start, f"gives {spelled(self.name)} more than once (lines {lines})"
            )
        flag = spelled(self.name)
        for word in self.words:
            text = (word.text or "").partition("=")[0]
            short = flag.startswith("--") and text.startswith("--") and len(text) > 2 and not same_flag(text, self.name)
            glued = len(flag) == 2 and text.startswith(flag) and text != flag
            if glued:
                raise self.refusal(word.start, f"gives {text}, which may be {flag} with its value")
            if short and flag.replace("_", "-").startswith(text.replace("_", "-")):
                raise self.refusal(word.start, f"gives {text}, which may be short for {flag}")
        return found[0].at if found else None

    def _width(self) -> int:
        """How many words the flag takes, its value included."""
        found = find_flag([one.looks for one in self.words], self.name)[0]
        return 1 if found.joined or not found.n_values else 2

    # ---- changing ------------------------------------------------------------------------------------------------

    def replaced(self, value: str) -> bytes:
        """The flag with another value."""
        at = self._at()
        assert at is not None
        word, width = self.words[at], self._width()
        flag, equals, _ = (word.text or "").partition("=")
        if equals:
            return self._put(word.start, word.stop, self._joined(flag, value, quoting(word.raw)))
        if width == 1:
            return self._put(word.start, word.stop, word.raw + b" " + self._apart(value, ""))
        if value == "":
            raise self.refusal(
                word.start, f"gives {flag} a value, and whether it may stand without one is not known: --unset it first"
            )
        held = self.words[at + 1]
        return self._put(held.start, held.stop, self._apart(value, quoting(held.raw)))

    def without(self) -> bytes:
        """The command without the flag and its value."""
        at = self._at()
        if at is None:
            return self.source
        start, stop = self.words[at].start, self.words[at + self._width() - 1].stop
        holder = self._holder(start)
        before = max((child.end_byte for child in holder.children if child.end_byte <= start), default=start)
        gap = self.source[before:start]
        if re.fullmatch(rb"(?:\s|\\\r?\n)*", gap):
            return self._put(before, stop, b"")
        line_start, line_end = self.source.rfind(b"\n", 0, start) + 1, line_stop(self.source, stop)
        if not self.source[line_start:start].strip() and not self.source[stop:line_end].strip():
            return self._put(line_start, line_end, b"")
        raise self.refusal(start, f"has a comment beside {spelled(self.name)}, so that it cannot be taken out safely")

    def appended(self, value: str) -> bytes:
        """The command with the flag behind its last word, on a line of its own where its words stand so."""
        children = [child for child in self.command.children if not child.type.endswith("_redirect")]
        last = children[-1]
        text = spelled(self.name).encode() + (b" " + self._apart(value, "") if value else b"")
        gaps = [self.source[a.end_byte : b.start_byte] for a, b in pairwise(children)]
        gap = next((gap for gap in reversed(gaps) if b"\n" in gap), b" ")
        return self._put(last.end_byte, last.end_byte, gap + text)

    def _apart(self, value: str, style: str) -> bytes:
        if is_flag(value) or value == "--":
            raise self.refusal(self.command.start_byte, f"would take the value {value!r} for a flag")
        return quoted(value, style)

    def _joined(self, flag: str, value: str, style: str) -> bytes:
        if style:
            return quoted(f"{flag}={value}", style)
        return flag.encode() + b"=" + quoted(value)

    def _put(self, start: int, stop: int, text: bytes) -> bytes:
        return self.source[:start] + text + self.source[stop:]

    def _holder(self, at: int) -> tree_sitter.Node:
        """The command or the array in which the word at *at* stands."""
        node = self.root.named_descendant_for_byte_range(at, at + 1)
        assert node is not None
        return next(up for up in nodes_above(node) if up.type in ("command", "array"))

    # ---- understanding -------------------------------------------------------------------------------------------

    def _require_understood(self) -> None:
        if b"\0" in self.source:
            raise self.refusal(self.source.index(b"\0"), "holds a NUL byte, which bash leaves out")
        if b"\r" in self.source:
            raise self.refusal(
                self.source.index(b"\r"), "holds a carriage return (CR LF?), which bash would make part of a word"
            )
        if self.root.has_error:
            bad = next((node for node in walk(self.root) if node.is_error or node.is_missing), self.root)
            raise self.refusal(bad.start_byte, "holds shell text that is not understood")
        for node in redefinitions(self.root):
            raise self.refusal(node.start_byte, f"gives a word another meaning: {self.line_text(node.start_byte)}")

    def _service(self) -> Step:
        """The last program that the script runs, which must run once and always."""
        for step in self.steps:
            if step.name in (b"enable", b"alias", b"eval") or b"expand_aliases" in step.words:
                raise self.refusal(step.at, f"gives a word another meaning, or runs a text: {self.line_text(step.at)}")
        programs = [step for step in self.steps if step.is_program]
        if not programs:
            raise self.refusal(0, "runs no program that could be the service")
        last = programs[-1]
        beside = next((step for step in programs[:-1] if step.background), None)
        if beside is not None:
            raise self.refusal(
                beside.at, f"runs more than one program, this one in the background: {self.line_text(beside.at)}"
            )
        for up in nodes_above(last.node):
            if up != last.node and up.type not in _OPEN:
                raise self.refusal(
                    last.node.start_byte,
                    f"runs its last program inside a {up.type.replace('_', ' ')}: {self.line_text(last.node.start_byte)}",
                )
        name = next((word for word in last.words if not self._is_wrapping(word)), b"")
        if any(_OTHER_SHELLS.fullmatch(word) for word in (last.name, name)):
            raise self.refusal(
                last.node.start_byte,
                f"starts the service through another program: {self.line_text(last.node.start_byte)}",
            )
        taken = next((step for step in programs if step.takes_over and step is not last), None)
        if taken is not None:
            raise self.refusal(taken.at, f"never comes to its last program, behind: {self.line_text(taken.at)}")
        return last

    def _is_wrapping(self, word: bytes) -> bool:
        return word.rsplit(b"/", 1)[-1] in WRAPPERS or bool(re.match(rb"[-0-9]|[A-Za-z_]\w*=", word))

    def _words(self, step: Step) -> list[_Word]:
        """The words behind the command's name, arrays taken apart."""
        outer = (
            step.node.parent
            if step.node.parent is not None and step.node.parent.type == "redirected_statement"
            else step.node
        )
        for node in outer.children:
            behind = (
                node.children_by_field_name("destination")[1:]
                if node.type == "file_redirect"
                else node.children_by_field_name("argument")
            )
            if node.type in ("file_redirect", "heredoc_redirect") and behind:
                raise self.refusal(
                    node.start_byte, f"has words of its command behind a redirection: {self.line_text(node.start_byte)}"
                )
        before_name, found = True, list[_Word]()
        for child in step.node.children:
            if child.type.endswith("_redirect") or (before_name and child.type == "variable_assignment"):
                continue
            if before_name:
                before_name = False
                continue
            found += self._expanded(child, found[-1] if found else None)
        return found

    def _expanded(self, node: tree_sitter.Node, before: _Word | None) -> Iterator[_Word]:
        raw = node.text or b""
        text = literal(raw)
        if text is None and self._mention().search(raw):
            raise self.refusal(
                node.start_byte,
                f"gives {spelled(self.name)} in a way that is only known when it runs: {self.line_text(node.start_byte)}",
            )
        array = _ARRAY.fullmatch(raw)
        if text is None and array:
            for word in self._elements(array[2], node):
                if not (array[1] and array[3]) and not _UNSPLIT.fullmatch(word.text or ""):
                    raise self.refusal(
                        node.start_byte,
                        f"splits the words of {raw.decode()} once more: {self.line_text(node.start_byte)}",
                    )
                yield word
            return
        if text is None and raw in _OWN_ARGUMENTS:
            setting = next((step for step in self.steps if step.name == b"set" and b"--" in step.words), None)
            if setting is not None:
                raise self.refusal(setting.at, f"sets its own arguments: {self.line_text(setting.at)}")
            return  # it is started without any
        if text is None:
            self._require_no_flag_in(node, raw, before)
        yield _Word(text, node.start_byte, node.end_byte, raw)

    def _elements(self, name: bytes, use: tree_sitter.Node) -> Iterator[_Word]:
        """The words of an array that is written out in the open, and of what is added to it."""
        seen = False
        filled = next((step for step in self.steps if step.name in _FILLERS and name in step.words), None)
        if filled is not None:
            raise self.refusal(filled.at, f"fills {name.decode()} when it runs: {self.line_text(filled.at)}")
        for node in walk(self.root):
            if node.type != "variable_assignment" or not re.match(re.escape(name) + rb"[+=\[]", node.text or b""):
                continue
            holder = next((child for child in node.children if child.type == "array"), None)
            statement = node.parent if node.parent is not None and node.parent.type == "declaration_command" else node
            above = [up.type for up in nodes_above(statement)][1:]
            adds = (node.text or b"")[len(name) : len(name) + 2] == b"+="
            if holder is None or node.end_byte > use.start_byte or (seen and not adds):
                raise self.refusal(
                    node.start_byte,
                    f"changes {name.decode()} in a way that is not understood: {self.line_text(node.start_byte)}",
                )
            open_ = all(kind in ("program", "list") for kind in above)
            seen = True
            words: list[_Word] = []
            for child in (child for child in holder.named_children if child.type != "comment"):
                words += self._expanded(child, words[-1] if words else None)
            if not open_ and words:
                self._require_others(words)
            yield from words
        if not seen:
            raise self.refusal(use.start_byte, f"takes words from {name.decode()}, which it does not set")

    def _require_others(self, words: list[_Word]) -> None:
        """Refuse words that are given only sometimes and are the flag, or may be its value."""
        for word in words:
            if same_flag((word.text or "").partition("=")[0], self.name):
                raise self.refusal(
                    word.start, f"gives {spelled(self.name)} only sometimes: {self.line_text(word.start)}"
                )
        if not is_flag(words[0].text or ""):
            raise self.refusal(words[0].start, f"adds a word only sometimes: {self.line_text(words[0].start)}")

    def _require_no_flag_in(self, node: tree_sitter.Node, raw: bytes, before: _Word | None) -> None:
        """Refuse a word that is only known when it runs, and may be one or several flags then."""
        if node.type == "string" or _OPTIONAL.fullmatch(raw):
            return  # one word, or a text of its own in which the flag is not written
        if node.type == "concatenation" and not raw.startswith((b"$", b'"$', b"`")):
            return
        behind_a_flag = (
            before is not None and before.text is not None and is_flag(before.text) and "=" not in before.text
        )
        if not behind_a_flag:
            raise self.refusal(
                node.start_byte,
                f"takes words from {raw.decode(errors='replace')[:60]}, which may hold {spelled(self.name)}",
            )

    def _require_known_mentions(self) -> None:
        """Refuse a place that names the flag and is neither a comment nor a word of the command."""
        known = {word.start for word in self.words} | {word.start + 1 for word in self.words}
        for match in self._mention().finditer(self.source):
            node = self.root.named_descendant_for_byte_range(match.start(), match.end())
            if match.start() in known or (node is not None and any(up.type == "comment" for up in nodes_above(node))):
                continue
            raise self.refusal(
                match.start(),
                f"names {spelled(self.name)} where it may be given unseen: {self.line_text(match.start())}",
            )

    def _mention(self) -> re.Pattern[bytes]:
        """The flag as it may be written, whatever stands around it."""
        flag = spelled(self.name)
        bare = flag.lstrip("-")
        letters = "[-_]".join(re.escape(part) for part in re.split("[-_]", bare))
        text = rf"(?<![A-Za-z0-9_-]){flag[: len(flag) - len(bare)]}{letters}(?![A-Za-z0-9_-])"
        return re.compile(text.encode())

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
            remedy=f"write {spelled(self.name)} VALUE as a plain word of the service's command, or change it by hand; nothing was written",
        )
