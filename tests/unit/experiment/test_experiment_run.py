"""Whole campaigns on a bench with a chosen truth: what is found, what is not, and what survives a crash."""

import math
from pathlib import Path

import pytest

from fakes.bench import FakeBench, design_of
from vindicate.experiment.journal import Journal
from vindicate.experiment.judge import judge_experiment
from vindicate.experiment.run import run_experiment


@pytest.fixture
def journal(tmp_path: Path):
    return Journal(tmp_path / "experiments" / "X1")


def run(design, bench, journal):
    if not journal.folder.exists():
        journal.register(design)
    return run_experiment(design, bench, journal, clock=bench.clock, say=lambda _line: None)


def by_level(result):
    return {item.level: item for item in result.effects}


def test_finds_a_known_shift_at_the_first_look_and_stops_there(journal):
    design = design_of(blocks=12)
    result = run(design, FakeBench({"512": 0.128}), journal)
    effects = by_level(result)
    assert (result.blocks_done, result.stopped_at_look) == (6, 1)
    assert {item.verdict for item in effects.values()} == {"better"}
    assert all(item.lo_pct < 12.8 < item.hi_pct for item in effects.values())
    assert {(item.confidence_pct, item.grade, item.more_blocks) for item in effects.values()} == {(98.0, "A", 0)}
    assert result.simulated


def test_never_calls_a_knob_that_does_nothing_better_or_worse_and_says_what_it_could_have_seen(journal):
    result = run(design_of(blocks=12), FakeBench({}, seed=3), journal)
    assert result.blocks_done == 12
    for item in result.effects:
        assert item.verdict in ("unresolved", "equivalent")
        assert item.confidence_pct == 97.0
        assert 1 < item.mde_pct < 6
        if item.verdict == "unresolved":
            assert item.more_blocks >= 1
            assert "more blocks" in item.reason


def test_a_loss_is_worse(journal):
    assert by_level(run(design_of(), FakeBench({"512": -0.1}), journal))[64].verdict == "worse"


def test_both_arms_of_a_block_get_the_same_prompts_and_no_two_blocks_do(journal):
    bench = FakeBench({})
    design = design_of(blocks=3)
    run(design, bench, journal)
    seeds = {
        value: [seed for held, level, seed in bench.driven if held == value and level == 64] for value in ("256", "512")
    }
    assert seeds["256"] == seeds["512"]
    assert len(set(seeds["256"])) == 3
    assert bench.starts[:2] == ["256", "512"], "one priming start an arm comes first"
    expected = [{"a": "256", "b": "512"}[arm] for block in design.order for arm in block]
    assert bench.starts[2:] == expected


def test_every_start_is_warmed_up_at_the_highest_level_until_no_round_is_faster(journal):
    bench = FakeBench({})
    rates = [60.0, 90.0, 100.0, 101.0]
    rounds = []

    def warm_up(level, seed):
        rounds.append((level, seed))
        return rates[(len(rounds) - 1) % 4]

    bench.warm_up = warm_up
    run(design_of(blocks=3), bench, journal)
    assert len(rounds) == 8 * 4
    assert {level for level, _ in rounds} == {64}
    assert len({seed for _, seed in rounds[:4]}) == 4, "no round asks what one before it asked"
    assert {trial.start.warm_up for trial in journal.trials()} == {tuple(rates)}


def test_a_start_that_never_gets_flat_is_measured_after_six_rounds_and_said(journal):
    bench = FakeBench({})
    calls = iter(range(1, 1000))
    bench.warm_up = lambda _level, _seed: 1.3 ** next(calls)
    result = run(design_of(blocks=3), bench, journal)
    assert {len(trial.start.warm_up) for trial in journal.trials()} == {6}
    assert any("8 of 8 starts were still getting faster" in line for line in result.notes)


def test_levels_run_in_an_order_of_their_own_in_every_block_the_same_for_both_arms(journal):
    bench = FakeBench({})
    run(design_of(blocks=6, levels=(16, 32, 48, 64)), bench, journal)
    orders = [tuple(level for _, level, _ in bench.driven[at : at + 4]) for at in range(0, 48, 4)]
    assert orders[::2] == orders[1::2]
    assert len(set(orders)) > 2


def test_the_stack_is_put_back_after_a_finished_run(journal):
    bench = FakeBench({"512": 0.128})
    run(design_of(blocks=3), bench, journal)
    assert bench.value == "256"
    assert journal.before() is None
    assert len(bench.put_back_from) == 1


def test_ctrl_c_in_a_block_puts_the_stack_back_and_resume_runs_that_block_again_as_a_whole(journal):
    design = design_of(blocks=6)
    bench = FakeBench({"512": 0.128})
    bench.interrupt_drive = lambda count: count == 4 * 2 + 3  # block 3, its second start
    with pytest.raises(KeyboardInterrupt):
        run(design, bench, journal)
    assert bench.value == "256"
    so_far = judge_experiment(design, journal.trials())
    assert so_far.blocks_done == 2
    assert not so_far.complete
    assert {item.verdict for item in so_far.effects} == {"unresolved"}
    assert "2 blocks so far" in so_far.effects[0].reason or "0 blocks so far" in so_far.effects[0].reason
    result = run(design, bench, journal)
    assert result.complete
    assert result.blocks_done == 6
    assert by_level(result)[64].verdict == "better"
    assert [line for line in result.exclusions if "block 3" in line]
    assert any("resumed" in line for line in result.notes)
    assert [trial.block for trial in journal.trials()].count(0) == 2, "priming is not repeated"


def test_before_the_first_look_nothing_is_claimed_however_clear_it_is(journal):
    design = design_of(blocks=6)
    bench = FakeBench({"512": 0.128})
    bench.interrupt_drive = lambda count: count == 4 * 4 + 1
    with pytest.raises(KeyboardInterrupt):
        run(design, bench, journal)
    effects = judge_experiment(design, journal.trials()).effects
    assert {item.verdict for item in effects} == {"unresolved"}
    assert "first planned look is after 6" in effects[0].reason


def test_a_line_torn_by_a_kill_is_dropped_and_its_start_is_run_again(journal):
    design = design_of(blocks=3)
    bench = FakeBench({"512": 0.128})
    run(design, bench, journal)
    path = journal.folder / "trials.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-40])
    assert len(journal.trials()) == 7
    result = run(design, bench, journal)
    assert result.blocks_done == 3
    assert len(journal.trials()) == 9, "the block with the lost start is run again as a whole"


def test_a_start_that_fails_is_a_result_that_takes_its_block_out(journal):
    bench = FakeBench({"512": 0.128})
    bench.fail_start = lambda count, value: count == 5
    result = run(design_of(blocks=6), bench, journal)
    assert result.blocks_done == 6
    assert {item.blocks for item in result.effects} == {5}
    assert {item.grade for item in result.effects} == {"B"}
    assert any("did not start" in line and "exit code 1" in line for line in result.exclusions)
    assert bench.value == "256"


def test_an_arm_that_never_starts_ends_the_experiment_early_and_is_invalid(journal):
    bench = FakeBench({})
    bench.fail_start = lambda count, value: value == "512"
    result = run(design_of(blocks=12), bench, journal)
    assert result.complete
    assert len(bench.starts) <= 4
    assert {item.verdict for item in result.effects} == {"invalid"}
    assert "arm b does not start" in result.effects[0].reason
    assert bench.value == "256"


def test_an_arm_that_survives_only_sometimes_is_invalid_and_not_the_better_for_it(journal):
    bench = FakeBench({"512": 0.128})
    broken = iter([False, True, True, False, True, False])
    bench.edit_cell = lambda value, level: (
        {"completed": 90, "failed": 10} if value == "512" and level == 64 and next(broken) else None
    )
    effects = by_level(run(design_of(blocks=6), bench, journal))
    assert effects[64].verdict == "invalid"
    assert "arm b lost 3 of 6 blocks" in effects[64].reason
    assert "10 of 100 requests did not complete" in effects[64].reason
    assert effects[48].verdict == "better"


def test_answers_that_lose_the_context_do_not_count_however_fast_they_are(journal):
    bench = FakeBench({"512": 0.3})
    bench.edit_cell = lambda value, level: {"recall_failed": 20} if value == "512" else None
    effects = by_level(run(design_of(blocks=3), bench, journal))
    assert {item.verdict for item in effects.values()} == {"invalid"}
    assert "lost what the context held" in effects[64].reason


def test_three_blocks_are_grade_b_with_the_plain_paired_t(journal):
    result = run(design_of(blocks=3), FakeBench({"512": 0.3}), journal)
    assert {item.grade for item in result.effects} == {"B"}
    assert "n - 1" in result.design["analysis"]
    assert by_level(result)[64].df == 2


def test_a_primary_level_decides_when_to_stop(journal):
    bench = FakeBench({"512": {64: 0.128, 48: 0.004}})
    result = run(design_of(blocks=12, primary=64), bench, journal)
    assert result.stopped_at_look == 1
    assert by_level(result)[64].verdict == "better"
    assert by_level(result)[48].verdict in ("unresolved", "equivalent")


def test_intervals_cover_the_true_gain_in_most_of_forty_campaigns(tmp_path):
    covered = 0
    for seed in range(40):
        journal = Journal(tmp_path / f"s{seed}" / "X1")
        design = design_of(blocks=4, levels=(64,), seed=seed)
        item = by_level(run(design, FakeBench({"512": 0.057}, seed=seed), journal))[64]
        covered += item.lo_pct <= 5.7 <= item.hi_pct
        assert math.isfinite(item.gain_pct)
    assert covered >= 35
