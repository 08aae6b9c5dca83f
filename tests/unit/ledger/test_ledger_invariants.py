"""What must hold in every ledger, however odd: random facts, and a plain second way to the same answer."""

import random
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.ledger_facts import facts
from vindicate.ledger.clawback import candidates
from vindicate.ledger.exchange import dump, load
from vindicate.ledger.standing import standings
from vindicate.ledger.state import Book
from vindicate.ledger.store import Ledger
from vindicate.ledger.worth import inverted_pct, worth_of
from vindicate.record.ledger import (
    Change,
    ChangeStep,
    Claim,
    ClaimEvent,
    DocMark,
    Effect,
    Evidence,
    Incident,
    Justification,
    Waiver,
)

NOW = "2026-06-01T00:00:00.000000Z"
CHANGES, CLAIMS, KNOBS = ("C1", "C2", "C3", "C4"), ("H1", "H2", "H3"), ("K_A", "K_B")
REASON = "it hangs after a few rounds"
VALUES = (None, "", "256", "512")
STATUSES = ("open", "supported", "displaced", "refuted", "inconclusive", "withdrawn", "superseded")

change_id, claim_id, knob = st.sampled_from(CHANGES), st.sampled_from(CLAIMS), st.sampled_from([*KNOBS, "K_A", "K_A"])
value = st.sampled_from([*VALUES, "256", "512", "256", "512"])
services = st.sampled_from([("decode",), ("prefill",), (), ("decode", "prefill"), ("decode",), ("prefill",)])
changes = st.builds(
    Change, id=change_id, kind=st.sampled_from(["revert", "restore", "revert", "apply"]), knob=knob, services=services,
    from_value=value, to_value=value, undoes=st.none() | change_id, reason=st.sampled_from(["", "", "", REASON, "same as H1"]),
)  # fmt: skip
claims = st.builds(
    Claim, id=claim_id, text=st.sampled_from(["it hangs", "it hangs", REASON, "same as H1"]), incident=st.none() | st.just("INC-1"),
    about=st.none() | knob.map("knob:{}".format), scope=st.none() | st.sampled_from(["nccl < 2.22.3", "nccl >= 2.22.3", "old"]),
)  # fmt: skip
events = st.builds(
    ClaimEvent, claim=claim_id, status=st.sampled_from([*STATUSES, "refuted", "refuted"]), reason=st.just("seen")
)
grounds = st.builds(
    Justification, change=change_id, claims=st.lists(claim_id, min_size=1, max_size=2).map(tuple),
    need=st.sampled_from(["not_refuted", "live", "supported"]), recorded=st.sampled_from(["at_the_time", "retroactive"]),
)  # fmt: skip
steps = st.builds(ChangeStep, change=change_id, state=st.sampled_from(["written", "done", "rolled_back", "watching"]))
gain = st.floats(-10, 20).map(lambda pct: round(pct, 2))


@st.composite
def effects(draw):
    pct = draw(gain)
    half = draw(st.none() | st.floats(0, 20).map(lambda width: round(width, 2)))
    return Effect(
        knob=draw(knob), a=draw(value), b=draw(value), level=draw(st.sampled_from([48, 64])), metric="output_tok_per_s",
        gain_pct=pct, grade=draw(st.sampled_from("ABABCD")),
        lo90_pct=None if half is None else pct - half, hi90_pct=None if half is None else pct + half,
    )  # fmt: skip


evidence = st.builds(
    Evidence, id=st.sampled_from(["E1", "E2", "E3"]), kind=st.just("experiment"), text=st.just("measured"),
    effects=st.lists(effects(), min_size=1, max_size=3).map(tuple), measured_at=st.sampled_from([NOW, NOW, "2024-01-01T00:00:00.000000Z"]),
    fingerprint=st.sampled_from([{}, {"nccl": "2.21.5"}, {"nccl": "2.27.3", "sglang": "0.5.9"}]),
)  # fmt: skip
others = st.one_of(
    st.builds(Incident, id=st.just("INC-1"), text=st.just("hang"), count=st.just(3), exposure=st.just(40_000.0)),
    st.builds(Waiver, change=change_id, reason=st.just("why not"), weaknesses=st.just(("weak",))),
    st.builds(DocMark, file=st.just("PLAN.md"), line=st.just(1), text=st.just("it says")),
)
anything = st.lists(st.one_of(changes, claims, events, grounds, steps, evidence, others), max_size=8)


@st.composite
def full(draw):
    """A ledger where most things are there and most changes took hold, so that the rules have something to say; then anything."""
    found = [
        draw(claims.map(lambda claim, name=name: replace(claim, id=name))) for name in CLAIMS if draw(st.integers(0, 9))
    ]
    for name in CHANGES:
        found.append(replace(draw(changes), id=name))
        found += draw(st.lists(grounds.map(lambda ground, name=name: replace(ground, change=name)), max_size=2))
        found += [ChangeStep(change=name, state="done")] * bool(draw(st.integers(0, 4)))
    found += draw(st.lists(evidence, min_size=2, max_size=4)) + draw(st.lists(events, min_size=1, max_size=5))
    return [*(draw(st.permutations(found)) if draw(st.booleans()) else found), *draw(anything)]


bodies = full()
many = settings(max_examples=60, deadline=None)


def book_of(found):
    return Book.from_facts(facts(*found))


@many
@given(bodies, st.randoms(use_true_random=False))
def test_what_a_ledger_says_does_not_depend_on_the_order_in_which_it_is_read(found, shuffle: random.Random):
    mixed = (kept := facts(*found)).copy()
    shuffle.shuffle(mixed)
    assert Book.from_facts(mixed) == Book.from_facts(kept)
    assert candidates(Book.from_facts(mixed), now=NOW) == candidates(Book.from_facts(kept), now=NOW)


@many
@given(bodies)
def test_a_change_without_a_ground_is_never_justified_and_one_with_a_ground_always_has_another_standing(found):
    book = book_of(found)
    for name, standing in standings(book).items():
        record = book.changes[name]
        if record.grounds:
            assert standing.name != "never_justified"
        elif record.change.kind != "restore" or record.change.undoes not in book.changes:
            assert standing.name == "never_justified"


@many
@given(bodies, claim_id, st.sampled_from(STATUSES))
def test_what_would_be_is_what_is_once_it_is_recorded_and_taking_it_back_gives_the_old_standing(found, claim, status):
    book = book_of(found)
    if claim not in book.claims:
        return
    was = book.claims[claim].status
    recorded = book_of([*found, ClaimEvent(claim=claim, status=status, reason="seen")])
    taken_back = book_of([*found, ClaimEvent(claim=claim, status=status, reason="seen"), ClaimEvent(claim=claim, status=was, reason="no")])  # fmt: skip

    assert standings(book, what_if={claim: status}) == standings(recorded)
    assert standings(taken_back) == standings(book)


@many
@given(bodies)
def test_an_upgrade_only_takes_grounds_away_and_going_back_gives_exactly_the_old_standing(found):
    order = ["orphaned", "never_justified", "weakened", "still_justified_by_other", "justified"]
    image = Evidence(id="E8", kind="observation", text="the image", fingerprint={"nccl": "2.21.5"})
    found = [*(item for item in found if not isinstance(item, Claim) or item.scope != "nccl >= 2.22.3"), image]
    old, new = (Evidence(id=name, kind="observation", text="x", fingerprint={"nccl": to}) for name, to in (("E6", "2.21.5"), ("E7", "2.27.3")))  # fmt: skip
    before, after, back = (standings(book_of([*found, *more])) for more in ((), (new,), (new, old)))
    assert before == back
    for name, standing in before.items():
        if book_of(found).changes[name].change.kind != "restore":
            assert order.index(after[name].name) <= order.index(standing.name)
    kept = facts(*found, new)
    assert standings(Book.from_facts(kept, as_of=kept[-2].recorded_at)) == before


@many
@given(bodies)
def test_a_copy_never_stands_firmer_than_what_it_repeats(found):
    book = book_of(found)
    for copy, original in book.copies.items():
        assert list(book.claims).index(original) < list(book.claims).index(copy)
        fallen = standings(book, what_if={original: "refuted"})
        for record in book.resting_on(copy):
            grounds = [g for g in fallen[record.change.id].grounds if copy in g.justification.claims]
            assert all(ground.strength == "fallen" for ground in grounds)


@many
@given(bodies, bodies)
def test_what_the_ledger_knew_at_a_moment_stays_so_whatever_is_recorded_later(found, later):
    kept = facts(*found, *later)
    assert Book.from_facts(kept, as_of=f"2026-05-01T10:00:{len(found):02d}.000000Z") == book_of(found)


@many
@given(bodies, grounds)
def test_a_link_made_in_hindsight_replaces_none_made_at_the_time(found, late):
    late = replace(late, recorded="retroactive")
    before, after = standings(book_of(found)), standings(book_of([*found, late]))
    for name, standing in before.items():
        added = [late] if name == late.change else []
        lent = [] if not added or any(g.justification in found for g in standing.grounds) else standing.grounds
        kept = tuple(
            ground for ground in standing.grounds if ground not in lent
        )  # a borrowed ground makes way for one on record
        assert [ground.justification for ground in after[name].grounds] == [
            *(ground.justification for ground in kept),
            *added,
        ]
        assert after[name].grounds[: len(kept)] == kept
        if any(ground.justification.recorded == "at_the_time" for ground in standing.grounds):
            assert after[name].recorded == "at_the_time"


@many
@given(bodies)
def test_the_candidates_are_the_reverts_in_effect_that_no_later_change_overlaps(found):
    book = book_of(found)
    taken = [record for record in book.changes.values() if record.in_effect]

    def overlaps(one, other):
        mine, theirs = set(one.change.services), set(other.change.services)
        return one.change.knob == other.change.knob and (not mine or not theirs or bool(mine & theirs))

    wanted = {
        record.change.id
        for record in taken
        if record.change.kind == "revert" and not any(overlaps(record, it) and it.when > record.when for it in taken)
    }
    assert {row.change for row in candidates(book, now=NOW)} == wanted


@many
@given(bodies, st.lists(effects(), max_size=3))
def test_nothing_but_a_usable_lower_bound_above_zero_on_a_fallen_ground_asks_for_a_restore(found, measured):
    orphan = [
        Claim(id="H9", text="it hangs"),
        Change(id="C9", kind="revert", knob="K_C", services=("decode",), from_value="512", to_value="256"),
        ChangeStep(change="C9", state="done"),
        Justification(change="C9", claims=("H9",)),
        ClaimEvent(claim="H9", status="refuted", reason="seen"),
        Evidence(
            id="E9", kind="experiment", text="measured", measured_at=NOW,
            effects=tuple(replace(effect, knob="K_C", a="256", b="512") for effect in measured),
        ),
    ]  # fmt: skip
    found = [*found, *orphan]
    for row in candidates(book_of(found), now=NOW):
        sure = any(it.grade in "AB" and not it.stale and (it.lower_bound_pct or 0) > 0 for it in row.worth)
        assert (row.next == "restore") == (row.standing == "orphaned" and sure)
        if row.standing in ("justified", "still_justified_by_other"):
            assert row.next == "leave"


@many
@given(bodies, knob, value, value)
def test_gains_are_never_added_up_and_unset_empty_and_a_value_are_three(found, name, wanted, held):
    book = book_of(found)
    recorded = [effect for item in book.evidence.values() for effect in item.effects if effect.knob == name]
    straight = [round(it.gain_pct, 2) for it in recorded if (it.a, it.b) == (held, wanted)]
    turned = [round(inverted_pct(it.gain_pct), 2) for it in recorded if (it.b, it.a) == (held, wanted) and it.a != it.b]
    assert sorted(it.gain_pct for it in worth_of(book, name, wanted, held, now=NOW)) == sorted([*straight, *turned])


@many
@given(bodies, knob)
def test_the_value_in_place_and_what_rests_on_a_claim_are_found_as_the_plain_way_finds_them(found, name):
    book = book_of(found)
    records = sorted((it for it in book.changes.values() if it.in_effect and it.change.knob == name), key=lambda it: it.when)  # fmt: skip
    plain = {}
    for item, at in book.evidence_at.items():
        before = [record for record in records if record.at <= at]
        if before:
            plain[item] = before[-1].change.to_value
        elif records:
            plain[item] = records[0].change.from_value
    assert book.in_place(name) == plain
    for claim in CLAIMS:
        assert book.resting_on(claim) == tuple(record for record in book.changes.values() if claim in record.because)


@settings(max_examples=20, deadline=None)
@given(bodies, bodies)
def test_facts_are_only_added_and_an_export_loses_none(found, more):
    with Ledger.scratch() as ledger, Ledger.scratch() as other:
        ledger.append_all(found, happened_at=NOW)
        first = ledger.facts()
        ledger.append_all(more, happened_at=NOW)
        kept = ledger.facts()
        assert kept[: len(first)] == first
        assert [fact.body for fact in kept] == [*found, *more]
        other.adopt(load(dump(kept), name="x"))
        assert other.facts() == kept
