"""Sign flips, Hodges-Lehmann, Holm and equivalence, against scipy and against enumeration by hand."""

import itertools

import numpy as np
import pytest
from scipy import stats

from vindicate.stats.equivalence import equivalence_p, non_inferiority_p
from vindicate.stats.exact import hodges_lehmann, sign_flip_p
from vindicate.stats.holm import holm
from vindicate.stats.paired import paired_estimate

RATIOS = [0.118, -0.031, 0.102, 0.127, 0.009, 0.135]


def test_sign_flip_p_is_scipys_exact_permutation_p():
    expected = stats.permutation_test(
        (RATIOS,), np.mean, permutation_type="samples", alternative="two-sided", n_resamples=np.inf
    )
    assert sign_flip_p(RATIOS) == pytest.approx(expected.pvalue)


def test_sign_flip_p_is_none_below_six_blocks_and_one_in_thirty_two_at_best_with_six():
    assert sign_flip_p([0.1] * 5) is None
    assert sign_flip_p([0.1, 0.11, 0.12, 0.13, 0.14, 0.15]) == 2 / 64
    assert sign_flip_p([0.1] * 21) is None


def test_hodges_lehmann_is_the_median_of_walsh_averages_with_an_exact_interval():
    walsh = sorted((a + b) / 2 for a, b in itertools.combinations_with_replacement(RATIOS, 2))
    seen = hodges_lehmann(RATIOS, 0.95)
    assert seen.log_gain == pytest.approx(np.median(walsh))
    assert (seen.lo, seen.hi) == (walsh[0], walsh[-1])
    assert seen.confidence == pytest.approx(1 - 2 / 64)


def test_hodges_lehmann_gives_no_interval_that_its_blocks_cannot_carry():
    five = hodges_lehmann([0.1, 0.2, 0.3, 0.4, 0.5], 0.95)
    assert five.lo is None
    assert five.confidence is None
    assert hodges_lehmann([0.1, 0.2, 0.3, 0.4, 0.5], 0.93).confidence == pytest.approx(0.9375)


def test_walsh_interval_covers_with_the_chance_it_states():
    rng = np.random.default_rng(3)
    covered = sum(
        seen.lo <= 0 <= seen.hi for _ in range(2000) if (seen := hodges_lehmann(list(rng.normal(0, 1, 8)), 0.95))
    )
    stated = hodges_lehmann(list(rng.normal(0, 1, 8)), 0.95).confidence
    assert covered / 2000 == pytest.approx(stated, abs=0.015)


def test_holm_multiplies_the_smallest_by_the_size_of_the_family_and_never_falls():
    assert holm([0.0004, 0.6, 0.03, 0.02]) == pytest.approx([0.0016, 0.6, 0.06, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_equivalence_needs_both_sides_and_non_inferiority_the_lower_one():
    estimate = paired_estimate([0.002, -0.004, 0.001, 0.003, -0.002, 0.0])
    low = stats.ttest_1samp([0.002, -0.004, 0.001, 0.003, -0.002, 0.0], np.log(0.97), alternative="greater").pvalue
    high = stats.ttest_1samp([0.002, -0.004, 0.001, 0.003, -0.002, 0.0], np.log(1.03), alternative="less").pvalue
    assert non_inferiority_p(estimate, 0.03) == pytest.approx(low)
    assert equivalence_p(estimate, 0.03) == pytest.approx(max(low, high))
    far = paired_estimate([0.10, 0.11, 0.12])
    assert non_inferiority_p(far, 0.03) < 0.01
    assert equivalence_p(far, 0.03) > 0.9


def test_non_inferiority_succeeds_as_often_as_the_table_says():
    rng = np.random.default_rng(8)
    sd = 0.02846
    shown = {
        (margin, n): np.mean(
            [non_inferiority_p(paired_estimate(list(rng.normal(0, sd, n))), margin) <= 0.05 for _ in range(1000)]
        )
        for margin, n in ((0.01, 8), (0.03, 8), (0.05, 4))
    }
    assert shown[0.01, 8] == pytest.approx(0.23, abs=0.04)
    assert shown[0.03, 8] == pytest.approx(0.85, abs=0.04)
    assert shown[0.05, 4] == pytest.approx(0.84, abs=0.04)
