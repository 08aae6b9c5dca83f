import pytest

from fakes.ledger_facts import H1, ON_H1, done, facts, revert, says
from vindicate.ledger.clawback import candidates, document
from vindicate.ledger.state import Book
from vindicate.ledger.worth import inverted_pct, worth_of
from vindicate.record.ledger import Change, Claim, Effect, Evidence, Incident, Justification
from vindicate.stack.process import LiveValue

NOW = "2026-06-01T00:00:00.000000Z"
INCIDENT = Incident(id="INC-1", text="hang", count=3, exposure=40_000)
H1_COUNTED = Claim(id="H1", text="it hangs", incident="INC-1", about="knob:K_K=512")


def effect(level=64, gain=12.8, *, grade="A", low=9.7, high=16.0, a="256", b="512", **more):
    return Effect(
        knob="K_K",
        a=a,
        b=b,
        level=level,
        metric=more.pop("metric", "output_tok_per_s"),
        gain_pct=gain,
        grade=grade,
        lo90_pct=low,
        hi90_pct=high,
        **more,
    )


def measured(*effects, name="E1", at="2026-05-01T00:00:00.000000Z"):
    return Evidence(id=name, kind="experiment", text="measured", effects=effects, measured_at=at)


def found(*bodies, **more):
    return candidates(Book.from_facts(facts(*bodies)), now=NOW, **more)


def only(*bodies, **more):
    (candidate,) = found(*bodies, **more)
    return candidate


REVERTED = (H1, revert(), ON_H1, done())
GONE = (*REVERTED, says("H1", "refuted"))


def test_an_orphaned_revert_with_a_measured_gain_is_to_be_restored():
    row = only(*GONE, measured(effect()))

    assert (row.standing, row.next, row.in_force) == ("orphaned", "restore", True)
    assert row.command == "vindicate restore C1 --watch 10m"
    assert [(w.level, w.gain_pct, w.lo90_pct, w.hi90_pct, w.usable) for w in row.worth] == [(64, 12.8, 9.7, 16.0, True)]


def test_figures_of_grade_d_alone_ask_for_an_experiment():
    row = only(*GONE, measured(effect(grade="D", low=None, high=None)))

    assert row.next == "experiment"
    assert row.command == "vindicate ab K_K=256..512 --plan"
    assert (row.worth[0].usable, row.worth[0].lo90_pct) == (False, None)


def test_figures_of_grade_d_with_a_counted_incident_allow_a_restore_on_a_waiver():
    row = only(INCIDENT, H1_COUNTED, *GONE[1:], measured(effect(grade="D", low=None, high=None)))

    assert row.next == "restore_with_waiver"
    assert row.command == 'vindicate restore C1 --accept "REASON"'
    assert "68 577 requests" in row.plan
    assert row.weaknesses == (
        "evidence E1 is of grade D: one start per arm or anecdote",
        "evidence E1 gives no interval",
    )


def test_figures_of_grade_c_do_not_justify_a_restore_even_with_an_interval():
    row = only(*GONE, measured(effect(grade="C")))
    assert (row.next, row.worth[0].usable) == ("experiment", False)


def test_a_weakened_revert_is_to_be_tested_first_and_says_for_how_long():
    row = only(INCIDENT, H1_COUNTED, *REVERTED[1:], says("H1", "displaced"), measured(effect()))

    assert (row.standing, row.next) == ("weakened", "refute_first")
    assert "68 577 requests" in row.plan
    assert "--accept" in row.command
    assert "claim H1 is displaced, not refuted" in row.weaknesses


def test_without_a_t_star_a_time_to_watch_is_named():
    row = only(*REVERTED, says("H1", "displaced"))
    assert row.command == 'vindicate restore C1 --accept "REASON" --watch 10m'
    assert "count it with: vindicate incident open" in row.plan


def test_a_ground_that_holds_leaves_it():
    row = only(*REVERTED, measured(effect()))
    assert (row.standing, row.next) == ("justified", "leave")


def test_a_revert_without_any_ground_is_to_be_measured():
    row = only(revert(), done())
    assert (row.standing, row.next) == ("never_justified", "experiment")


@pytest.mark.parametrize(
    ("low", "high", "step"), [(-3.0, -1.0, "leave"), (-1.0, 3.0, "experiment"), (0.1, 3.0, "restore")]
)
def test_the_whole_interval_decides_never_the_estimate(low, high, step):
    assert only(*GONE, measured(effect(gain=(low + high) / 2, low=low, high=high))).next == step


def test_an_old_figure_is_shown_and_not_usable():
    row = only(*GONE, measured(effect(), at="2025-06-01T00:00:00.000000Z"))

    assert row.next == "experiment"
    assert "age: 365 days" in row.worth[0].stale[0]
    assert row.worth[0].gain_pct == 12.8


def test_a_figure_recorded_the_other_way_round_is_turned_over_with_its_interval():
    row = only(*GONE, measured(effect(gain=-20.0, low=-25.0, high=-10.0, a="512", b="256")))

    worth = row.worth[0]
    assert worth.gain_pct == 25.0
    assert (worth.lo90_pct, worth.hi90_pct) == (pytest.approx(11.11), pytest.approx(33.33))


def test_turning_over_twice_gives_the_same():
    assert inverted_pct(inverted_pct(12.8)) == pytest.approx(12.8)


def test_a_figure_for_other_values_is_worth_nothing_here():
    assert only(*GONE, measured(effect(a="128", b="512"))).worth == ()


def test_an_unset_knob_is_worth_what_its_default_is_and_only_where_the_default_is_known():
    bodies = (H1, revert(to_value=None), ON_H1, done(), says("H1", "refuted"), measured(effect()))
    assert only(*bodies).worth == ()
    assert only(*bodies, defaults={"K_K": "256"}).worth[0].gain_pct == 12.8


def test_less_latency_is_a_gain():
    book = Book.from_facts(facts(measured(effect(metric="ttft_ms", gain=-10.0, low=-12.0, high=-8.0))))
    (worth,) = worth_of(book, "K_K", "512", "256", now=NOW)
    assert (worth.lower_bound_pct, worth.benefit_pct) == (8.0, 10.0)


def test_a_later_change_of_the_same_knob_takes_a_revert_out_of_force():
    restore = Change(id="C2", kind="restore", knob="K_K", services=("decode",), from_value="256", to_value="512")
    assert found(*GONE, restore, done("C2")) == ()


def test_a_later_change_that_was_rolled_back_does_not():
    restore = Change(id="C2", kind="restore", knob="K_K", services=("decode",), from_value="256", to_value="512")
    assert len(found(*GONE, restore)) == 1


def test_a_later_change_on_another_service_does_not():
    other = Change(id="C2", kind="apply", knob="K_K", services=("prefill",), from_value="256", to_value="512")
    assert len(found(*GONE, other, done("C2"))) == 1


def test_a_revert_that_never_took_hold_is_no_candidate():
    assert found(H1, revert(), ON_H1, says("H1", "refuted")) == ()


def test_a_live_value_that_differs_is_drift_and_nothing_to_restore():
    row = only(*GONE, measured(effect()), live={"K_K": LiveValue(value="512", known=True)})

    assert (row.in_force, row.next) == (False, "leave")
    assert "live processes hold 512, not 256" in row.plan


def test_a_live_value_that_could_not_be_read_leaves_the_ledgers_word_and_says_so():
    entry = document(found(*GONE, live={"K_K": LiveValue(value=None, known=False, note="no permission")}), NOW)[
        "candidates"
    ][0]
    assert (entry["in_force"], entry["live_value"], entry["live_known"], entry["live_note"]) == (
        True,
        None,
        False,
        "no permission",
    )


def test_ranks_by_the_lower_bound_and_not_by_the_estimate():
    second = Change(id="C2", kind="revert", knob="L_L", services=(), from_value="2", to_value="1")
    wide = Effect(
        knob="L_L",
        a="1",
        b="2",
        level=64,
        metric="output_tok_per_s",
        gain_pct=30.0,
        grade="A",
        lo90_pct=1.0,
        hi90_pct=60.0,
    )
    rows = found(
        *GONE,
        second,
        done("C2"),
        Justification(change="C2", claims=("H1",)),
        measured(effect()),
        measured(wide, name="E2"),
    )
    assert [row.change for row in rows] == ["C1", "C2"]


def test_gains_of_several_levels_stay_apart():
    row = only(*GONE, measured(effect(64), effect(80, 1.2, low=-1.6, high=4.1), effect(96, 5.7, low=2.8, high=8.7)))
    assert [(w.level, w.gain_pct) for w in row.worth] == [(64, 12.8), (80, 1.2), (96, 5.7)]


def test_the_document_has_the_names_of_the_contract():
    entry = document(found(*GONE, measured(effect())), NOW)["candidates"][0]
    assert {
        "change", "knob", "services", "from", "to", "reverted_at", "recorded", "because", "standing", "in_force",
        "live_value", "worth", "next", "plan", "command",
    } <= set(entry)  # fmt: skip


def test_a_poorer_figure_beside_a_good_one_weakens_nothing():
    old = measured(effect(grade="D", low=None, high=None), name="E2", at="2025-01-01T00:00:00.000000Z")
    row = only(*GONE, measured(effect()), old)
    assert (row.next, row.weaknesses) == ("restore", ())


def test_a_superseded_claim_and_an_open_one_whose_ground_fell_weaken_nothing():
    assert only(*REVERTED, says("H1", "superseded"), measured(effect())).weaknesses == ()
    both = Justification(change="C1", claims=("H1", "H3"))
    row = only(H1, Claim(id="H3", text="x"), revert(), both, done(), says("H1", "refuted"), measured(effect()))
    assert (row.standing, row.next, row.weaknesses) == ("orphaned", "restore", ())


def test_a_revert_without_any_ground_is_not_said_to_lack_a_figure_that_is_there():
    row = only(revert(), done(), measured(effect()))
    assert "no reason on record" in row.plan
    assert "settles" not in row.plan


def test_unset_is_in_force_where_the_default_was_set_back_to():
    live, defaults = {"K_K": LiveValue(value=None, known=True)}, {"K_K": "256"}
    assert only(*GONE, measured(effect()), live=live, defaults=defaults).in_force
    assert not only(*GONE, measured(effect()), live=live).in_force
