"""argv → one verb → an exit code."""

import os
import sys
import traceback
from importlib import import_module
from typing import Any

import click

from vindicate import __version__
from vindicate.errors import VindicateError

__all__ = ["main", "program"]

# verb → module:attribute and what it does; a verb's module is imported only when it is run or its own help is asked for.
VERBS: dict[str, tuple[str, str]] = {
    "demo": ("vindicate.cli.demo:demo", "Play the whole story on a reference stack, in under 3 minutes."),
    "diagnose": ("vindicate.cli.diagnose:diagnose", "It hangs: who is waiting for whom?"),
    "ab": ("vindicate.cli.ab:ab", "Is that knob any good? Fresh starts, random blocks, intervals."),
    "clawback": ("vindicate.cli.clawback:clawback", "What did we give up on a suspicion that fell?"),
    "restore": ("vindicate.cli.change:restore", "Put it back, safely, or undo by itself."),
    "apply": ("vindicate.cli.change:apply", "Set a knob: backup, write, restart together, verify."),
    "revert": ("vindicate.cli.change:revert", "Take a knob back because of a claim."),
    "change": ("vindicate.cli.change:change", "List, show, resume, roll back or discover changes."),
    "stack": ("vindicate.cli.stack:stack", "Start, stop and look at the services of a stack file."),
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
    sys.exit(_run([word for word in args if word != "--debug"], debug=debug))


def _run(args: list[str], *, debug: bool) -> int:
    try:
        code = program.main(args=args, prog_name="vindicate", standalone_mode=False)
        sys.stdout.flush()
    except VindicateError as error:
        if debug:
            traceback.print_exc()
        print(f"vindicate: {error.problem}\n  {error.remedy}", file=sys.stderr)
        return error.exit_code
    except click.exceptions.Exit as leave:
        return leave.exit_code
    except click.ClickException as error:
        error.show()
        return 2
    except (KeyboardInterrupt, click.Abort):
        print("vindicate: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:  # the one broad except of the program: a bug of ours must not look like a verdict
        if debug:
            traceback.print_exc()
        print(
            f"vindicate: a bug of ours: {type(error).__name__}: {error}\n  run it again with --debug and report what it prints",
            file=sys.stderr,
        )
        return 70
    return code if isinstance(code, int) else 0
