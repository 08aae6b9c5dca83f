"""Relays that spoil answers by time or content, as captures built by hand, each beside the innocent that looks like it."""

from dataclasses import replace

import pytest

from fakes.captures import PLAIN, PORTS, SOME, Scenery
from vindicate.diagnose.judge import judge
from vindicate.record.observation import HostFacts


def convicted(scene, **changes):
    diagnosis = judge(scene.capture(**changes))
    return diagnosis.status, diagnosis.service, diagnosis.mechanism


def blocks(n, caller, callee, scene, *, period=3.0):
    """Answers that come at one go, each a period after its request, which follows the answer before at once."""
    timeline = {0.0: (SOME, 0)}
    for k in range(1, 4):
        timeline[k * period] = (SOME * (k + 1), 5000 * k)
    return scene.links(n, caller, callee, timeline)


def streamed_probe(scene, target, *, lumped, span=0.4):
    scene.probe(target, t=3.5, total=span)
    gaps = () if lumped else (span / 8,) * 8
    scene.probes[-1] = replace(
        scene.probes[-1], first_byte_s=span if lumped else 0.01, gaps_s=gaps, body_complete=True, n_events=12
    )
    return scene


def test_convicts_a_relay_that_passes_streams_on_in_blocks():
    scene = blocks(4, "client", "proxy", Scenery(PLAIN)).streaming(4, "proxy", "engine")
    streamed_probe(streamed_probe(scene, "proxy", lumped=True), "engine", lumped=False)
    assert convicted(scene) == ("fault", "proxy", "proxy.sse_buffering")


def test_does_not_blame_a_relay_whose_engine_itself_gives_blocks():
    scene = blocks(4, "proxy", "engine", blocks(4, "client", "proxy", Scenery(PLAIN)))
    streamed_probe(streamed_probe(scene, "proxy", lumped=True), "engine", lumped=True)
    assert convicted(scene)[0] == "healthy"


def test_does_not_blame_a_relay_that_fetches_whole_answers_as_streams_for_callers_who_asked_so():
    scene = blocks(4, "client", "proxy", Scenery(PLAIN)).streaming(4, "proxy", "engine")
    streamed_probe(streamed_probe(scene, "proxy", lumped=False), "engine", lumped=False)
    assert convicted(scene)[0] == "healthy"


def test_does_not_convict_a_relay_of_blocks_on_one_late_probe_alone():
    scene = Scenery(PLAIN).streaming(4, "client", "proxy").streaming(4, "proxy", "engine")
    streamed_probe(streamed_probe(scene, "proxy", lumped=True), "engine", lumped=False)
    assert convicted(scene)[0] != "fault"


def ended(scene, caller, callee, *, asked, last, by, response=240, step=0.25):
    """A stream that began at *asked* and was closed *by* one end right after *last*; without *response* no byte had come."""
    moments = [t for t in (i * 0.25 for i in range(41)) if asked < t <= last]
    timeline = {asked: (SOME, 0)} | ({t: (SOME, response * (i + 1)) for i, t in enumerate(moments)} if response else {})
    n = round((last - asked) / 0.25) + 1
    scene.link(caller, callee, timeline, closed=n)
    for index in (-2, -1):
        made = scene.connections[index]
        mine = (made.id.startswith("s") and by == "service") or (made.id.startswith("c") and by == "caller")
        final = made.samples[-1]
        states = [replace(final, state="CLOSE")]
        if mine:
            states.append(replace(final, state="TIME_WAIT", last_rx_age_s=None, last_tx_age_s=None))
        scene.connections[index] = replace(made, samples=(*made.samples[:-1], *states))
    return scene


def cut_at(ages, *, down_by="service", up_by="caller"):
    scene = (
        Scenery(PLAIN).probe("proxy", t=6.5).probe("engine", t=6.5).forwarded("proxy", "engine", answered=True, t=6.5)
    )
    for start, age in ages:
        ended(scene, "client", "proxy", asked=start, last=start + age, by=down_by)
        ended(scene, "proxy", "engine", asked=start, last=start + age, by=up_by)
    return scene


def test_convicts_a_gateway_that_cuts_every_exchange_at_one_age():
    scene = cut_at([(0.5, 5.0), (1.0, 5.0), (2.5, 5.0), (3.5, 5.0)])
    assert convicted(scene) == ("fault", "proxy", "gateway.total_timeout")


@pytest.mark.parametrize(
    ("ages", "ends"),
    [
        (
            [(0.5, 5.0), (1.0, 5.0), (2.5, 5.0), (3.5, 5.0)],
            {"down_by": "caller"},
        ),  # clients with a time-out of their own
        ([(0.5, 2.0), (1.0, 5.0), (2.5, 3.5), (3.5, 1.25)], {}),  # at varied ages
        ([(0.5, 5.0), (1.0, 5.0), (2.5, 5.0), (3.5, 5.0)], {"up_by": "service"}),  # the engine ended them
    ],
)
def test_does_not_blame_a_gateway_for_ends_that_are_not_its_own_clock(ages, ends):
    assert convicted(cut_at(ages, **ends))[0] != "fault"


def test_does_not_take_whole_answers_of_one_length_for_cuts_when_the_relay_keeps_no_connection():
    scene = cut_at([(0.5, 5.0), (1.0, 5.0), (2.5, 5.0), (3.5, 5.0)])
    scene.connections = [c for c in scene.connections if len(c.samples) < 2 or c.samples[0].t_s != 6.5 or c.ours]
    ended(scene, "proxy", "engine", asked=6.5, last=6.75, by="caller", response=1300)
    assert convicted(scene)[0] != "fault"


def given_up(scene, starts, *, age=3.0):
    for start in starts:
        ended(scene, "proxy", "engine", asked=start, last=start + age, by="caller", response=0)
        scene.link("client", "proxy", {start: (SOME, 0), start + age: (SOME, 150)})
    return scene


def test_convicts_a_gateway_that_gives_up_on_late_first_bytes():
    scene = given_up(Scenery(PLAIN), (0.5, 1.5, 2.5, 3.5))
    scene.probe("proxy", "http_403", total=3.0, tokens=0).probe("engine", total=4.4)
    scene.probes[-1] = replace(scene.probes[-1], first_byte_s=4.0)
    assert convicted(scene) == ("fault", "proxy", "gateway.idle_timeout_before_first_byte")


def test_does_not_blame_a_correct_time_out_before_an_engine_that_hangs_at_times():
    scene = (
        given_up(Scenery(PLAIN), (0.5, 1.5, 2.5, 3.5)).streaming(2, "client", "proxy").streaming(2, "proxy", "engine")
    )
    scene.probe("proxy").probe("engine")
    assert convicted(scene)[0] != "fault"


def sized(scene, sizes, *, most=None, handed_on=True):
    """Requests one after the other on one connection; those over *most* bytes are answered by the relay itself."""
    down, up, came, left, went, got = {}, {}, 0, 0, 0, 0
    for i, size in enumerate(sizes):
        t = 0.5 + i
        refused = most is not None and size > most
        came += size
        down[t] = (came, went)
        if not refused and handed_on:
            left += size
            up[t] = (left, got)
            got += 1800
            up[t + 0.25] = (left, got)
        went += 150 if refused else 1800
        down[t + (0.0 if refused else 0.25)] = (came, went)
    scene.link("client", "proxy", down)
    return scene.link("proxy", "engine", up) if up else scene


def test_convicts_a_relay_that_refuses_large_bodies():
    scene = sized(Scenery(PLAIN), [3000, 90_000, 40_000, 120_000, 8000, 200_000, 20_000, 100_000], most=65536)
    assert convicted(scene.probe("proxy").probe("engine")) == ("fault", "proxy", "proxy.body_truncation")


def test_does_not_take_several_that_left_one_after_the_other_for_a_large_one_that_was_handed_on():
    scene = sized(Scenery(PLAIN), [3000, 90_000, 40_000, 120_000, 8000, 110_000, 20_000, 100_000], most=65536)
    asked = {0.5 * i: (60_000 * (i + 1), 1800 * i) for i in range(20)}
    answered = {0.5 * i + 0.25: (60_000 * (i + 1), 1800 * (i + 1)) for i in range(20)}
    for hop in (("client", "proxy"), ("proxy", "engine")):
        scene.link(*hop, asked | answered)
    assert convicted(scene.probe("proxy").probe("engine")) == ("fault", "proxy", "proxy.body_truncation")


def test_does_not_blame_a_relay_that_hands_large_bodies_on():
    scene = sized(Scenery(PLAIN), [3000, 90_000, 40_000, 120_000, 8000, 200_000, 20_000, 100_000])
    assert convicted(scene.probe("proxy").probe("engine"))[0] == "healthy"


def test_does_not_blame_a_relay_that_refuses_whatever_the_size():
    scene = sized(Scenery(PLAIN), [30_000, 90_000, 40_000, 120_000, 80_000])
    sized(scene, [31_000, 91_000, 41_000, 121_000, 81_000], most=1)
    assert convicted(scene.probe("proxy").probe("engine"))[0] != "fault"


def test_convicts_a_relay_that_loses_every_event_of_a_stream_it_calls_complete():
    scene = Scenery(PLAIN).probe("proxy", "truncated", tokens=0).probe("engine")
    scene.probes[-2] = replace(scene.probes[-2], n_events=0, body_complete=True, response_bytes=85)
    assert convicted(scene) == ("fault", "proxy", "proxy.sse_reframing")


def churning(scene, n):
    for i in range(6):
        ended(scene, "proxy", "engine", asked=0.5 + i, last=0.75 + i, by="caller")
    host = HostFacts(ephemeral_ports=28_232, n_time_wait=n, time_wait_to={f"127.0.0.1:{PORTS['engine']}": n})
    return scene, host


def test_convicts_a_relay_that_has_used_up_the_ports():
    scene, host = churning(Scenery(PLAIN).probe("proxy", "http_502", total=0.01, tokens=0), 28_100)
    assert convicted(scene, host_facts=host) == ("fault", "proxy", "proxy.ephemeral_port_churn")


def test_does_not_blame_a_busy_relay_with_many_short_connections():
    scene, host = churning(Scenery(PLAIN).probe("proxy").probe("engine"), 6000)
    assert convicted(scene, host_facts=host)[0] == "healthy"


def silenced(scene, starts, *, by="service", up_by="caller", silence=1.0):
    """Answers that began at once and were closed after a silence, on both sides."""
    for start in starts:
        for caller, callee, who in (("client", "proxy", by), ("proxy", "engine", up_by)):
            n = round(silence / 0.25) + 1
            scene.link(caller, callee, {start: (SOME, 350)}, closed=n)
            for index in (-2, -1):
                made = scene.connections[index]
                mine = (made.id.startswith("s") and who == "service") or (made.id.startswith("c") and who == "caller")
                states = [replace(made.samples[-1], state="CLOSE")]
                if mine:
                    states.append(replace(states[0], state="TIME_WAIT", last_rx_age_s=None, last_tx_age_s=None))
                scene.connections[index] = replace(made, samples=(*made.samples[:-1], *states))
    return scene


def cut_probe(scene, target, after, **said):
    scene.probe(target, "truncated", total=after, tokens=1)
    scene.probes[-1] = replace(scene.probes[-1], first_byte_s=0.01, gaps_s=(), **said)
    return scene


def slow_probe(scene, target):
    scene.probe(target, "stalled", total=8.0, tokens=5)
    times = (0.1, 1.7, 3.3, 4.9, 6.5)
    scene.probes[-1] = replace(scene.probes[-1], token_times_s=times, first_byte_s=0.1, gaps_s=(1.6,) * 4)
    return scene


STARTS = (0.5, 1.0, 2.5, 3.5, 5.0)


def test_convicts_a_proxy_that_cuts_each_stream_after_one_silence_before_an_engine_of_slow_tokens():
    scene = slow_probe(cut_probe(silenced(Scenery(PLAIN), STARTS), "proxy", 1.0), "engine")
    assert convicted(scene) == ("fault", "proxy", "proxy.cuts_streams")


@pytest.mark.parametrize("ends", [{"by": "caller"}, {"up_by": "service"}, {"silence": 3.0}])
def test_does_not_blame_a_proxy_on_one_cut_of_ours_where_the_users_streams_end_otherwise(ends):
    scene = slow_probe(cut_probe(silenced(Scenery(PLAIN), STARTS, **ends), "proxy", 1.0), "engine")
    assert convicted(scene)[0] == "undetermined"


def test_a_proxy_that_closes_idle_connections_after_a_while_is_healthy():
    scene = silenced(Scenery(PLAIN), STARTS).probe("proxy").probe("engine")
    assert convicted(scene)[0] == "healthy"


def test_takes_no_starved_pool_for_granted_where_other_requests_find_a_connection_upstream():
    scene = Scenery(PLAIN).figures("engine").waiting(6, "client", "proxy", since=20).probe("proxy", "no_headers")
    scene.probe("engine")
    assert convicted(scene)[2] == "proxy.connector_starvation"
    scene.link(
        "proxy", "engine", {0.0: (200, 300), 6.5: (350, 600)}, before=(20.0, 20.0)
    )  # pages that we read through it
    assert convicted(scene) == ("fault", "proxy", "unknown")


def broken_off(scene, starts, *, by="service", response=240):
    for start in starts:
        ended(scene, "proxy", "engine", asked=start, last=start + 0.25, by=by, response=response)
    return scene


@pytest.mark.parametrize("response", [240, 0])
def test_convicts_an_engine_that_breaks_answers_off_by_its_callers_sockets_and_a_probe_straight_to_it(response):
    scene = broken_off(Scenery(PLAIN), STARTS, response=response)
    cut_probe(cut_probe(scene, "proxy", 0.01), "engine", 0.01)
    assert convicted(scene) == ("fault", "engine", "engine.cuts_streams")


def test_an_engine_whose_whole_answers_only_lack_their_last_event_breaks_nothing_off():
    scene = broken_off(Scenery(PLAIN), STARTS)
    cut_probe(cut_probe(scene, "proxy", 0.01, body_complete=True), "engine", 0.01, body_complete=True)
    assert convicted(scene)[0] == "undetermined"


@pytest.mark.parametrize("used_again", [False, True])
def test_what_came_for_a_stopped_stream_counts_also_where_its_connection_has_been_used_again_since(used_again):
    """By a scrape or a probe of ours that passed through the relay, as a rule."""
    scene = Scenery(PLAIN).figures("engine").probe("proxy").probe("engine")
    for n in range(4):
        since = 20.0 + n
        scene.link("client", "proxy", {0.0: (500, 2700)}, before=(since, since - 0.5))
        came = {0.0: (600, 13_900)} | ({4.0: (750, 13_900), 4.25: (750, 14_200)} if used_again else {})
        scene.link("proxy", "engine", came, before=(since, since - 3.0))
    diagnosis = judge(scene.capture())
    assert (diagnosis.service, diagnosis.mechanism) == ("proxy", "proxy.drop_stream")
    assert any("of 4 streams and stopped" in finding.text for finding in diagnosis.findings)
