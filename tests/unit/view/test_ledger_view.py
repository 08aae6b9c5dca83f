"""What the screens of the ledger say of a knob and of figures."""

import pytest

from fakes.ledger_facts import H1, ON_H1, done, facts, revert, says
from vindicate.cli.knob import KnobState
from vindicate.ledger.standing import standings
from vindicate.ledger.state import Book
from vindicate.ledger.worth import Worth
from vindicate.record.ledger import Change, Evidence
from vindicate.view.ledger import evidence_lines, knob_lines, worth_lines

STATE = KnobState(knob="K_K", services=("decode",), default="256", in_ledger=True, ledger="512")
RESTORE = Change(id="C2", kind="restore", knob="K_K", services=(), from_value="256", to_value="512", undoes="C1")


def why(*bodies):
    book = Book.from_facts(facts(*bodies))
    now = standings(book)
    history = [(record, now[name].name) for name, record in book.changes.items()]
    statuses = {name: record.status for name, record in book.claims.items()}
    return [line.strip() for line in knob_lines(STATE, {}, history, statuses) if "why:" in line]


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ("displaced", "C1, which is weakened: another cause was found; its ground is not refuted; weakened"),
        ("refuted", "C1, which is orphaned: its ground is gone; justified"),
    ],
)
def test_a_restore_says_how_the_ground_of_what_it_undid_stands_and_not_that_it_fell(status, said):
    (line,) = why(H1, revert(), ON_H1, done(), says("H1", status), RESTORE, done("C2"))
    assert line == f"why: C2 (restore, 2026-05-01), in place of {said}"


def test_a_ground_is_named_with_the_state_of_its_claim():
    assert why(H1, revert(), ON_H1, done()) == ["why: C1 (revert, 2026-05-01), because of H1 (open); justified"]


def test_nothing_that_took_hold_gives_no_reason():
    assert why(H1, revert(), ON_H1) == []


def test_evidence_tells_at_which_value_it_was_taken():
    item = Evidence(
        id="E1", kind="diagnosis", text="the proxy starves", fingerprint={"knob:K_K": None, "stack": "dsv4"}
    )
    assert evidence_lines(item)[1:] == ["  K_K was unset in the live processes"]


def test_a_figure_of_which_less_is_better_says_so():
    lines = [
        worth_lines([Worth(level=64, metric=metric, gain_pct=-14.3, lo90_pct=None, hi90_pct=None, blocks=None, grade="D", source="E1", measured_at="2026-11-02", stale=(), usable=False)])[0]
        for metric in ("ttft_p50_ms", "output_tok_per_s")
    ]  # fmt: skip
    assert ["less is better" in line for line in lines] == [True, False]
