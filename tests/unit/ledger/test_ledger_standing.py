import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.ledger_facts import H1, H3, ON_H1, ON_H3, done, facts, revert, says
from vindicate.errors import MisuseError
from vindicate.ledger.standing import standings
from vindicate.ledger.state import Book
from vindicate.record.ledger import Change, ChangeStep, Claim, ClaimEvent, Incident, Justification


def standing(*bodies, **more):
    return standings(Book.from_facts(facts(*bodies)), **more)["C1"].name


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ("open", "justified"),
        ("supported", "justified"),
        ("displaced", "weakened"),
        ("inconclusive", "weakened"),
        ("refuted", "orphaned"),
        ("withdrawn", "orphaned"),
        ("superseded", "orphaned"),
    ],
)
def test_a_revert_stands_as_its_only_claim_does(status, expected):
    assert standing(H1, revert(), ON_H1, says("H1", status)) == expected


def test_a_revert_without_a_ground_is_never_justified():
    assert standing(H1, revert()) == "never_justified"


def test_another_ground_that_holds_keeps_a_revert():
    assert standing(H1, H3, revert(), ON_H1, ON_H3, says("H1", "refuted")) == "still_justified_by_other"


@pytest.mark.parametrize(
    ("status", "expected"), [("refuted", "justified"), ("displaced", "weakened"), ("open", "orphaned")]
)
def test_a_restore_stands_by_the_fall_of_what_it_undoes(status, expected):
    restore = Change(
        id="C2", kind="restore", knob="K", services=("decode",), from_value="256", to_value="512", undoes="C1"
    )
    assert standings(Book.from_facts(facts(H1, revert(), ON_H1, restore, says("H1", status))))["C2"].name == expected


def test_claims_of_one_ground_must_carry_it_together():
    both = Justification(change="C1", claims=("H1", "H3"))
    assert standing(H1, H3, revert(), both, says("H3", "refuted")) == "orphaned"


def test_a_ground_that_names_a_claim_which_is_not_there_does_not_carry():
    assert standing(revert(), ON_H1) == "orphaned"


def test_a_link_made_in_hindsight_stands_beside_the_one_made_at_the_time():
    late = Justification(change="C1", claims=("H3",), recorded="retroactive")
    found = standings(Book.from_facts(facts(H1, H3, revert(), ON_H1, late, says("H1", "refuted"))))["C1"]

    assert found.recorded == "at_the_time"
    assert [(ground.justification.recorded, ground.strength) for ground in found.grounds] == [
        ("at_the_time", "fallen"),
        ("retroactive", "firm"),
    ]


def test_what_if_changes_nothing_that_is_kept():
    book = Book.from_facts(facts(H1, revert(), ON_H1))

    assert standings(book, what_if={"H1": "refuted"})["C1"].name == "orphaned"
    assert standings(book)["C1"].name == "justified"


def test_what_if_of_a_claim_that_is_not_there_says_which_are():
    with pytest.raises(MisuseError, match="H9") as caught:
        standings(Book.from_facts(facts(H1)), what_if={"H9": "refuted"})
    assert "H1" in caught.value.remedy


def test_reopening_gives_back_exactly_the_old_standing():
    assert standing(H1, revert(), ON_H1, says("H1", "refuted"), says("H1", "open")) == "justified"


def test_the_book_of_an_earlier_moment_knows_only_what_was_recorded_by_then():
    kept = facts(H1, revert(), ON_H1, says("H1", "refuted"))
    assert Book.from_facts(kept, as_of=kept[2].recorded_at).claims["H1"].status == "open"
    assert Book.from_facts(kept).claims["H1"].status == "refuted"


def test_a_later_fact_of_the_same_id_corrects_the_first():
    book = Book.from_facts(facts(Incident(id="INC-1", text="a"), Incident(id="INC-1", text="b", count=3, exposure=1.0)))
    assert book.incidents["INC-1"].incident.count == 3


def test_a_change_is_as_far_as_its_last_step_says():
    book = Book.from_facts(facts(revert(), done(), ChangeStep(change="C1", state="rolled_back")))
    assert book.changes["C1"].state == "rolled_back"
    assert not book.changes["C1"].in_effect


STATUS = st.sampled_from(["open", "supported", "displaced", "refuted", "inconclusive", "withdrawn", "superseded"])
CLAIM = st.sampled_from(["H1", "H2", "H3"])
BODY = st.one_of(
    st.builds(ClaimEvent, claim=CLAIM, status=STATUS, reason=st.just("r")),
    st.builds(
        Justification,
        change=st.sampled_from(["C1", "C2"]),
        claims=st.lists(CLAIM, min_size=1, max_size=2).map(tuple),
        need=st.sampled_from(["not_refuted", "live", "supported"]),
    ),
)
ROOTS = (Claim(id="H1", text="a"), Claim(id="H2", text="b"), Claim(id="H3", text="c"), revert(), revert("C2"))


@settings(max_examples=150, deadline=None)
@given(st.lists(BODY, max_size=12), st.randoms(use_true_random=False))
def test_standing_does_not_depend_on_the_order_in_which_facts_are_read(bodies, shuffle: random.Random):
    kept = facts(*ROOTS, *bodies)
    mixed = list(kept)
    shuffle.shuffle(mixed)

    assert standings(Book.from_facts(mixed)) == standings(Book.from_facts(kept))


@settings(max_examples=150, deadline=None)
@given(st.lists(BODY, max_size=12))
def test_refuting_a_claim_never_firms_up_a_change(bodies):
    order = ["orphaned", "never_justified", "weakened", "still_justified_by_other", "justified"]
    book = Book.from_facts(facts(*ROOTS, *bodies))
    before, after = standings(book), standings(book, what_if={"H1": "refuted"})

    assert all(order.index(after[name].name) <= order.index(before[name].name) for name in before)
