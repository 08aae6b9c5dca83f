import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from vindicate.errors import LedgerError, MisuseError
from vindicate.ledger import sqlite
from vindicate.ledger.exchange import dump, load, problems
from vindicate.ledger.state import Book
from vindicate.ledger.store import Ledger
from vindicate.record.ledger import (
    Change,
    ChangeStep,
    Claim,
    ClaimEvent,
    Effect,
    Evidence,
    Incident,
    Justification,
    Waiver,
)

WRITER = """
import sys
from pathlib import Path
from vindicate.ledger.store import Ledger
from vindicate.record.ledger import ChangeStep

with Ledger.open(Path(sys.argv[1])) as ledger:
    for number in range(int(sys.argv[2])):
        name = ledger.next_id("C")
        ledger.append(ChangeStep(change=name, state="done", detail=sys.argv[3], data={"number": number}))
        print(name, number, flush=True)
"""


WRITER_OF_CLAIMS = WRITER.replace(
    'ChangeStep(change=name, state="done", detail=sys.argv[3], data={"number": number})',
    'Claim(id=name, text=f"{sys.argv[3]} {number}")',
).replace("import ChangeStep", "import Claim")


def writer(path: Path, count: int, who: str, out: Path, program: str = WRITER) -> subprocess.Popen[bytes]:
    with out.open("wb") as file:
        return subprocess.Popen(
            [sys.executable, "-c", program, str(path), str(count), who], stdout=file, stderr=subprocess.STDOUT
        )


def test_keeps_what_two_processes_write_at_once_and_gives_no_id_twice(tmp_path):
    path = tmp_path / "new" / "ledger.db"
    outs = [tmp_path / "a.out", tmp_path / "b.out"]
    processes = [writer(path, 300, who, out) for who, out in zip("ab", outs, strict=True)]

    assert [process.wait(50) for process in processes] == [0, 0], [out.read_text()[-800:] for out in outs]

    with Ledger.open(path, read_only=True) as ledger:
        steps = [fact.body for fact in ledger.facts()]
        assert ledger.damage() == []
    assert len(steps) == 600
    assert len({step.change for step in steps}) == 600
    for who in "ab":
        assert [step.data["number"] for step in steps if step.detail == who] == list(range(300))


def test_keeps_what_it_acknowledged_when_it_is_killed(tmp_path):
    path, out = tmp_path / "ledger.db", tmp_path / "out"
    process = writer(path, 100_000, "k", out)
    deadline = time.monotonic() + 30
    while out.read_bytes().count(b"\n") < 60 and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    acknowledged = [line.split()[0] for line in out.read_text().splitlines(keepends=True) if line.endswith("\n")]
    assert len(acknowledged) >= 60

    with Ledger.open(path) as ledger:
        kept = {fact.body.change for fact in ledger.facts()}
        assert set(acknowledged) <= kept
        assert ledger.damage() == []
        assert ledger.next_id("C") not in kept


def test_facts_can_neither_be_edited_nor_deleted(tmp_path):
    path = tmp_path / "ledger.db"
    with Ledger.open(path) as ledger:
        ledger.append(Incident(id="INC-1", text="hang"))
    with sqlite3.connect(path) as raw:
        for statement in ("UPDATE facts SET body = '{}'", "DELETE FROM facts"):
            with pytest.raises(sqlite3.IntegrityError, match="facts are never"):
                raw.execute(statement)
    raw.close()


def test_blanks_out_secrets_before_they_reach_the_disk(tmp_path):
    path = tmp_path / "ledger.db"
    with Ledger.open(path) as ledger:
        fact = ledger.append(
            ChangeStep(
                change="C1", state="done", detail="Authorization: Bearer abcdef123456", data={"api_key": "hunter2"}
            )
        )
        assert "abcdef123456" not in fact.body.detail
    raw = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert b"abcdef123456" not in raw
    assert b"hunter2" not in raw


def test_facts_of_one_call_are_kept_together_or_not_at_all(tmp_path, monkeypatch):
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        good = Incident(id="INC-1", text="hang")
        with pytest.raises(TypeError):
            ledger.append_all([good, Incident(id="INC-2", text=object())])  # type: ignore[arg-type]
        assert ledger.facts() == []


def test_a_missing_ledger_reads_as_empty_and_stays_missing(tmp_path):
    path = tmp_path / "none" / "ledger.db"
    for more in ({"read_only": True}, {"create": False}):
        with Ledger.open(path, **more) as ledger:
            assert ledger.facts() == []
            with pytest.raises(LedgerError, match="no ledger at"):
                ledger.append(Incident(id="INC-1", text="hang"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("read_only", [True, False])
def test_a_file_that_is_no_ledger_is_named_and_left_as_it_was(tmp_path, read_only):
    text = tmp_path / "notes.txt"
    text.write_bytes(b"these are notes, and no database at all\n" * 20)
    other = tmp_path / "other.db"
    with sqlite3.connect(other) as raw:
        raw.execute("CREATE TABLE theirs (a)")
    raw.close()
    for path in (text, other):
        before = path.read_bytes()
        with pytest.raises(LedgerError, match="is no ledger") as caught:
            Ledger.open(path, read_only=read_only)
        assert "--ledger" in caught.value.remedy
        assert path.read_bytes() == before


def test_a_place_where_no_file_can_be_is_named(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(LedgerError, match="file is a file"):
        Ledger.open(tmp_path / "file" / "ledger.db")
    with pytest.raises(LedgerError, match="it is a folder"):
        Ledger.open(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write in a read-only folder")
def test_a_folder_without_permission_is_named(tmp_path):
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(LedgerError, match="no permission"):
            Ledger.open(tmp_path / "ledger.db")
    finally:
        tmp_path.chmod(0o700)


def test_a_newer_ledger_is_not_touched(tmp_path):
    path = tmp_path / "ledger.db"
    Ledger.open(path).close()
    with sqlite3.connect(path) as raw:
        raw.execute("INSERT INTO ledger_schema VALUES (99, 'later')")
    raw.close()
    with pytest.raises(LedgerError, match="has schema 99") as caught:
        Ledger.open(path)
    assert "update vindicate" in caught.value.remedy


def test_a_ledger_whose_schema_is_no_number_of_ours_is_damaged_not_newer(tmp_path):
    path = tmp_path / "ledger.db"
    Ledger.open(path).close()
    with sqlite3.connect(path) as raw:
        raw.execute("INSERT INTO ledger_schema VALUES (6591420363028487853, 'x')")
    raw.close()
    with pytest.raises(LedgerError, match="is damaged"):
        Ledger.open(path)


def test_a_locked_ledger_names_who_holds_it(tmp_path, monkeypatch):
    path = tmp_path / "ledger.db"
    Ledger.open(path).close()
    monkeypatch.setattr(sqlite, "BUSY_S", 0.2)
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sqlite3,sys;c=sqlite3.connect(sys.argv[1]);c.execute('BEGIN IMMEDIATE');print('x',flush=True);sys.stdin.read()",
            str(path),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"x\n"
        with Ledger.open(path) as ledger, pytest.raises(LedgerError, match=f"being written by pid {holder.pid}"):
            ledger.append(Incident(id="INC-1", text="hang"))
    finally:
        holder.communicate()


def test_a_full_disk_is_said_and_what_was_there_stays(tmp_path, monkeypatch):
    path, connect = tmp_path / "ledger.db", sqlite3.connect
    with Ledger.open(path) as ledger:
        ledger.append(Incident(id="INC-1", text="hang"))

    def on_a_small_disk(*args, **more):
        connection = connect(*args, **more)
        connection.execute("PRAGMA max_page_count = 1")  # SQLite takes the size that the file has now
        return connection

    monkeypatch.setattr(sqlite3, "connect", on_a_small_disk)
    with Ledger.open(path) as ledger:
        with pytest.raises(LedgerError, match="the disk is full"):
            ledger.append(Incident(id="INC-2", text="x" * 100_000))
        assert [fact.body.id for fact in ledger.facts()] == ["INC-1"]


EVERYTHING = [
    Incident(id="INC-1", text="hang", count=3, exposure=40_000.0, services=("decode",)),
    Claim(id="H1", text="512 hängt", incident="INC-1", about="knob:K_K=512", scope="nccl < 2.22.3"),
    Evidence(
        id="E1",
        kind="document",
        text="table",
        effects=(Effect(knob="K_K", a=None, b="", level=64, metric="m", gain_pct=1.5, grade="D"),),
        measured={"n": 1.5},
    ),
    ClaimEvent(claim="H1", status="displaced", reason="proxy", evidence=("E1",)),
    Change(id="C1", kind="revert", knob="K_K", services=("decode",), from_value="", to_value=None),
    ChangeStep(change="C1", state="done", data={"backup": "a.bak", "deep": {"x": [1, None]}}),
    Justification(change="C1", claims=("H1",)),
    Waiver(change="C1", reason="why not", weaknesses=("weak",)),
]


def test_export_and_import_lose_nothing(tmp_path):
    with Ledger.open(tmp_path / "a.db") as first:
        first.append_all(EVERYTHING, happened_at="2026-05-01T10:00:00Z", by="ann")
        kept = first.facts()
        lines = list(dump(kept))
    with Ledger.open(tmp_path / "b.db") as second:
        assert second.adopt(load(lines, name="x")) == len(EVERYTHING)
        assert second.facts() == kept
        assert second.adopt(load(lines, name="x")) == 0
        assert list(dump(second.facts())) == lines
        assert second.next_id("C") == "C2"
    assert [fact.body for fact in kept] == EVERYTHING
    assert kept[4].body.from_value == ""
    assert kept[4].body.to_value is None
    assert problems(kept) == []


def test_import_refuses_facts_that_clash(tmp_path):
    with Ledger.open(tmp_path / "a.db") as first, Ledger.open(tmp_path / "b.db") as second:
        first.append(Incident(id="INC-1", text="hang"))
        second.append(Incident(id="INC-1", text="something else"))
        with pytest.raises(LedgerError, match="fact 1 is here already"):
            second.adopt(first.facts())


@pytest.mark.parametrize(
    "line", ["{", "[]", '{"seq": 1}', '{"seq":1,"kind":"nope","happened_at":"","recorded_at":"","by":"","body":{}}']
)
def test_import_names_the_line_that_is_no_fact(line):
    with pytest.raises(MisuseError, match=r"x\.jsonl:2"):
        load(['{"schema":"vindicate.ledger/1"}', line], name="x.jsonl")


def test_check_names_links_to_what_is_not_there_and_reverts_without_a_ground(tmp_path):
    with Ledger.open(tmp_path / "a.db") as ledger:
        ledger.append_all(
            [
                Change(id="C1", kind="revert", knob="K", services=(), from_value="2", to_value="1"),
                ChangeStep(change="C1", state="done"),
                ClaimEvent(claim="H9", status="refuted", reason="x", evidence=("E9",)),
            ]
        )
        found = problems(ledger.facts())
    assert found == [
        "fact 3 (claim_event) names claim H9, which is not there",
        "fact 3 (claim_event) names evidence E9, which is not there",
        "revert C1 rests on nothing that was recorded",
    ]


def test_a_scratch_ledger_writes_no_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with Ledger.scratch() as ledger:
        ledger.append(Incident(id=ledger.next_id("INC-"), text="hang"))
        assert Book.from_facts(ledger.facts()).incident("INC-1").incident.text == "hang"
    assert list(tmp_path.iterdir()) == []


def test_loses_nothing_acknowledged_when_one_of_two_writers_is_killed_again_and_again(tmp_path):
    """Two processes write 200 facts each at once; one is killed four times in between and goes on under another name."""
    path, steady = tmp_path / "ledger.db", tmp_path / "steady"
    other = writer(path, 200, "steady", steady, WRITER_OF_CLAIMS)
    acknowledged: list[str] = []
    for turn in range(5):
        out = tmp_path / f"killed{turn}"
        process = writer(path, 200 - len(acknowledged), f"killed{turn}", out, WRITER_OF_CLAIMS)
        deadline = time.monotonic() + 40
        while turn < 4 and out.read_bytes().count(b"\n") < 30 + turn and time.monotonic() < deadline:
            time.sleep(0.005)
        if turn < 4:
            process.kill()
        assert process.wait(50) == (-signal.SIGKILL if turn < 4 else 0), out.read_text()[-800:]
        acknowledged += [line.split()[0] for line in out.read_text().splitlines(keepends=True) if line.endswith("\n")]
    assert other.wait(50) == 0, steady.read_text()[-800:]
    acknowledged += [line.split()[0] for line in steady.read_text().splitlines()]

    with Ledger.open(path) as ledger:
        claims = [fact.body for fact in ledger.facts()]
    names = [claim.id for claim in claims]
    assert len(set(names)) == len(names)
    assert len(acknowledged) >= 400
    assert set(acknowledged) <= set(names)
    assert len(names) - len(acknowledged) <= 4, "at most the one that was on its way at each kill"
    assert [claim.text for claim in claims if "steady" in claim.text] == [f"steady {number}" for number in range(200)]
    done = subprocess.run(
        [sys.executable, "-m", "vindicate", "ledger", "check", "--ledger", str(path)],
        capture_output=True, text=True, check=False, timeout=50,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, f"{len(names)} facts, 0 problems\n")
