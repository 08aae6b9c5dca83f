"""The command objects in → docs/commands.md out; `make docs` runs it, and a test fails when the page is behind."""

from pathlib import Path

import click

from vindicate.cli import program

HEAD = """\
# Commands

Written by `make docs` from the commands themselves. Names, options and exit codes are a contract: they are added to, never renamed.

| exit code | meaning |
|---|---|
| 0 | done; good news or none |
| 1 | done; bad news: a fault found, a change undone cleanly, a document contradicted, drift found, streams stalled or broken |
| 2 | usage, configuration or input error, or the answer was no; nothing was changed |
| 3 | undetermined: not enough evidence, and the output says which observation would settle it |
| 4 | it could not be done: not begun, or left half done and resumable, with the command that finishes it |
| 70 | a bug of ours |
| 130 | interrupted; state left resumable |
"""


def page() -> str:
    """The whole page."""
    return HEAD + "".join(_sections(program, "vindicate"))


def _sections(command: click.Command, path: str, parent: click.Context | None = None) -> list[str]:
    settings = {**command.context_settings, "max_content_width": 100, "terminal_width": 100}
    context = click.Context(command, info_name=path.rsplit(" ", 1)[-1], parent=parent, **settings)
    sections = [f"\n## {path}\n\n```\n{command.get_help(context).rstrip()}\n```\n"]
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            if inner is not None and not inner.hidden:
                sections += _sections(inner, f"{path} {name}", context)
    return sections


if __name__ == "__main__":
    Path(__file__).with_name("commands.md").write_text(page(), encoding="utf-8")
