"""argv → one verb → an exit code."""

import io
import signal
import sys
import traceback
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any


def _quiet_interrupt(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Show no traceback of a Ctrl-C that comes before `main` can answer it."""
    if issubclass(kind, KeyboardInterrupt):
        print("vindicate: interrupted", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)


sys.excepthook = _quiet_interrupt  # before the imports that take time

import click  # noqa: E402

from vindicate import __version__  # noqa: E402
from vindicate.cli.streams import mend_streams  # noqa: E402
from vindicate.errors import BugError, CannotError, MisuseError, VindicateError  # noqa: E402
from vindicate.redact import redact_text  # noqa: E402

__all__ = ["main", "program"]

# verb → module:attribute and what it does; a verb's module is imported only when it is run or its own help is asked for.
VERBS: dict[str, tuple[str, str]] = {
    "demo": ("vindicate.cli.demo:demo", "Play the whole story on a reference stack, in under 3 minutes."),
    "init": ("vindicate.cli.init:init", "Draw this host's chain and write a stack file."),
    "diagnose": ("vindicate.cli.diagnose:diagnose", "It hangs: who is waiting for whom?"),
    "ab": ("vindicate.cli.ab:ab", "Is that knob any good? Fresh starts, random blocks, intervals."),
    "clawback": ("vindicate.cli.clawback:clawback", "What did we give up on a suspicion that fell?"),
    "restore": ("vindicate.cli.change:restore", "Put it back, safely, or undo by itself."),
    "apply": ("vindicate.cli.change:apply", "Set a knob: backup, write, restart together, verify."),
    "revert": ("vindicate.cli.change:revert", "Take a knob back because of a claim."),
    "change": ("vindicate.cli.change:change", "List, show, resume, roll back or discover changes."),
    "stack": ("vindicate.cli.stack:stack", "Start, stop and look at the services of a stack file."),
    "watch": ("vindicate.cli.watch:watch", "The chain while it runs: who waits, what moves, what is pinned."),
    "unpin": ("vindicate.cli.unpin:unpin", "Abort requests that an engine will never let go."),
    "load": ("vindicate.cli.load:load", "Drive multi-round sessions; every run ends."),
    "incident": ("vindicate.cli.incident:incident", "Open an incident with its count and exposure."),
    "claim": ("vindicate.cli.claim:claim", "Say what is believed, and what became of it."),
    "evidence": ("vindicate.cli.evidence:evidence", "Record or import what was measured."),
    "knob": ("vindicate.cli.knob:knob", "Declared, in the script, live: what is it, why, what is it worth?"),
    "docs": ("vindicate.cli.docs:docs", "Check and correct documents against the ledger."),
    "ledger": ("vindicate.cli.ledger:ledger", "Export, import and check the ledger."),
    "rehearse": ("vindicate.cli.rehearse:rehearse", "Run a proxy that misbehaves on request."),
}


class LazyVerbs(click.Group):
    """A group whose verbs are imported when they are needed, so that `--help` stays light."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The verbs, in the order a newcomer meets them."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the verb's module."""
        if cmd_name not in VERBS:
            return None
        module, _, attribute = VERBS[cmd_name][0].partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of verbs without importing them."""
        with formatter.section("Verbs"):
            formatter.write_dl([(name, text) for name, (_, text) in VERBS.items()])

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """Find the verb, and name near ones when there is none."""
        if args and args[0] not in VERBS and not args[0].startswith("-"):
            from difflib import get_close_matches

            near = get_close_matches(args[0], VERBS, n=1)
            ctx.fail(f"no verb {args[0]!r}" + (f"; did you mean {near[0]!r}?" if near else "; see: vindicate --help"))
        return super().resolve_command(ctx, args)


@click.group(
    cls=LazyVerbs,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Example: vindicate demo",
)
@click.version_option(__version__, prog_name="vindicate")
@click.option("--debug", is_flag=True, help="Show a traceback with an error; may stand anywhere on the line.")
def program(debug: bool) -> None:
    """Find who stalls in an LLM serving chain; measure a knob honestly; claw back what a wrong suspicion cost; restore it safely."""


def main(argv: list[str] | None = None) -> None:
    """Run one verb and exit with the code that the contract gives it."""
    args = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in args
    try:
        code = _run_whole([word for word in args if word != "--debug"], debug=debug)
    except KeyboardInterrupt:  # a second one, while the first was being answered
        code = 130
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # what is left is the interpreter's own end: one more ends it at once
    sys.exit(code)


def _run_whole(args: list[str], *, debug: bool) -> int:
    """Run one verb between streams that cannot fail; what could not be written is said at the end."""
    if not debug:
        _hush()
    try:
        outlet = mend_streams()
        _check_folder()
    except VindicateError as error:
        return _tell(error)
    code = _run(args, debug=debug)
    try:
        sys.stdout.flush()
        if outlet is not None:
            outlet.check()
    except VindicateError as error:
        return _tell(error)
    return code


def _run(args: list[str], *, debug: bool) -> int:
    try:
        _check_words(args)
        code = program.main(args=args, prog_name="vindicate", standalone_mode=False)
    except click.exceptions.Exit as leave:
        return leave.exit_code
    except click.ClickException as error:
        error.show(file=(text := io.StringIO()))
        print(_clip(redact_text(text.getvalue())), end="", file=sys.stderr)
        return 2
    except (KeyboardInterrupt, click.Abort):
        print("vindicate: interrupted", file=sys.stderr)
        return 130
    except Exception as error:  # the one broad except of the program: a bug of ours must not look like a verdict
        if debug:
            print(redact_text(traceback.format_exc()), end="", file=sys.stderr)
        return _tell(_as_ours(error))
    return code if isinstance(code, int) else 0


def _as_ours(error: Exception) -> VindicateError:
    """Whose side it was: the caller's, the machine's, or ours."""
    match error:
        case VindicateError():
            return error
        case UnicodeEncodeError():  # a path that neither a ledger nor a JSON document can hold
            return MisuseError(f"{_clip(error.object, 200)!r} is no UTF-8 text", remedy="rename that file or folder")
        case OSError():  # no space, no permission, too many files
            where = f"{error.filename}: " if error.filename else ""
            return CannotError(
                f"{where}{error.strerror or error}",
                remedy="check that path, its permissions and the free space; --debug shows where it came up",
            )
    return BugError(
        f"a bug of ours: {type(error).__name__}: {error}", remedy="run it again with --debug and report what it prints"
    )


def _tell(error: VindicateError) -> int:
    """Say what was wrong and what to do; the exit code that goes with it."""
    print(f"vindicate: {_clip(redact_text(error.problem))}\n  {_clip(redact_text(error.remedy))}", file=sys.stderr)
    return error.exit_code


def _clip(text: str, most: int = 1200) -> str:
    """A long value shows its beginning and its end."""
    if len(text) <= most:
        return text
    return f"{text[: most // 2]} … ({len(text) - most} more characters) … {text[-most // 2 :]}"


def _check_words(args: list[str]) -> None:
    """Refuse what neither a ledger nor a JSON document can hold."""
    for word in args:
        if not word.isascii() and word.encode(errors="ignore").decode() != word:
            raise MisuseError(f"{_clip(word, 80)!r} is no UTF-8 text", remedy="write it, or rename that file, in UTF-8")


def _check_folder() -> None:
    try:
        Path.cwd()
    except OSError as error:
        raise MisuseError(
            f"the folder you stand in is gone: {error.strerror}", remedy="go to one that is there: cd ~"
        ) from error


def _hush() -> None:
    """Keep the reports of libraries, and of what breaks while the process ends, off the terminal; `--debug` shows them."""
    import logging

    logging.lastResort = None
    logging.raiseExceptions = False
    sys.unraisablehook = lambda _: None
