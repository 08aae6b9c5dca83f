import pytest

from fakes.ledger_facts import done, facts, says
from vindicate.ledger.clawback import candidates, document
from vindicate.ledger.standing import standings
from vindicate.ledger.state import Book
from vindicate.record.ledger import Change, Claim, Evidence, Incident, Justification

NOW = "2026-06-01T00:00:00.000000Z"
WHY = "graph capture needs gigabytes more"


def revert(name, service, knob="NCCL_CUMEM_ENABLE", **more):
    return Change(id=name, kind="revert", knob=knob, services=(service,), from_value=None, to_value="0", **more)


def on(change, *claims, **more):
    return Justification(change=change, claims=claims, **more)


FIRST = (Claim(id="H1", text=WHY, about="knob:NCCL_CUMEM_ENABLE"), revert("C1", "server"), on("C1", "H1"), done("C1"))


def second(text, *, about="knob:NCCL_CUMEM_ENABLE", **more):
    return (Claim(id="H2", text=text, about=about, **more), revert("C2", "trainer"), on("C2", "H2"), done("C2"))


def labels(*bodies, **more):
    return {name: it.name for name, it in standings(Book.from_facts(facts(*bodies)), **more).items()}


@pytest.mark.parametrize(
    "text",
    [
        WHY,
        f"  {WHY.upper()}.",
        "same as H1",
        "the same reason as C1",
        "copied from server",
        "see `C1`.",
        "same as in serve.sh",
    ],
)
def test_a_copy_of_a_reason_falls_with_it_and_stands_while_it_does(text):
    source = revert("C1", "server", source="/srv/serve.sh:3")
    bodies = (FIRST[0], source, *FIRST[2:], *second(text))
    assert labels(*bodies) == {"C1": "justified", "C2": "justified"}
    assert labels(*bodies, says("H1", "refuted")) == {"C1": "orphaned", "C2": "orphaned"}
    assert labels(*bodies, says("H1", "displaced")) == {"C1": "weakened", "C2": "weakened"}
    assert labels(*bodies, says("H1", "refuted"), says("H1", "open")) == {"C1": "justified", "C2": "justified"}


@pytest.mark.parametrize(
    ("text", "more"),
    [
        ("70B configs run out of memory", {}),
        (f"{WHY}, and NVLS fails", {}),
        ("unlike H1 it is the trainer's own leak", {}),
        ("see H1, but it is not that", {}),
        ("same as H9", {}),
        (WHY, {"about": "knob:NCCL_NVLS_ENABLE"}),
        (WHY, {"incident": "INC-2"}),
    ],
)
def test_a_different_reason_is_never_taken_for_a_copy(text, more):
    bodies = (Incident(id="INC-2", text="seen again"), *FIRST, *second(text, **more))
    assert labels(*bodies, says("H1", "refuted"))["C2"] == "justified"


def test_words_that_are_everybodys_make_no_copy():
    bodies = (Claim(id="H1", text="it hangs"), *FIRST[1:], *second("it hangs", about=None))
    assert labels(*bodies, says("H1", "refuted"))["C2"] == "justified"


def test_a_pointer_at_several_claims_is_followed_to_none():
    other = Claim(id="H3", text="it hangs", about="knob:NCCL_CUMEM_ENABLE")
    bodies = (*FIRST, other, on("C1", "H3"), *second("same as C1"))
    assert labels(*bodies, says("H1", "refuted"))["C2"] == "justified"


def test_a_claim_with_a_verdict_or_evidence_of_its_own_is_no_copy_any_more():
    bodies = (*FIRST, *second(WHY), says("H1", "refuted"))
    assert labels(*bodies)["C2"] == "orphaned"
    assert labels(*bodies, says("H2", "supported"))["C2"] == "justified"
    assert labels(*bodies, what_if={"H2": "supported"})["C2"] == "justified"
    own = Evidence(id="E1", kind="log", text="OOM here too", claim="H2", direction="for")
    assert labels(*bodies, own)["C2"] == "justified"


def test_a_copy_of_a_copy_falls_with_the_first():
    third = (Claim(id="H3", text="same as C2", about="knob:NCCL_CUMEM_ENABLE"), revert("C3", "router"), on("C3", "H3"))
    assert labels(*FIRST, *second(WHY), *third, says("H1", "refuted"))["C3"] == "orphaned"


def test_a_copy_falls_when_the_first_goes_out_of_scope():
    scoped = Claim(id="H1", text=WHY, about="knob:NCCL_CUMEM_ENABLE", scope="nccl < 2.22.3")
    upgrade = Evidence(id="E1", kind="observation", text="new image", fingerprint={"nccl": "2.27.3"})
    assert labels(scoped, *FIRST[1:], *second(WHY)) == {"C1": "justified", "C2": "justified"}
    assert labels(scoped, *FIRST[1:], *second(WHY), upgrade) == {"C1": "orphaned", "C2": "orphaned"}


def test_a_revert_that_names_no_ground_borrows_that_of_the_reason_it_repeats():
    lent = revert("C2", "trainer", reason="same as C1")
    book = Book.from_facts(facts(*FIRST, lent, done("C2")))
    assert book.changes["C2"].grounds == (on("C2", "H1", recorded="retroactive", quote="same as C1"),)
    assert labels(*FIRST, lent, says("H1", "refuted"))["C2"] == "orphaned"
    assert labels(*FIRST, revert("C2", "trainer", reason="unknown"))["C2"] == "never_justified"
    assert labels(*FIRST, revert("C2", "trainer", reason=WHY))["C2"] == "justified"
    elsewhere = revert("C2", "trainer", knob="NCCL_NVLS_ENABLE", reason=WHY)
    assert labels(*FIRST, elsewhere)["C2"] == "never_justified"


def test_clawback_says_which_revert_follows_from_which_and_in_which_words():
    rows = {row.change: row for row in candidates(Book.from_facts(facts(*FIRST, *second("same as C1"))), now=NOW)}
    assert rows["C1"].copies == ("C2",)
    assert rows["C2"].follows == ("C1", "same as C1")
    assert rows["C2"].because[0].repeats == "H1"
    entry = next(it for it in document(tuple(rows.values()), NOW)["candidates"] if it["change"] == "C2")
    assert entry["follows"] == {"change": "C1", "quote": "same as C1"}


def test_reverts_that_share_a_claim_since_the_time_are_no_copies_and_those_found_later_are():
    both = (*FIRST, revert("C2", "trainer"), done("C2"))
    rows = {row.change: row for row in candidates(Book.from_facts(facts(*both, on("C2", "H1"))), now=NOW)}
    assert rows["C2"].follows is None
    late = on("C2", "H1", recorded="retroactive", quote="train.sh:3: as the server does")
    rows = {row.change: row for row in candidates(Book.from_facts(facts(*both, late)), now=NOW)}
    assert rows["C2"].follows == ("C1", "train.sh:3: as the server does")
