"""Facts ↔ JSON lines that live well in git; and what does not add up in a set of facts."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from vindicate.clock import parse_time
from vindicate.errors import MisuseError
from vindicate.ledger.state import Book
from vindicate.record.ledger import KINDS, ChangeStep, ClaimEvent, Fact, Justification, Waiver

__all__ = ["EXPERIMENT", "SCHEMA", "changed_files", "dump", "load", "problems"]

SCHEMA = "vindicate.ledger/1"
EXPERIMENT = "vindicate ab, "  # begins the source of what an experiment measured; its folder follows


def dump(facts: Iterable[Fact]) -> Iterator[str]:
    """One JSON line a fact, in the order of record, after a line that names the form."""
    yield msgspec.json.encode({"schema": SCHEMA}).decode()
    for fact in facts:
        yield msgspec.json.encode(fact).decode()


def load(lines: Iterable[str], *, name: str) -> list[Fact]:
    """Read what `dump` wrote.

    Raises:
        MisuseError: A line is no fact; says which.
    """
    facts = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            data: Any = msgspec.json.decode(line)
            if number == 1 and isinstance(data, dict) and "schema" in data:
                if data["schema"] != SCHEMA:
                    raise MisuseError(
                        f"{name}:1: schema is {data['schema']!r}, and {SCHEMA!r} is known", remedy="update vindicate"
                    )
                continue
            body = msgspec.convert(data["body"], KINDS[data["kind"]])
            facts.append(msgspec.convert({**data, "body": None}, _Row).fact(body))
        except (msgspec.MsgspecError, KeyError, TypeError, RecursionError) as error:
            raise MisuseError(
                f"{name}:{number}: no fact: {error}", remedy="give a file that `vindicate ledger export` wrote, whole"
            ) from error
    return facts


class _Row(msgspec.Struct):
    """A line without its body."""

    seq: int
    kind: str
    happened_at: str
    recorded_at: str
    by: str

    def fact(self, body: Any) -> Fact:
        return Fact(
            seq=self.seq,
            kind=self.kind,
            happened_at=_moment("happened_at", self.happened_at),
            recorded_at=_moment("recorded_at", self.recorded_at),
            by=self.by,
            body=body,
        )


def _moment(field: str, text: str) -> str:
    try:
        return parse_time(text)
    except MisuseError as error:
        raise TypeError(f"{field}: {error.problem}") from error


def problems(facts: Sequence[Fact]) -> list[str]:
    """What does not add up: links to what is not there, numbers out of order, reverts without a ground."""
    book = Book.from_facts(facts)
    found = [
        f"fact {later.seq} follows fact {earlier.seq}" for earlier, later in pairwise(facts) if later.seq <= earlier.seq
    ]
    for fact in facts:
        match fact.body:
            case ClaimEvent() as event:
                found += _missing(fact, "claim", [event.claim], book.claims)
                found += _missing(fact, "evidence", event.evidence, book.evidence)
            case Justification() as ground:
                found += _missing(fact, "change", [ground.change], book.changes)
                found += _missing(fact, "claim", ground.claims, book.claims)
            case ChangeStep() | Waiver():
                found += _missing(fact, "change", [fact.body.change], book.changes)
            case _:
                pass
    for record in book.claims.values():
        if record.claim.incident is not None and record.claim.incident not in book.incidents:
            found.append(f"claim {record.claim.id} names incident {record.claim.incident}, which is not there")
    found += [
        f"revert {name} rests on nothing that was recorded"
        for name, record in book.changes.items()
        if record.change.kind == "revert" and record.in_effect and not record.grounds
    ]
    return found


def _missing(fact: Fact, what: str, names: Iterable[str], there: Any) -> list[str]:
    return [
        f"fact {fact.seq} ({fact.kind}) names {what} {name}, which is not there" for name in names if name not in there
    ]


def changed_files(book: Book, home: Path) -> list[str]:
    """Evidence whose file is not, or no longer, what was read; no fault of the ledger, but worth knowing.

    What this program wrote itself (``docs sync``) is no change, where the file was what had been read until then.
    """
    found = []
    for item in book.evidence.values():
        if item.sha256 is None or not item.source:
            continue
        names = _files_of(item.source)
        try:
            seen = hashlib.sha256(b"".join((home / name).read_bytes() for name in sorted(names))).hexdigest()
        except OSError as error:
            found.append(f"{item.id}: {error.filename}: {error.strerror}")
            continue
        known = item.sha256
        for mark in book.doc_marks:
            if [mark.file] == names and mark.sha256 and mark.before_sha256 == known:
                known = mark.sha256
        if seen != known:
            found.append(f"{item.id}: {', '.join(str(home / name) for name in names)} has changed since it was read")
    return found


def _files_of(source: str) -> list[str]:
    """The files that evidence came from: ``PLAN.md:7``, ``a.json, b.json``, or the design of an experiment."""
    head, _, tail = source.rpartition(":")
    if head and tail.isdecimal():
        return [head]
    if source.startswith(EXPERIMENT):
        return [f"{source.removeprefix(EXPERIMENT)}/design.json"]
    return source.split(", ")
