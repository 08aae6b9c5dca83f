"""The judge against damaged captures: it never fails on one, and what was lost never makes an innocent guilty."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.captures import Scenery
from fakes.healthy import HEALTHY
from fakes.lost import LOSSES, lose, spoil
from vindicate.diagnose.judge import judge

CAPTURES = {name: build().capture(n_looks=41) for name, build in HEALTHY.items()}
SEEDS = st.integers(0, 2**32)
QUICK = settings(deadline=None, max_examples=40, database=None)


def damaged(capture, seed):
    dice = random.Random(seed)
    for what in dice.sample(sorted(LOSSES), dice.randint(1, 4)):
        capture = lose(dice, capture, what)
    return capture


@pytest.mark.parametrize("name", CAPTURES)
@QUICK
@given(seed=SEEDS)
def test_lost_evidence_convicts_nobody_of_a_healthy_chain(name, seed):
    diagnosis = judge(damaged(CAPTURES[name], seed))
    against = [clue.text for clue in diagnosis.findings if clue.direction == "implicates"]
    assert diagnosis.status != "fault", (diagnosis.service, diagnosis.mechanism, against)


@pytest.mark.parametrize("name", ["busy", "idle", "at capacity", "long prefill"])
@settings(deadline=None, max_examples=15, database=None)
@given(seed=SEEDS)
def test_a_capture_of_odd_values_gets_a_verdict_too(name, seed):
    dice = random.Random(seed)
    diagnosis = judge(spoil(dice, CAPTURES[name], dice.choice([0.001, 0.01, 0.1])))
    assert diagnosis.status in ("fault", "healthy", "undetermined")
    assert 0.0 <= diagnosis.confidence <= 1.0


def test_a_time_far_beyond_the_window_does_not_make_it_think_for_ever():
    dice = random.Random(11)
    name = dice.choice(list(CAPTURES))
    assert judge(spoil(dice, CAPTURES[name], dice.choice([0.001, 0.01, 0.1]))).status != "fault"


def test_connections_without_byte_counts_do_not_make_their_service_a_hoarder():
    capture = CAPTURES["busy"]
    server_sides = [c for c in capture.connections if c.local.port == 8000]
    bare = {
        c.id: replace(c, samples=tuple(replace(s, rx=0, tx=0, counted=False) for s in c.samples))
        for c in server_sides[:3]
    }
    half = replace(capture, connections=tuple(bare.get(c.id, c) for c in capture.connections), scrapes=())
    assert judge(half).service is None


def test_an_engine_in_a_network_of_its_own_is_no_zombie():
    capture = CAPTURES["busy"]
    pids = {pid for s in capture.services if s.name in ("router", "decode") for pid in s.pids}
    apart = replace(
        capture,
        services=tuple(replace(s, pids=tuple(p for p in s.pids if p not in pids)) for s in capture.services),
        connections=tuple(c for c in capture.connections if not pids & set(c.pids)),
        listeners=tuple(x for x in capture.listeners if not pids & set(x.pids)),
    )
    assert judge(apart).service is None


def test_a_service_that_names_one_upstream_that_was_not_looked_at_may_pass_on():
    scene = Scenery({"proxy": ("router",), "router": ()}).waiting(3, "client", "proxy").waiting(3, "proxy", "router")
    capture = scene.probe("proxy", "no_headers").probe("router", "no_headers").capture()
    capture = replace(
        capture, services=tuple(replace(s, upstream=("decode",)) if s.name == "router" else s for s in capture.services)
    )
    assert judge(capture).status == "undetermined"
