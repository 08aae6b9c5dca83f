"""The benchmark's chains, one run each, on real processes: router, prefill and decode of the reference stack, a rehearsed proxy."""

import argparse
import importlib.util
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

NAMES = ("starved_permit", "decode_no_end", "busy", "dead_decode")


@pytest.fixture(scope="module")
def bench():
    spec = importlib.util.spec_from_file_location(
        "diagnosis_benchmark", Path(__file__).parents[3] / "benchmarks" / "diagnosis.py"
    )
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def verdicts(bench):
    args = argparse.Namespace(keep=None, no_stack_file=False, more=["--window", "6s"])
    scenarios = {s.name: s for s in bench.SCENARIOS if s.name in NAMES}
    with ThreadPoolExecutor(2) as pool:
        made = pool.map(lambda name: bench.run_once(scenarios[name], args), NAMES)
        return dict(zip(NAMES, made, strict=True))


@pytest.mark.timeout(150)
@pytest.mark.parametrize(
    ("name", "said", "code"),
    [
        ("starved_permit", ("fault", "proxy", "proxy", "proxy.connector_starvation"), 1),
        ("decode_no_end", ("fault", "decode", "decode", "decode.no_end"), 1),
        ("busy", ("healthy", "none", None, None), 0),
        ("dead_decode", ("fault", "decode", "decode", "service.down"), 1),
    ],
)
def test_names_the_guilty_layer_of_a_real_chain_or_nobody(verdicts, name, said, code):
    verdict = verdicts[name]
    assert "crash" not in verdict, verdict
    assert tuple(verdict[field] for field in ("status", "layer", "service", "mechanism")) == said, verdict["findings"]
    assert verdict["code"] == code


@pytest.mark.timeout(150)
def test_clears_the_knob_of_decode_when_the_proxy_starves_and_not_when_decode_forgets_the_end(verdicts, bench):
    cleared = {
        name: [knob for clearance in verdict["cleared"] for knob in clearance["knobs"]]
        for name, verdict in verdicts.items()
    }
    assert bench.KNOB in cleared["starved_permit"]
    assert cleared["decode_no_end"] == []
    assert cleared["dead_decode"] == []


@pytest.mark.timeout(150)
def test_takes_no_longer_than_the_window_and_5_s(verdicts):
    assert all(verdict["took_s"] <= 11.0 for verdict in verdicts.values())
