"""Descriptors, a disk, a frozen group, a certificate, one death after another: each for real, as the benchmark plays it."""

import argparse
import importlib
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

SAID = {
    "files_all_open": ("fault", "proxy", "proxy", "service.out_of_descriptors"),
    "files_to_spare": ("healthy", "none", None, None),
    "disk_full": ("fault", "host", "proxy", "host.disk_full"),
    "disk_nearly_full": ("healthy", "none", None, None),
    "engine_frozen": ("fault", "engine", "engine", "service.stopped"),
    "certificate_expired": ("fault", "proxy", "proxy", "service.certificate_expired"),
    "certificate_good": ("healthy", "none", None, None),
    "crash_loop": ("fault", "engine", "engine", "service.crash_loop"),
}


@pytest.fixture(scope="module")
def verdicts(monkeypatch_module):
    monkeypatch_module.syspath_prepend(Path(__file__).parents[3] / "benchmarks")
    bench, host = importlib.import_module("diagnosis"), importlib.import_module("scenarios_host")
    args = argparse.Namespace(keep=None, no_stack_file=False, more=["--window", "6s"])

    def run(scenario):
        try:
            return bench.run_once(scenario, args)
        except TimeoutError as missing:
            return {"missing": str(missing)}

    with ThreadPoolExecutor(2) as pool:
        return dict(zip([s.name for s in host.SCENARIOS], pool.map(run, host.SCENARIOS), strict=True))


@pytest.fixture(scope="module")
def monkeypatch_module():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(Path(__file__).parents[2] / "fixtures" / "tls" / "ca.pem"))
        yield patch
    for name in ("diagnosis", "scenarios_host", "scenarios_relay", "callers"):
        sys.modules.pop(name, None)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", SAID)
def test_names_what_the_host_no_longer_gives_and_nobody_where_there_is_enough(verdicts, name):
    verdict = verdicts[name]
    if "missing" in verdict:
        pytest.skip(verdict["missing"])
    assert "crash" not in verdict, verdict
    assert tuple(verdict[field] for field in ("status", "layer", "service", "mechanism")) == SAID[name], verdict
