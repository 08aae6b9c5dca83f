"""Services in network namespaces of their own, as benchmarks/scenarios_container.py plays them: seen from inside, with and without a stack file."""

import argparse
import importlib
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from vindicate.observe.inside import Inside
from vindicate.stack.discover import search
from vindicate.stack.http import OwnSockets
from vindicate.stack.sockets import NamespaceSockets

SAID = {
    "boxed_engine_stalls": ("fault", "engine", "engine.stall_mid_stream"),
    "boxed_router_masks_end": ("fault", "router", "stream.missing_done_masked_by_heartbeat"),
    "well_published": ("healthy", "none", None),
    "published_starved": ("fault", "proxy", "proxy.connector_starvation"),
}


@pytest.fixture(scope="module")
def bench():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).parents[3] / "benchmarks")
        yield importlib.import_module("diagnosis"), importlib.import_module("scenarios_container")
    for name in ("diagnosis", "scenarios_container", "callers"):
        sys.modules.pop(name, None)


def scenario(bench, name):
    return next(one for one in bench[1].SCENARIOS if one.name == name)


@pytest.fixture(scope="module")
def verdicts(bench):
    def run(name):
        args = argparse.Namespace(keep=None, no_stack_file=name == "published_starved", more=["--window", "8s"])
        try:
            return bench[0].run_once(scenario(bench, name), args)
        except TimeoutError as missing:
            return {"missing": str(missing)}

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(SAID, pool.map(run, SAID), strict=True))


@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", SAID)
def test_what_stands_in_a_container_is_judged_as_what_stands_out_here(verdicts, name):
    verdict = verdicts[name]
    if "missing" in verdict:
        pytest.skip(verdict["missing"])
    assert "crash" not in verdict, verdict
    assert tuple(verdict[field] for field in ("status", "layer", "mechanism")) == SAID[name], verdict
    assert not any("another host" in spot for spot in verdict["blind"]), verdict["blind"]


@pytest.fixture
def boxed(bench, tmp_path):
    """A healthy chain of a proxy out here, and a router and an engine in a box."""
    one = scenario(bench, "well_boxed")
    started = one.start(one, tmp_path)
    try:
        made = started.__enter__()
    except TimeoutError as missing:
        pytest.skip(str(missing))
    yield made
    started.__exit__(None, None, None)


def test_discovery_follows_a_chain_into_a_container_and_through_its_loopback(boxed):
    running, url, _ = boxed
    found = search(url)
    nodes = [found.nodes[name] for name in found.stack.path_from(found.stack.entry)]
    assert [node.pids for node in nodes] == [(running[name].pid,) for name in ("proxy", "router", "engine")]
    assert [one.role for one in found.stack.services.values()] == ["proxy", "proxy", "engine"]


@pytest.mark.parametrize("allowed", [True, False])
def test_without_leave_to_enter_it_only_states_are_seen_and_that_is_said(boxed, monkeypatch, allowed):
    running, _, _ = boxed
    if not allowed:
        monkeypatch.setattr(NamespaceSockets, "_enter", lambda _: None)
    pids = {running[name].pid for name in ("router", "engine")}
    inside = Inside(lambda: pids, own=OwnSockets(), started=time.monotonic())
    inside.look()
    inside.look()
    addresses = inside.addresses({"engine": [running["engine"].pid], "ours": [os.getpid()]})
    assert list(addresses) == ["engine"]
    assert {one.port for one in addresses["engine"]} == {addresses["engine"][0].port}
    assert any(one.host.startswith("10.213.") for one in addresses["engine"])
    assert any(one.host.startswith("127.0.0.1%") for one in addresses["engine"])
    assert bool(inside.notes) is not allowed
    inside.close()


def test_a_namespace_that_is_gone_has_no_sockets():
    sockets = NamespaceSockets(0x7FFF_FFF0)
    assert len(sockets.dump()) == 0
    sockets.close()
