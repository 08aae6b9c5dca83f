"""When "healthy" may be said: not of streams that stand still unexplained, nor by one that hardly looked; and idle is called idle."""

import pytest

from fakes.captures import PLAIN, Scenery
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
    from dataclasses import replace

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
