"""`vindicate ab`: is that knob any good?"""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from vindicate.cli.option import (
    KnobCommand,
    agree,
    example,
    json_option,
    ledger_file,
    ledger_option,
    print_json,
    say,
    stack_option,
)

if TYPE_CHECKING:
    from vindicate.experiment.journal import Journal
    from vindicate.experiment.question import Question
    from vindicate.record.experiment import Design, Experiment, Price
    from vindicate.stack.model import Stack

__all__ = ["ab"]


@click.command(
    cls=KnobCommand, epilog=example("vindicate ab SGLANG_SM120_MMA_TARGET_CTAS=256..512 --levels 48,64,80,96 --plan")
)
@click.argument("words", metavar="[KNOB=A..B | report ID]", nargs=-1)
@click.option("--aa", is_flag=True, help="Run an arm against itself, to learn the noise; takes KNOB or nothing.")
@click.option("--unset-a", is_flag=True, help="Arm a leaves the knob unset: KNOB=..512 --unset-a.")
@click.option("--unset-b", is_flag=True, help="Arm b leaves the knob unset: KNOB=256.. --unset-b.")
@click.option("--levels", default="48,64,80,96", show_default=True, help="Requests at a time, one level after another.")
@click.option(
    "--primary",
    type=int,
    help="A level named beforehand and judged by itself; the others are read once it is better or worse.",
)
@click.option("--blocks", type=int, default=12, show_default=True, help="Pairs of fresh starts; 3 to 5 give grade B.")
@click.option("--looks", help="Blocks after which to judge, and perhaps stop.  [default: half-way and at the end]")
@click.option("--margin", default="3%", show_default=True, help="Difference that does not matter.")
@click.option("--metric", default="output_tok_per_s", show_default=True, help="Or ttft_p50_ms, itl_mean_ms and so on.")
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), help="Order and prompts come from it; drawn when not given.")
@click.option("--requests-per-level", type=click.IntRange(1), help="[default: 4 times the highest level]")
@click.option("--rounds", type=click.IntRange(1), default=4, show_default=True, help="Rounds of a session.")
@click.option("--max-tokens", type=click.IntRange(1), default=64, show_default=True, help="Of each answer.")
@click.option("--ignore-eos", is_flag=True, help="Every answer goes on to --max-tokens: equal work (SGLang, vLLM).")
@click.option("--model", help="[default: the first that the server names]")
@click.option("--url", help="Where the load goes.  [default: the stack's entry]")
@click.option(
    "--html", type=click.Path(path_type=Path), metavar="FILE", help="With report: one page that needs nothing else."
)
@click.option("--plan", is_flag=True, help="Print what it costs and can find, and touch nothing.")
@click.option("--resume", metavar="ID", help="Go on with an experiment that was interrupted.")
@click.option(
    "--no-calibration", is_flag=True, help="Do not measure the client's own error first; verdicts then do not know it."
)
@click.option("--put-back", metavar="ID", help="Only make the stack what it was before that experiment.")
@click.option("--yes", "-y", is_flag=True, help="Do it without asking.")
@click.option("--dry-run", is_flag=True, help="The same as --plan.")
@json_option
@stack_option
@ledger_option
def ab(
    words: tuple[str, ...],
    *,
    aa: bool,
    html: Path | None,
    plan: bool,
    dry_run: bool,
    resume: str | None,
    put_back: str | None,
    yes: bool,
    as_json: bool,
    stack_file: str | None,
    ledger_path: str | None,
    **options: object,
) -> int:
    """Measure one knob at two values: fresh starts in random blocks, every level on each, an interval for each level.

    It restarts services: the price comes first, and it asks. The scripts and processes are put back as they were when it
    ends, however it ends. An empty side is the empty string; --unset-a and --unset-b leave the knob unset in that arm.
    `vindicate ab report X1` says again what an experiment said, with --html FILE as a page with plots.
    """
    from vindicate.stack.file import load_stack

    stack = load_stack(stack_file)
    ledger = ledger_file(ledger_path, stack_file)
    if words[:1] == ("report",) or html is not None:
        return _report_again(stack, words, html, yes=yes, as_json=as_json)
    question = _only_word(words)
    if put_back is not None:
        return _put_back(stack, put_back, yes=yes)
    if resume is not None:
        return _resume(stack, ledger, resume, question, plan=plan or dry_run, yes=yes, as_json=as_json)
    asked = _question(stack, question, aa=aa, words=options)
    if plan or dry_run:
        design = _design(stack, asked, "plan", options)
        return _show_price(design, _price(stack, ledger, design), as_json=as_json)
    return _new(stack, ledger, asked, options, yes=yes, as_json=as_json)


def _only_word(words: tuple[str, ...]) -> str | None:
    from vindicate.errors import MisuseError
    from vindicate.experiment.question import FORM

    if len(words) > 1:
        raise MisuseError(f"one question at a time, not {' '.join(words)!r}", remedy=FORM)
    return words[0] if words else None


def _question(stack: "Stack", text: str | None, *, aa: bool, words: dict[str, object]) -> "Question":
    from vindicate.errors import MisuseError
    from vindicate.experiment.question import FORM, ask_about_itself, parse_question

    if aa:
        return ask_about_itself(stack, text)
    if text is None:
        raise MisuseError("which knob, and which two values?", remedy=FORM)
    return parse_question(text, unset_a=bool(words["unset_a"]), unset_b=bool(words["unset_b"]))


def _design(stack: "Stack", asked: "Question", experiment: str, words: dict[str, object]) -> "Design":
    import secrets

    from vindicate.clock import SystemClock
    from vindicate.experiment.question import parse_numbers, parse_share, plan_design

    looks = words["looks"]
    return plan_design(
        stack,
        asked,
        experiment=experiment,
        levels=parse_numbers(str(words["levels"]), "--levels"),
        looks=parse_numbers(str(looks), "--looks") if looks is not None else None,
        margin=parse_share(str(words["margin"])),
        seed=secrets.randbelow(2**31) if words["seed"] is None else int(str(words["seed"])),
        clock=SystemClock(),
        **{name: words[name] for name in _PASSED},  # type: ignore[arg-type]
    )


_PASSED = ("url", "model", "primary", "blocks", "metric", "requests_per_level", "rounds", "max_tokens", "ignore_eos")


def _price(stack: "Stack", ledger: Path, design: "Design") -> "Price":
    from vindicate.experiment.price import price
    from vindicate.experiment.record import noise_history, pace_history, restart_history
    from vindicate.ledger.store import Ledger

    with Ledger.open(ledger, read_only=True) as book:
        noise = noise_history(book.facts("evidence"), stack, design)
        restart_s = restart_history(book.facts("change_step"), design.restarted)
    return price(design, noise=noise, pace=pace_history(stack.home), restart_s=restart_s)


def _show_price(design: "Design", price: "Price", *, as_json: bool) -> int:
    from vindicate.view.experiment import price_text

    if as_json:
        print_json(
            {"schema": "vindicate.experiment-plan/1", "design": design, "price": price, "minutes": price.minutes}
        )
    else:
        print(price_text(design, price))
    return 0


def _new(stack: "Stack", ledger: Path, asked: "Question", words: dict[str, object], *, yes: bool, as_json: bool) -> int:
    from dataclasses import replace

    from vindicate.clock import utc_now
    from vindicate.experiment.journal import Journal
    from vindicate.experiment.record import earlier_experiments, record_design
    from vindicate.ledger.store import Ledger
    from vindicate.load.calibrate import calibrate
    from vindicate.operate.lock import locked
    from vindicate.view.experiment import calibration_text, price_text

    design = _design(stack, asked, "new", words)
    _require_free(stack, ledger, design)
    say(price_text(design, _price(stack, ledger, design)))
    agree("Restart these services and run it?", yes=yes)
    with locked(stack, f"ab {design.knob}"):
        if not words["no_calibration"]:
            say("calibrating the client against a server of known timing")
            design = replace(design, client_error=calibrate(design.levels))
            say(calibration_text(design.client_error))
        design = replace(design, earlier=earlier_experiments(stack.home, design))
        if design.earlier:
            say(f"it will be held against {', '.join(item.id for item in design.earlier)}, on the same knob")
        with Ledger.open(ledger) as book:
            design = replace(design, id=book.next_id("X"), registered_at=utc_now())
            journal = Journal(stack.home / "experiments" / design.id)
            journal.register(design)
            record_design(book, stack, design, journal)
        say(f"registered as {design.id}, in {journal.folder}")
        return _run(stack, ledger, design, journal, as_json=as_json)


def _require_free(stack: "Stack", ledger: Path, design: "Design") -> None:
    """Nothing stands half done, neither an experiment nor a change, and the load's way is open."""
    from vindicate.experiment.bench import require_path
    from vindicate.experiment.journal import require_put_back
    from vindicate.ledger.state import Book
    from vindicate.ledger.store import Ledger
    from vindicate.operate.journal import require_nothing_half_done

    require_put_back(stack.home)
    with Ledger.open(ledger, read_only=True) as book:
        require_nothing_half_done(Book.from_facts(book.facts()))
    require_path(stack, design)


def _resume(
    stack: "Stack", ledger: Path, experiment: str, question: str | None, *, plan: bool, yes: bool, as_json: bool
) -> int:
    from vindicate.errors import MisuseError
    from vindicate.experiment.bench import require_path
    from vindicate.experiment.journal import Journal
    from vindicate.experiment.judge import judge_experiment
    from vindicate.operate.lock import locked

    journal = Journal.find(stack.home, experiment)
    design = journal.design()
    if question is not None:
        raise MisuseError(
            f"--resume {experiment} goes on with the design that was registered, and {question!r} asks for another",
            remedy=f"try: vindicate ab --resume {experiment}",
        )
    so_far = judge_experiment(design, journal.trials())
    left = design.blocks - so_far.blocks_done
    if so_far.complete and journal.before() is None:
        _record_once(stack, ledger, design, so_far, journal)
        say(f"{experiment} is complete; this is what it says")
        return _report(so_far, as_json=as_json)
    if plan:
        say(f"{experiment}: {so_far.blocks_done} of {design.blocks} blocks done, up to {2 * left + 1} starts left")
        return _report(so_far, as_json=as_json)
    require_path(stack, design)
    agree(f"Go on with {experiment}: up to {2 * left + 1} more starts of {', '.join(design.restarted)}?", yes=yes)
    with locked(stack, f"ab --resume {experiment}"):
        return _run(stack, ledger, design, journal, as_json=as_json)


def _run(stack: "Stack", ledger: Path, design: "Design", journal: "Journal", *, as_json: bool) -> int:
    """Run and judge; the stack's lock is held."""
    from vindicate.clock import SystemClock
    from vindicate.experiment.bench import StackBench
    from vindicate.experiment.run import run_experiment
    from vindicate.operate.interrupt import interruptible

    bench = StackBench(stack, design, say=say)
    with interruptible():
        try:
            result = run_experiment(design, bench, journal, clock=SystemClock(), say=say)
        except KeyboardInterrupt:
            say(f"interrupted; the stack is as it was before. Go on with: vindicate ab --resume {design.id}")
            return 130
        _record_once(stack, ledger, design, result, journal)
    return _report(result, as_json=as_json)


def _record_once(stack: "Stack", ledger: Path, design: "Design", result: "Experiment", journal: "Journal") -> None:
    """Put the result into the ledger, also when a kill came between its end and this."""
    from vindicate.experiment.record import is_recorded, record_result
    from vindicate.ledger.store import Ledger

    with Ledger.open(ledger) as book:
        if not is_recorded(book.facts("evidence"), design.id):
            record_result(book, stack, design, result, journal)


def _put_back(stack: "Stack", experiment: str, *, yes: bool) -> int:
    from vindicate.experiment.bench import StackBench
    from vindicate.experiment.journal import Journal
    from vindicate.experiment.run import put_back
    from vindicate.operate.lock import locked

    journal = Journal.find(stack.home, experiment)
    if journal.before() is None:
        say(f"the stack is as it was before {experiment}; nothing to put back")
        return 0
    design = journal.design()
    agree(f"Put the scripts back as before {experiment} and restart {', '.join(design.restarted)}?", yes=yes)
    with locked(stack, f"ab --put-back {experiment}"):
        put_back(StackBench(stack, design, say=say), journal, say=say)
    say(f"the stack is as it was before {experiment}")
    return 0


def _report_again(stack: "Stack", words: tuple[str, ...], html: Path | None, *, yes: bool, as_json: bool) -> int:
    """Judge what is on disk once more, and show it; nothing is touched."""
    from vindicate.cli.page import write_page
    from vindicate.errors import MisuseError
    from vindicate.experiment.journal import Journal, all_journals
    from vindicate.experiment.judge import judge_experiment
    from vindicate.view.experiment_page import report_page
    from vindicate.view.page import MARK

    if words[:1] != ("report",) or len(words) != 2:
        known = ", ".join(item.id for item in all_journals(stack.home)) or "none yet"
        raise MisuseError("report of which experiment?", remedy=f"try: vindicate ab report ID; known: {known}")
    journal = Journal.find(stack.home, words[1])
    result = judge_experiment(journal.design(), journal.trials())
    if html is not None:
        write_page(html, report_page(result).encode(errors="backslashreplace"), MARK, yes=yes)
        say(f"written: {html}")
    if as_json or html is None:
        _report(result, as_json=as_json)
    return 0


def _report(result: "Experiment", *, as_json: bool) -> int:
    from vindicate.view.experiment import report_text

    if as_json:
        print_json(result)
    else:
        print(report_text(result))
    return _exit_code(result)


def _exit_code(result: "Experiment") -> int:
    """0: better, equivalent or unresolved as planned; 1: worse; 3: invalid, so nothing was learned; by the primary level if named."""
    primary = result.design["primary"]
    verdicts = {item.verdict for item in result.effects if primary is None or item.level == primary}
    return 1 if "worse" in verdicts else 3 if "invalid" in verdicts else 0
