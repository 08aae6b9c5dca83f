"""The options that many verbs share, and how a verb asks and answers."""

import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import click

from vindicate.errors import MisuseError, RefusedError
from vindicate.redact import redact_json, redact_text
from vindicate.units import Seconds, parse_duration

__all__ = [
    "DURATION",
    "TEXT",
    "KnobCommand",
    "agree",
    "example",
    "json_option",
    "ledger_file",
    "ledger_option",
    "print_json",
    "say",
    "stack_option",
    "timeout_option",
    "yes_options",
]

_F = TypeVar("_F", bound=Callable[..., Any])


class DurationType(click.ParamType[Seconds]):
    """A duration such as 10s or 5m, in seconds inside."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Seconds:
        """Parse text; seconds pass through."""
        if isinstance(value, int | float):
            return Seconds(float(value))
        try:
            return parse_duration(value)
        except MisuseError as error:
            self.fail(f"{error.problem}; {error.remedy}", param, ctx)


class TextType(click.ParamType[str]):
    """Words that say something."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Refuse blanks only."""
        if not str(value).strip():
            self.fail("is empty; say it in a few words", param, ctx)
        return str(value)


class KnobCommand(click.Command):
    """A command whose words name knobs, which may be written as flags: ``--max-running-requests=64``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take the dashes from a word that is no option of ours and sets something, or is the one name asked for.

        `Stack.knob_name` knows a flag without its dashes.
        """
        named = any(isinstance(param, click.Argument) and param.nargs == 1 for param in self.get_params(ctx))
        ours = {name: param for param in self.get_params(ctx) for name in (*param.opts, *param.secondary_opts)}
        words: list[str] = []
        positional, left = 0, list(args)
        while left:
            word = left.pop(0)
            param = ours.get(word.partition("=")[0]) if word.startswith("-") else None
            if word == "--":
                words += [word, *left]
                break
            if isinstance(param, click.Option):
                takes_next = "=" not in word and not param.is_flag and not param.count
                words += [word, *(left[:1] if takes_next else [])]
                left = left[1:] if takes_next else left
                continue
            bare = word.lstrip("-")
            if word.startswith("-") and bare[:1].isalpha() and ("=" in word or (named and not positional)):
                word = bare
            positional += 1
            words.append(word)
        return super().parse_args(ctx, words)


DURATION = DurationType()
TEXT = TextType()

stack_option = click.option(
    "--stack", "stack_file", metavar="FILE", help="Stack file; default ./vindicate.toml, then $VINDICATE_STACK."
)
ledger_option = click.option(
    "--ledger",
    "ledger_path",
    metavar="PATH-or-URL",
    help="Ledger: a file, or sqlite:///PATH; default .vindicate/ledger.db beside the stack file.",
)
json_option = click.option(
    "--json", "as_json", is_flag=True, help="One JSON document on standard output, nothing else there."
)


timeout_option = click.option(
    "--timeout", "timeout_s", type=DURATION, default="10m", show_default=True, help="How long a service may take to be healthy."
)  # fmt: skip


def yes_options(command: _F) -> _F:
    """Add `--yes` and `--dry-run` to a verb that writes, restarts or sends."""
    command = click.option("--yes", "-y", is_flag=True, help="Do it without asking.")(command)
    return click.option("--dry-run", is_flag=True, help="Print the plan and do nothing.")(command)


def example(line: str) -> str:
    """The epilog of a verb: one line that runs when it is copied."""
    return f"\b\nExample:\n  {line}"


def say(text: str) -> None:
    """Write progress, a plan or a warning to standard error; a reader that has gone away stops nothing."""
    with suppress(OSError, ValueError):
        print(redact_text(text), file=sys.stderr, flush=True)


def print_json(document: Any) -> None:
    """Write one JSON document to standard output, without secrets."""
    import msgspec

    plain = redact_json(msgspec.to_builtins(document))
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(plain), indent=1).decode() + "\n")


def agree(question: str, *, yes: bool) -> None:
    """Ask on standard error before something is written, restarted or sent.

    Raises:
        RefusedError: The answer was no, or there is no terminal to ask on.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise RefusedError(
            "this needs a yes, and standard input is no terminal",
            remedy="add --yes to go on, or --dry-run to see the plan only",
        )
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise RefusedError("answered no; nothing was changed", remedy="run it again when you are ready")


def ledger_file(ledger_path: str | None, stack_file: str | None) -> Path:
    """Where the ledger is: as given, a path or ``sqlite:///PATH``; else `.vindicate/ledger.db` beside the stack file, else here.

    Raises:
        MisuseError: It is a URL of another kind.
    """
    from vindicate.stack.file import find_stack_file

    if ledger_path is not None and "://" in ledger_path:
        kind, _, rest = ledger_path.partition("://")
        if kind != "sqlite":
            raise MisuseError(
                f"--ledger {kind}://… is not known here", remedy="name a file: --ledger PATH, or sqlite:///PATH"
            )
        ledger_path = rest.removeprefix("/")
        if not ledger_path:
            raise MisuseError(f"--ledger {kind}://{rest} names no file", remedy="try: --ledger sqlite:///PATH")
    if ledger_path is not None:
        return Path(ledger_path)
    stack = find_stack_file(stack_file)
    return (stack.absolute().parent if stack else Path.cwd()) / ".vindicate" / "ledger.db"
