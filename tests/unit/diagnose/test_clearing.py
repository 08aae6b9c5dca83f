"""Clearing is as strict as convicting: idle is not innocent, and what may still be owed is not cleared."""

import pytest

from fakes.captures import KNOB, Scenery
from vindicate.diagnose.judge import judge
from vindicate.record.observation import MetricValue, Scrape


def starved(scene=None):
    scene = scene or Scenery().idle_engines()
    return scene.waiting(8, "client", "proxy").probe("proxy", "no_headers").probe("router").probe("decode")


def cleared(scene):
    diagnosis = judge(scene.capture())
    assert diagnosis.service == "proxy", diagnosis.summary
    return {clearance.service: clearance for clearance in diagnosis.cleared}


def test_clears_all_below_a_starved_proxy_when_all_that_is_asked_of_them_is_shown():
    assert set(cleared(starved())) == {"router", "prefill", "decode"}
    assert cleared(starved())["decode"].knobs == (KNOB,)


def test_does_not_clear_decode_that_still_owes_somebody():
    assert "decode" not in cleared(starved().waiting(1, "router", "decode"))


def test_does_not_clear_decode_with_an_http_answer_unfinished_though_it_is_idle():
    assert "decode" not in cleared(starved(Scenery().figures("prefill").figures("decode", http=1)))


def test_does_not_clear_decode_without_figures_when_a_begun_answer_stands_open():
    assert "decode" not in cleared(starved(Scenery().figures("prefill")).silent(1, "router", "decode"))


def test_does_not_take_the_word_of_decode_that_it_is_done_while_begun_answers_stand_open():
    assert "decode" not in cleared(starved().silent(2, "router", "decode"))


def test_clears_decode_with_connections_kept_alive_when_its_caller_awaits_nothing_from_it():
    assert "decode" in cleared(starved().silent(2, "router", "decode").awaiting("router", "decode", 0))


def test_does_not_clear_decode_while_its_caller_awaits_answers_from_it():
    assert "decode" not in cleared(starved().awaiting("router", "decode", 2))


def test_does_not_clear_decode_with_requests_in_work_that_do_not_move():
    assert "decode" not in cleared(starved(Scenery().figures("prefill").figures("decode", running=1)))


def test_does_not_clear_decode_when_one_of_its_probes_failed():
    assert "decode" not in cleared(starved().probe("decode", "no_end", t=6.0))


def test_clears_nobody_without_probes():
    scene = Scenery().idle_engines().waiting(8, "client", "proxy").silent(4, "proxy", "router", since=60)
    assert cleared(scene) == {}


@pytest.mark.parametrize(
    ("error", "hazard"), [("refused", "refusing or failing requests"), ("no_headers", "stalling streams at this load")]
)
def test_names_the_hazard_by_what_the_guilty_one_does(error, hazard):
    scene = Scenery().idle_engines().probe("proxy", error).probe("router").probe("decode")
    if error == "refused":
        scene.dead("proxy")
    assert {clearance.of for clearance in cleared(scene).values()} == {hazard}


def counts_itself(scene, n, *, port=8000):
    """The router's page on *port*: nothing awaited below, *n* HTTP exchanges, the reading of this page among them."""
    workers = [
        MetricValue(name="smg_worker_requests_active", labels=(("worker", f"http://127.0.0.1:{p}"),), value=0.0)
        for p in (30000, 30001)
    ]
    values = (*workers, MetricValue(name="smg_http_connections_active", labels=(), value=n))
    url = f"http://127.0.0.1:{port}/metrics"
    scene.scrapes += [
        Scrape(service="router", kind="metrics", url=url, t_s=t, took_s=0.01, status=200, values=values)
        for t in (0.1, 3.3, 9.7)
    ]
    return scene.silent(4, "proxy", "router", since=60)


def test_clears_a_router_whose_only_unfinished_exchange_is_our_reading_of_its_page():
    assert "router" in cleared(counts_itself(starved(), 1.0))


def test_does_not_clear_a_router_with_an_exchange_unfinished_beside_our_reading():
    assert "router" not in cleared(counts_itself(starved(), 2.0))
    assert "router" not in cleared(counts_itself(starved(), 1.0, port=29000))
