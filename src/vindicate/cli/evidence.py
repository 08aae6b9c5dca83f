"""`vindicate evidence`: record what was seen or measured, or read it from files people already have."""

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

import click

from vindicate.cli.incident import exposure
from vindicate.cli.option import (
    TEXT,
    agree,
    example,
    json_option,
    ledger_option,
    print_json,
    say,
    stack_option,
    yes_options,
)
from vindicate.errors import MisuseError

if TYPE_CHECKING:
    from vindicate.cli.opening import Desk
    from vindicate.ledger.state import Book
    from vindicate.ledger.table import Comparison
    from vindicate.record.ledger import Effect, Evidence

__all__ = ["evidence"]

_KINDS = ("intervention", "observation", "log", "code", "upstream", "opinion", "document")


@click.group(epilog=example("vindicate evidence import PLAN.md"))
def evidence() -> None:
    """Record or import what was seen and measured."""


@evidence.command(
    "add",
    epilog=example(
        'vindicate evidence add "hang stayed at 256" --kind intervention --claim H1 --against --suspect absent --symptoms 2'
    ),
)
@click.argument("text", type=TEXT)
@click.option("--id", "name", metavar="E1", help="Its name; one that is taken corrects that evidence.")
@click.option("--kind", type=click.Choice(_KINDS), default="observation", show_default=True)
@click.option("--claim", "claim_name", metavar="H1", help="The claim that it speaks to.")
@click.option("--for", "direction", flag_value="for", help="It speaks for the claim.")
@click.option("--against", "direction", flag_value="against", help="It speaks against the claim.")
@click.option(
    "--explains-away", "direction", flag_value="explains_away", help="It explains the symptom in another way."
)
@click.option("--group", default="", help="Items of one group count once; default: the kind.")
@click.option("--source", default="", help="File and line, command, or URL.")
@click.option("--at", metavar="TIME", help="When it was seen or measured; default now.")
@click.option("--suspect", type=click.Choice(["present", "absent"]), help="Was the suspected value in place?")
@click.option("--symptoms", type=click.IntRange(0), help="How often the symptom came.")
@click.option("--exposure", "over", metavar="40000req|12h", help="Over how many requests, or how long.")
@click.option("--knob", "comparison", metavar="NAME=A..B", help="What the gains compare: B over A.")
@click.option(
    "--gain", "gains", multiple=True, metavar="LEVEL:PCT", help="A gain at one level, such as 64:12.8; of grade D."
)
@click.option(
    "--fingerprint",
    "versions",
    multiple=True,
    metavar="FIELD=VALUE",
    help="What was so then, such as nccl=2.27.3; the newest on record counts for the scopes of claims. May be repeated.",
)
@stack_option
@ledger_option
def add(  # noqa: PLR0917 click passes options by name
    text: str,
    name: str | None,
    kind: str,
    claim_name: str | None,
    direction: str | None,
    group: str,
    source: str,
    at: str | None,
    suspect: str | None,
    symptoms: int | None,
    over: str | None,
    comparison: str | None,
    gains: tuple[str, ...],
    versions: tuple[str, ...],
    stack_file: str | None,
    ledger_path: str | None,
) -> int:
    """Record one piece of evidence by hand, and print its id.

    An intervention says whether the suspect was in place, how often the symptom came, and over how much.
    """
    from vindicate.cli.claim import standing_changes
    from vindicate.cli.opening import open_desk
    from vindicate.clock import parse_time, utc_now
    from vindicate.record.ledger import Evidence

    if direction and not claim_name:
        raise MisuseError(f"--{direction.replace('_', '-')} without a claim", remedy="name it: --claim H1")
    fingerprint = dict(_field(text) for text in versions)
    amount, unit = exposure(over) if over else (None, None)
    measured = {"suspect": suspect, "symptoms": symptoms, "exposure": amount, "exposure_unit": unit}
    moment = parse_time(at) if at else utc_now()
    with (desk := open_desk(ledger_path, stack_file, write=True)).ledger as ledger:
        book = desk.book()
        if claim_name:
            book.claim(claim_name)
        body = Evidence(
            id=name or ledger.next_id("E"),
            kind=kind,
            text=text,
            claim=claim_name,
            direction=cast('Literal["for", "against", "explains_away", "neutral"]', direction or "neutral"),
            group=group or kind,
            source=source,
            measured_at=moment,
            effects=_gains(comparison, gains),
            fingerprint=fingerprint,
            measured={key: value for key, value in measured.items() if value is not None},
        )
        ledger.append(body, happened_at=moment)
        fallen = standing_changes(book, desk.book()) if fingerprint else []
    print(body.id)
    for line in fallen:
        say(line)
    return 0


def _field(text: str) -> "tuple[str, str | None]":
    """A field of a fingerprint as it is written on the command line."""
    match = re.fullmatch(r"([A-Za-z][\w.-]*)=\s*(\S.*?)\s*", text)
    if match is None:
        raise MisuseError(f"--fingerprint is {text!r}", remedy="write FIELD=VALUE, for example nccl=2.27.3")
    return match[1].lower(), match[2]


def _gains(comparison: str | None, gains: tuple[str, ...]) -> tuple["Effect", ...]:
    from vindicate.record.ledger import Effect

    said = _comparison(comparison)
    if gains and said is None:
        raise MisuseError("--gain without --knob", remedy="say what is compared: --knob NAME=A..B")
    effects = []
    for gain in gains:
        match = re.fullmatch(r"(\d+):([+-]?\d+(?:\.\d+)?)%?", gain)
        if match is None or said is None:
            raise MisuseError(f"--gain is {gain!r}", remedy="write LEVEL:PCT, for example 64:12.8")
        effects.append(
            Effect(
                knob=said.knob,
                a=said.a,
                b=said.b,
                level=int(match[1]),
                metric="output_tok_per_s",
                gain_pct=float(match[2]),
                grade="D",
            )
        )
    return tuple(effects)


def _comparison(text: str | None) -> "Comparison | None":
    from vindicate.ledger.table import Comparison

    if text is None:
        return None
    match = re.fullmatch(r"([^=]+)=(.+?)\.\.(.+)", text)
    if match is None:
        raise MisuseError(
            f"--knob is {text!r}", remedy="write NAME=A..B, for example SGLANG_SM120_MMA_TARGET_CTAS=256..512"
        )
    return Comparison(knob=match[1], a=match[2], b=match[3])


@evidence.command("import", epilog=example("vindicate evidence import PERF_PLAN.md"))
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--knob", "comparison", metavar="NAME=A..B", help="What the tables compare, where the document does not say so."
)
@click.option("--claim", "claim_name", metavar="H1", help="The claim that it speaks to.")
@yes_options
@json_option
@stack_option
@ledger_option
def import_(  # noqa: PLR0917 click passes options by name
    files: tuple[Path, ...],
    comparison: str | None,
    claim_name: str | None,
    yes: bool,
    dry_run: bool,
    as_json: bool,
    stack_file: str | None,
    ledger_path: str | None,
) -> int:
    """Read A/B tables in Markdown, results of benchmark tools, saved diagnoses and load summaries; show what was understood, and record it when you agree."""
    from vindicate.cli.opening import open_desk
    from vindicate.ledger.arms import read_files
    from vindicate.ledger.importing import already_recorded

    with (desk := open_desk(ledger_path, stack_file, write=False)).ledger:
        book = desk.book()
    if claim_name:
        book.claim(claim_name)
    known, said = desk.known_knobs(book), _comparison(comparison)
    read = read_files(files, known=known, said=said, home=desk.home)
    passed_over = [line for found in read for line in found.passed_over]
    for line in [*(line for found in read for line in found.said), *passed_over]:
        say(line)
    everything = [replace(item, claim=claim_name) for found in read for item in found.items]
    new = []
    for item in everything:
        old = already_recorded(item, tuple(book.evidence.values()))
        if old:
            say(f"{item.source}: recorded already as {old.id}")
        else:
            new.append(item)
    if not everything:
        raise MisuseError(
            f"nothing to record was understood in {', '.join(map(str, files))}",
            remedy="; ".join(passed_over) or "no table, and no saved document of ours, is in it",
        )
    recorded: list[Evidence] = []
    if new and not dry_run:
        agree(f"record {len(new)} piece{'s' if len(new) > 1 else ''} of evidence?", yes=yes)
        with (writer := open_desk(ledger_path, stack_file, write=True)).ledger as ledger:
            recorded = [replace(item, id=ledger.next_id("E")) for item in new]
            for body in recorded:
                ledger.append(body, happened_at=body.measured_at)
            book = writer.book()
    if as_json:
        print_json(
            {
                "schema": "vindicate.evidence/1",
                "recorded": recorded,
                "understood": everything,
                "passed_over": passed_over,
            }
        )
    else:
        for body in recorded:
            print(f"{body.id}  {body.kind}: {body.text}  ({body.source})")
    for body in recorded:
        _say_what_it_does(desk, book, body)
    return 0


def _say_what_it_does(desk: "Desk", book: "Book", item: "Evidence") -> None:
    """Name the claims that a saved diagnosis displaces: the next thing to do."""
    from vindicate.cli.opening import knob_services
    from vindicate.ledger.claim_rules import displaces, subject_knob

    if item.diagnosis is None:
        return
    for name, record in book.claims.items():
        knob = subject_knob(record.claim)
        why = displaces(
            item,
            record.claim,
            services=knob_services(desk, book, knob[0]) if knob else (),
            in_place=book.in_place(knob[0]) if knob else {},
        )
        if why and record.status in ("open", "supported"):
            say(f"{why}\n  next: vindicate claim displace {name} --evidence {item.id}")


@evidence.command("list", epilog=example("vindicate evidence list"))
@json_option
@stack_option
@ledger_option
def list_(as_json: bool, stack_file: str | None, ledger_path: str | None) -> int:
    """List the evidence on record."""
    from vindicate.cli.opening import open_desk

    with (desk := open_desk(ledger_path, stack_file, write=False)).ledger:
        book = desk.book()
    if as_json:
        print_json({"schema": "vindicate.evidence/1", "evidence": list(book.evidence.values())})
        return 0
    for item in book.evidence.values():
        print(f"{item.id:5} {item.kind:12} {item.text}" + (f"  ({item.source})" if item.source else ""))
    if not book.evidence:
        print("no evidence is on record")
    return 0


@evidence.command("show", epilog=example("vindicate evidence show E1"))
@click.argument("name", metavar="EVIDENCE")
@json_option
@stack_option
@ledger_option
def show(name: str, as_json: bool, stack_file: str | None, ledger_path: str | None) -> int:
    """Show one piece of evidence with its figures and its source."""
    from vindicate.cli.opening import open_desk
    from vindicate.view.ledger import evidence_lines

    with (desk := open_desk(ledger_path, stack_file, write=False)).ledger:
        item = desk.book().item(name)
    if as_json:
        print_json({"schema": "vindicate.evidence/1", "evidence": [item]})
        return 0
    print("\n".join(evidence_lines(item)))
    return 0
