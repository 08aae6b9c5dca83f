"""Every command that the program, or a page of its own, tells a person to type is one: its verbs and options exist."""

import ast
import re
import shlex
from functools import cache
from pathlib import Path

import click

from vindicate.cli import VERBS, program

SOURCE = Path(__file__).parents[2] / "src" / "vindicate"
COMMAND = re.compile(r"\bvindicate (?P<words>[a-z-][^;`\n]*)")
END = re.compile(r" or |   |, | \(|\)|: | > |\. ")


def texts(tree):
    """Every string of a module; what an f-string fills in is X."""
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            yield node.lineno, node.value
        elif isinstance(node, ast.JoinedStr):
            yield (
                node.lineno,
                "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values),
            )


def commands():
    for path in sorted(SOURCE.rglob("*.py")):
        for line, text in texts(ast.parse(path.read_text())):
            for match in COMMAND.finditer(text):
                words = re.sub(r'"[^"]*"|\'[^\']*\'', "TEXT", END.split(match["words"])[0]).split()
                if words and (words[0] in VERBS or words[0].startswith("--")):
                    yield f"{path.relative_to(SOURCE)}:{line}: {' '.join(words)}", words


@cache
def command_of(*names):
    command = program
    for name in names:
        command = command.get_command(click.Context(command), name)
    return command


def what_is_wrong(words):
    command, names = program, ()
    for word in words:
        bare = word.strip("'\".,…")
        if isinstance(command, click.Group) and not bare.startswith("-"):
            if bare == "X":
                return None  # which one is decided when it runs
            names = (*names, bare)
            command = command_of(*names)
            if command is None:
                return f"there is no {' '.join(names)}"
        elif bare.startswith("--"):
            known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
            if bare.partition("=")[0] not in {*known, "--help", "--debug"}:
                return f"{bare} is no option of {' '.join(names) or 'vindicate'}"
    return None


def test_every_command_that_is_told_exists():
    told = dict(commands())
    assert len(told) > 80
    assert {where: wrong for where, words in told.items() if (wrong := what_is_wrong(words))} == {}


def test_every_command_of_the_stories_exists():
    page = (SOURCE.parents[1] / "docs" / "stories.md").read_text()
    told = [shlex.split(line) for line in re.findall(r"^ *\$ vindicate (.+)$", page, re.MULTILINE)]
    assert len(told) > 20
    assert {" ".join(words): wrong for words in told if (wrong := what_is_wrong(words))} == {}


def test_the_check_itself_sees_what_is_wrong():
    assert what_is_wrong(["--ledger", "NEW.db", "ledger", "import", "FILE"]) == "--ledger is no option of vindicate"
    assert what_is_wrong(["ledger", "check", "--nope"]) == "--nope is no option of ledger check"
    assert what_is_wrong(["claim", "forget"]) == "there is no claim forget"
