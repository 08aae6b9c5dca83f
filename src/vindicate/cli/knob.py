"""`vindicate knob`: the value by the ledger, in the script and in each live process; why it is so; what it is worth."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from vindicate.cli.explain import explain
from vindicate.cli.option import KnobCommand, example, json_option, ledger_option, print_json, stack_option
from vindicate.errors import MisuseError, VindicateError
from vindicate.redact import redact_value
from vindicate.units import shown

if TYPE_CHECKING:
    from vindicate.cli.opening import Desk
    from vindicate.ledger.state import Book

__all__ = ["KnobState", "knob", "knob_state"]


@dataclass(frozen=True, kw_only=True)
class KnobState:
    """Everything that can be said of a knob's value now; *drift* names what does not agree, *unseen* what could not be read.

    Attributes:
        ledger: The value that the last change on record gave it; ``None`` is unset, and also unknown (see *in_ledger*).
        scripts: By service, what its start script sets; ``None`` when it sets nothing.
        live: By service and pid, what the process holds.
        read_from: By pid, where that was read when not in its own environment or command line.
        together: Which services must hold one value, and what must restart together; empty for a service that stands alone.
    """

    knob: str
    services: tuple[str, ...]
    default: str | None
    in_ledger: bool
    ledger: str | None
    scripts: dict[str, str | None] = field(default_factory=dict)
    script_lines: dict[str, str] = field(default_factory=dict)
    live: dict[str, dict[str, str | None]] = field(default_factory=dict)
    drift: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()
    together: str = ""
    read_from: dict[str, str] = field(default_factory=dict)


def knob_state(desk: "Desk", book: "Book", name: str) -> KnobState:
    """Read a knob's value from the ledger, the start scripts and the live processes.

    Raises:
        MisuseError: Neither the stack file nor the ledger knows it.
    """
    from vindicate.cli.opening import knob_services
    from vindicate.ledger.documents import ledger_values

    if name not in desk.known_knobs(book):
        raise MisuseError(
            f"no knob {name!r}, neither in the stack file nor in the ledger",
            remedy=f"known: {', '.join(desk.known_knobs(book)) or 'none yet'}; declare it as [knobs.{name}] in the stack file",
        )
    values = ledger_values(book, name)
    current = values[0] if values else None
    unseen: list[str] = []
    scripts, lines = _scripts(desk, name, unseen)
    read_from: dict[str, str] = {}
    live = _live(desk, name, unseen, read_from)
    said = {f"the ledger says {shown(value.value)} ({value.how})": value.value for value in values}
    said |= {
        f"{lines.get(service) or f'the script of {service}'} says {shown(value)}": value
        for service, value in scripts.items()
    }
    said |= {
        f"pid {pid} ({service}) holds {shown(value)}": value
        for service, of in live.items()
        for pid, value in of.items()
    }
    drifted = len(set(said.values())) > 1
    return KnobState(
        knob=name,
        services=knob_services(desk, book, name),
        default=redact_value(name, desk.stack.knobs[name].default) if desk.stack and name in desk.stack.knobs else None,
        in_ledger=current is not None,
        ledger=redact_value(name, current.value) if current else None,
        scripts={service: redact_value(name, value) for service, value in scripts.items()},
        script_lines=lines,
        live={service: {pid: redact_value(name, value) for pid, value in of.items()} for service, of in live.items()},
        drift=_shown_drift(name, said) if drifted else (),
        unseen=tuple(unseen),
        read_from=read_from,
        together=_together(desk, name),
    )


def _together(desk: "Desk", name: str) -> str:
    """Which services must hold one value, without values that are secrets."""
    from vindicate.ledger.live import coherence
    from vindicate.redact import is_secret_name

    return coherence(desk.stack, name) if desk.stack and not is_secret_name(name) else ""


def _shown_drift(name: str, said: dict[str, str | None]) -> tuple[str, ...]:
    """What says which value, without values that are secrets."""
    secret = any(redact_value(name, value) != value for value in said.values())
    return (
        tuple(text.partition(" says ")[0].partition(" holds ")[0] + " has a value of its own" for text in said)
        if secret
        else tuple(said)
    )


def _scripts(desk: "Desk", name: str, unseen: list[str]) -> tuple[dict[str, str | None], dict[str, str]]:
    from vindicate.operate.holder import holder_of

    values: dict[str, str | None] = {}
    lines: dict[str, str] = {}
    if desk.stack is None or name not in desk.stack.knobs:
        return values, lines
    for service in desk.stack.knobs[name].services:
        launcher = desk.stack.service(service).launcher
        if launcher.kind == "none" and launcher.file is None:
            unseen.append(f"{service} has no start script in the stack file")
            continue
        try:
            held = holder_of(desk.stack, desk.stack.service(service), desk.stack.knobs[name]).read()
        except VindicateError as error:
            unseen.append(error.problem)
            continue
        values[service], lines[service] = held.value, held.where
    return values, lines


def _live(desk: "Desk", name: str, unseen: list[str], read_from: dict[str, str]) -> dict[str, dict[str, str | None]]:
    from vindicate.ledger.live import readings_by_service
    from vindicate.stack.process import why_unseen

    live: dict[str, dict[str, str | None]] = {}
    if desk.stack is None or name not in desk.stack.knobs:
        return live
    for service, readings in readings_by_service(desk.stack, name).items():
        unseen += [reading.problem for reading in readings if reading.problem] or (
            [] if readings else [f"{service}: {why_unseen(desk.stack.service(service))}"]
        )
        live[service] = {str(reading.pid): reading.value for reading in readings if not reading.problem}
        read_from |= {str(reading.pid): reading.elsewhere for reading in readings if reading.elsewhere}
    return live


@click.group(epilog=example("vindicate knob list"))
def knob() -> None:
    """Show the value of a knob by the ledger, in the script and live; why it is so, and what it is worth."""


@knob.command("list", epilog=example("vindicate knob list"))
@json_option
@stack_option
@ledger_option
def list_(as_json: bool, stack_file: str | None, ledger_path: str | None) -> int:
    """List the knobs with their values; exit 1 when one has drifted."""
    from vindicate.cli.opening import open_desk
    from vindicate.view.ledger import knob_table

    with (desk := open_desk(ledger_path, stack_file, write=False)).ledger:
        book = desk.book()
    states = [knob_state(desk, book, name) for name in desk.known_knobs(book)]
    if as_json:
        print_json({"schema": "vindicate.knobs/1", "knobs": states})
    else:
        print("\n".join(knob_table(states)))
    return 1 if any(state.drift for state in states) else 0


@knob.command("show", cls=KnobCommand, epilog=example("vindicate knob show SGLANG_SM120_MMA_TARGET_CTAS"))
@click.argument("name", metavar="NAME")
@json_option
@stack_option
@ledger_option
def show(name: str, as_json: bool, stack_file: str | None, ledger_path: str | None) -> int:
    """Show why a knob has its value, where it stands, what other values are worth, and its history; exit 1 when it has drifted."""
    from vindicate.cli.opening import open_desk
    from vindicate.clock import utc_now
    from vindicate.ledger.present import seen_now
    from vindicate.ledger.standing import standings
    from vindicate.ledger.worth import Worth, worth_of
    from vindicate.view.ledger import knob_lines

    with (desk := open_desk(ledger_path, stack_file, write=False)).ledger:
        book = seen_now(desk.stack, desk.book())
    name = desk.stack.knob_name(name) if desk.stack else name
    state = knob_state(desk, book, name)
    held = state.ledger if state.in_ledger else next(iter(state.scripts.values()), None)
    effects = [effect for _, effect in book.effects.get(name, ())]
    values = dict.fromkeys(value for effect in effects for value in (effect.a, effect.b))
    now = utc_now()
    history = sorted((r for r in book.changes.values() if r.change.knob == name), key=lambda record: record.when)
    standing = standings(book)
    if as_json:
        entries: list[dict[str, Any]] = [
            {"change": r.change.id, "kind": r.change.kind, "from": r.change.from_value, "to": r.change.to_value, "at": r.at,
             "state": r.state, "because": r.because, "standing": standing[r.change.id].name}
            for r in history
        ]  # fmt: skip
        pairs = [pair for value in values if value != held for pair in ((value, held), (held, value))]
        gains = [
            {"value": value, "over": over, "worth": worth_of(book, name, value, over, state.default, now=now)}
            for value, over in pairs
        ]
        print_json({"schema": "vindicate.knob/1", "state": state, "worth": gains, "history": entries})
    else:
        rows = [(record, standing[record.change.id].name) for record in history]
        measured: dict[
            tuple[str | None, str | None], tuple[Worth, ...]
        ] = {}  # as it was measured, which a reader knows again
        for effect in effects:
            if not {(effect.a, effect.b), (effect.b, effect.a)} & measured.keys():
                measured[effect.b, effect.a] = worth_of(book, name, effect.b, effect.a, state.default, now=now)
        print("\n".join(knob_lines(state, measured, rows, {name: r.status for name, r in book.claims.items()})))
    return 1 if state.drift else 0


knob.add_command(explain)
