import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.ledger_facts import H1, ON_H1, done, facts, revert, says
from vindicate.errors import MisuseError
from vindicate.ledger.clawback import candidates
from vindicate.ledger.present import asked_fields
from vindicate.ledger.scope import Condition, Known, parse_scope, same, scoped
from vindicate.ledger.standing import standings
from vindicate.ledger.state import Book
from vindicate.record.ledger import Change, Claim, Effect, Evidence

NOW = "2026-06-01T00:00:00.000000Z"
SCOPED = Claim(id="H1", text="it hangs", scope="nccl < 2.22.3")


def seen(name="E1", **fingerprint):
    return Evidence(id=name, kind="observation", text="the image", fingerprint=fingerprint)


def present(**fields):
    return {field: Known(value=value, how="E1") for field, value in fields.items()}


def standing(*bodies, live=None):
    book = Book.from_facts(facts(*bodies))
    return standings(book.with_present(live) if live else book)["C1"].name


def test_a_scope_is_one_condition_or_several():
    assert parse_scope("nccl < 2.22.3") == (Condition(field="nccl", op="<", value="2.22.3"),)
    assert parse_scope("NCCL>=2.19 and nccl < 2.22.3, gpu == NVIDIA H200") == (
        Condition(field="nccl", op=">=", value="2.19"),
        Condition(field="nccl", op="<", value="2.22.3"),
        Condition(field="gpu", op="==", value="NVIDIA H200"),
    )


@pytest.mark.parametrize(
    "text", ["", "nccl", "nccl 2.22.3", "nccl = 2.22.3", "nccl <", "2.19 <= nccl", "nccl < 2.22.3,", "nccl =< 2", "old ones", "gpu < H200", "nccl < 2.x"]
)  # fmt: skip
def test_a_scope_that_cannot_be_read_is_refused_with_an_example(text):
    with pytest.raises(MisuseError) as caught:
        parse_scope(text)
    assert "nccl < 2.22.3" in caught.value.remedy


VERSIONS = ["1.0.dev2", "1.0.dev10", "1.0a1", "1.0b1", "1.0rc1", "1.0rc2", "1.0", "1.0.post1", "1.0.1", "1.9", "1.10", "2.22.3", "22703"]  # fmt: skip


@pytest.mark.parametrize(("below", "above"), list(itertools.pairwise(VERSIONS)))
def test_versions_are_compared_as_versions(below, above):
    assert scoped(f"nccl < {above}", present(nccl=below)).outside == ()
    assert scoped(f"nccl < {below}", present(nccl=above)).outside == (f"nccl {above} is not < {below} (E1)",)


numbers = st.lists(st.integers(0, 99), min_size=1, max_size=4)


@given(numbers, numbers)
def test_numbers_are_ordered_as_their_tuples_are_with_zeros_at_the_end_left_out(one, other):
    left, right = (".".join(map(str, parts)) for parts in (one, other))
    padded = [[*parts, *[0] * (4 - len(parts))] for parts in (one, other)]
    for op, holds in (("<", padded[0] < padded[1]), (">=", padded[0] >= padded[1]), ("==", padded[0] == padded[1])):
        assert (scoped(f"x {op} {right}", present(x=left)).outside == ()) is holds


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [("2.22.3", "v2.22.3", True), ("2.22", "2.22.0", True), ("2.9.0+cu128", "2.9.0", True), ("2.9", "2.10", False), ("NVIDIA H200", "nvidia h200", True)],
)  # fmt: skip
def test_a_build_a_v_and_zeros_at_the_end_make_no_other_version(one, other, expected):
    assert same(one, other) is expected


def test_what_is_not_known_keeps_a_claim_in_scope_and_is_said():
    assert scoped("nccl < 2.22.3", {}).unknown == ("nccl is not known here",)
    differing = {"nccl": Known(value=None, how="processes differ")}
    told = scoped("nccl < 2.22.3", differing)
    assert (told.outside, told.unknown) == ((), ("nccl is not known here: processes differ",))
    assert scoped("nccl < 2.22.3", present(nccl="main")).outside == ()
    assert "no version" in scoped("nccl < 2.22.3", present(nccl="main")).unknown[0]


def test_a_scope_of_an_older_ledger_that_cannot_be_read_limits_nothing_and_is_said():
    told = scoped("only on the old cluster", present(nccl="2.27.3"))
    assert told.outside == ()
    assert "limits nothing" in told.unknown[0]
    assert standing(Claim(id="H1", text="x", scope="old ones"), revert(), ON_H1, seen(nccl="2.27.3")) == "justified"


def test_a_ground_whose_claim_is_out_of_scope_no_longer_carries():
    assert standing(SCOPED, revert(), ON_H1) == "justified"
    assert standing(SCOPED, revert(), ON_H1, seen(nccl="2.21.5")) == "justified"
    assert standing(SCOPED, revert(), ON_H1, seen(nccl="2.27.3")) == "orphaned"
    assert standing(SCOPED, revert(), ON_H1, says("H1", "supported"), seen(nccl="2.27.3")) == "orphaned"
    assert standing(H1, revert(), ON_H1, seen(nccl="2.27.3")) == "justified"


def test_the_evidence_that_was_taken_last_counts_and_going_back_gives_back_the_old_standing():
    kept = facts(SCOPED, revert(), ON_H1, seen(nccl="2.21.5"), seen("E2", nccl="2.27.3"), seen("E3", nccl="2.21.5"))
    assert [standings(Book.from_facts(kept[:number]))["C1"].name for number in (4, 5, 6)] == ["justified", "orphaned", "justified"]  # fmt: skip
    assert standings(Book.from_facts(kept, as_of=kept[3].recorded_at))["C1"].name == "justified"
    assert Book.from_facts(kept[:5]).present["nccl"] == Known(value="2.27.3", how="E2, 2026-05-01")


def test_what_is_live_counts_before_what_was_written_down():
    bodies = (SCOPED, revert(), ON_H1, seen(nccl="2.21.5"))
    assert standing(*bodies, live=present(nccl="2.27.3")) == "orphaned"
    assert standing(*bodies, live={"nccl": Known(value=None, how="processes differ")}) == "justified"


def test_an_orphan_by_version_says_so_in_words_and_that_nothing_was_refuted():
    (row,) = candidates(Book.from_facts(facts(SCOPED, revert(), ON_H1, done(), seen(nccl="2.27.3"))), now=NOW)
    assert (row.standing, row.next) == ("orphaned", "experiment")
    assert row.because[0].out_of_scope == ("nccl 2.27.3 is not < 2.22.3 (E1, 2026-05-01)",)
    assert "H1 is out of scope, which is no refutation: nccl 2.27.3 is not < 2.22.3" in row.plan


def test_a_claim_that_was_refuted_as_well_is_not_said_to_have_been_refuted_by_nobody():
    (row,) = candidates(
        Book.from_facts(facts(SCOPED, revert(), ON_H1, done(), seen(nccl="2.27.3"), says("H1", "refuted"))), now=NOW
    )
    assert "no refutation" not in row.plan


# ---- effects measured on another system ------------------------------------------------------------------------------


def effect_with(**fingerprint):
    gain = Effect(
        knob="K_K", a="256", b="512", level=64, metric="output_tok_per_s", gain_pct=12.8, grade="A", lo90_pct=9.0, hi90_pct=16.0
    )  # fmt: skip
    return Evidence(id="E1", kind="experiment", text="measured", effects=(gain,), fingerprint=fingerprint)


def worth(*bodies, live=None):
    book = Book.from_facts(facts(H1, revert(), ON_H1, done(), says("H1", "refuted"), *bodies))
    (row,) = candidates(book.with_present(live or {}), now=NOW)
    return row.next, row.worth[0].stale, row.worth[0].usable


def test_an_effect_of_another_version_is_kept_named_and_not_usable():
    now = seen("E2", sglang="0.5.20", nccl="2.27.3")
    assert worth(effect_with(sglang="0.5.9", nccl="2.27.3"), now) == (
        "experiment",
        ("measured with sglang 0.5.9; now 0.5.20",),
        False,
    )
    assert worth(effect_with(sglang="0.5.9"), live=present(sglang="0.5.20"))[1:] == (
        ("measured with sglang 0.5.9; now 0.5.20",),
        False,
    )


def test_what_one_side_does_not_say_makes_nothing_stale():
    assert worth(effect_with(), seen("E2", sglang="0.5.20")) == ("restore", (), True)
    assert worth(effect_with(sglang="0.5.9"), seen("E2", nccl="2.27.3")) == ("restore", (), True)
    assert worth(effect_with(sglang="0.5.9"), live={"sglang": Known(value=None, how="differ")}) == ("restore", (), True)


def test_what_ab_writes_beside_its_effects_and_is_no_version_makes_nothing_stale():
    mine = {"stack": "a", "metric": "m", "engines": "e", "url": "u", "workload": "w", "device": "real", "kernel": "6.1", "vindicate": "0.1", "knob:K_K": "512"}  # fmt: skip
    assert worth(effect_with(**mine), seen("E2", **dict.fromkeys(mine, "other"))) == ("restore", (), True)


def test_only_fields_that_some_scope_or_measurement_speaks_of_are_asked_for():
    book = Book.from_facts(facts(SCOPED, effect_with(sglang="0.5.9", kernel="6.1"), seen("E2", driver="575"), revert()))
    assert asked_fields(book) == {"nccl", "sglang"}
    assert asked_fields(Book.from_facts(facts(H1, Claim(id="H3", text="x", scope="old ones")))) == set()


def test_a_restore_that_undoes_an_orphan_by_version_stands():
    restore = Change(id="C2", kind="restore", knob="K_K", services=(), from_value="256", to_value="512", undoes="C1")
    book = Book.from_facts(facts(SCOPED, revert(), ON_H1, restore, seen(nccl="2.27.3")))
    assert standings(book)["C2"].name == "justified"
