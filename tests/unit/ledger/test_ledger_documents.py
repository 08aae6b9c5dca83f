import pytest

from fakes.ledger_facts import done, facts, revert, says
from vindicate.errors import MisuseError
from vindicate.ledger.documents import Current, contradictions, corrected, known_knobs, ledger_value, refreshed
from vindicate.ledger.prose import knob_near, sentences
from vindicate.ledger.state import Book
from vindicate.record.ledger import Change, Claim, Effect, Evidence, Justification

KNOB = "K_CTAS"
H1 = Claim(id="H1", text="512 hangs", about=f"knob:{KNOB}=512")
REVERT = Change(id="C1", kind="revert", knob=KNOB, services=("decode",), from_value="512", to_value="256")
RESTORE = Change(
    id="C2", kind="restore", knob=KNOB, services=("decode",), from_value="256", to_value="512", undoes="C1"
)
STORY = (H1, REVERT, done(), Justification(change="C1", claims=("H1",)))
RESTORED = (*STORY, RESTORE, done("C2"), says("H1", "refuted"))
PLAN = f"""# Plan

## `{KNOB}`: 256 → 512

It was raised from 256 to 512 in May.

| conc | change |
|---|---|
| 64 | +12.8 % |

Reverted to 256 because multi-turn sessions
hang. Other hosts are fine.
"""


def found(text, *bodies, **values):
    book = Book.from_facts(facts(*bodies))
    current = {KNOB: ledger_value(book, KNOB)} if ledger_value(book, KNOB) else {}
    current |= {name: Current(value=value, how="live") for name, value in values.items()}
    return contradictions(text, book, current, known=known_knobs(book))


def test_a_document_that_says_what_is_so_is_not_contradicted():
    assert found(PLAN, *STORY) == []


def test_names_the_line_the_reason_and_the_value_once_the_claim_fell_and_the_knob_went_back():
    (item,) = found(PLAN, *RESTORED)

    assert item.sentence.line == 11
    assert item.sentence.text == "Reverted to 256 because multi-turn sessions hang."
    assert "K_CTAS is 512 now (by the ledger, since C2)" in item.why
    assert "H1 was refuted" in item.why


def test_a_claim_that_is_only_displaced_does_not_contradict_the_reason():
    assert found(PLAN, *STORY, says("H1", "displaced")) == []


def test_a_refuted_reason_is_contradicted_though_the_value_is_still_so():
    (item,) = found(PLAN, *STORY, says("H1", "refuted"))
    assert item.claim == "H1"
    assert "now" not in item.why


def test_another_claim_about_the_knob_that_stands_spares_the_sentence():
    other = Claim(id="H2", text="512 runs out of memory", about=f"knob:{KNOB}=512")
    assert found(PLAN, *STORY, other, says("H1", "refuted")) == []


@pytest.mark.parametrize(
    "sentence",
    [
        f"`{KNOB}` was not the cause of the hang.",
        f"~~`{KNOB}` reverted to 256 because of hangs.~~",
        f"```\nexport {KNOB}=256 # reverted to 256 because it hangs\n```",
        f"| {KNOB} | reverted to 256 because it hangs |\n|---|---|",
        f"It was raised from 256 to 512 for {KNOB}.",
        "The GPU is 64 because it hangs.",
        f"# {KNOB}\n\nAgent sessions freeze after a few rounds since the change.",
    ],
)
def test_leaves_alone_what_asserts_nothing_false(sentence):
    assert found(sentence, *RESTORED) == []


@pytest.mark.parametrize(
    "sentence",
    [
        f"{KNOB} is now 256.",
        f"We keep {KNOB} at 256.",
        f"- {KNOB} set back to 256",
        f"> {KNOB} rolled back to {KNOB}=256.",
    ],
)
def test_finds_a_value_that_is_not_so(sentence):
    assert len(found(sentence, *RESTORED)) == 1


def test_the_live_value_counts_before_the_ledgers():
    (item,) = found(f"{KNOB} is now 256.", *STORY, **{KNOB: "512"})
    assert "(live)" in item.why


# ---- correcting ------------------------------------------------------------------------------------------------------


def test_strikes_the_sentence_through_with_date_and_reason_and_touches_nothing_else():
    new = corrected(PLAN, found(PLAN, *RESTORED), date="2026-06-01")

    head, tail = PLAN.split("Reverted to 256 because multi-turn sessions\nhang.")
    assert new.startswith(head)
    assert new.endswith(tail)
    assert "~~Reverted to 256 because multi-turn sessions\nhang.~~ *(2026-06-01: K_CTAS is 512 now" in new


def test_a_corrected_document_is_not_contradicted_again():
    new = corrected(PLAN, found(PLAN, *RESTORED), date="2026-06-01")
    assert found(new, *RESTORED) == []


def test_a_sentence_that_is_struck_through_in_part_is_left_to_its_author():
    text = f"{KNOB} is ~~512~~ now 256."
    assert corrected(text, found(text, *RESTORED), date="2026-06-01") == text


def test_a_marked_section_is_written_anew_and_twice_gives_the_same():
    effect = Effect(knob=KNOB, a="512", b="256", level=64, metric="output_tok_per_s", gain_pct=-10.0, grade="D")
    book = Book.from_facts(
        facts(*RESTORED, Evidence(id="E1", kind="document", text="t", effects=(effect,), measured_at="2026-05-01"))
    )
    text = f"before\n<!-- vindicate:begin knob={KNOB} -->old\n<!-- vindicate:end -->\nafter\n"
    current = {KNOB: ledger_value(book, KNOB)}

    once = refreshed(text, book, current, now="2026-06-01T00:00:00Z", name="a.md")
    twice = refreshed(once, book, current, now="2026-06-02T00:00:00Z", name="a.md")

    assert once == twice
    assert once.startswith(f"before\n<!-- vindicate:begin knob={KNOB} -->\n`{KNOB}` is **512**")
    assert once.endswith("<!-- vindicate:end -->\nafter\n")
    assert "| 64 | output_tok_per_s | 256 over 512 | -10.0 % | not given | D | E1 |" in once
    assert "C1 revert: 512 → 256, because of H1 (refuted)" in once


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (f"a\n<!-- vindicate:begin knob={KNOB} -->\nb\n", "a.md:2: this section does not end"),
        ("<!-- vindicate:begin knob=NOPE_X -->\n<!-- vindicate:end -->", "a.md:1: the ledger knows no knob 'NOPE_X'"),
    ],
)
def test_a_marked_section_that_cannot_be_written_is_named_with_its_line(text, problem):
    with pytest.raises(MisuseError, match=problem):
        refreshed(text, Book.from_facts(facts(*STORY)), {}, now="2026-06-01T00:00:00Z", name="a.md")


# ---- sentences -------------------------------------------------------------------------------------------------------


def test_a_sentence_knows_its_place_in_the_text():
    for sentence in sentences(PLAN):
        assert " ".join(PLAN[sentence.start : sentence.stop].split()) == sentence.text
        assert PLAN.count("\n", 0, sentence.start) + 1 == sentence.line


def test_the_knob_is_taken_from_the_nearest_heading_that_names_one():
    text = "# A_KNOB\n\n## B_KNOB\n\nReverted to 1.\n\n## Other\n\nReverted to 2.\n"
    assert [knob_near(sentence) for sentence in sentences(text)] == ["B_KNOB", "A_KNOB"]


def test_two_knobs_in_one_place_are_no_knob():
    (sentence,) = sentences("A_KNOB and B_KNOB went back to 1.")
    assert knob_near(sentence) is None


def test_what_ledger_and_change_say_of_a_knob_that_was_only_planned():
    assert ledger_value(Book.from_facts(facts(revert())), "K_K") is None
