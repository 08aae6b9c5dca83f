"""A service in a container whose port is published: the same exchange shows twice, and counts once."""

from dataclasses import replace

import pytest

from fakes.captures import PIDS, PLAIN, PORTS, Scenery
from vindicate.diagnose.judge import judge, scene_of
from vindicate.record.observation import Address, Listener

FORWARDER = 77
INSIDE = Address("172.18.0.3", 30000)


def published(scene, *, how):
    """The capture as it is when the engine lives in a container; *how*: behind a forwarder, one that cannot be seen, or translation."""
    capture = scene.capture()
    out_here = Address("127.0.0.1", PORTS["engine"])
    forwarder = {"forwarder": (FORWARDER,), "hidden": (), "translation": ()}[how]
    connections, second = [], []
    for one in capture.connections:
        if one.local == out_here:  # the half of the service
            far = replace(
                one,
                id=f"box:{one.id}",
                local=INSIDE,
                remote=Address("172.18.0.1", one.remote.port),
                pids=(PIDS["engine"],),
            )
            second.append(far)
            if how == "translation":
                continue
            onward = replace(
                far, id=f"on:{one.id}", local=far.remote, remote=INSIDE, pids=forwarder,
                samples=tuple(replace(s, rx=s.tx, tx=s.rx, last_rx_age_s=s.last_tx_age_s, last_tx_age_s=s.last_rx_age_s) for s in one.samples),
            )  # fmt: skip
            second.append(onward)
            connections.append(replace(one, pids=forwarder))
        else:
            connections.append(one)
    listeners = [one for one in capture.listeners if one.local.port != PORTS["engine"]]
    listeners.append(Listener(local=INSIDE, pids=(PIDS["engine"],), backlog=128, waiting=(0, 0)))
    if how != "translation":
        listeners.append(Listener(local=out_here, pids=forwarder, backlog=128, waiting=(0, 0)))
    services = tuple(replace(one, inside=(INSIDE,)) if one.name == "engine" else one for one in capture.services)
    return replace(capture, connections=(*connections, *second), listeners=tuple(listeners), services=services)


@pytest.mark.parametrize("how", ["forwarder", "hidden", "translation"])
def test_each_exchange_counts_once_and_the_stalled_engine_is_named(how):
    scene = Scenery(PLAIN).figures("engine", running=4).silent(4, "client", "proxy").silent(4, "proxy", "engine")
    capture = published(scene.probe("proxy", "stalled").probe("engine", "stalled"), how=how)
    account = scene_of(capture).account
    assert len(account.nodes["engine"].down) == 4
    diagnosis = judge(capture)
    assert (diagnosis.service, diagnosis.mechanism) == ("engine", "engine.stall_mid_stream")


@pytest.mark.parametrize("how", ["forwarder", "hidden", "translation"])
def test_a_proxy_before_it_that_passes_all_on_holds_nothing(how):
    scene = (
        Scenery(PLAIN)
        .figures("engine", running=4, tokens=50)
        .waiting(4, "client", "proxy")
        .waiting(4, "proxy", "engine")
    )
    capture = published(scene.probe("proxy").probe("engine"), how=how)
    assert scene_of(capture).account.nodes["proxy"].held == ()
    assert judge(capture).service is None


def test_loopback_of_another_namespace_is_not_ours():
    scene = Scenery(PLAIN).streaming(2, "client", "proxy")
    capture = scene.capture()
    moved = tuple(
        replace(one, id=f"{one.id}x", local=replace(one.local, host="127.0.0.1%box"), remote=replace(one.remote, host="127.0.0.1%box"), pids=())
        for one in capture.connections
    )  # fmt: skip
    both = scene_of(replace(capture, connections=(*capture.connections, *moved))).account
    assert len(both.nodes["proxy"].down) == 2
