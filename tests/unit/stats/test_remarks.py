"""Order effects, trends and regimes: remarks beside a verdict, against numpy and known truths."""

import math

import numpy as np
import pytest

from vindicate.stats.paired import order_adjusted_estimate, order_effect, trend
from vindicate.stats.regimes import two_regimes


def test_an_order_effect_is_told_apart_from_a_gain():
    rng = np.random.default_rng(1)
    ab = list(0.10 + 0.03 + rng.normal(0, 0.002, 6))
    ba = list(0.10 - 0.03 + rng.normal(0, 0.002, 6))
    assert order_effect(ab, ba).log_gain == pytest.approx(0.03, abs=0.003)
    assert order_effect(ab, ba).p < 1e-6
    assert order_adjusted_estimate(ab, ba).log_gain == pytest.approx(0.10, abs=0.003)


def test_a_trend_is_the_least_squares_slope_with_its_own_error():
    from scipy.stats import linregress

    values = np.random.default_rng(2).normal(0, 1, 9) + 0.4 * np.arange(9)
    known, seen = linregress(range(9), values), trend(list(values))
    assert (seen.log_gain, seen.se, seen.p) == pytest.approx((known.slope, known.stderr, known.pvalue))


def test_two_modes_are_seen_and_one_is_not():
    rng = np.random.default_rng(3)
    modes = np.where(np.arange(12) < 8, math.log(33), math.log(26)) + rng.normal(0, 0.01, 12)
    low, high = two_regimes(list(modes))
    assert (math.exp(low), math.exp(high)) == pytest.approx((26, 33), rel=0.02)
    assert two_regimes(list(rng.normal(3, 0.02, 12))) is None
    assert two_regimes([1.0, 1.0, 1.0, 2.0, 2.0]) is None, "five starts are too few to say"
    for n in (6, 12):
        false = sum(two_regimes(list(rng.normal(0, 0.05, n))) is not None for _ in range(500))
        assert false <= 35
