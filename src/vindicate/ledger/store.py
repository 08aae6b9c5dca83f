"""Bodies in → numbered facts in an append-only table, and back out in the order they were recorded."""

import getpass
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec
import sqlalchemy as sa

from vindicate.clock import parse_time, utc_now
from vindicate.errors import BugError, LedgerError
from vindicate.ledger import sqlite
from vindicate.ledger.bulk import uncollected
from vindicate.record.ledger import (
    KINDS,
    Body,
    Change,
    ChangeStep,
    Claim,
    ClaimEvent,
    DocMark,
    Evidence,
    Fact,
    Incident,
    Justification,
    Waiver,
)
from vindicate.redact import redact_json

__all__ = ["Ledger", "entity_of", "kind_of"]

_KIND_OF = {body: kind for kind, body in KINDS.items()}
_DECODERS = {kind: msgspec.json.Decoder(body) for kind, body in KINDS.items()}
_FAR_AHEAD = 1000  # no such schema will ever be: what says so is no number that was written as one
_META = sa.MetaData()
_FACTS = sa.Table(
    "facts",
    _META,
    sa.Column("seq", sa.Integer, primary_key=True),
    sa.Column("kind", sa.Text),
    sa.Column("entity", sa.Text),
    sa.Column("happened_at", sa.Text),
    sa.Column("recorded_at", sa.Text),
    sa.Column("by", sa.Text, quote=True),
    sa.Column("body", sa.Text),
)
_IDS = sa.Table("taken_ids", _META, sa.Column("prefix", sa.Text, primary_key=True), sa.Column("highest", sa.Integer))
_SCHEMA = sa.Table(
    "ledger_schema", _META, sa.Column("version", sa.Integer, primary_key=True), sa.Column("applied_at", sa.Text)
)


def kind_of(body: Body) -> str:
    """The name under which facts of this class are kept."""
    return _KIND_OF[type(body)]


def entity_of(body: Body) -> str:
    """The id of the thing that *body* speaks of: its own, or that of the claim, change or document it is about."""
    match body:
        case Incident() | Claim() | Evidence() | Change():
            return body.id
        case ClaimEvent():
            return body.claim
        case ChangeStep() | Justification() | Waiver():
            return body.change
        case DocMark():
            return body.file


class Ledger:
    """An append-only store of facts in one file; several processes may use it at once.

    What `append` returned is on disk. Nothing is ever edited: a second fact about the same entity corrects the first.

    Example:
        >>> with Ledger.open(Path("ledger.db")) as ledger:  # doctest: +SKIP
        ...     ledger.append(Incident(id=ledger.next_id("INC-"), text="sessions freeze"))
    """

    def __init__(self, path: Path, engine: sa.Engine, *, writable: bool) -> None:
        self.path = path
        self._engine = engine
        self._writable = writable

    @classmethod
    def open(cls, path: Path, *, create: bool = True, read_only: bool = False) -> Self:
        """Open the ledger at *path*.

        Args:
            create: Make it, and its folder, when it is not there. Without that, and with *read_only*, a missing
                ledger reads as an empty one and no file appears.

        Raises:
            LedgerError: It is no ledger, is of a newer version, or cannot be opened.
        """
        try:
            there = path.exists()
            if not there and (read_only or not create):
                ledger = cls(path, sqlite.in_memory(), writable=False)
                ledger._migrate()
                return ledger
            if not there:
                path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise LedgerError(
                f"{path} cannot be opened: {sqlite.why_closed(path)}", remedy="name another place with --ledger PATH"
            ) from error
        if there and not path.is_file():
            raise LedgerError(
                f"{path} cannot be opened: it is {'a folder' if path.is_dir() else 'no plain file'}",
                remedy="name a file with --ledger PATH",
            )
        if there:  # looked at before anything is written, so that somebody else's file stays as it is
            with cls(path, sqlite.connect(path, read_only=True), writable=False) as seen:
                seen._check_schema(empty_is_fine=not read_only)
        ledger = cls(path, sqlite.connect(path, read_only=read_only), writable=not read_only)
        if not read_only:
            try:
                ledger._migrate()
            except LedgerError:
                ledger.close()
                raise
        return ledger

    @classmethod
    def scratch(cls, facts: Sequence[Fact] = ()) -> Self:
        """A ledger in memory that begins with *facts*: for asking what would be, with nothing written."""
        ledger = cls(Path("scratch"), sqlite.in_memory(), writable=True)
        ledger._migrate()
        ledger.adopt(facts)
        return ledger

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file."""
        self._engine.dispose()

    # ---- writing -------------------------------------------------------------------------------------------------

    def append(self, body: Body, *, happened_at: str | None = None, by: str | None = None) -> Fact:
        """Record one fact, with secrets blanked out; when this returns, it is on disk.

        Args:
            happened_at: ISO 8601 UTC; a change's own time, or now, when it is not given.
            by: Who says so; the user of this process when it is not given.

        Raises:
            LedgerError: It cannot be written.
        """
        return self.append_all([body], happened_at=happened_at, by=by)[0]

    def append_all(
        self, bodies: Sequence[Body], *, happened_at: str | None = None, by: str | None = None
    ) -> list[Fact]:
        """Record *bodies* in one transaction: all of them or none.

        Raises:
            LedgerError: They cannot be written.
        """
        now, author = utc_now(), by or _user()
        with self._writing() as connection:
            return [_insert(connection, body, _when(body, happened_at, now), now, author) for body in bodies]

    def adopt(self, facts: Sequence[Fact]) -> int:
        """Take over exported facts with their numbers, times and authors, in one transaction; those already here are skipped.

        Returns:
            How many were new.

        Raises:
            LedgerError: A number is taken here by another fact, or nothing can be written.
        """
        with self._writing() as connection:
            here = {fact.seq: fact for fact in _select(connection, None)}
            new = [fact for fact in facts if here.get(fact.seq) != fact]
            clash = next((fact for fact in new if fact.seq in here), None)
            if clash is not None:
                raise LedgerError(
                    f"{self.path}: fact {clash.seq} is here already and says something else",
                    remedy="import into an empty ledger: vindicate ledger import FILE --ledger NEW.db",
                )
            for fact in new:
                _insert_row(connection, {"seq": fact.seq}, fact)
            return len(new)

    def next_id(self, prefix: str) -> str:
        """An id nobody else gets, such as ``C7`` for ``C``; also with several processes. It is taken even when it is not used.

        Raises:
            LedgerError: It cannot be written.
        """
        with self._writing() as connection:
            taken = connection.execute(sa.select(_IDS.c.highest).where(_IDS.c.prefix == prefix)).scalar()
            pattern = _FACTS.c.entity.startswith(prefix, autoescape=True)
            seen = connection.execute(sa.select(_FACTS.c.entity).where(pattern).distinct()).scalars()
            numbers = [int(tail) for tail in (entity[len(prefix) :] for entity in seen) if tail.isdecimal()]
            number = max([taken or 0, *numbers]) + 1
            if taken is None:
                connection.execute(_IDS.insert().values(prefix=prefix, highest=number))
            else:
                connection.execute(_IDS.update().where(_IDS.c.prefix == prefix).values(highest=number))
            return f"{prefix}{number}"

    # ---- reading -------------------------------------------------------------------------------------------------

    def facts(self, kind: str | None = None) -> list[Fact]:
        """All facts, or those of one kind, in the order they were recorded.

        Raises:
            LedgerError: They cannot be read.
        """
        with self._transaction() as connection, uncollected():
            return _select(connection, kind)

    def damage(self) -> list[str]:
        """What SQLite's own check finds wrong with the file; empty when it is sound."""
        with self._transaction() as connection:
            return sqlite.damage(connection)

    # ---- inside --------------------------------------------------------------------------------------------------

    @contextmanager
    def _transaction(self, *, write: bool = False) -> Iterator[sa.Connection]:
        try:
            with self._engine.connect().execution_options(**{sqlite.WRITE: write}) as connection, connection.begin():
                yield connection
        except sa.exc.DBAPIError as error:
            raise sqlite.explain(error, self.path) from error

    @contextmanager
    def _writing(self) -> Iterator[sa.Connection]:
        if not self._writable:
            raise LedgerError(
                f"{self.path} was opened for reading" if self.path.exists() else f"no ledger at {self.path}",
                remedy='begin one with: vindicate incident open "WHAT WAS SEEN"',
            )
        with self._transaction(write=True) as connection:
            yield connection

    def _migrate(self) -> None:
        """Bring the schema to this program's version, one migration a transaction."""
        with self._transaction() as connection:
            version = _version(connection)
        for number, statements in enumerate(sqlite.MIGRATIONS[version or 0 :], start=(version or 0) + 1):
            with self._transaction(write=True) as connection:
                if (_version(connection) or 0) >= number:
                    continue  # another process was quicker
                if number == 1:
                    _SCHEMA.create(connection)
                for statement in statements:
                    connection.exec_driver_sql(statement)
                connection.execute(_SCHEMA.insert().values(version=number, applied_at=utc_now()))

    def _check_schema(self, *, empty_is_fine: bool) -> None:
        with self._transaction() as connection:
            version = _version(connection)
        if version == 0 and empty_is_fine:
            return
        if not version:
            raise LedgerError(
                f"{self.path} is no ledger: " + ("it is empty" if version == 0 else "a SQLite file with other tables"),
                remedy="name another file with --ledger, or move this one away",
            )
        if version > _FAR_AHEAD:
            raise LedgerError(
                f"{self.path} is damaged: its schema number is {version}",
                remedy="copy it away; put a backup in its place, or: vindicate ledger import of the last export",
            )
        if version > len(sqlite.MIGRATIONS):
            raise LedgerError(
                f"{self.path} has schema {version}, and this program knows {len(sqlite.MIGRATIONS)}",
                remedy="update vindicate; the ledger itself is fine",
            )


def _version(connection: sa.Connection) -> int | None:
    """The schema's version; 0 for an empty file, ``None`` when its tables are not ours, whatever their names."""
    inspector = sa.inspect(connection)
    tables = inspector.get_table_names()
    if not tables:
        return 0
    for table in _META.sorted_tables:
        if table.name not in tables:
            return None
        there = {column["name"] for column in inspector.get_columns(table.name)}
        if not there.issuperset(column.name for column in table.columns):
            return None
    return connection.execute(sa.select(sa.func.max(_SCHEMA.c.version))).scalar()


def _when(body: Body, given: str | None, now: str) -> str:
    stated = given or (body.happened_at if isinstance(body, Change) else None)
    return parse_time(stated) if stated else now


def _insert(connection: sa.Connection, body: Body, happened_at: str, recorded_at: str, by: str) -> Fact:
    clean = msgspec.convert(redact_json(msgspec.to_builtins(body)), type(body))
    fact = Fact(seq=0, kind=kind_of(body), happened_at=happened_at, recorded_at=recorded_at, by=by, body=clean)
    seq = _insert_row(connection, {}, fact)
    return Fact(seq=seq, kind=fact.kind, happened_at=happened_at, recorded_at=recorded_at, by=by, body=clean)


def _insert_row(connection: sa.Connection, extra: dict[str, int], fact: Fact) -> int:
    row = {
        "kind": fact.kind,
        "entity": entity_of(fact.body),
        "happened_at": fact.happened_at,
        "recorded_at": fact.recorded_at,
        "by": fact.by,
        "body": msgspec.json.encode(fact.body).decode(),
    }
    key = connection.execute(_FACTS.insert().values(**extra, **row)).inserted_primary_key
    if key is None:
        raise BugError("the ledger gave no number to a fact", remedy="report this")
    return int(key[0])


def _select(connection: sa.Connection, kind: str | None) -> list[Fact]:
    query = sa.select(_FACTS).order_by(_FACTS.c.seq)
    if kind is not None:
        query = query.where(_FACTS.c.kind == kind)
    facts = []
    for seq, named, entity, happened_at, recorded_at, by, text in connection.execute(query):
        decoder = _DECODERS.get(named)
        if decoder is None:
            raise LedgerError(
                f"fact {seq} is of the kind {named!r}, which this program does not know", remedy="update vindicate"
            )
        try:
            body = decoder.decode(text)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise LedgerError(
                f"fact {seq} ({named} {entity}) cannot be read: {error}",
                remedy="update vindicate, or put back an export: vindicate ledger import FILE --ledger NEW.db",
            ) from error
        facts.append(Fact(seq=seq, kind=named, happened_at=happened_at, recorded_at=recorded_at, by=by, body=body))
    return facts


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return "unknown"
