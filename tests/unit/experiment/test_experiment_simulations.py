"""A small, seeded part of benchmarks/experiment_statistics.py and experiment_campaigns.py; the programs run the whole."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import numpy as np
import pytest


def program(name):
    spec = spec_from_file_location(name, Path(__file__).parents[3] / "benchmarks" / f"{name}.py")
    module = module_from_spec(spec)
    sys.modules[name] = module  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def simulation():
    return program("experiment_statistics")


@pytest.fixture(scope="module")
def campaigns():
    return program("experiment_campaigns")


def test_the_simulated_test_is_the_shipped_one(simulation):
    simulation.check(np.random.default_rng(5))


def test_the_shipped_test_rarely_claims_what_is_not_there_and_the_habits_do(simulation):
    repetitions = 600
    room = 3 * (0.05 * 0.95 / repetitions) ** 0.5
    for scenario in simulation.SCENARIOS:
        rates = simulation.false_claims(np.random.default_rng(2), scenario, 6, repetitions)
        assert rates["shipped: balanced, adjusted t"] <= 0.05 + room, scenario.name
        assert rates["one start an arm, t on windows"] > 0.5
        assert rates["A..A B..B, t on windows"] > 0.5
        assert rates["Mann-Whitney on windows"] > 0.4


def test_power_is_what_the_plan_promises(simulation):
    for n, wanted in ((4, 0.57), (6, 0.94)):
        found = simulation.power(np.random.default_rng(3), simulation.SCENARIOS[0], 0.057, n, 800)
        assert abs(found - wanted) < 0.06


def test_a_family_of_levels_with_two_looks_stays_under_five_per_cent_and_without_holm_it_does_not(simulation):
    assert simulation.family(np.random.default_rng(4), 500, simulation.holm) < 0.05
    assert simulation.family(np.random.default_rng(4), 500, list) > 0.07


def test_campaigns_on_the_simulated_card_cover_its_own_gain_at_every_level(campaigns, tmp_path):
    rates = campaigns.device_rates()
    covered = 0
    for seed in range(6):
        result = campaigns.campaign("256", "512", rates, seed, tmp_path)
        assert result.simulated
        assert result.complete
        by_level = {item.level: item for item in result.effects}
        assert by_level[64].verdict == "better"
        covered += sum(
            item.lo_pct <= campaigns.true_gain_pct(level, 256, 512) <= item.hi_pct for level, item in by_level.items()
        )
    assert covered >= 21, "24 intervals of 97 or 98 %"


def test_an_arm_against_itself_finds_nothing(campaigns, tmp_path):
    rates = campaigns.device_rates()
    said = {
        item.verdict for seed in range(4) for item in campaigns.campaign("256", "256", rates, seed, tmp_path).effects
    }
    assert said <= {"equivalent", "unresolved"}
