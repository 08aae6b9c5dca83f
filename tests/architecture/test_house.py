"""The house keeps its rules: light start, documents that match the code, examples in every help."""

import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from vindicate.cli import VERBS, program

ROOT = Path(__file__).parents[2]
HEAVY = (
    "numpy",
    "scipy",
    "sqlalchemy",
    "aiohttp",
    "rich",
    "msgspec",
    "psutil",
    "prometheus_client",
    "markdown_it",
    "tree_sitter",
    "yaml",
    "torch",
)


def _commands(group=program, words=("vindicate",)):
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None, name
        yield (*words, name), command
        if isinstance(command, click.Group):
            yield from _commands(command, (*words, name))


def test_help_imports_nothing_heavy():
    code = (
        "import sys\nfrom vindicate.cli import main\ntry:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert done.stderr.strip() == "[]"
    assert all(verb in done.stdout for verb in VERBS)


@pytest.mark.parametrize(
    ("words", "command"), [pytest.param(words, command, id=" ".join(words[1:])) for words, command in _commands()]
)
def test_every_verb_says_what_it_does_and_gives_an_example_that_names_it(words, command):
    assert command.help, words
    assert command.epilog is not None, words
    assert "Example" in command.epilog, words
    assert " ".join(words) in command.epilog, words


def test_readme_names_no_verb_that_does_not_exist():
    shown = set(re.findall(r"^\$? ?vindicate ([a-z]+)", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE))
    assert shown <= set(VERBS)


def test_every_dependency_has_its_decision_note():
    text = (ROOT / "docs/decisions/0003-dependencies.md").read_text(encoding="utf-8").lower()
    block = re.search(
        r"^dependencies = \[(.*?)^\]", (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    assert block is not None
    for name in re.findall(r'"([a-z-]+)', block[1].lower()):
        assert name in text, name


def test_no_pinned_version_names_where_it_is_fetched_from():
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    assert "://" not in text
    assert all(
        re.fullmatch(r"[A-Za-z0-9_.-]+==[^\s]+", line) for line in text.split("\n") if line and not line.startswith("#")
    )


def test_command_page_matches_the_commands():
    # In a process of its own: click keeps the help option of a command from the first time it is asked for.
    code = "import runpy; print(runpy.run_path('docs/generate.py')['page'](), end='')"
    page = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    assert (ROOT / "docs/commands.md").read_text(encoding="utf-8") == page.stdout, "behind: run `make docs`"
