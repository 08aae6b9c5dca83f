"""`vindicate incident`: a symptom, how often it came and over how much, and what changed before it began."""

import re
from dataclasses import replace

import click

from vindicate.cli.option import TEXT, example, json_option, ledger_option, print_json, say, stack_option
from vindicate.errors import MisuseError
from vindicate.units import parse_duration

__all__ = ["exposure", "incident"]


@click.group(epilog=example('vindicate incident open "agent sessions freeze" --count 2 --exposure 52req'))
def incident() -> None:
    """Open an incident with its count and exposure; see what changed before it began."""


def exposure(text: str) -> tuple[float, str]:
    """Read ``40000req`` or a duration such as ``12h``, as a number of requests or hours with its unit.

    Raises:
        MisuseError: It is neither.
    """
    requests = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(?:req|reqs|requests?)\s*", text, re.IGNORECASE)
    if requests:
        return float(requests[1]), "req"
    if re.fullmatch(r"\s*[\d.]+\s*", text):
        raise MisuseError(f"exposure {text!r} has no unit", remedy="write 40000req for requests, or 12h for hours")
    return parse_duration(text) / 3600, "h"


@incident.command("open", epilog=example('vindicate incident open "sessions freeze" --count 3 --exposure 40000req'))
@click.argument("text", type=TEXT)
@click.option("--id", "name", metavar="INC-1", help="Its name; one that is taken corrects that incident.")
@click.option("--at", metavar="TIME", help="When it began; default now.")
@click.option("--count", type=click.IntRange(1), help="How often the symptom was seen.")
@click.option("--exposure", "over", metavar="40000req|12h", help="Over how many requests, or how long.")
@click.option("--service", "services", multiple=True, help="A service it was seen on; may be repeated.")
@click.option("--claim", "claims", multiple=True, metavar="H1", help="A claim that is to explain it; may be repeated.")
@stack_option
@ledger_option
def open_(  # noqa: PLR0917 click passes options by name
    text: str,
    name: str | None,
    at: str | None,
    count: int | None,
    over: str | None,
    services: tuple[str, ...],
    claims: tuple[str, ...],
    stack_file: str | None,
    ledger_path: str | None,
) -> int:
    """Open an incident, and print its id.

    With a count and an exposure, the ledger can say how long a restored system must stay clean before that says something (T*).
    """
    from vindicate.cli.opening import open_desk
    from vindicate.clock import parse_time
    from vindicate.ledger.claim_rules import t_star_of, t_star_text
    from vindicate.record.ledger import Incident

    if (count is None) != (over is None):
        raise MisuseError(
            "a count needs an exposure, and an exposure a count", remedy="give both: --count 3 --exposure 40000req"
        )
    amount, unit = exposure(over) if over else (None, "req")
    if amount == 0:
        raise MisuseError("an exposure of 0", remedy="give what was run: --exposure 40000req or 12h")
    moment = parse_time(at) if at else None
    with (desk := open_desk(ledger_path, stack_file, write=True)).ledger as ledger:
        for service in services:
            if desk.stack:
                desk.stack.service(service)
        book = desk.book()
        explained = [book.claim(claim).claim for claim in claims]
        old = book.incidents.get(name or "")  # a correction keeps what it does not mention
        if old and amount is None:
            count, amount, unit = old.incident.count, old.incident.exposure, old.incident.exposure_unit
        body = Incident(
            id=name or ledger.next_id("INC-"),
            text=text,
            count=count,
            exposure=amount,
            exposure_unit="h" if unit == "h" else "req",
            services=services or (old.incident.services if old else ()),
        )
        ledger.append(body, happened_at=moment or (old.began_at if old else None))
        for claim in explained:
            ledger.append(replace(claim, incident=body.id))
    print(body.id)
    if old:
        say(f"{body.id} was there before, and is corrected by this")
    if t_star_of(body) is None:
        say("nobody counted: without --count and --exposure, no silence after a change will say anything")
    else:
        say(f"T* = {t_star_text(body)}: so long must a restored system stay clean")
    return 0


@incident.command("list", epilog=example("vindicate incident list"))
@json_option
@stack_option
@ledger_option
def list_(as_json: bool, stack_file: str | None, ledger_path: str | None) -> int:
    """List the incidents on record."""
    from vindicate.cli.opening import open_desk
    from vindicate.ledger.claim_rules import t_star_of
    from vindicate.view.ledger import incident_lines

    with (desk := open_desk(ledger_path, stack_file, write=False)).ledger:
        records = list(desk.book().incidents.values())
    if as_json:
        entries = [{"incident": r.incident, "began_at": r.began_at, "t_star": t_star_of(r.incident)} for r in records]
        print_json({"schema": "vindicate.incidents/1", "incidents": entries})
        return 0
    print("\n".join(incident_lines(records)))
    return 0


@incident.command("timeline", epilog=example("vindicate incident timeline INC-1"))
@click.argument("name", metavar="INCIDENT")
@click.option("--days", type=click.FloatRange(0, 3650), default=14.0, show_default=True, help="How far back to look.")
@json_option
@stack_option
@ledger_option
def timeline(name: str, days: float, as_json: bool, stack_file: str | None, ledger_path: str | None) -> int:
    """Show what changed before an incident began: leads, never causes."""
    from vindicate.cli.opening import open_desk
    from vindicate.ledger.timeline import leads_before
    from vindicate.view.ledger import lead_lines

    blind: list[str] = []
    with (desk := open_desk(ledger_path, stack_file, write=False)).ledger:
        book = desk.book()
        record = book.incident(name)
        leads = leads_before(record, book, desk.stack, days=days, blind=blind)
    if desk.stack is None:
        blind.append("no stack file: scripts, processes and documents were not looked at")
    if as_json:
        print_json(
            {
                "schema": "vindicate.timeline/1",
                "incident": record.incident,
                "began_at": record.began_at,
                "leads": leads,
                "blind": blind,
            }
        )
        return 0
    print("\n".join(lead_lines(record, leads, days)))
    for line in blind:
        say(f"not seen: {line}")
    return 0
