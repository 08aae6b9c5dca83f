"""Streams that get signs of life and nothing else: whose making these are, and what may be said of it."""

from dataclasses import replace

import pytest

from fakes.captures import PLAIN, Scenery
from vindicate.diagnose.judge import judge

BEATS = {0.0: (500, 6000), **{t: (500, 6000 + 13 * round(t)) for t in (1.0, 3.0, 5.0, 7.0, 9.0)}}


def beating(*, from_below=False, at_work=False):
    """Three streams of the proxy with heartbeats of 13 bytes; below it they are over, or beat too, or wait for a long prefill."""
    scene = Scenery(PLAIN).figures("engine", running=3.0 if at_work else 0.0)
    scene.links(3, "client", "proxy", BEATS, before=(30.0, 1.0))
    if from_below:
        return scene.links(3, "proxy", "engine", BEATS, before=(30.0, 1.0))
    return scene.waiting(3, "proxy", "engine") if at_work else scene.silent(3, "proxy", "engine")


def test_no_chain_is_healthy_that_keeps_streams_awake_for_which_nobody_is_at_work():
    diagnosis = judge(beating().probe("proxy").probe("engine").capture())
    assert (diagnosis.status, diagnosis.suspects) == ("undetermined", ())
    assert "3 streams of proxy got nothing but small signs of life" in diagnosis.summary


@pytest.mark.parametrize("scene", [beating(from_below=True), beating(at_work=True)], ids=["from below", "at work"])
def test_signs_of_life_from_below_or_while_an_engine_works_raise_no_doubt(scene):
    diagnosis = judge(scene.probe("proxy").probe("engine").capture())
    assert "signs of life" not in diagnosis.summary
    assert diagnosis.status != "fault"


def test_the_proxy_is_named_where_one_of_several_requests_of_ours_came_to_it_whole_and_was_not_ended():
    scene = beating().probe("proxy", "no_end").probe("proxy", t=4.5).probe("engine")
    scene.forwarded("proxy", "engine", answered=True).forwarded("proxy", "engine", answered=True, t=4.5)
    diagnosis = judge(scene.capture())
    assert (diagnosis.service, diagnosis.mechanism) == ("proxy", "stream.missing_done_masked_by_heartbeat")


def test_and_not_where_less_came_to_it_than_a_whole_answer():
    scene = beating().probe("proxy", "no_end").probe("proxy", t=4.5).probe("engine")
    scene.link("proxy", "engine", {3.5: (500, 0), 3.75: (500, 700)}).forwarded("proxy", "engine", answered=True, t=4.5)
    assert judge(scene.capture()).status == "undetermined"


def test_the_proxy_is_named_where_the_user_says_that_the_client_of_these_streams_hangs():
    capture = beating().probe("proxy").probe("engine").capture()
    hangs = tuple(replace(one, said_to_hang=one.client) for one in capture.services)
    diagnosis = judge(replace(capture, services=hangs))
    assert (diagnosis.service, diagnosis.mechanism) == ("proxy", "stream.missing_done_masked_by_heartbeat")
