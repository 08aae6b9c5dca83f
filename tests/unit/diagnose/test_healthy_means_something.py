"""When "healthy" may be said: not of streams that stand still unexplained, nor by one that hardly looked; and idle is called idle."""

from dataclasses import replace

import pytest

from fakes.captures import PLAIN, SOME, Scenery
from vindicate.diagnose.judge import judge

PASSED_ON = {3.5: (500, 0), 3.75: (500, 1300)}


def silent_streams():
    scene = Scenery(PLAIN).silent(4, "client", "proxy").silent(4, "proxy", "engine")
    return scene.probe("proxy").probe("engine")


def test_streams_that_a_relay_still_uses_and_that_stand_still_are_not_called_healthy():
    scene = silent_streams().link("proxy", "engine", PASSED_ON)  # our probe, on a new connection past four silent ones
    diagnosis = judge(scene.capture())
    assert (diagnosis.status, diagnosis.service) == ("undetermined", None)
    assert "4 older ones stood silent" in diagnosis.summary
    assert any("metrics" in text and "--client-pid" in text for text in diagnosis.next)


def test_idle_connections_are_healthy_where_the_relay_uses_one_of_them_again():
    scene = silent_streams()
    scene.link("proxy", "engine", {0.0: (500, 6000), 3.5: (1000, 6000), 3.75: (1000, 7300)}, before=(35.0, 30.0))
    assert judge(scene.capture()).status == "healthy"


def test_idle_connections_are_healthy_beside_a_new_one_where_the_engine_says_that_it_is_done():
    scene = silent_streams().link("proxy", "engine", PASSED_ON).figures("engine")
    assert judge(scene.capture()).status == "healthy"


def test_idle_connections_of_one_worker_process_say_nothing_of_another():
    scene = silent_streams()
    capture = scene.link("us", "engine", PASSED_ON).capture()  # a process that has no older connection
    assert judge(capture).status == "healthy"


@pytest.mark.parametrize(("n_looks", "status"), [(9, "undetermined"), (15, "healthy"), (41, "healthy")])
def test_who_hardly_looked_does_not_say_healthy(n_looks, status):
    diagnosis = judge(Scenery().idle_engines().probe("proxy").probe("router").probe("decode").capture(n_looks=n_looks))
    assert diagnosis.status == status
    assert status == "healthy" or any("less busy" in text for text in diagnosis.next)


def test_a_chain_without_traffic_is_called_idle_in_so_many_words():
    diagnosis = judge(Scenery().idle_engines().probe("proxy").probe("router").probe("decode").capture())
    assert "no client asked for anything in these 10 s" in diagnosis.summary


def test_a_dead_address_of_which_nothing_is_known_is_not_called_an_engine():
    scene = Scenery({"engine": ()}).dead("engine").probe("engine", "refused")
    capture = scene.capture()
    nameless = replace(
        capture,
        entry="pid:unknown:30002",
        services=tuple(replace(s, name="pid:unknown:30002") for s in capture.services if not s.client),
        scrapes=tuple(replace(s, service="pid:unknown:30002") for s in capture.scrapes),
        probes=tuple(replace(p, target="pid:unknown:30002", covers=("pid:unknown:30002",)) for p in capture.probes),
    )
    diagnosis = judge(nameless)
    assert (diagnosis.status, diagnosis.layer, diagnosis.service) == ("fault", "none", "pid:unknown:30002")
    assert "(engine)" not in diagnosis.summary


def served(scene, n=4):
    """Answers of more than an error flow to the clients, all the way."""
    for hop in (("client", "proxy"), ("proxy", "router"), ("router", "decode")):
        scene.streaming(n, *hop)
    return scene.figures("prefill", tokens=300).figures("decode", running=n, http=n, tokens=500)


@pytest.mark.parametrize(("error", "status"), [("no_headers", "healthy"), ("http_500", "undetermined")])
def test_a_request_of_ours_that_waits_may_wait_its_turn_and_one_that_fails_says_that_something_is_wrong(error, status):
    scene = served(Scenery()).probe("proxy", error).probe("router", error).probe("decode")
    scene.probes[:2] = [replace(p, covers=("proxy", "router")) for p in scene.probes[:2]]
    assert judge(scene.capture()).status == status


@pytest.mark.parametrize(("size", "status"), [(460, "undetermined"), (5000, "healthy")])
def test_errors_that_flow_to_the_clients_are_no_answers(size, status):
    scene = Scenery(PLAIN)
    for hop in (("client", "proxy"), ("proxy", "engine")):
        scene.links(4, *hop, {4.0: (SOME, 0)})
    rounds = {3.0: (SOME, 0), 3.25: (SOME, size), 9.0: (2 * SOME, size), 9.25: (2 * SOME, 2 * size)}
    for hop in (("client", "proxy"), ("proxy", "engine")):
        scene.links(4, *hop, rounds)
    scene.probe("proxy", "no_headers").probe("engine", "no_headers")
    assert judge(scene.capture()).status == status


@pytest.mark.parametrize(("working", "status"), [("prefill", "undetermined"), ("decode", "healthy")])
def test_a_prefill_that_works_while_decode_gives_nobody_a_token_is_not_called_busy(working, status):
    scene = Scenery()
    scene.hidden = {"proxy", "router", "prefill", "decode"}
    for name in ("prefill", "decode"):
        scene.figures(name, tokens=300 if name == working else 0)
    assert judge(scene.probe("proxy", "no_headers").capture()).status == status


def asked_again_just_now(**changes):
    """Twelve requests run; three of them were asked for at the very end, and of their answers one piece has come."""
    scene = Scenery(PLAIN).figures("engine", running=12, http=12, tokens=500).probe("proxy").probe("engine")
    for hop in (("client", "proxy"), ("proxy", "engine")):
        scene.streaming(9, *hop)
        scene.links(3, *hop, {0.0: (SOME, 500), 9.75: (2 * SOME, 500), 10.0: (2 * SOME, 740)}, before=(3.0, 0.1))
    return scene.silent(1, "client", "proxy").silent(1, "proxy", "engine").capture(**changes)


def test_streams_that_have_just_begun_are_not_taken_for_streams_that_stand_still():
    assert judge(asked_again_just_now()).status == "healthy"


def test_who_hardly_looked_says_nothing_of_streams_that_stand_still():
    scene = Scenery(PLAIN).figures("engine", running=4, http=4, tokens=500).probe("proxy").probe("engine")
    scene.silent(4, "client", "proxy").silent(4, "proxy", "engine")
    assert judge(scene.capture(n_looks=41)).suspects
    assert not judge(scene.capture(n_looks=2)).suspects


def test_one_that_begins_every_answer_and_stops_serves_nobody():
    scene = Scenery().figures("prefill").figures("decode", running=5)
    scene.scrapes = [
        replace(s, values=tuple(m for m in s.values if "inter_token" not in m.name)) for s in scene.scrapes
    ]
    for hop in (("client", "proxy"), ("proxy", "router"), ("router", "decode")):
        scene.silent(4, *hop).link(*hop, {9.25: (SOME, 0), 9.5: (SOME, 900)})  # one who came later met the same
    scene.probe("proxy", "stalled").probe("router", "stalled")
    scene.probe("decode", "stalled", legs={"prefill": None, "decode": "stalled"})
    assert judge(scene.capture()).service == "decode"


@pytest.mark.parametrize(("again", "status"), [(None, "undetermined"), ("http_504", "fault")])
def test_one_whose_errors_come_and_go_is_not_called_unfit(again, status):
    scene = Scenery(PLAIN).health("proxy", 504).probe("proxy", "http_504", total=0.01).probe("engine")
    assert judge(scene.probe("proxy", again, t=5.0).capture()).status == status


def left_standing(*, in_work, later=6):
    """Three requests that wait at the proxy and the engine from the first second on, while later ones are answered in half a second."""
    scene = Scenery(PLAIN)
    for hop in (("client", "proxy"), ("proxy", "engine")):
        scene.links(3, *hop, {1.0: (SOME, 0)})
        for n in range(later):
            scene.link(*hop, {2.5 + n: (SOME, 0), 3.0 + n: (SOME, 6000)})
    if in_work is not None:
        scene.figures("engine", running=in_work, tokens=200)
    return judge(scene.probe("proxy").probe("engine").capture())


@pytest.mark.parametrize(("in_work", "status"), [(3, "healthy"), (0, "undetermined"), (None, "undetermined")])
def test_requests_that_later_ones_overtook_leave_a_chain_healthy_only_where_the_engines_have_them_in_work(
    in_work, status
):
    diagnosis = left_standing(in_work=in_work)
    assert diagnosis.status == status, diagnosis.summary
    assert ("came later were answered" in diagnosis.summary) is (status == "undetermined")


def test_a_wait_that_nobody_overtook_is_no_open_question_by_itself():
    assert "came later" not in left_standing(in_work=None, later=0).summary
