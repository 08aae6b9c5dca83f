"""A path → a SQLite engine fit for several processes at once, and SQLite's complaints → ours; the only SQLite dialect."""

import os
import shutil
import sqlite3
import tempfile
from contextlib import closing, suppress
from pathlib import Path

import psutil
import sqlalchemy as sa

from vindicate.clock import Clock, SystemClock
from vindicate.errors import LedgerError

__all__ = ["BUSY_S", "MIGRATIONS", "WRITE", "connect", "damage", "explain", "in_memory", "why_closed"]

BUSY_S = 20.0
WRITE = "vindicate_write"  # execution option of a connection that will write: it takes the write lock at its start

# Each migration runs once, in one transaction with the row of `ledger_schema` that records it. Never edit one that was released.
MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE facts (
            seq INTEGER PRIMARY KEY AUTOINCREMENT,
            kind TEXT NOT NULL,
            entity TEXT NOT NULL,
            happened_at TEXT NOT NULL,
            recorded_at TEXT NOT NULL,
            "by" TEXT NOT NULL,
            body TEXT NOT NULL
        )""",
        "CREATE INDEX facts_by_kind ON facts (kind, entity)",
        "CREATE TRIGGER facts_are_never_edited BEFORE UPDATE ON facts BEGIN SELECT RAISE(ABORT, 'facts are never edited'); END",
        "CREATE TRIGGER facts_are_never_deleted BEFORE DELETE ON facts BEGIN SELECT RAISE(ABORT, 'facts are never deleted'); END",
        "CREATE TABLE taken_ids (prefix TEXT PRIMARY KEY, highest INTEGER NOT NULL)",
    ),
)


def connect(path: Path, *, read_only: bool) -> sa.Engine:
    """An engine on the file, with one connection kept; no lock outlives a transaction.

    A WAL file cannot be read without its index beside it. Where that cannot be made (a read-only folder or file system, a
    full disk), nobody has the file open for writing, and a copy of it is read.
    """
    uri = path.absolute().as_uri()

    def for_reading() -> sqlite3.Connection:
        connection = _opened(uri + "?mode=ro")
        try:
            connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        except sqlite3.OperationalError as error:
            if not error.sqlite_errorname.startswith(
                ("SQLITE_CANTOPEN", "SQLITE_IOERR", "SQLITE_READONLY", "SQLITE_FULL")
            ):
                raise
            connection.close()
            try:
                return _copy(path)
            except OSError:
                raise error from None
        return connection

    def for_writing() -> sqlite3.Connection:
        connection = _opened(uri + "?mode=rwc")
        _use_wal(connection, SystemClock())
        connection.execute("PRAGMA synchronous = FULL")  # what was acknowledged survives the machine
        return connection

    creator = for_reading if read_only else for_writing
    return _with_begin(sa.create_engine("sqlite://", creator=creator, poolclass=sa.QueuePool, pool_size=1))


def _opened(uri: str) -> sqlite3.Connection:
    return sqlite3.connect(uri, uri=True, timeout=BUSY_S, isolation_level=None, check_same_thread=False)


def _copy(path: Path) -> sqlite3.Connection:
    """The file with its WAL, copied where there is room and read into memory: the copy is gone when this returns."""
    room = [folder for folder in ("/dev/shm", tempfile.gettempdir()) if os.access(folder, os.W_OK)]  # noqa: S108 memory
    with tempfile.TemporaryDirectory(prefix="vindicate-", dir=room[0] if room else None) as folder:
        copy = Path(folder, path.name)
        shutil.copyfile(path, copy)
        with suppress(FileNotFoundError):
            shutil.copyfile(f"{path}-wal", f"{copy}-wal")
        memory = _opened("file::memory:")
        with closing(_opened(copy.as_uri())) as source:
            source.backup(memory)
    memory.execute("PRAGMA query_only = ON")
    return memory


def in_memory() -> sa.Engine:
    """An engine on an empty database that leaves no file; stands for a ledger that is not there yet."""
    engine = sa.create_engine("sqlite://", poolclass=sa.StaticPool, connect_args={"isolation_level": None})
    return _with_begin(engine)


def _with_begin(engine: sa.Engine) -> sa.Engine:
    @sa.event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        # Two writers that both begin by reading cannot both upgrade; a writer takes its turn at the start instead.
        writes = connection.get_execution_options().get(WRITE, False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _use_wal(connection: sqlite3.Connection, clock: Clock) -> None:
    """Switch to WAL; SQLite does not wait for others here by itself, so two first openers would collide."""
    deadline = clock.monotonic() + BUSY_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorname != "SQLITE_BUSY" or clock.monotonic() > deadline:
                connection.close()
                raise
            clock.sleep(0.02)
        else:
            return


def damage(connection: sa.Connection) -> list[str]:
    """What SQLite's own check finds wrong with the file; empty when it is sound."""
    rows = connection.exec_driver_sql("PRAGMA integrity_check").scalars().all()
    return [str(row) for row in rows if row != "ok"]


def explain(error: Exception, path: Path) -> LedgerError:
    """SQLite's complaint about *path*, in words and with a remedy."""
    orig = getattr(error, "orig", None) or error
    name = getattr(orig, "sqlite_errorname", "") or ""
    if name.startswith("SQLITE_NOTADB"):
        return LedgerError(
            f"{path} is no ledger: {_first_bytes(path)}",
            remedy="name another file with --ledger, or move this one away",
        )
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return LedgerError(
            f"{path} is being written by {_holders(path)}, and stayed locked for {BUSY_S:.0f} s",
            remedy="wait for it to end and run this again; reading works meanwhile: vindicate ledger export",
        )
    if name.startswith("SQLITE_FULL") or (name.startswith("SQLITE_IOERR") and _is_full(path.parent)):
        return LedgerError(
            f"{path}: the disk is full; nothing was recorded", remedy=f"free space in {path.parent} and run it again"
        )
    if name.startswith("SQLITE_IOERR"):
        return LedgerError(
            f"{path}: the disk fails ({name.removeprefix('SQLITE_').lower()}): {orig}",
            remedy=f"look at the disk under {path.parent} (df, dmesg), and copy the ledger to another",
        )
    if name.startswith(("SQLITE_READONLY", "SQLITE_PERM")):
        return LedgerError(
            f"{path} cannot be written: the file, its folder or its disk is read-only for this user",
            remedy=f"make {path.parent} and the file writable, or name another with --ledger PATH",
        )
    if name.startswith("SQLITE_CANTOPEN"):
        return LedgerError(
            f"{path} cannot be opened: {why_closed(path)}",
            remedy="check the path and its permissions, or name another with --ledger",
        )
    if name.startswith("SQLITE_CORRUPT"):
        return LedgerError(
            f"{path} is damaged: {orig}",
            remedy=f"move it away, then put back the last export: vindicate ledger import FILE --ledger {path}",
        )
    return LedgerError(f"{path}: {orig}", remedy=f"look whether SQLite can read it: sqlite3 {path} .schema")


def _is_full(folder: Path) -> bool:
    try:
        return shutil.disk_usage(folder).free < 1 << 16
    except OSError:
        return False


def _first_bytes(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return f"it begins with {file.read(16)!r}"
    except OSError as error:
        return str(error.strerror)


def why_closed(path: Path) -> str:
    """Why a file cannot be opened or made at *path*, in a few words."""
    above = next((folder for folder in path.parents if folder.exists()), path.parent)
    if not above.is_dir():
        return f"{above} is a file"
    if path.is_dir():
        return "it is a folder"
    if not os.access(above, os.W_OK):
        return f"no permission to write in {above}"
    return "no permission" if path.exists() else "it is not there"


def _holders(path: Path) -> str:
    names = {str(path.absolute()), os.path.realpath(path)}
    found = []
    for process in psutil.process_iter(["pid", "name"]):
        if process.pid == os.getpid():
            continue
        try:
            if any(file.path in names for file in process.open_files()):
                found.append(f"pid {process.pid} ({process.info['name']})")
        except psutil.Error:
            continue
    return ", ".join(found) or "another process, which this user cannot see,"
