"""The paired estimates, against scipy's tests and by simulation with fixed seeds."""

import math

import numpy as np
import pytest
from scipy import stats

from vindicate.stats.paired import gain_pct, order_adjusted_estimate, paired_estimate

RATIOS = [0.118, 0.131, 0.102, 0.127, 0.109, 0.135]


def test_agrees_with_scipys_one_sample_t_on_log_ratios():
    estimate = paired_estimate(RATIOS)
    expected = stats.ttest_1samp(RATIOS, 0)
    assert estimate.p == pytest.approx(expected.pvalue, rel=1e-9)
    bounds = expected.confidence_interval(0.98)
    interval = estimate.interval(0.98)
    assert interval.lo_pct == pytest.approx(gain_pct(bounds.low))
    assert interval.hi_pct == pytest.approx(gain_pct(bounds.high))
    assert estimate.df == 5


def test_order_adjusted_equals_a_regression_on_arm_and_order():
    ab, ba = [0.13, 0.11, 0.12], [0.09, 0.10, 0.085, 0.095]
    estimate = order_adjusted_estimate(ab, ba)
    order = np.array([1.0] * len(ab) + [-1.0] * len(ba))
    design = np.column_stack([np.ones(len(order)), order])
    values = np.array(ab + ba)
    coefficients, residual, *_ = np.linalg.lstsq(design, values, rcond=None)
    variance = residual[0] / (len(values) - 2)
    assert estimate.log_gain == pytest.approx(coefficients[0])
    assert estimate.se == pytest.approx(math.sqrt(variance * np.linalg.inv(design.T @ design)[0, 0]))
    assert estimate.df == 5


def test_a_constant_order_effect_leaves_the_order_adjusted_estimate_alone():
    plain = order_adjusted_estimate([0.10, 0.12, 0.11], [0.11, 0.09, 0.13])
    shifted = order_adjusted_estimate([0.15, 0.17, 0.16], [0.06, 0.04, 0.08])
    assert shifted.log_gain == pytest.approx(plain.log_gain)
    assert shifted.p == pytest.approx(plain.p)


def test_an_estimate_without_spread_has_p_one_at_zero_and_zero_elsewhere():
    assert paired_estimate([0.0] * 4).p == 1.0
    assert paired_estimate([0.25] * 4).p == 0.0


def _campaigns(n, *, effect=0.0, drift=0.0, second=0.0, repetitions=3000, seed=11):
    """Block log ratios and order as evidence section 4.1 models them: restart sd 2 %, window sd 1 % over 20 windows."""
    rng = np.random.default_rng(seed)
    restart = math.sqrt(0.02**2 + 0.01**2 / 20)
    for _ in range(repetitions):
        first_is_a = rng.permutation([True] * (n // 2) + [False] * (n - n // 2))
        slots = np.arange(2 * n).reshape(n, 2) / (2 * n - 1) * drift
        logs = slots + rng.normal(0, restart, (n, 2))
        logs[:, 1] += second
        a, b = np.where(first_is_a, logs[:, 0], logs[:, 1]), np.where(first_is_a, logs[:, 1], logs[:, 0])
        yield b + effect - a, first_is_a


@pytest.mark.parametrize("n", [4, 6, 8, 12])
@pytest.mark.parametrize(("drift", "second"), [(0.0, 0.0), (0.04, 0.01)])
def test_finds_nothing_in_nothing_about_five_times_in_a_hundred(n, drift, second):
    plain = adjusted = 0
    repetitions = 1500
    for ratios, first_is_a in _campaigns(n, drift=drift, second=second, repetitions=repetitions):
        plain += paired_estimate(list(ratios)).p <= 0.05
        adjusted += order_adjusted_estimate(list(ratios[first_is_a]), list(ratios[~first_is_a])).p <= 0.05
    assert plain / repetitions <= 0.065
    assert 0.035 <= adjusted / repetitions <= 0.065


def test_two_planned_looks_spend_five_per_cent_in_all_where_peeking_spends_far_more():
    false, peeking = 0, 0
    repetitions = 1500
    for ratios, _ in _campaigns(12, repetitions=repetitions):
        values = list(ratios)
        false += paired_estimate(values[:6]).p <= 0.02 or paired_estimate(values).p <= 0.03
        peeking += any(paired_estimate(values[:n]).p <= 0.05 for n in range(3, 13))
    assert false / repetitions <= 0.06
    assert peeking / repetitions >= 0.13


def test_the_interval_of_a_look_covers_the_truth_as_often_as_it_says():
    truth, repetitions = math.log(1.057), 1500
    covered = sum(
        interval.lo_pct <= 5.7 <= interval.hi_pct
        for ratios, _ in _campaigns(6, effect=truth, repetitions=repetitions)
        if (interval := paired_estimate(list(ratios)).interval(0.98))
    )
    assert 0.97 <= covered / repetitions <= 0.99
