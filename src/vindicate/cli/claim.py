"""`vindicate claim`: what is believed, on what evidence, and what became of it."""

from typing import TYPE_CHECKING

import click

from vindicate.cli.option import TEXT, example, json_option, ledger_option, print_json, say, stack_option
from vindicate.errors import MisuseError, UndeterminedError

if TYPE_CHECKING:
    from vindicate.cli.opening import Desk
    from vindicate.ledger.state import Book
    from vindicate.record.ledger import ClaimStatus

__all__ = ["claim", "standing_changes"]


@click.group(epilog=example("vindicate claim list"))
def claim() -> None:
    """Say what is believed, and what became of it; nothing falls without evidence."""


@claim.command(
    "add",
    epilog=example('vindicate claim add "512 CTAs hang the sessions" --about knob:SGLANG_SM120_MMA_TARGET_CTAS=512'),
)
@click.argument("text", type=TEXT)
@click.option("--id", "name", metavar="H1", help="Its name; one that is taken corrects that claim.")
@click.option("--incident", "incident_name", metavar="INC-1", help="The incident it is to explain.")
@click.option("--about", metavar="knob:NAME=VALUE|service:NAME", help="What it accuses.")
@click.option("--scope", metavar="FIELD OP VALUE", help='Where it holds, such as "nccl >= 2.19, nccl < 2.22.3".')
@click.option(
    "--no-hazard", is_flag=True, help="It is not about a hang or corruption; refuting then takes one kind of evidence."
)
@click.option(
    "--hazard", "is_hazard", is_flag=True, help="It is about a hang or corruption; a new claim is, unless told."
)
@stack_option
@ledger_option
def add(  # noqa: PLR0917 click passes options by name
    text: str,
    name: str | None,
    incident_name: str | None,
    about: str | None,
    scope: str | None,
    no_hazard: bool,
    is_hazard: bool,
    stack_file: str | None,
    ledger_path: str | None,
) -> int:
    """Record a claim, and print its id. A revert may then rest on it, and shows up when it falls."""
    from vindicate.cli.opening import open_desk
    from vindicate.ledger.scope import parse_scope
    from vindicate.record.ledger import Claim

    if scope is not None:
        parse_scope(scope)
    if no_hazard and is_hazard:
        raise MisuseError("--hazard and --no-hazard together", remedy="leave one out")
    kind, colon, subject = (about or "knob:X").partition(":")
    if not colon or kind not in ("knob", "service") or not subject.partition("=")[0]:
        raise MisuseError(f"--about is {about!r}", remedy="write knob:NAME=VALUE, or service:NAME")
    with (desk := open_desk(ledger_path, stack_file, write=True)).ledger as ledger:
        book = desk.book()
        if incident_name:
            book.incident(incident_name)
        if about and desk.stack and kind == "service":
            desk.stack.service(subject)
        if about and desk.stack and kind == "knob":
            spelling, equals, value = subject.partition("=")
            subject = desk.stack.knob_name(spelling) + equals + value
            about = f"knob:{subject}"
        if about and desk.stack and kind == "knob" and subject.partition("=")[0] not in desk.stack.knobs:
            say(
                f"{subject.partition('=')[0]} is not declared in {desk.stack.file}; known: {', '.join(desk.stack.knobs) or 'none'}"
            )
        before = book.claims.get(name or "")
        old = before.claim if before else None  # a correction keeps what it does not mention
        body = Claim(
            id=name or ledger.next_id("H"),
            text=text,
            incident=incident_name or (old.incident if old else None),
            about=about or (old.about if old else None),
            scope=scope or (old.scope if old else None),
            hazard=not no_hazard and (is_hazard or old is None or old.hazard),
        )
        ledger.append(body)
    print(body.id)
    if old:
        say(f"{body.id} was there before, and is corrected by this")
    return 0


def _verb(verb: str, status: "ClaimStatus", summary: str) -> None:
    """Add ``claim support``, ``claim displace`` … : they differ in what they demand."""

    @claim.command(verb, help=summary, epilog=example(f'vindicate claim {verb} H1 --reason "…"'))
    @click.argument("name", metavar="CLAIM")
    @click.option("--evidence", "evidence", multiple=True, metavar="ID", help="Evidence on record; may be repeated.")
    @click.option("--reason", default="", help="In your own words.")
    @stack_option
    @ledger_option
    def command(
        name: str, evidence: tuple[str, ...], reason: str, stack_file: str | None, ledger_path: str | None
    ) -> int:
        from vindicate.cli.opening import open_desk

        with (desk := open_desk(ledger_path, stack_file, write=True)).ledger:
            return _change_status(desk, name, status, evidence, reason)


_verb("support", "supported", "Say that evidence, or a reason, speaks for a claim.")
_verb(
    "displace",
    "displaced",
    "Say that another cause explains the symptom: on a saved diagnosis that convicts another service or clears what the "
    "claim accuses, on other evidence, or on a reason alone. What rests on the claim is then weakened, not free.",
)
_verb(
    "refute",
    "refuted",
    "Say that a claim is false. It takes an intervention (the symptom seen without the suspect, or not seen with it for T*) "
    "and, for a hazard, a second independent kind of evidence; what is missing is said. A reason alone displaces at most.",
)
_verb("reopen", "open", "Take a verdict back; what rests on the claim stands again as before.")
_verb("withdraw", "withdrawn", "Take a claim back, as never meant or badly put.")


def _change_status(desk: "Desk", name: str, status: "ClaimStatus", evidence: tuple[str, ...], reason: str) -> int:
    from vindicate.ledger.present import seen_now
    from vindicate.record.ledger import ClaimEvent

    book = seen_now(desk.stack, desk.book())
    record = book.claim(name)
    for item in evidence:
        book.item(item)
    if record.status == status and not evidence:
        raise MisuseError(f"{name} is {status} already", remedy=f"see: vindicate claim show {name}")
    why, on = _ruling(desk, book, name, status, evidence, reason)
    desk.ledger.append(ClaimEvent(claim=name, status=status, reason=why, evidence=on))
    print(f"{name} is {status}" + (f", on {', '.join(on)}" if on else "") + f": {why}")
    fallen = standing_changes(book, desk.book().with_present(book.present))
    for line in fallen:
        print(line)
    if fallen:
        say("next: vindicate clawback")
    return 0


def standing_changes(before: "Book", after: "Book") -> list[str]:
    """The changes that stand otherwise in *after*, a line each."""
    from vindicate.ledger.standing import standings

    was, now = standings(before), standings(after)
    return [
        f"{change} is now {now[change].name} (was {was[change].name})"
        for change in now
        if change in was and was[change].name != now[change].name
    ]


def _ruling(  # noqa: PLR0917 private
    desk: "Desk", book: "Book", name: str, status: "ClaimStatus", evidence: tuple[str, ...], reason: str
) -> tuple[str, tuple[str, ...]]:
    """Reason and evidence to record, once the claim's rules are met."""
    from vindicate.cli.opening import knob_services
    from vindicate.ledger.claim_rules import may_displace, may_refute, subject_knob

    if status not in ("displaced", "refuted"):
        if not reason and not evidence:
            raise MisuseError("neither evidence nor a reason", remedy='add --evidence ID, or --reason "…"')
        return reason or "; ".join(book.item(item).text for item in evidence), evidence
    claim_body = book.claim(name).claim
    items = tuple({item.id: item for item in (*book.about(name), *(book.item(given) for given in evidence))}.values())
    knob = subject_knob(claim_body)
    services = knob_services(desk, book, knob[0]) if knob else ()
    in_place = book.in_place(knob[0]) if knob else {}
    if status == "displaced":
        ruling = may_displace(
            claim_body, items, reason="" if evidence else reason, services=services, in_place=in_place
        )
        remedy = f'or say so in your own words alone: vindicate claim displace {name} --reason "…"'
    else:
        ruling = may_refute(claim_body, items, book.incident_of(name), services=services, in_place=in_place)
        remedy = f"see what would settle it: vindicate claim show {name}; or restore it as the test: vindicate clawback"
    if not ruling.allowed:
        raise UndeterminedError(
            f"{name} cannot be called {status} yet; missing: {'; '.join(ruling.missing)}", remedy=remedy
        )
    return reason or ruling.why, ruling.on or evidence


@claim.command("show", epilog=example("vindicate claim show H1"))
@click.argument("name", metavar="CLAIM")
@json_option
@stack_option
@ledger_option
def show(name: str, as_json: bool, stack_file: str | None, ledger_path: str | None) -> int:
    """Show a claim: its history, the evidence, what rests on it, and what would settle it."""
    from vindicate.cli.opening import knob_services, open_desk
    from vindicate.ledger.claim_rules import how_to_count, may_refute, subject_knob, t_star_of, t_star_text
    from vindicate.ledger.present import seen_now
    from vindicate.ledger.scope import Scoped
    from vindicate.ledger.standing import standings
    from vindicate.view.ledger import claim_lines

    with (desk := open_desk(ledger_path, stack_file, write=False)).ledger:
        book = seen_now(desk.stack, desk.book())
    record = book.claim(name)
    scope = book.scopes.get(name, Scoped())
    repeated = [copy for copy, of in book.copies.items() if of == name]
    incident = book.incident_of(name)
    knob = subject_knob(record.claim)
    services = knob_services(desk, book, knob[0]) if knob else ()
    in_place = book.in_place(knob[0]) if knob else {}
    ruling = may_refute(record.claim, book.about(name), incident, services=services, in_place=in_place)
    now, fallen = standings(book), standings(book, what_if={name: "refuted"})
    rests = [
        (change.change, now[change.change.id].name, fallen[change.change.id].name)
        for change in {it.change.id: it for claim in (name, *repeated) for it in book.resting_on(claim)}.values()
    ]
    if as_json:
        print_json(
            {
                "schema": "vindicate.claim/1",
                "claim": record.claim,
                "status": record.status,
                "out_of_scope": scope.outside,
                "scope_unknown": scope.unknown,
                "repeats": book.copies.get(name),
                "repeated_by": repeated,
                "events": [
                    {"at": at, "status": e.status, "reason": e.reason, "evidence": e.evidence}
                    for at, e in record.events
                ],
                "evidence": [item.id for item in book.about(name)],
                "rests_on_it": [
                    {"change": change.id, "standing": is_now, "if_refuted": then} for change, is_now, then in rests
                ],
                "missing_to_refute": ruling.missing,
                "t_star": t_star_of(incident),
                "t_star_unit": incident.exposure_unit if incident else None,
            }
        )
        return 0
    needed = t_star_text(incident)
    if t_star_of(incident) is None:
        needed += f"; count it with: {how_to_count(name, incident)}"
    print(
        "\n".join(
            claim_lines(
                record,
                book.about(name),
                rests,
                ruling,
                needed,
                scope=scope,
                repeats=book.copies.get(name),
                repeated=repeated,
            )
        )
    )
    return 0


@claim.command("list", epilog=example("vindicate claim list"))
@json_option
@stack_option
@ledger_option
def list_(as_json: bool, stack_file: str | None, ledger_path: str | None) -> int:
    """List the claims on record with their status."""
    from vindicate.cli.opening import open_desk
    from vindicate.ledger.present import seen_now

    with (desk := open_desk(ledger_path, stack_file, write=False)).ledger:
        book = seen_now(desk.stack, desk.book())
    outside = {name: scope.outside for name, scope in book.scopes.items() if scope.outside}
    if as_json:
        entries = [
            {
                "claim": r.claim,
                "status": r.status,
                "out_of_scope": outside.get(n, ()),
                "rests_on_it": [c.change.id for c in book.resting_on(n)],
            }
            for n, r in book.claims.items()
        ]
        print_json({"schema": "vindicate.claims/1", "claims": entries})
        return 0
    for name, record in book.claims.items():
        resting = ", ".join(change.change.id for change in book.resting_on(name))
        out = f"   (repeats {book.copies[name]})" if name in book.copies else ""
        out += f"   (out of scope: {'; '.join(outside[name])})" if name in outside else ""
        print(
            f"{name:5} {record.status:12} {record.claim.text}"
            + (f"   ({resting} rests on it)" if resting else "")
            + out
        )
    if not book.claims:
        print("no claim is on record")
    return 0
