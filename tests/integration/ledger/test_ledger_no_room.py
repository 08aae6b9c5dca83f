"""A ledger where nothing can be written beside it: a full disk, a read-only file system, an index that cannot be made."""

import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from vindicate.errors import LedgerError
from vindicate.ledger.store import Ledger
from vindicate.record.ledger import Incident

IN_A_SMALL_DISK = """
set -eu
mount -t tmpfs -o size=400k none "$1"; cd "$1"
"$2" -m vindicate incident open "sessions hang" --ledger ledger.db
head -c 1m /dev/zero >fill 2>/dev/null || true
"$2" -m vindicate ledger check --ledger ledger.db
"$2" -m vindicate incident open "again" --ledger ledger.db || echo "code $?"
rm fill; mount -o remount,ro "$1"
"$2" -m vindicate incident list --ledger ledger.db
"$2" -m vindicate incident open "again" --ledger ledger.db || echo "code $?"
"""


def left_by_a_kill(folder: Path) -> Path:
    """A ledger whose last fact stands in its WAL only, as after a kill."""
    folder.mkdir()
    with Ledger.open(folder / "open.db") as ledger:
        ledger.append(Incident(id="INC-1", text="hang"))
        for end in ("", "-wal"):
            shutil.copyfile(folder / f"open.db{end}", folder / f"ledger.db{end}")
    assert (folder / "ledger.db-wal").stat().st_size > 0
    return folder / "ledger.db"


def test_is_read_with_its_wal_where_no_index_can_be_made(tmp_path):
    path = left_by_a_kill(tmp_path / "kept")
    path.with_name("ledger.db-shm").mkdir()  # so that SQLite cannot make it, whoever we are
    before = sorted(path.parent.iterdir())

    with Ledger.open(path, read_only=True) as ledger:
        assert [fact.body.id for fact in ledger.facts()] == ["INC-1"]
        assert ledger.damage() == []
    assert sorted(path.parent.iterdir()) == before


def test_a_disk_that_fails_is_named_with_what_to_do(tmp_path):
    from vindicate.ledger.sqlite import explain

    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorname = "SQLITE_IOERR_WRITE"
    told = explain(error, tmp_path / "ledger.db")

    assert "ledger.db: the disk fails (ioerr_write)" in told.problem
    assert str(tmp_path) in told.remedy


MAY_MOUNT = shutil.which("unshare") and subprocess.run(["unshare", "-rm", "true"], check=False, capture_output=True).returncode == 0  # fmt: skip


@pytest.mark.skipif(not MAY_MOUNT, reason="no mount of our own here")
def test_is_read_on_a_full_and_on_a_read_only_disk_and_writing_says_why_not(tmp_path):
    done = subprocess.run(
        ["unshare", "-rm", "bash", "-c", IN_A_SMALL_DISK, "bash", str(tmp_path), sys.executable],
        check=False, capture_output=True, text=True, timeout=60, env={**os.environ, "NO_COLOR": "1"},
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert "1 facts, 0 problems\ncode 4" in done.stdout
    assert done.stdout.count("sessions hang") == 1
    assert done.stdout.endswith("code 4\n")
    assert "the disk is full; nothing was recorded\n  free space in " in done.stderr


def test_a_file_of_others_that_has_a_table_by_our_name_is_left_alone(tmp_path):
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as raw:
        raw.execute("CREATE TABLE ledger_schema (version INTEGER, applied_at TEXT)")
        raw.execute("CREATE TABLE accounts (id INTEGER)")
    raw.close()
    before = path.read_bytes()
    for read_only in (True, False):
        with pytest.raises(LedgerError, match="a SQLite file with other tables"):
            Ledger.open(path, read_only=read_only)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["other.db"]
