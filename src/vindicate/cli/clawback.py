"""`vindicate clawback`: what was given up on a suspicion that fell, what it is worth, and how to get it back."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from vindicate.cli.option import agree, example, json_option, ledger_option, print_json, say, stack_option
from vindicate.errors import MisuseError

if TYPE_CHECKING:
    from vindicate.cli.opening import Desk
    from vindicate.ledger.discover import Proposal
    from vindicate.ledger.state import Book
    from vindicate.record.ledger import ClaimStatus, Evidence, Fact

__all__ = ["clawback"]


@click.command(epilog=example("vindicate clawback"))
@click.option(
    "--if", "what_if", multiple=True, metavar="CLAIM=STATUS", help="What would be, were H1=refuted; nothing is written."
)
@click.option("--as-of", metavar="TIME", help="As the ledger knew it then.")
@click.option(
    "--discover", is_flag=True, help="Look for past reverts in scripts, backups, git history and documents as well."
)
@click.option(
    "--git",
    "git_dirs",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="With --discover: a folder of scripts.",
)
@click.option(
    "--script",
    "scripts",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="With --discover: a script.",
)
@click.option(
    "--doc",
    "documents",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="With --discover: a document, or a folder of them.",
)
@click.option("--yes", "-y", is_flag=True, help="Record what --discover finds, without asking.")
@json_option
@stack_option
@ledger_option
def clawback(  # noqa: PLR0917 click passes options by name
    what_if: tuple[str, ...],
    as_of: str | None,
    discover: bool,
    git_dirs: tuple[Path, ...],
    scripts: tuple[Path, ...],
    documents: tuple[Path, ...],
    yes: bool,
    as_json: bool,
    stack_file: str | None,
    ledger_path: str | None,
) -> int:
    """List the reverts in force: where each stands, what it costs per level, and the next step, the most promising first."""
    from vindicate.cli.opening import open_desk
    from vindicate.clock import parse_time, utc_now
    from vindicate.ledger.clawback import candidates, document
    from vindicate.ledger.present import seen_now
    from vindicate.ledger.state import Book
    from vindicate.view.ledger import clawback_lines

    moment = parse_time(as_of) if as_of else utc_now()
    statuses = _statuses(what_if)
    with (desk := open_desk(ledger_path, stack_file, write=False)).ledger:
        facts = desk.ledger.facts()
    book = Book.from_facts(facts, moment if as_of else None)
    found: dict[str, Any] = {}
    if discover:
        if as_of:
            raise MisuseError("--discover with --as-of", remedy="what is found today was not known then; leave one out")
        book, found = _discovered(
            desk, facts, (git_dirs, scripts, documents), record=(yes, as_json, ledger_path, stack_file)
        )
    if statuses:
        book = book.with_status(statuses)
    if as_of:  # what is live now was not so then
        rows = candidates(book, now=moment, defaults=_defaults(desk))
    else:
        book = seen_now(desk.stack, book)
        live, together = _live(desk, book)
        rows = candidates(book, now=moment, live=live, defaults=_defaults(desk), together=together)
    if found and not found["recorded"]:  # what is not recorded has no id that another verb would know
        held = Book.from_facts(facts).changes
        how = _recording(git_dirs, scripts, documents, stack_file, ledger_path)
        rows = tuple(row if row.change in held else replace(row, command=how) for row in rows)
    later = len(Book.from_facts(facts).changes) - len(book.changes) if as_of else 0
    if as_json:
        marks = {
            "what_if": statuses,
            "hypothetical": bool(statuses),
            "changes_recorded_later": later,
            "present": book.present,
        }
        print_json({**document(rows, moment), **marks, **found})
        return 0
    print(
        "\n".join(
            clawback_lines(rows, what_if=statuses, discovered=bool(found), empty=not book.changes, recorded_later=later)
        )
    )
    return 0


def _statuses(what_if: tuple[str, ...]) -> "dict[str, ClaimStatus]":
    from vindicate.record.ledger import ClaimStatus

    statuses: dict[str, ClaimStatus] = {}
    for item in what_if:
        claim, _, name = item.partition("=")
        status = next((known for known in get_args(ClaimStatus) if known == name), None)
        if status is None:
            raise MisuseError(
                f"--if is {item!r}", remedy=f"write CLAIM=STATUS; statuses: {', '.join(get_args(ClaimStatus))}"
            )
        statuses[claim] = status
    return statuses


def _live(desk: "Desk", book: "Book") -> tuple[dict[str, Any], dict[str, str]]:
    """What live processes hold of each knob, and which services must hold one value of it and restart together."""
    from vindicate.ledger.live import coherence, live_value

    if desk.stack is None:
        return {}, {}
    knobs = dict.fromkeys(record.change.knob for record in book.changes.values())
    return {knob: live_value(desk.stack, knob) for knob in knobs}, {knob: coherence(desk.stack, knob) for knob in knobs}


def _defaults(desk: "Desk") -> dict[str, str | None]:
    return {name: knob.default for name, knob in desk.stack.knobs.items()} if desk.stack else {}


def _discovered(
    desk: "Desk",
    facts: "list[Fact]",
    where: tuple[tuple[Path, ...], tuple[Path, ...], tuple[Path, ...]],
    *,
    record: tuple[bool, bool, str | None, str | None],
) -> "tuple[Book, dict[str, Any]]":
    """The book with what was found added, and a summary; recorded only when the user says so, else shown as if it were."""
    from vindicate.cli.drift import drift_found
    from vindicate.cli.opening import open_desk
    from vindicate.ledger.discover import discover_changes, unrecorded
    from vindicate.ledger.state import Book
    from vindicate.ledger.store import Ledger
    from vindicate.view.ledger import proposal_lines

    yes, as_json, ledger_path, stack_file = record
    how = _recording(*where, stack_file, ledger_path)
    blind: list[str] = []
    git_dirs, scripts, documents = where
    proposals = discover_changes(desk.stack, git_dirs=git_dirs, scripts=scripts, docs=documents, blind=blind)
    book = Book.from_facts(facts)
    drifted, drift = drift_found(desk, book, proposals)
    proposals += drifted
    new, _ = unrecorded(book, proposals)
    tables = _tables(desk, book, proposals, documents, blind)
    for line in proposal_lines(proposals, new, tables):
        say(line)
    for line in drift:
        say(line)
    for line in blind:
        say(f"not seen: {line}")
    recorded = False
    if new or tables:
        recorded = _consents(
            f"record {len(new)} changes and {len(tables)} tables, marked as found in hindsight?", yes=yes, quiet=as_json
        )
    if recorded:
        with (writer := open_desk(ledger_path, stack_file, write=True)).ledger as ledger:
            _record(ledger, proposals, tables)
            book = writer.book()
    else:
        with Ledger.scratch(facts) as scratch:
            _record(scratch, proposals, tables)
            book = Book.from_facts(scratch.facts())
        if new or tables:
            say(f"not recorded; the ids below are provisional until you record it: {how}")
    return book, {"discovered": new, "tables": tables, "drift": drift, "recorded": recorded, "blind": blind}


def _recording(
    git_dirs: tuple[Path, ...],
    scripts: tuple[Path, ...],
    documents: tuple[Path, ...],
    stack_file: str | None,
    ledger_path: str | None,
) -> str:
    """The command that looks in the same places and records what it finds."""
    given = [("--git", path) for path in git_dirs] + [("--script", path) for path in scripts]
    given += [("--doc", path) for path in documents]
    given += [(name, Path(value)) for name, value in (("--stack", stack_file), ("--ledger", ledger_path)) if value]
    return shlex.join(["vindicate", "clawback", "--discover", *(str(word) for pair in given for word in pair), "--yes"])


def _consents(question: str, *, yes: bool, quiet: bool) -> bool:
    """Whether the user says yes; no answer is no, for the findings are shown all the same."""
    import sys

    if yes:
        return True
    if quiet or not sys.stdin.isatty():
        return False
    from vindicate.errors import RefusedError

    try:
        agree(question, yes=False)
    except RefusedError:
        return False
    return True


def _record(ledger: Any, proposals: "list[Proposal]", tables: "list[Evidence]") -> None:
    from vindicate.ledger.discover import record_proposals

    record_proposals(ledger, proposals)
    for item in tables:
        ledger.append(replace(item, id=ledger.next_id("E")), happened_at=item.measured_at)


def _tables(
    desk: "Desk", book: "Book", proposals: "list[Proposal]", documents: tuple[Path, ...], blind: list[str]
) -> "list[Evidence]":
    """A/B tables, in the same documents, about the knobs that were changed."""
    from vindicate.ledger.discover import documents_to_read
    from vindicate.ledger.importing import already_recorded, read_evidence

    knobs = tuple(dict.fromkeys([*desk.known_knobs(book), *(item.knob for item in proposals)]))
    found = []
    for path in documents_to_read(desk.stack, documents, proposals):
        try:
            read = read_evidence(path, known=knobs, home=desk.home)
        except MisuseError as error:
            blind.append(error.problem)
            continue
        found += [
            item
            for item in read.items
            if item.effects
            and item.effects[0].knob in knobs
            and not already_recorded(item, tuple(book.evidence.values()))
        ]
    return found
