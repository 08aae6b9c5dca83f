"""`vindicate docs`: which sentences of a document no longer hold, and the document corrected."""

import difflib
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import click

from vindicate.cli.option import agree, example, json_option, ledger_option, print_json, say, stack_option, yes_options
from vindicate.errors import CannotError

if TYPE_CHECKING:
    from vindicate.cli.opening import Desk
    from vindicate.ledger.documents import Current
    from vindicate.ledger.state import Book

__all__ = ["docs"]


@click.group(epilog=example("vindicate docs check PLAN.md"))
def docs() -> None:
    """Check and correct documents against the ledger and the live values."""


def _current(desk: "Desk", book: "Book") -> "dict[str, Current]":
    """The value of each knob now: live where it could be read, else by the ledger."""
    from vindicate.ledger.documents import Current, ledger_value
    from vindicate.ledger.live import live_value

    found = {}
    for knob in desk.known_knobs(book):
        live = live_value(desk.stack, knob) if desk.stack else None
        by_ledger = ledger_value(book, knob)
        if live is not None and live.known:
            since = f", {by_ledger.how}" if by_ledger and by_ledger.value == live.value else ""
            found[knob] = Current(value=live.value, how=f"live{since}")
        elif by_ledger is not None:
            found[knob] = by_ledger
    return found


@docs.command("check", epilog=example("vindicate docs check PERF_PLAN.md"))
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@json_option
@stack_option
@ledger_option
def check(files: tuple[Path, ...], as_json: bool, stack_file: str | None, ledger_path: str | None) -> int:
    """Name the sentences that the ledger or the live values contradict; exit 1 when there is one."""
    from vindicate.cli.opening import open_desk
    from vindicate.ledger.documents import contradictions
    from vindicate.ledger.importing import read_text

    with (desk := open_desk(ledger_path, stack_file, write=False)).ledger:
        book = desk.book()
    current, known = _current(desk, book), desk.known_knobs(book)
    found = [(file, item) for file in files for item in contradictions(read_text(file), book, current, known=known)]
    if as_json:
        entries = [
            {
                "file": str(file),
                "line": item.sentence.line,
                "text": item.sentence.text,
                "knob": item.knob,
                "claim": item.claim,
                "why": item.why,
            }
            for file, item in found
        ]
        print_json({"schema": "vindicate.docs/1", "contradicted": entries})
        return 1 if found else 0
    for file, item in found:
        print(f"{file}:{item.sentence.line}: {item.sentence.text}\n  {item.why}")
    if found:
        say(f"next: vindicate docs sync {' '.join(dict.fromkeys(str(file) for file, _ in found))}")
    else:
        print(
            "no sentence is contradicted" if known else "no sentence is contradicted: the ledger speaks of no knob yet"
        )
    return 1 if found else 0


@docs.command("sync", epilog=example("vindicate docs sync PERF_PLAN.md"))
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@yes_options
@stack_option
@ledger_option
def sync(files: tuple[Path, ...], yes: bool, dry_run: bool, stack_file: str | None, ledger_path: str | None) -> int:
    """Strike through what no longer holds, with date and reason, and write marked sections anew; the diff is shown first.

    A marked section stands between <!-- vindicate:begin knob=NAME --> and <!-- vindicate:end -->. No other text is touched.
    """
    from vindicate.cli.opening import open_desk
    from vindicate.clock import utc_now
    from vindicate.ledger.documents import contradictions, corrected, refreshed
    from vindicate.ledger.importing import read_text, stored_name
    from vindicate.record.ledger import DocMark

    with (desk := open_desk(ledger_path, stack_file, write=False)).ledger:
        book = desk.book()
    current, known, now = _current(desk, book), desk.known_knobs(book), utc_now()
    marks, written = [], {}
    for file in files:
        text = read_text(file)
        found = contradictions(text, book, current, known=known)
        new = refreshed(corrected(text, found, date=now[:10]), book, current, now=now, name=str(file))
        if new != text:
            written[file] = (text, new)
            lines = difflib.unified_diff(text.splitlines(), new.splitlines(), str(file), str(file), lineterm="", n=1)
            print("\n".join(lines))
        marks += [
            DocMark(
                file=stored_name(file, desk.home),
                line=item.sentence.line,
                text=item.sentence.text,
                claim=item.claim,
                knob=item.knob,
                verdict=item.why,
            )
            for item in found
        ]
    if not written:
        print("nothing to correct")
        return 0
    if dry_run:
        return 0
    agree(f"write {', '.join(map(str, written))}?", yes=yes)
    for file, (text, new) in written.items():
        _write(file, text, new)
        marks.append(
            DocMark(
                file=stored_name(file, desk.home),
                line=1,
                text="written by docs sync",
                before_sha256=sha256(text.encode()).hexdigest(),
                sha256=sha256(new.encode()).hexdigest(),
            )
        )
    with open_desk(ledger_path, stack_file, write=True).ledger as ledger:
        ledger.append_all(marks)
    say(f"written: {', '.join(map(str, written))}")
    return 0


def _write(path: Path, seen: str, text: str) -> None:
    """Put *text* in place of what was *seen*, in one step; a file that changed meanwhile is left alone.

    Raises:
        CannotError: It changed meanwhile, or cannot be written.
    """
    from vindicate.ledger.importing import read_text
    from vindicate.operate.files import swap

    target = path.resolve()
    if read_text(target) != seen:
        raise CannotError(f"{path} changed while the diff was shown", remedy="run it again")
    status = target.stat()
    swap(target, text.encode(), mode=status.st_mode & 0o7777, uid=status.st_uid, gid=status.st_gid)
