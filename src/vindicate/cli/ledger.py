"""`vindicate ledger`: export, import and check the facts."""

import sys
from pathlib import Path

import click

from vindicate.cli.option import example, json_option, ledger_option, print_json, say, stack_option
from vindicate.errors import CannotError, MisuseError

__all__ = ["ledger"]


@click.group(epilog=example("vindicate ledger check"))
def ledger() -> None:
    """Export, import and check the ledger."""


@ledger.command("export", epilog=example("vindicate ledger export --out ledger.jsonl"))
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="File to write; default standard output.")
@stack_option
@ledger_option
def export(out: Path | None, stack_file: str | None, ledger_path: str | None) -> int:
    """Write every fact as a line of JSON: lossless, in the order of record, fit for git."""
    from vindicate.cli.opening import open_desk
    from vindicate.ledger.exchange import dump

    with open_desk(ledger_path, stack_file, write=False).ledger as opened:
        facts = opened.facts()
        if ledger_path is None and not opened.path.exists():
            say(f"there is no ledger at {opened.path} yet")
    lines = "".join(f"{line}\n" for line in dump(facts))
    if out is None:
        sys.stdout.write(lines)
        return 0
    try:
        out.write_text(lines, encoding="utf-8")
    except OSError as error:
        raise CannotError(
            f"{out} cannot be written: {error.strerror}", remedy="check the path and its permissions"
        ) from error
    say(f"{len(facts)} facts written to {out}")
    return 0


@ledger.command("import", epilog=example("vindicate ledger import ledger.jsonl"))
@click.argument("file", type=click.Path(path_type=Path, allow_dash=True))
@stack_option
@ledger_option
def import_(file: Path, stack_file: str | None, ledger_path: str | None) -> int:
    """Take over exported facts, with their numbers, times and authors; those already here are skipped."""
    from vindicate.cli.opening import open_desk
    from vindicate.ledger.exchange import load

    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
    except OSError as error:
        raise MisuseError(
            f"{file}: cannot be read: {error.strerror}", remedy="check the path and its permissions"
        ) from error
    except UnicodeDecodeError as error:
        raise MisuseError(
            f"{file}: no UTF-8 text at byte {error.start}", remedy="give what `vindicate ledger export` wrote"
        ) from error
    facts = load(text.splitlines(), name=str(file))
    with open_desk(ledger_path, stack_file, write=True).ledger as opened:
        new = opened.adopt(facts)
    print(f"{new} facts taken over, {len(facts) - new} were here already")
    return 0


@ledger.command("check", epilog=example("vindicate ledger check"))
@json_option
@stack_option
@ledger_option
def check(as_json: bool, stack_file: str | None, ledger_path: str | None) -> int:
    """Check the file, the links between facts, and the files that evidence was read from; exit 1 when something is wrong."""
    from vindicate.cli.opening import open_desk
    from vindicate.ledger.exchange import changed_files, problems
    from vindicate.ledger.state import Book

    with (desk := open_desk(ledger_path, stack_file, write=False)).ledger as opened:
        if ledger_path is not None and not opened.path.exists():
            raise MisuseError(f"there is no ledger at {opened.path}", remedy="name the one to check: --ledger PATH")
        damage, facts = opened.damage(), opened.facts()
    found = [*damage, *problems(facts)]
    changed = changed_files(Book.from_facts(facts), desk.home)
    if as_json:
        print_json({"schema": "vindicate.check/1", "facts": len(facts), "problems": found, "changed_files": changed})
    else:
        for line in found:
            print(line)
        print(f"{len(facts)} facts, {len(found)} problems")
        for line in changed:
            say(f"worth knowing: {line}")
    return 1 if found else 0
