"""A parsed shell script → the commands it runs, in the order in which it reaches them, and what each may do unseen."""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import tree_sitter
import tree_sitter_bash

from vindicate.errors import MisuseError
from vindicate.operate.shell_word import literal

__all__ = [
    "LANGUAGE",
    "WRAPPERS",
    "Step",
    "knows_sourced",
    "line_stop",
    "nodes_above",
    "redefinitions",
    "steps",
    "walk",
    "words_of",
]

_KEYWORDS = frozenset(b"export declare typeset set source . unset true : echo printf".split())
LANGUAGE = tree_sitter.Language(tree_sitter_bash.language())
# Commands that run another one, in the environment that they got.
WRAPPERS = frozenset(
    b"exec command builtin time nohup setsid nice ionice chrt stdbuf taskset numactl timeout env".split()
)
# Commands after which nothing is known to get this script's environment.
_ELSEWHERE = frozenset(
    b"sudo su doas runuser ssh docker podman nerdctl kubectl tmux screen systemd-run machinectl at batch".split()
)
# Commands that are no service: a value that is set behind the last other one has no effect.
_SMALL = frozenset(
    b": source . true false echo printf cd pushd popd set shopt ulimit umask trap wait exit return break continue sleep kill disown jobs"
    b" fg mkdir rm touch cat tail head tee ts date hostname test [ read mapfile readarray shift type which curl ls grep sed"
    b" awk ps pgrep mv cp ln chmod logger".split()
)
_SETTERS = frozenset(b"read mapfile readarray getopts let unset".split())


@dataclass(frozen=True, slots=True)
class Step:
    """One command that the script may run.

    Attributes:
        at: The byte where the script reaches it; for what a function does, where the function is called.
        words: Its name and arguments as they are written, without assignments before it and redirections.
        background: The script goes on without waiting for it.
    """

    at: int
    node: tree_sitter.Node
    words: tuple[bytes, ...]
    background: bool

    @property
    def name(self) -> bytes:
        """The command's name; empty for a redirection alone."""
        return self.words[0] if self.words else b""

    @property
    def takes_over(self) -> bool:
        """Whether it is an ``exec`` of a program: nothing behind it is reached."""
        return self.name == b"exec" and len(self.words) > 1

    @property
    def is_program(self) -> bool:
        """Whether it may be the service itself."""
        if self.node.type != "command" or not self.words or self.words == (b"exec",):
            return False
        return self.name not in _SMALL | _SETTERS

    @property
    def identity(self) -> tuple[bytes, ...]:
        """What tells one program from another: its name without wrappers, and its module or first argument."""
        words = list(self.words)
        passing = WRAPPERS | {b"sudo", b"doas"}
        while words and (words[0].rsplit(b"/", 1)[-1] in passing or re.match(rb"[-0-9]|[A-Za-z_]\w*=", words[0])):
            words.pop(0)
        if not words:
            return self.words
        name = words[0].rsplit(b"/", 1)[-1]
        return (name, *(words[1:3] if words[1:2] == [b"-m"] else (w for w in words[1:2] if not w.startswith(b"-"))))

    @property
    def passes_environment(self) -> bool:
        """Whether the program gets the script's environment: not after ``sudo``, ``env -i`` and the like."""
        for number, word in enumerate(self.words):
            plain = word.rsplit(b"/", 1)[-1]
            if plain in _ELSEWHERE:
                return False
            following = self.words[number + 1 : number + 2]
            if plain == b"env" and re.search(
                rb" (?:-|-[0v]*i\S*|--ignore\S*|-S\S*|--split\S*)(?: |$)", _options(self.words[number:])
            ):
                return False  # fmt: skip
            if plain == b"exec" and following and re.match(rb"-[al]*c", following[0]):
                return False
            if plain not in WRAPPERS and not re.match(rb"[-0-9]|[A-Za-z_]\w*=", word):
                break
        return True

    @property
    def may_set_unseen(self) -> bool:
        """Whether it may set, in the script's own shell, a variable whose name is not written in it; `sourced_file` is asked apart."""
        words = self.words
        while words and words[0] in (b"command", b"builtin", b"time"):
            words = words[1:]
        if not words:
            return False
        computed = [word for word in words[1:] if literal(word) is None]
        if words[0] == b"printf":
            return len(words) > 1 and words[1].startswith((b"-v", b"$")) and bool(computed)
        if self.node.type == "declaration_command":
            named = [child for child in self.node.named_children if child.type == "variable_assignment"]
            if any(re.match(rb"-\w*n", word) for word in words[1:]) and computed:
                return True
            plain = {child.text for child in named}
            return any(word not in plain for word in computed)
        return words[0] in _SETTERS | {b"eval"} and bool(computed)


def steps(root: tree_sitter.Node) -> tuple[Step, ...]:
    """What the script runs, in order; what stands in a substitution cannot set anything and is left out."""
    functions: dict[bytes, list[tree_sitter.Node]] = {}
    for node in walk(root):
        if node.type == "function_definition" and (name := node.child_by_field_name("name")):
            functions.setdefault(name.text or b"", []).append(node)
    return tuple(_steps(root, functions, at=None, background=False, depth=0))


def redefinitions(root: tree_sitter.Node) -> list[tree_sitter.Node]:
    """Functions that take the name of a command which this reader takes for the shell's own."""
    found = [node for node in walk(root) if node.type == "function_definition"]
    names = _KEYWORDS | WRAPPERS
    return [node for node in found if (name := node.child_by_field_name("name")) and name.text in names]


def _steps(
    node: tree_sitter.Node, functions: Mapping[bytes, list[tree_sitter.Node]], *, at: int | None, background: bool, depth: int
) -> Iterator[Step]:  # fmt: skip
    for child in node.children:
        if child.type in ("function_definition", "command_substitution", "process_substitution", "comment"):
            continue
        here = child.start_byte if at is None else at
        behind = background or (child.next_sibling is not None and child.next_sibling.type == "&")
        if child.type in ("command", "declaration_command", "unset_command"):
            words = words_of(child)
            bodies = functions.get(words[0], []) if words else []
            if not bodies:
                yield Step(here, child, words, behind)
            for body in bodies if depth < 5 else []:
                yield from _steps(body, functions, at=here, background=behind, depth=depth + 1)
        else:
            yield from _steps(child, functions, at=here if at is not None else None, background=behind, depth=depth)


def words_of(command: tree_sitter.Node) -> tuple[bytes, ...]:
    """The name and the arguments of *command* as they are written, without assignments before it and redirections."""
    before_name = command.type == "command"
    words = []
    for child in command.children:
        if child.type.endswith("_redirect") or (before_name and child.type == "variable_assignment"):
            continue
        before_name = False
        words.append(child.text or b"")
    return tuple(words)


def _options(words: tuple[bytes, ...]) -> bytes:
    """What stands behind ``env`` and before its command, in one text."""
    found = b""
    for word in words[1:]:
        if not re.match(rb"-|[A-Za-z_]\w*=", word):
            break
        found += b" " + word
    return found


def sourced_file(step: Step, before: tuple[Step, ...], folder: Path | None) -> Path | None:
    """The file that a ``source`` reads; ``None`` when that is only known when the script runs.

    Args:
        before: What ran before it; after a ``cd`` to somewhere a relative path is not known any more.
        folder: Where the script stands, which is also where it is started.
    """
    word = step.words[1] if len(step.words) > 1 else b""
    own = re.fullmatch(rb'"?\$\(dirname (?:--\s)?"?(?:\$0|\$\{?BASH_SOURCE(?:\[0\])?\}?)"?\)"?/([\w./-]+)"?', word)
    home = re.fullmatch(rb'(?:~|"?\$HOME|"?\$\{HOME\})"?/([\w./-]+)"?', word)
    if home:
        path = Path.home() / os.fsdecode(home[1])
    elif own:
        path = (folder or Path()) / os.fsdecode(own[1])
    elif (text := literal(word)) is not None:
        path = Path(text)
    else:
        return None
    if not path.is_absolute():
        moved = any(s.name in (b"cd", b"pushd", b"popd") and b"dirname" not in b" ".join(s.words) for s in before)
        path = Path() if moved or folder is None else folder / path
        return path if path.is_file() else None
    return path if path.is_file() or not path.exists() else None


def knows_sourced(step: Step, before: tuple[Step, ...], name: str, script: Path | None, *, depth: int = 0) -> bool:
    """Whether the file that *step* sources, and all that it sources, could be read; what such a file only computes is not seen.

    Raises:
        MisuseError: It names the variable *name*.
    """
    path = sourced_file(step, before, script.parent if script else None)
    if path is None or depth > 4:
        return False
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    word = name.encode()
    pattern = rb"(?<![A-Za-z0-9_$])(?<!\$\{)" + word + rb"(?![A-Za-z0-9_])|\$\{" + word + rb":?="
    for number, line in enumerate(text.splitlines(), 1):
        if re.search(pattern, re.sub(rb"(?:^|\s)#.*", b"", line)):
            raise MisuseError(
                f"{path}:{number}: sets {name}, and {script or 'the script'} sources that file",
                remedy=f"set {name} in one place: move it into {script or 'the script'}",
            )
    inner = steps(tree_sitter.Parser(LANGUAGE).parse(text).root_node)
    return all(
        knows_sourced(one, before + inner[:number], name, script, depth=depth + 1)
        for number, one in enumerate(inner)
        if one.name in (b"source", b".")
    )


def walk(node: tree_sitter.Node) -> Iterator[tree_sitter.Node]:
    """*node* and all below it, in the order of the text."""
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
