"""`vindicate apply`, `revert`, `restore` and `change`: a plan first, then every step journalled, verified, and undone when it fails."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from vindicate.cli.change_bench import change_bench, change_entry
from vindicate.cli.option import (
    DURATION,
    KnobCommand,
    agree,
    example,
    json_option,
    ledger_file,
    ledger_option,
    print_json,
    say,
    stack_option,
    timeout_option,
    yes_options,
)
from vindicate.errors import MisuseError
from vindicate.units import shown

if TYPE_CHECKING:
    from vindicate.ledger.state import Book
    from vindicate.operate.change import Operation
    from vindicate.stack.model import Stack

__all__ = ["apply", "change", "restore", "revert"]

_because_option = click.option(
    "--because", multiple=True, metavar="CLAIM", help="A claim it rests on; may be repeated."
)


@click.command(cls=KnobCommand, epilog=example("vindicate apply SGLANG_SM120_MMA_TARGET_CTAS=512"))
@click.argument("settings", nargs=-1, metavar="KNOB=VALUE…")
@click.option("--unset", multiple=True, metavar="KNOB", help="Remove this knob from the script.")
@_because_option
@click.option("--reason", default="", help="Words for the record.")
@timeout_option
@stack_option
@ledger_option
@yes_options
@json_option
def apply(
    *, settings: tuple[str, ...], unset: tuple[str, ...], because: tuple[str, ...], reason: str, timeout_s: float,
    stack_file: str | None, ledger_path: str | None, dry_run: bool, yes: bool, as_json: bool,
) -> int:  # fmt: skip
    """Set knobs: back the script up, write, restart together, read back, check; undone by itself when a step fails.

    KNOB= sets it empty, --unset KNOB takes it out of the script. A flag of a command line may be written as one,
    --max-running-requests=64, or without its dashes; empty, it stands there without a value.
    """
    wanted = _settings(settings, unset)
    with change_bench(stack_file, ledger_path, "apply", dry_run=dry_run) as bench:
        from vindicate.operate.begin import grounds_for
        from vindicate.operate.plan import plan_edits

        wanted = _declared(bench.stack, wanted)
        plan = plan_edits(bench.stack, "apply", wanted, ids=bench.ids(len(wanted)))
        grounds_for(bench.book, plan, because)
        return bench.run(
            plan, lambda final: grounds_for(bench.book, final, because), reason=reason, timeout_s=timeout_s, yes=yes,
            as_json=as_json,
        )  # fmt: skip


@click.command(cls=KnobCommand, epilog=example("vindicate revert SGLANG_SM120_MMA_TARGET_CTAS --because H1"))
@click.argument("setting", metavar="KNOB[=VALUE]")
@_because_option
@click.option("--reason", default="", help="Words for the record.")
@timeout_option
@stack_option
@ledger_option
@yes_options
@json_option
def revert(
    *, setting: str, because: tuple[str, ...], reason: str, timeout_s: float,
    stack_file: str | None, ledger_path: str | None, dry_run: bool, yes: bool, as_json: bool,
) -> int:  # fmt: skip
    """Take a knob back because of a claim; what that gives up is shown first.

    Without =VALUE it goes to the state before the last apply, which may be "not set at all".
    """
    if not because:
        raise MisuseError(
            "a revert rests on a claim, and none is named",
            remedy='vindicate claim add "WHAT IS BELIEVED" --about knob:NAME=VALUE, then: --because ID',
        )
    name, equals, value = setting.partition("=")
    with change_bench(stack_file, ledger_path, "revert", dry_run=dry_run) as bench:
        from vindicate.clock import utc_now
        from vindicate.ledger.worth import worth_of
        from vindicate.operate.begin import before_last_apply, grounds_for, last_applied
        from vindicate.operate.plan import plan_edits
        from vindicate.view.change import worth_lines

        knob = bench.stack.knob(name)
        name = knob.name
        for claim in because:
            bench.book.claim(claim)
        target = value if equals else before_last_apply(bench.book, name)
        plan = plan_edits(bench.stack, "revert", {name: target}, ids=bench.ids(1))
        held = plan.edits[0].before
        worth = worth_of(bench.book, name, held, target, knob.default, now=utc_now())
        say("\n".join(worth_lines(worth, f"given up, {name}={shown(held)} over {shown(target)}")))
        undone = last_applied(bench.book, name)
        return bench.run(
            plan, lambda final: grounds_for(bench.book, final, because), reason=reason, timeout_s=timeout_s, yes=yes,
            as_json=as_json, undoes={name: undone.change.id} if undone and undone.change.to_value == held else {},
        )  # fmt: skip


@click.command(epilog=example('vindicate restore C3 --accept "the proxy was at fault" --watch 10m'))
@click.argument("changes", nargs=-1, required=True, metavar="CHANGE…")
@click.option("--watch", "watch_s", type=DURATION, help="Watch at most so long; default: until T* requests are clean.")
@click.option("--accept", metavar="REASON", help="Restore on weak ground; records a waiver that names every weakness.")
@click.option("--watch-requests", type=click.IntRange(min=1), help="Clean requests to reach instead of T*.")
@click.option(
    "--streams",
    type=click.IntRange(min=1),
    default=32,
    show_default=True,
    help="Streams at a time of the load that watches.",
)
@timeout_option
@stack_option
@ledger_option
@yes_options
@json_option
def restore(
    *, changes: tuple[str, ...], watch_s: float | None, accept: str | None, watch_requests: int | None, streams: int,
    timeout_s: float, stack_file: str | None, ledger_path: str | None, dry_run: bool, yes: bool, as_json: bool,
) -> int:  # fmt: skip
    """Put back what a revert took away, on a ground that is checked first, and watch it.

    The watch is the refuting test: clean for T*, the claim is refuted; when the symptom returns, it is undone.
    """
    if accept is not None and not accept.strip():
        raise MisuseError("--accept is empty", remedy="say why it is accepted, for the record")
    with change_bench(stack_file, ledger_path, "restore", dry_run=dry_run) as bench:
        from dataclasses import replace

        from vindicate.operate.begin import grounds_for
        from vindicate.operate.plan import plan_edits
        from vindicate.operate.restore import ground_of, plan_watch, require_cause_gone, require_ground
        from vindicate.view.change import worth_lines

        grounds = [ground_of(bench.stack, bench.book, name) for name in dict.fromkeys(changes)]
        for ground in grounds:
            given_up = f"{ground.candidate.knob}={shown(ground.candidate.from_value)}"
            say("\n".join(worth_lines(ground.candidate.worth, f"{ground.candidate.change} gave up {given_up}")))
            require_ground(ground, accept=accept)
        wanted = {ground.candidate.knob: ground.candidate.from_value for ground in grounds}
        undoes = {ground.candidate.knob: ground.candidate.change for ground in grounds}
        plan = plan_edits(bench.stack, "restore", wanted, ids=bench.ids(len(wanted)))
        watch = plan_watch(
            bench.book, list(undoes.values()), duration_s=watch_s, n_requests=watch_requests, streams=streams,
            waived=accept is not None,
        )  # fmt: skip
        plan = replace(plan, watch=watch)
        weaknesses = tuple(weak for ground in grounds for weak in ground.weaknesses) if accept is not None else ()
        say("looking whether the cause is gone ...")
        say(f"  {require_cause_gone(bench.stack, accept=accept)}")
        waiver = (accept, weaknesses or ("none named; accepted all the same",)) if accept is not None else None
        return bench.run(
            plan, lambda final: grounds_for(bench.book, final, (), waiver=waiver), reason=accept or "", timeout_s=timeout_s,
            yes=yes, as_json=as_json, undoes=undoes, accepted=weaknesses,
        )  # fmt: skip


@click.group(epilog=example("vindicate change list"))
def change() -> None:
    """List, show, resume, roll back or discover changes."""


@change.command("list", epilog=example("vindicate change list --json"))
@stack_option
@ledger_option
@json_option
def list_changes(stack_file: str | None, ledger_path: str | None, *, as_json: bool) -> int:
    """List every change on record, oldest first."""
    from vindicate.view.change import change_list_lines

    book = _read(stack_file, ledger_path)
    if as_json:
        records = sorted(book.changes.values(), key=lambda record: record.when)
        print_json({"schema": "vindicate.changes/1", "changes": [change_entry(record) for record in records]})
    else:
        print("\n".join(change_list_lines(book)))
    return 0


@change.command(epilog=example("vindicate change show C7"))
@click.argument("name", metavar="CHANGE")
@stack_option
@ledger_option
@json_option
def show(name: str, stack_file: str | None, ledger_path: str | None, *, as_json: bool) -> int:
    """Show one change: what it rests on, what was waived, and every step."""
    from vindicate.view.change import change_lines

    record = _read(stack_file, ledger_path).change(name)
    if as_json:
        steps = [
            {"at": at, "state": step.state, "next": step.data.get("next"), "detail": step.detail}
            for at, step in record.steps
        ]
        print_json({"schema": "vindicate.change/1", **change_entry(record), "steps": steps, "waivers": record.waivers})
    else:
        print("\n".join(change_lines(record)))
    return 0


@change.command(epilog=example("vindicate change resume C7"))
@click.argument("name", metavar="CHANGE")
@timeout_option
@stack_option
@ledger_option
@yes_options
def resume(
    name: str, timeout_s: float, stack_file: str | None, ledger_path: str | None, *, dry_run: bool, yes: bool
) -> int:
    """Finish a change that was interrupted, from its journal."""
    with _taken_up(
        name, f"change resume {name}", stack_file, ledger_path, timeout_s=timeout_s, dry_run=dry_run
    ) as operation:
        from vindicate.operate.journal import FINAL

        state = operation.progress.state
        if state in FINAL:
            raise MisuseError(
                f"{name} is {state}; there is nothing to finish", remedy=f"see: vindicate change show {name}"
            )
        together = ", ".join(operation.progress.plan.together)
        say(f"{name} stands at {state}; still to do: {'; '.join(operation.left())} (services: {together})")
        if dry_run:
            return 0
        agree("Finish it?", yes=yes)
        operation.go_on()
        print("\n".join([f"{name}: done", *operation.told]))
        return 0


@change.command(epilog=example("vindicate change rollback C7"))
@click.argument("name", metavar="CHANGE")
@timeout_option
@stack_option
@ledger_option
@yes_options
def rollback(
    name: str, timeout_s: float, stack_file: str | None, ledger_path: str | None, *, dry_run: bool, yes: bool
) -> int:
    """Undo a change from its journal: the backup back in place, services restarted together, the value read back."""
    with _taken_up(
        name, f"change rollback {name}", stack_file, ledger_path, timeout_s=timeout_s, dry_run=dry_run
    ) as operation:
        from vindicate.ledger.state import Book

        plan = operation.progress.plan
        if operation.progress.state == "rolled_back":
            raise MisuseError(f"{name} is rolled back already", remedy=f"see: vindicate change show {name}")
        book = Book.from_facts(operation.ledger.facts())
        later = book.later_than(book.change(name))
        if later is not None:
            raise MisuseError(
                f"{later.change.id} changed {later.change.knob} after {name}", remedy=f"undo that first: vindicate change rollback {later.change.id}"
            )  # fmt: skip
        say(
            f"{name} stands at {operation.progress.state}; undo: put back {', '.join(file.path for file in plan.files) or 'no file'}"
        )
        if "restarted" in operation.progress.announced:
            say(f"  and restart {', '.join(plan.together)} together")
        if dry_run:
            return 0
        agree("Undo it?", yes=yes)
        print(f"{name}: rolled back; {operation.roll_back('asked for')}")
        return 0


@change.command(epilog=example("vindicate change discover --git . --doc PLAN.md"))
@click.option("--git", "git_dirs", multiple=True, metavar="DIR", help="A folder under git whose history is read.")
@click.option(
    "--script", "scripts", multiple=True, metavar="FILE", help="A start script; default: those of the stack file."
)
@click.option("--doc", "docs", multiple=True, metavar="FILE", help="A Markdown document.")
@stack_option
@ledger_option
@json_option
@yes_options
def discover(
    git_dirs: tuple[str, ...], scripts: tuple[str, ...], docs: tuple[str, ...], stack_file: str | None, ledger_path: str | None,
    *, as_json: bool, dry_run: bool, yes: bool,
) -> int:  # fmt: skip
    """Find past changes and reverts in history, backups, documents and drift, and record them as found in hindsight."""
    from vindicate.cli.drift import drift_found
    from vindicate.cli.opening import open_desk
    from vindicate.ledger.discover import discover_changes, record_proposals
    from vindicate.ledger.store import Ledger
    from vindicate.view.ledger import proposal_lines

    paths = [[Path(name) for name in names] for names in (git_dirs, scripts, docs)]
    for path in (path for group in paths for path in group):
        if not path.exists():
            raise MisuseError(f"no file or folder {path}", remedy="check the path")
    blind: list[str] = []
    with (desk := open_desk(ledger_path, stack_file, write=False)).ledger:
        book = desk.book()
    found = discover_changes(desk.stack, git_dirs=paths[0], scripts=paths[1], docs=paths[2], blind=blind)
    unrecorded, drift = drift_found(desk, book, found)
    found += unrecorded
    for line in drift:
        say(line)
    for line in blind:
        say(f"not seen: {line}")
    recorded: list[str] = []
    if found and not dry_run and not (as_json and not yes):
        say("\n".join(proposal_lines(found, found, ())))
        agree("Record these?", yes=yes)
        with Ledger.open(ledger_file(ledger_path, stack_file)) as ledger:
            recorded = record_proposals(ledger, found)
    if as_json:
        print_json({"schema": "vindicate.discovery/1", "found": found, "drift": drift, "recorded": recorded})
    elif not found or dry_run:
        print("\n".join(proposal_lines(found, found, ())))
    else:
        print(f"recorded: {', '.join(recorded)}" if recorded else "all of it was on record already")
    return 0


def _settings(settings: Sequence[str], unset: Sequence[str]) -> dict[str, str | None]:
    """What is wanted of each knob.

    Raises:
        MisuseError: A setting has no ``=``, a knob is named twice, or there is nothing to do.
    """
    wanted: dict[str, str | None] = {}
    pairs: list[tuple[str, str | None]] = []
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals:
            raise MisuseError(
                f"{setting!r} is no setting", remedy=f"{setting}=VALUE sets it, {setting}= empties it, --unset {setting} removes it"
            )  # fmt: skip
        pairs.append((name, value))
    pairs += [(name, None) for name in unset]
    for name, target in pairs:
        if name in wanted:
            raise MisuseError(f"{name} is named twice", remedy="name each knob once")
        wanted[name] = target
    if not wanted:
        raise MisuseError("nothing to apply", remedy="vindicate apply KNOB=VALUE, or --unset KNOB")
    return wanted


def _declared(stack: "Stack", wanted: dict[str, str | None]) -> dict[str, str | None]:
    """The same under the names that the stack file gives the knobs.

    Raises:
        MisuseError: A knob is named twice.
    """
    named = {stack.knob_name(name): value for name, value in wanted.items()}
    if len(named) < len(wanted):
        raise MisuseError("a knob is named twice, in two spellings", remedy="name each knob once")
    return named


@contextmanager
def _taken_up(
    name: str, command: str, stack_file: str | None, ledger_path: str | None, *, timeout_s: float, dry_run: bool
) -> "Iterator[Operation]":
    """A change where its journal stands, under the stack's lock."""
    with change_bench(stack_file, ledger_path, command, dry_run=dry_run, half_done_is_fine=True) as bench:
        from vindicate.operate.change import operation_on

        yield operation_on(bench.stack, bench.ledger, bench.book, name, say=say, timeout_s=timeout_s)


def _read(stack_file: str | None, ledger_path: str | None) -> "Book":
    from vindicate.ledger.state import Book
    from vindicate.ledger.store import Ledger

    with Ledger.open(ledger_file(ledger_path, stack_file), create=False, read_only=True) as ledger:
        return Book.from_facts(ledger.facts())
