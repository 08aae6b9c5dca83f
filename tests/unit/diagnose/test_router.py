"""Routers that admit, choose and release badly, and figures that lie; beside each what looks alike and is none."""

from dataclasses import replace

import pytest

from fakes.captures import PIDS, PLAIN, PORTS, Scenery
from vindicate.diagnose.judge import judge
from vindicate.record.observation import (
    Address,
    Connection,
    MetricValue,
    ProcessFacts,
    ProcessSample,
    Scrape,
    SocketSample,
)


def verdict(scene, **changes):
    made = judge(scene.capture(**changes))
    return made.status, made.layer, made.service, made.mechanism


def turned_away(scene, target, code="http_429"):
    scene.probe(target, code)
    return scene


def test_convicts_a_relay_that_turns_requests_away_with_nothing_inside():
    scene = Scenery(PLAIN).figures("engine").probe("engine")
    for start in (0.5, 2.5):
        scene.link("client", "proxy", {0.0: (0, 0), start: (500, 180), start + 3: (1000, 360)})
    assert verdict(turned_away(scene, "proxy")) == ("fault", "proxy", "proxy", "router.permit_leak")


def test_convicts_nobody_for_a_relay_that_turns_requests_away_at_its_limit():
    scene = Scenery(PLAIN).figures("engine", running=4, http=4, tokens=300).probe("engine")
    scene.streaming(4, "client", "proxy").streaming(4, "proxy", "engine")
    assert verdict(turned_away(scene, "proxy"))[0] == "healthy"


def test_convicts_nobody_for_a_probe_that_alone_was_turned_away():
    scene = turned_away(Scenery(PLAIN).figures("engine").probe("engine"), "proxy")
    assert verdict(scene)[0] != "fault"


def breaker(scene, relay, worker, state):
    url = (("worker", f"http://127.0.0.1:{PORTS[worker]}"),)
    for t in (0.1, 3.3, 6.6, 9.7):
        values = (MetricValue(name="smg_worker_cb_state", labels=url, value=state),)
        scene.scrapes.append(Scrape(service=relay, kind="metrics", url="http://127.0.0.1:29000/metrics", t_s=t, took_s=0.01, status=200, values=values))  # fmt: skip
    return scene


def test_convicts_a_router_whose_breaker_keeps_a_fit_worker_out():
    scene = breaker(Scenery(PLAIN).figures("engine"), "proxy", "engine", 1.0).probe("proxy", "http_503").probe("engine")
    assert verdict(scene)[2:] == ("proxy", "router.breaker_open")


def test_does_not_blame_a_breaker_that_keeps_a_sick_worker_out():
    scene = breaker(Scenery(PLAIN).figures("engine"), "proxy", "engine", 1.0)
    scene.probe("proxy", "http_503").probe("engine", "http_500")
    assert verdict(scene)[3] != "router.breaker_open"


def knocking(scene, n, at):
    for i in range(n):
        samples = tuple(
            SocketSample(t_s=at + 0.25 * k, state="SYN_SENT", rx=0, tx=0, unread=0, unsent=0) for k in range(12)
        )
        scene.connections.append(
            Connection(
                id=f"k{i}",
                local=Address("127.0.0.1", 50000 + i),
                remote=Address("127.0.0.1", 9999),
                pids=(PIDS["proxy"],),
                samples=samples,
                fresh=True,
            )
        )
    return scene


def test_convicts_a_router_that_sends_one_in_so_many_to_an_address_where_nobody_is():
    scene = Scenery(PLAIN).figures("engine", tokens=100).streaming(2, "client", "proxy").streaming(2, "proxy", "engine")
    scene.waiting(2, "client", "proxy", since=4.0).probe("engine").probe("proxy").probe("proxy", "no_headers")
    assert verdict(knocking(scene, 2, 4.0))[2:] == ("proxy", "router.ghost_endpoint")


def test_convicts_nobody_who_knocks_in_vain_for_a_purpose_of_its_own():
    scene = Scenery(PLAIN).figures("engine", tokens=100).streaming(2, "client", "proxy").streaming(2, "proxy", "engine")
    assert verdict(knocking(scene.probe("proxy").probe("engine"), 2, 6.0))[0] == "healthy"


def test_convicts_a_relay_that_reads_on_for_callers_who_left_though_health_checks_come():
    scene = Scenery(PLAIN).figures("engine", running=3, http=3, tokens=200).streaming(3, "proxy", "engine")
    scene.link("client", "proxy", {0.0: (90, 120), 1.0: (180, 240), 9.0: (270, 360)}, before=(1.0, 0.9))
    assert verdict(scene.probe("proxy").probe("engine"))[2:] == ("proxy", "router.cancel_not_propagated")


def test_does_not_take_one_connection_that_carries_many_requests_for_callers_who_left():
    scene = Scenery(PLAIN).figures("engine", running=3, http=3, tokens=200).streaming(3, "proxy", "engine")
    total = {0.25 * i: (500, 700 * i) for i in range(41)}
    scene.link("client", "proxy", total, before=(20.0, 0.1))
    assert verdict(scene.probe("proxy").probe("engine"))[0] == "healthy"


def same_process(scene, name="engine"):
    samples = tuple(ProcessSample(t_s=t, state="S", cpu_s=1.0, n_threads=1) for t in (0.0, 3.0, 6.0, 9.0))
    scene.processes.append(ProcessFacts(pid=PIDS[name], ppid=1, name=name, argv=(), started_at="", samples=samples))
    return scene


def test_says_that_a_gauge_below_zero_lies_and_does_not_convict_the_engine():
    scene = same_process(Scenery(PLAIN).figures("engine", running=-3)).probe("proxy").probe("engine")
    assert verdict(scene) == ("fault", "metrics", "engine", "metrics.negative_delta")


def test_puts_a_lying_gauge_beside_a_real_fault_and_not_in_its_place():
    scene = same_process(Scenery(PLAIN).figures("engine", running=-3)).probe("engine")
    for start in (0.5, 2.5):
        scene.link("client", "proxy", {0.0: (0, 0), start: (500, 180), start + 3: (1000, 360)})
    made = judge(turned_away(scene, "proxy").capture())
    assert (made.service, [a.mechanism for a in made.aggravators]) == ("proxy", ["metrics.negative_delta"])


def counting(scene, *totals):
    for i, total in enumerate(totals):
        page = (MetricValue(name="sglang:num_requests_total", labels=(), value=total),)
        scene.scrapes.append(Scrape(service="engine", kind="metrics", url="http://127.0.0.1:30002/metrics", t_s=0.2 + i, took_s=0.01, status=200, values=page))  # fmt: skip
    return same_process(scene.probe("proxy").probe("engine"))


def twice_bound(capture):
    engine = next(one for one in capture.listeners if one.local.port == PORTS["engine"])
    return replace(capture, listeners=(*capture.listeners, replace(engine, pids=(51,))))


def test_says_that_figures_which_fall_and_come_back_are_those_of_several_processes():
    made = judge(twice_bound(counting(Scenery(PLAIN), 90, 20, 91, 20).capture()))
    assert (made.layer, made.mechanism) == ("metrics", "metrics.multiprocess_exposition")


def test_takes_a_counter_that_falls_once_for_a_restart():
    made = judge(twice_bound(counting(Scenery(PLAIN), 90, 91, 3, 4).capture()))
    assert (made.status, made.aggravators) == ("healthy", ())


def test_calls_a_phantom_floor_healthy_and_says_that_the_gauge_is_stale():
    made = judge(Scenery(PLAIN).figures("engine", running=20).probe("proxy").probe("engine").capture())
    assert (made.status, [a.mechanism for a in made.aggravators]) == ("healthy", ["metrics.stale_after_mass_abort"])


def test_does_not_call_the_gauge_of_a_busy_engine_stale():
    scene = Scenery(PLAIN).figures("engine", running=12, http=12, tokens=900)
    scene.streaming(12, "client", "proxy").streaming(12, "proxy", "engine").probe("proxy").probe("engine")
    made = judge(scene.capture())
    assert (made.status, made.aggravators) == ("healthy", ())


def funnelled(*, queued_there, counted=20):
    """A router that counts requests at one of two workers, sends all to the other, and what the first has queued, look by look."""
    chain = {"router": ("prefill", "decode"), "prefill": (), "decode": ()}
    scene = Scenery(chain)
    scene.roles = {"prefill": "engine", "decode": "engine"}
    scene.figures("prefill", waiting=queued_there).figures("decode", running=4, waiting=[2, 6, 12, 14], tokens=50)
    scene.waiting(6, "client", "router", since=4).waiting(6, "router", "decode", since=4)
    scene.silent(6, "client", "router", since=8).silent(6, "router", "prefill", since=8)
    return scene.awaiting("router", "prefill", counted).probe("prefill", covers=("prefill",))


@pytest.mark.parametrize("queued_there", [0, [2, 0, 0, 0]])
def test_convicts_a_router_that_counts_work_at_a_worker_that_has_none_and_sends_all_to_another(queued_there):
    diagnosis = judge(funnelled(queued_there=queued_there).capture())
    assert (diagnosis.service, diagnosis.mechanism) == ("router", "router.load_counter_leak")


@pytest.mark.parametrize(("queued_there", "counted"), [([2, 2, 2, 2], 2), (0, 0)])
def test_a_count_that_is_true_convicts_no_router(queued_there, counted):
    assert judge(funnelled(queued_there=queued_there, counted=counted).capture()).service != "router"
