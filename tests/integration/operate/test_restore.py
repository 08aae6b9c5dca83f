"""Putting a revert back: on which ground, watched for how long, and what the watch does to the claim."""

import subprocess
import sys
import time

import pytest

from vindicate.cli.change import restore
from vindicate.clock import utc_now
from vindicate.errors import CannotError, MisuseError, UndeterminedError, UndoneError
from vindicate.ledger.state import Book
from vindicate.ledger.store import Ledger
from vindicate.operate import watch
from vindicate.operate.change import operation_on
from vindicate.operate.services import bring_up
from vindicate.operate.status import live_readings
from vindicate.record.ledger import (
    Change,
    ChangeStep,
    Claim,
    ClaimEvent,
    Effect,
    Evidence,
    Incident,
    Justification,
)

VERDICT = {
    "status": "fault", "service": "front", "mechanism": "proxy.connector_starvation", "summary": "front starves",
    "cleared": [{"service": "worker", "knobs": ["KNOB"], "of": "stalling streams", "because": "it answered all"}],
}  # fmt: skip


class Restored:
    """A running stack on which a revert of KNOB from 512 to 256 stands in the ledger."""

    def __init__(self, stack, *, displaced=True, evidence=True, refuted=False, grade=None, count=3, exposure=20.0):
        self.stack = stack
        self.script = stack.service("worker").launcher.file
        self.before = self.script.read_bytes()
        self.ledger = Ledger.open(stack.home / "ledger.db")
        facts = [
            Incident(id="INC-1", text="freezes", count=count, exposure=exposure),
            Claim(id="H1", text="512 freezes sessions", incident="INC-1", about="knob:KNOB=512"),
            Change(id="C1", kind="revert", knob="KNOB", services=("worker",), from_value="512", to_value="256"),
            ChangeStep(change="C1", state="done"),
            Justification(change="C1", claims=("H1",), need="not_refuted"),
        ]
        if displaced and evidence:
            facts.append(
                Evidence(id="E1", kind="diagnosis", text="front starves", group="diagnosis", diagnosis=VERDICT)
            )
        if displaced:
            on = ("E1",) if evidence else ()
            facts.append(ClaimEvent(claim="H1", status="displaced", reason="front starves", evidence=on))
        if refuted:
            facts.append(ClaimEvent(claim="H1", status="refuted", reason="tried", evidence=("E1",)))
        if grade:
            effect = Effect(
                knob="KNOB", a="256", b="512", level=64, metric="output_tok_per_s", gain_pct=12.8, lo90_pct=9.7, hi90_pct=16.0,
                blocks=6, grade=grade,
            )  # fmt: skip
            facts.append(Evidence(id="E2", kind="experiment", text="X", effects=(effect,), measured_at=utc_now()))
        self.ledger.append_all(facts)
        bring_up(stack, tuple(stack.services), say=lambda _: None)

    def restore(self, *words):
        return restore.main(
            ["C1", "--yes", "--stack", str(self.stack.file), "--streams", "4", *words], standalone_mode=False
        )

    @property
    def book(self):
        return Book.from_facts(self.ledger.facts())

    @property
    def live(self):
        return {reading.value for reading in live_readings(self.stack.service("worker"), "KNOB")}

    @property
    def watched(self):
        return [item for item in self.book.evidence.values() if item.group == "watch"]


@pytest.fixture
def restored(small_stack, monkeypatch):
    monkeypatch.setattr(watch, "_LOOK_S", 2.0)
    monkeypatch.setattr(watch, "_STALL_S", 1.5)
    made = []

    def make(worker="", **options):
        made.append(Restored(small_stack(entry="worker", worker=worker), **options))
        return made[-1]

    yield make
    for item in made:
        item.ledger.close()


def test_a_clean_watch_for_t_star_refutes_the_claim(restored, capsys):
    r = restored()
    assert r.restore("--accept", "the proxy was at fault") == 0
    assert r.live == {"512"}
    assert b"KNOB=512" in r.script.read_bytes()
    record = r.book.change("C2")
    assert (record.state, record.change.kind, record.change.undoes) == ("done", "restore", "C1")
    assert "claim H1 is displaced, not refuted" in record.waivers[0].weaknesses
    assert not any("only the watch" in weak for weak in record.waivers[0].weaknesses)
    assert r.book.claims["H1"].status == "refuted"
    assert r.book.claims["H1"].events[-1][1].evidence == (r.watched[0].id, "E1")
    assert r.watched[0].measured["exposure"] >= 35  # T* = 20 * (20**(1/3) - 1) = 34.3
    assert "T* = 35 requests = E * (20^(1/m) - 1)" in capsys.readouterr().err


def test_a_waiver_that_names_the_lone_watch_lets_it_refute_the_claim(restored):
    r = restored(evidence=False)
    assert r.restore("--accept", "the proxy was at fault") == 0
    lone = "only the watch will speak against claim H1"
    assert any(weak.startswith(lone) for weak in r.book.change("C2").waivers[0].weaknesses)
    assert r.book.claims["H1"].status == "refuted"
    assert r.book.claims["H1"].events[-1][1].evidence == (r.watched[0].id,)


def test_a_watch_shorter_than_t_star_leaves_the_claim_as_it_is(restored, capsys):
    r = restored()
    assert r.restore("--accept", "short", "--watch-requests", "10") == 0
    assert r.live == {"512"}
    assert r.book.claims["H1"].status == "displaced"
    seen = capsys.readouterr()
    assert "shorter than T*" in seen.err
    assert "claim H1 stays displaced" in seen.out


def test_the_symptom_under_watch_undoes_it_and_supports_the_claim(restored):
    r = restored("--stall-knob 512 --stall-after 40", exposure=100.0)
    with pytest.raises(UndoneError, match="stalled or broke off") as caught:
        r.restore("--accept", "let us see")
    assert "live again: KNOB=256" in caught.value.problem
    assert r.live == {"256"}
    assert r.script.read_bytes() == r.before
    assert r.book.change("C2").state == "rolled_back"
    assert r.watched[0].direction == "for"
    assert r.book.claims["H1"].status == "supported"


def test_refuses_weak_ground_and_says_what_is_missing(restored):
    r = restored(grade="D")
    with pytest.raises(UndeterminedError) as caught:
        r.restore()
    assert "H1 is displaced, not refuted" in caught.value.problem
    assert "grade D" in caught.value.problem
    assert '--accept "REASON"' in caught.value.remedy
    assert r.live == {"256"}
    assert "C2" not in r.book.changes


def test_needs_no_waiver_on_an_orphaned_revert_with_a_good_measurement(restored):
    r = restored(refuted=True, grade="A")
    assert r.restore("--watch-requests", "8") == 0
    assert r.live == {"512"}
    assert r.book.change("C2").waivers == ()


def test_refuses_while_the_ground_still_holds_even_when_accepted(restored):
    r = restored(displaced=False)
    with pytest.raises(MisuseError, match="still holds: H1 is open"):
        r.restore("--accept", "no matter")
    assert r.live == {"256"}


def test_refuses_while_the_cause_is_not_gone(restored):
    r = restored("--stall-knob 256")
    for more in ((), ("--dry-run",)):  # the plan says what the act would
        with pytest.raises(CannotError, match="the cause is not gone"):
            r.restore("--accept", "no matter", *more)
    assert r.live == {"256"}
    assert "C2" not in r.book.changes


def test_only_a_revert_in_force_can_be_restored(restored):
    r = restored()
    r.ledger.append_all(
        [
            Change(id="C5", kind="apply", knob="KNOB", services=("worker",), from_value="256", to_value="300"),
            ChangeStep(change="C5", state="done"),
        ]
    )
    with pytest.raises(MisuseError, match="no longer the last word on KNOB: C5"):
        r.restore("--accept", "x")
    with pytest.raises(MisuseError, match="only a revert can be restored"):
        restore.main(["C5", "--yes", "--stack", str(r.stack.file)], standalone_mode=False)
    with pytest.raises(MisuseError, match="no change 'C9'"):
        restore.main(["C9", "--yes", "--stack", str(r.stack.file)], standalone_mode=False)


def test_a_tool_killed_in_the_middle_of_the_watch_is_resumed_and_watches_again(restored):
    r = restored("--delay 0.1", exposure=40.0)
    words = [sys.executable, "-m", "vindicate", "restore", "C1", "--yes", "--accept", "x", "--streams", "4"]
    with (r.stack.home / "err").open("wb") as sink:
        tool = subprocess.Popen([*words, "--stack", str(r.stack.file)], stdout=sink, stderr=sink)
    deadline = time.monotonic() + 40
    while "C2" not in r.book.changes or r.book.change("C2").state != "watching":
        assert time.monotonic() < deadline
        assert tool.poll() is None
        time.sleep(0.05)
    tool.kill()
    tool.wait()
    assert r.book.claims["H1"].status == "displaced"
    operation_on(r.stack, r.ledger, r.book, "C2", say=lambda _: None).go_on()
    assert r.book.change("C2").state == "done"
    assert r.book.claims["H1"].status == "refuted"
    assert r.watched[0].measured["exposure"] >= 69  # T* = 40 * (20**(1/3) - 1) = 68.6


def test_without_a_counted_incident_the_users_own_traffic_is_watched_for_a_time(restored, capsys):
    r = restored(count=None, exposure=None)
    assert r.restore("--accept", "x", "--watch", "1s") == 0
    assert r.live == {"512"}
    assert r.book.claims["H1"].status == "displaced"
    seen = capsys.readouterr()
    assert "the users' own traffic, at most 1.0 s; T* is unknown" in seen.err
    assert "T* is unknown" in seen.out
