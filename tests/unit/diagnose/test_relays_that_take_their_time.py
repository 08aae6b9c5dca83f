"""Relays in which requests wait though nothing below is in their way, and queues that only look so."""

import pytest

from fakes.captures import PLAIN, Scenery
from vindicate.diagnose.judge import judge

ASKED = 0.5


def late(*, inside_s, meanwhile=0):
    """Three rounds of a client through a relay that keeps each for *inside_s*; *meanwhile*: others that flow upstream all the time."""
    scene = Scenery(PLAIN)
    for start in (ASKED, ASKED + 3.0, ASKED + 6.0):
        asks, answered = start + inside_s, start + inside_s + 0.25
        scene.link("client", "proxy", {start: (500, 0), answered: (500, 900)})
        scene.link("proxy", "engine", {asks: (500, 0), answered: (500, 900)})
    if meanwhile:
        scene.streaming(meanwhile, "client", "proxy").streaming(meanwhile, "proxy", "engine")
    scene.figures("engine", tokens=20).probe("proxy", total=inside_s + 0.3).probe("engine", total=0.3)
    return judge(scene.capture())


def test_convicts_a_relay_that_keeps_requests_while_it_asks_nobody():
    diagnosis = late(inside_s=2.25)
    assert (diagnosis.status, diagnosis.service, diagnosis.mechanism) == ("fault", "proxy", "proxy.slow_to_pass_on")


@pytest.mark.parametrize(
    "way", [{"inside_s": 0.25}, {"inside_s": 2.25, "meanwhile": 3}], ids=["quick", "busy upstream"]
)
def test_accuses_no_relay_that_is_quick_or_has_others_under_way(way):
    assert late(**way).status == "healthy"


def capped(*, since, room=True):
    scene = (
        Scenery(PLAIN)
        .links(3, "client", "proxy", flow(), before=(60.0, 0.1))
        .links(3, "proxy", "engine", flow(), before=(60.0, 0.1))
    )
    scene.waiting(2, "client", "proxy", since=since).probe("proxy", "no_headers")
    return judge((scene.probe("engine") if room else scene.probe("engine", "no_headers")).capture())


def flow():
    return {i * 0.25: (500, 500 + 240 * i) for i in range(41)}


def test_convicts_a_limit_only_when_nobody_was_let_in_for_long_and_there_is_room_below():
    long = capped(since=50.0)
    assert (long.status, long.service, long.mechanism) == ("fault", "proxy", "gateway.h2_stream_cap")
    assert capped(since=5.0).status == "healthy"
    assert capped(since=50.0, room=False).mechanism != "gateway.h2_stream_cap"


def test_a_shorter_wait_at_a_limit_is_told_and_accuses_nobody():
    told = [f.text for f in capped(since=5.0).findings if f.direction == "neutral"]
    assert any("2 requests waited in proxy" in text for text in told)


def test_says_where_most_of_a_slow_answer_passes():
    assert "most of that time passes above it" in late(inside_s=2.25, meanwhile=3).summary
