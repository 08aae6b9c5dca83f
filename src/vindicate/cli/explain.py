"""`vindicate knob explain`: thread blocks, waves and predicted gains of a target-CTA knob, and what a fit to measured gains proves."""

import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from vindicate.cli.option import KnobCommand, example, json_option, ledger_option, print_json, say, stack_option
from vindicate.errors import MisuseError

if TYPE_CHECKING:
    from vindicate.cli.opening import Desk

__all__ = ["explain"]

_LEVELS = "48,64,80,96"


@click.command(
    "explain",
    cls=KnobCommand,
    epilog=example("vindicate knob explain SGLANG_SM120_MMA_TARGET_CTAS --fit 64:12.8,80:1.2,96:5.7"),
)
@click.argument("name", metavar="NAME")
@click.option(
    "--card", default="rtx-pro-6000", show_default=True, metavar="CARD", help="Whose multiprocessors to count."
)
@click.option("--levels", default=_LEVELS, show_default=True, metavar="N,N…", help="Concurrency levels to predict.")
@click.option(
    "--values", default="256..512", show_default=True, metavar="A..B", help="The two targets to compare, B over A."
)
@click.option(
    "--fit",
    "fit",
    metavar="N:GAIN,…",
    help="Measured gains in per cent; default: those of the ledger for these values.",
)
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Also draw gain over concurrency, as .svg, or .png with the extra plot.",
)
@json_option
@stack_option
@ledger_option
def explain(  # noqa: PLR0917 click passes options by name
    name: str,
    card: str,
    levels: str,
    values: str,
    fit: str | None,
    plot: Path | None,
    as_json: bool,
    stack_file: str | None,
    ledger_path: str | None,
) -> int:
    """Explain what a target-CTA knob of a split-K decode kernel does, by the wave model.

    A model of equal thread blocks; it says which mappings fit the measured gains, how often chance fits as well, and
    which level would decide between them. It measures nothing.
    """
    from vindicate.cli.opening import open_desk
    from vindicate.cli.page import as_picture, write_page
    from vindicate.stats.wavefit import fit_waves
    from vindicate.stats.waves import CARDS
    from vindicate.view.explain import explain_document, explain_lines
    from vindicate.view.explain_plot import MARK, explain_svg

    if card not in CARDS:
        raise MisuseError(f"no card {card!r} is known", remedy=f"one of: {', '.join(CARDS)}")
    a, b = _targets(values)
    if fit is not None:
        measured = _gains(fit)
    else:
        with (desk := open_desk(ledger_path, stack_file, write=False)).ledger:
            measured = _measured(desk, name, (str(a), str(b)))
    found = fit_waves(a, b, sms=CARDS[card].sms, levels=_numbers(levels), measured=measured)
    if plot is not None:
        drawn = explain_svg(name, CARDS[card], (a, b), found)
        write_page(plot, as_picture(plot, drawn, MARK), MARK)
        say(f"written: {plot}")
    if as_json:
        print_json(explain_document(name, CARDS[card], (a, b), found))
    else:
        print("\n".join(explain_lines(name, CARDS[card], (a, b), found)))
    return 0


def _measured(desk: "Desk", name: str, values: tuple[str, str]) -> dict[int, float]:
    """The ledger's figures for these two values: per level the one of the best grade."""
    name = desk.stack.knob_name(name) if desk.stack else name
    effects = [
        effect
        for _, effect in desk.book().effects.get(name, ())
        if (effect.a, effect.b) == values and effect.metric == "output_tok_per_s" and not effect.simulated
    ]
    return {effect.level: effect.gain_pct for effect in sorted(effects, key=lambda effect: effect.grade, reverse=True)}


def _targets(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,7})\.\.(\d{1,7})", text, re.ASCII)
    if match is None or "0" in (match[1], match[2]):
        raise MisuseError(f"--values {text!r} are no two targets", remedy="try: --values 256..512")
    return int(match[1]), int(match[2])


def _numbers(text: str) -> list[int]:
    if not re.fullmatch(r"\d{1,5}(,\d{1,5})*", text, re.ASCII):
        raise MisuseError(f"--levels {text!r} is no list of levels", remedy=f"try: --levels {_LEVELS}")
    return [int(word) for word in text.split(",")]


def _gains(text: str) -> dict[int, float]:
    pairs = [re.fullmatch(r"\s*(\d{1,5}):([+-]?\d{1,3}(?:\.\d+)?)\s*", word, re.ASCII) for word in text.split(",")]
    found = {int(pair[1]): float(pair[2]) for pair in pairs if pair is not None}
    if len(found) != len(pairs):
        raise MisuseError(
            f"--fit {text!r} is no list of level:gain, each level once", remedy="try: --fit 64:12.8,80:1.2,96:5.7"
        )
    return found
