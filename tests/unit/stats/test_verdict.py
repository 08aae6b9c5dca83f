"""Verdicts: what is claimed, what is not, and what an unresolved one says."""

from dataclasses import replace

import numpy as np
import pytest

from vindicate.stats.planning import MOST_BLOCKS
from vindicate.stats.verdict import LevelRatios, Rule, grade, judge

RULE = Rule(alpha=0.02, order_adjusted=True, margin=0.03)


def ratios(level, centre, *, spread=0.01, n=6, seed=1):
    values = np.random.default_rng(seed).normal(0, 1, n)
    values = centre + spread * (values - values.mean()) / values.std(ddof=1)
    return LevelRatios(level=level, ab=tuple(values[: n // 2]), ba=tuple(values[n // 2 :]))


def test_a_clear_gain_is_better_and_a_clear_loss_worse():
    up, down = judge([ratios(64, 0.12), ratios(96, -0.12)], RULE)
    assert (up.verdict, down.verdict) == ("better", "worse")
    assert up.more_blocks == 0
    assert up.reason is None
    assert up.interval.lo_pct < 12.7 < up.interval.hi_pct


def test_of_a_latency_a_fall_is_better():
    (seen,) = judge([ratios(64, -0.12)], replace(RULE, higher_is_better=False))
    assert seen.verdict == "better"


def test_a_small_quiet_difference_is_equivalent_and_a_noisy_one_unresolved():
    quiet, noisy = judge([ratios(64, 0.001, spread=0.005), ratios(96, 0.012, spread=0.03)], RULE)
    assert quiet.verdict == "equivalent"
    assert noisy.verdict == "unresolved"
    assert noisy.more_blocks >= 1
    assert f"{noisy.mde_pct:.1f} % or more" in noisy.reason
    assert "more blocks" in noisy.reason
    assert "no change" not in noisy.reason


def test_what_no_number_of_blocks_would_settle_is_said_as_a_thousand_or_more():
    (seen,) = judge([ratios(64, 0.0299, spread=0.6)], RULE)
    assert seen.more_blocks == MOST_BLOCKS
    assert "1000 or more" in seen.reason


def test_holm_holds_back_what_one_level_of_four_shows_by_chance():
    mild = ratios(48, 0.018)
    (alone,) = judge([mild], replace(RULE, margin=0.005))
    among = judge([mild, *(ratios(level, 0.0, seed=level) for level in (64, 80, 96))], replace(RULE, margin=0.005))
    assert alone.verdict == "better"
    assert among[0].verdict == "unresolved"
    assert among[0].p_holm == pytest.approx(4 * among[0].p)
    assert "Holm" in among[0].reason


def test_a_primary_level_is_judged_by_its_own_p_and_opens_the_others():
    mild, strong = ratios(48, 0.018), ratios(96, 0.12)
    rule = replace(RULE, primary=48, margin=0.005)
    assert [item.verdict for item in judge([mild, strong], rule)] == ["better", "better"]
    flat = ratios(48, 0.0)
    first, second = judge([flat, strong], rule)
    assert first.verdict == "unresolved"
    assert second.verdict == "unresolved"
    assert "level 48" in second.reason
    assert "--primary" in second.reason


def test_is_invalid_with_two_blocks_with_one_order_and_without_any_spread():
    few = LevelRatios(level=8, ab=(0.1,), ba=(0.12,))
    one_order = LevelRatios(level=16, ab=(0.1, 0.11, 0.12), ba=())
    frozen = LevelRatios(level=32, ab=(0.1, 0.1), ba=(0.1,))
    told = LevelRatios(level=64, ab=(0.1, 0.11), ba=(0.12,), invalid="arm b lost starts")
    seen = judge([few, one_order, frozen, told], RULE)
    assert {item.verdict for item in seen} == {"invalid"}
    assert "at least 3" in seen[0].reason
    assert "order" in seen[1].reason
    assert "exactly the same" in seen[2].reason
    assert seen[3].reason == "arm b lost starts"


def test_family_error_over_four_correlated_levels_stays_under_five_per_cent():
    rng = np.random.default_rng(4)
    repetitions, wrong, wrong_with_primary = 300, 0, 0
    rule = Rule(alpha=0.05, order_adjusted=True, margin=0.0001)
    for _ in range(repetitions):
        shared = rng.normal(0, 0.0255, 6)
        levels = []
        for level in (48, 64, 80, 96):
            values = shared + rng.normal(0, 0.0127, 6)
            levels.append(LevelRatios(level=level, ab=tuple(values[:3]), ba=tuple(values[3:])))
        wrong += any(item.verdict in ("better", "worse") for item in judge(levels, rule))
        with_primary = judge(levels, replace(rule, primary=64))
        wrong_with_primary += any(item.verdict in ("better", "worse") for item in with_primary)
    assert wrong / repetitions <= 0.05
    assert wrong_with_primary / repetitions <= 0.07


@pytest.mark.parametrize(
    ("blocks", "expected"), [(12, "A"), (6, "A"), (5, "B"), (3, "B"), (2, "C"), (1, "D"), (0, "D")]
)
def test_grades_by_blocks(blocks, expected):
    assert grade(blocks, registered=True, read_back=True, primed=True) == expected


def test_without_priming_or_read_back_no_number_of_blocks_is_grade_a():
    assert grade(12, registered=True, read_back=True, primed=False) == "C"
    assert grade(12, registered=True, read_back=False, primed=True) == "C"
    assert grade(12, registered=False, read_back=True, primed=True) == "C"
