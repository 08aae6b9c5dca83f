"""Power and planning, against the tables of the project's statistics notes."""

import math

import numpy as np
import pytest

from vindicate.stats.paired import paired_estimate
from vindicate.stats.planning import (
    MOST_BLOCKS,
    alpha_split,
    blocks_needed,
    equivalence_blocks,
    minimum_detectable,
    power,
    upper_sd,
)


def block_sd(restart):
    return math.sqrt(2 * (restart**2 + 0.01**2 / 20))


@pytest.mark.parametrize(
    ("restart", "expected_pct"),
    [
        (0.005, [1.65, 1.11, 0.90, 0.69]),
        (0.01, [3.08, 2.08, 1.68, 1.29]),
        (0.02, [6.06, 4.08, 3.29, 2.53]),
        (0.03, [9.05, 6.10, 4.92, 3.78]),
        (0.05, [15.1, 10.2, 8.2, 6.3]),
    ],
)
def test_minimum_detectable_effect_is_that_of_the_table(restart, expected_pct):
    seen = [100 * minimum_detectable(block_sd(restart), n, 0.05) for n in (4, 6, 8, 12)]
    assert seen == pytest.approx(expected_pct, rel=0.006, abs=0.006)


@pytest.mark.parametrize(
    ("restart", "expected"),
    [
        (0.005, [(6, 8), (3, 3), (3, 3)]),
        (0.01, [(14, 20), (3, 4), (3, 3)]),
        (
            0.02,
            [(47, 66), (5, 7), (3, 4)],
        ),  # the notes say 3 for the last; 400 000 draws give power .535 at 3 and .949 at 4
        (0.03, [(101, 144), (7, 10), (4, 5)]),
        (0.05, [(276, 392), (15, 21), (5, 7)]),
    ],
)
def test_blocks_needed_are_those_of_the_table(restart, expected):
    sd = block_sd(restart)
    seen = [(blocks_needed(effect, sd, 0.05), blocks_needed(effect, sd, 0.0125)) for effect in (0.012, 0.057, 0.128)]
    assert seen == expected


def test_power_is_what_a_simulation_finds():
    rng = np.random.default_rng(5)
    sd, repetitions = block_sd(0.02), 2000
    found = sum(paired_estimate(list(rng.normal(0.057, sd, 6))).p <= 0.05 for _ in range(repetitions))
    assert power(0.057, sd, 6, 0.05) == pytest.approx(found / repetitions, abs=0.02)


def test_equivalence_blocks_have_the_power_they_promise():
    sd, margin = block_sd(0.02), math.log(1.03)
    n = equivalence_blocks(0.0, sd, (-margin, margin), 0.05)
    rng = np.random.default_rng(6)
    inside = 0
    for _ in range(1500):
        interval = paired_estimate(list(rng.normal(0, sd, n))).interval(0.9)
        inside += interval.lo_pct > -3 and interval.hi_pct < 3
    assert inside / 1500 >= 0.77
    assert equivalence_blocks(0.05, sd, (-margin, margin), 0.05) == MOST_BLOCKS


def test_far_effects_and_no_noise_do_not_break_the_search():
    assert blocks_needed(0.0, 0.03, 0.05) == MOST_BLOCKS
    assert blocks_needed(0.5, 1e-6, 0.05) == 3
    assert minimum_detectable(0.0, 6, 0.05) == 0.0
    assert power(3.0, 0.001, 12, 0.02) == 1.0


def test_an_sd_of_few_blocks_is_planned_with_at_its_upper_bound():
    assert upper_sd(0.02, 3) / 0.02 == pytest.approx(1.73, abs=0.01)
    assert upper_sd(0.02, 30) < 1.2 * 0.02


def test_alphas_of_all_looks_add_up_to_five_per_cent():
    assert [sum(alpha_split(looks)) for looks in (1, 2, 3)] == pytest.approx([0.05] * 3)
