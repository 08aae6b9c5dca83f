"""Real routers, proxies and engines from wheels (`make test-peers`), one run of each chain of benchmarks/real_chains.py."""

import argparse
import importlib.util
import sys
from pathlib import Path

import pytest

SPEC = importlib.util.spec_from_file_location(
    "real_chains", Path(__file__).parents[2] / "benchmarks" / "real_chains.py"
)
chains = importlib.util.module_from_spec(SPEC)
sys.modules[SPEC.name] = chains
SPEC.loader.exec_module(chains)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("scenario", chains.SCENARIOS, ids=lambda scenario: scenario.name)
def test_names_the_layer_of_a_chain_that_none_of_us_wrote_and_blames_no_innocent(scenario):
    args = argparse.Namespace(keep=None, no_stack_file=True, more=[])
    verdict = chains.diagnosis.run_once(scenario, args)
    assert "crash" not in verdict, verdict["crash"]
    said = {key: verdict[key] for key in ("status", "layer", "summary", "findings")}
    assert not chains.blames_an_innocent(scenario, verdict), said
    assert chains.right(scenario, verdict), said
