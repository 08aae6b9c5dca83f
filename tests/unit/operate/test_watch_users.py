"""A watch of the users' own traffic: only what was seen to be healthy is clean time."""

import pytest

from vindicate.ledger.state import Book
from vindicate.ledger.store import Ledger
from vindicate.operate import watch
from vindicate.operate.plan import ChangePlan, KnobEdit, WatchPlan
from vindicate.record.diagnosis import Diagnosis
from vindicate.record.ledger import Claim, Incident

EDIT = KnobEdit(change="C2", knob="K_K", services=("decode",), before="256", after="512")
PLAN = ChangePlan(kind="restore", edits=(EDIT,), files=(), together=("decode",), was_up=("decode",))
WATCH = WatchPlan(
    requests=None, duration_s=100.0, streams=0, needed=None, unit="h", why="", incident="INC-1", claims=("H1",)
)


class Time:
    """A clock that each look moves by 30 s."""

    now = 0.0

    def monotonic(self):
        return self.now


@pytest.mark.parametrize(
    ("statuses", "healthy_s", "direction"),
    [
        (["healthy"] * 4, 120, "against"),
        (["healthy", "undetermined", "undetermined", "healthy"], 60, "against"),
        (["undetermined"] * 4, 0, "neutral"),
    ],
)
def test_only_healthy_looks_count_as_clean_time(monkeypatch, statuses, healthy_s, direction):
    clock, left = Time(), list(statuses)

    def look(_stack):
        clock.now += 30
        return Diagnosis(
            schema="", status=left.pop(0), layer="none", service=None, mechanism=None, confidence=0.9, summary=""
        )

    monkeypatch.setattr(watch, "time", clock)
    monkeypatch.setattr(watch, "look_for_fault", look)
    with Ledger.scratch() as ledger:
        seen = Incident(id="INC-1", text="x", count=1, exposure=0.001, exposure_unit="h")
        ledger.append_all([seen, Claim(id="H1", text="x", incident="INC-1", hazard=False)])
        outcome = watch.watch_change(None, ledger, PLAN, WATCH, say=lambda _: None)
        item = outcome.facts[0]
        assert item.measured["exposure"] == pytest.approx(healthy_s / 3600)
        assert item.direction == direction
        refuted = any(getattr(fact, "status", "") == "refuted" for fact in outcome.facts)
        assert refuted == (healthy_s > 68)  # T* = 0.001 h * 19
        assert Book.from_facts(ledger.facts()).claims["H1"].status == "open"
