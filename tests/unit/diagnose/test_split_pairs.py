"""A split pair whose sides answer apart: who refuses its leg, who keeps its answer, and what one side alone proves of the other."""

from dataclasses import replace

import pytest

from fakes.captures import PORTS, Scenery
from vindicate.diagnose.judge import judge
from vindicate.diagnose.ladder import ladder_of
from vindicate.record.observation import MetricValue, ProbeResult, Scrape


def verdict(capture):
    diagnosis = judge(capture)
    return diagnosis.status, diagnosis.layer, diagnosis.service


def leg(name, error=None, **more):
    """A request of ours to one side of the pair alone."""
    total = 8.0 if error == "no_headers" else 0.1
    made = ProbeResult(
        target=name, shape="leg", covers=(name,), t_s=3.5, total_s=total, deadline_s=8.0, terminated=error is None, error=error
    )  # fmt: skip
    return replace(made, **more)


def with_probes(capture, *probes):
    return replace(capture, probes=(*capture.probes, *probes))


# ---- one side refuses its leg ----------------------------------------------------------------------------------------


def waiting_for_decode(error, **said):
    """The router waits for prefill, prefill holds the KV ready, and decode refused each of these requests long ago."""
    scene = Scenery().waiting(6, "client", "proxy").waiting(6, "proxy", "router").waiting(6, "router", "prefill")
    scene.silent(2, "router", "decode")
    scene.figures("prefill", prefill_inflight=6).figures("decode")
    scene.probe("proxy", "no_headers").probe("router", "no_headers").forwarded("proxy", "router", "prefill")
    scene.probe("decode", error, total=0.01, tokens=0, legs={"prefill": "no_headers", "decode": error})
    scene.probes[-1] = replace(scene.probes[-1], n_events=0, **said)
    return scene.capture()


@pytest.mark.parametrize("error", ["http_500", "reset"])
def test_convicts_the_side_that_refuses_its_leg_and_not_the_one_that_waits_with_the_other(error):
    assert verdict(waiting_for_decode(error)) == ("fault", "decode", "decode")


def test_an_error_that_speaks_of_the_other_side_convicts_nobody():
    capture = waiting_for_decode(
        "http_500", detail='{"error": "KVTransferError: bootstrap server of the peer is gone"}'
    )
    assert verdict(capture)[0] == "undetermined"


def test_a_refusal_that_took_its_time_convicts_nobody():
    assert verdict(waiting_for_decode("http_500", total_s=6.0))[0] == "undetermined"


def test_convicts_a_prefill_that_refuses_its_leg_while_decode_waits_for_it():
    scene = Scenery().waiting(6, "client", "proxy").waiting(6, "proxy", "router").waiting(6, "router", "decode")
    scene.silent(2, "router", "prefill")
    scene.figures("decode", decode_prealloc=6).figures("prefill")
    scene.probe("proxy", "no_headers").probe("router", "no_headers").forwarded("proxy", "router", "decode")
    scene.probe("decode", "no_headers", legs={"prefill": "http_500", "decode": "no_headers"})
    assert verdict(scene.capture()) == ("fault", "prefill", "prefill")


# ---- prefill keeps its answer ----------------------------------------------------------------------------------------


def kept_by_prefill(prefill_leg):
    scene = Scenery().idle_engines().waiting(6, "client", "proxy", since=12).waiting(6, "proxy", "router", since=12)
    scene.waiting(6, "router", "prefill", since=12).silent(6, "router", "decode", since=12, unread=900)
    scene.probe("proxy", "no_headers").probe("router", "no_headers").forwarded("proxy", "router", "prefill")
    scene.probe("decode", total=0.2, legs={"prefill": prefill_leg, "decode": None})
    return scene.capture()


def test_convicts_a_prefill_that_never_answers_its_leg_though_decode_answered_all():
    assert verdict(kept_by_prefill("no_headers")) == ("fault", "prefill", "prefill")


def test_a_pair_whose_legs_both_answered_clears_both():
    good = ladder_of(kept_by_prefill(None))
    assert good.proven("prefill")
    assert good.proven("decode")
    apart = ladder_of(kept_by_prefill("no_headers"))
    assert not apart.proven("prefill")
    assert apart.proven("decode")


# ---- one side asked alone --------------------------------------------------------------------------------------------


def pair_by_turns(*, decode_leg=None, prefill_leg=None, router="no_headers", detail=""):
    """A router that asks prefill first and then decode, both of which answer plain requests, too."""
    chain = {"router": ("prefill", "decode"), "prefill": (), "decode": ()}
    scene = Scenery(chain).figures("prefill", prefix="vllm:").figures("decode", prefix="vllm:")
    scene.probe("router", router)
    scene.probes[-1] = replace(scene.probes[-1], detail=detail, n_tokens=0)
    return scene, (leg("decode", decode_leg), leg("prefill", prefill_leg))


def test_convicts_the_side_that_answers_errors_with_what_the_router_counted_of_it():
    scene, probes = pair_by_turns(decode_leg="http_500", router="http_500")
    labels = (("worker", f"http://127.0.0.1:{PORTS['decode']}"),)
    for t, n in ((0.1, 40.0), (9.7, 90.0)):
        values = (MetricValue(name="vllm_router_pd_decode_errors_total", labels=labels, value=n),)
        page = Scrape(service="router", kind="metrics", url="u", t_s=t, took_s=0.01, status=200, values=values)
        scene.scrapes.append(page)
    assert verdict(with_probes(scene.capture(), *probes)) == ("fault", "decode", "decode")


def test_convicts_the_side_that_drops_requests_with_the_routers_word_for_it():
    url = f"http://127.0.0.1:{PORTS['decode']}/v1/chat/completions"
    scene, probes = pair_by_turns(
        decode_leg="reset", router="http_500", detail=f"Network error: request to {url}: failed"
    )
    assert verdict(with_probes(scene.capture(), *probes)) == ("fault", "decode", "decode")


def test_an_error_of_a_router_that_names_a_side_which_answers_us_speaks_against_nobody_below():
    url = f"http://127.0.0.1:{PORTS['decode']}/v1/chat/completions"
    scene, probes = pair_by_turns(router="http_500", detail=f"Network error: request to {url}: failed")
    good = replace(leg("decode"), shape="pd_pair", covers=("decode", "prefill"))
    diagnosis = judge(with_probes(scene.capture(), *probes, good))
    assert {one.service for one in diagnosis.suspects} | {diagnosis.service} <= {"router", None}


def test_two_sides_that_compute_alone_prove_nothing_of_the_way_between_them():
    scene, probes = pair_by_turns()
    stuck = replace(leg("decode", "no_headers"), shape="pd_pair", covers=("decode", "prefill"))
    found = ladder_of(with_probes(scene.capture(), *probes, stuck))
    assert found.alone == {"prefill", "decode"}
    assert not found.proven("prefill")
    assert not found.proven("decode")
    assert found.suspects == {"prefill", "decode"}


# ---- a relay whose calls are nobody's --------------------------------------------------------------------------------


def test_a_router_does_not_hold_what_the_side_below_it_owes_to_a_caller_nobody_could_name():
    chain = {"router": ("prefill", "decode"), "prefill": (), "decode": ()}
    scene = Scenery(chain).waiting(8, "client", "router", since=20)
    held = scene.capture()
    assert verdict(held)[2] == "router"  # as long as nobody below owes anything
    scene.links(8, "router", "prefill", {0.0: (700, 0)}, before=(20.0, None), hidden_caller=True)
    assert verdict(scene.capture())[2] != "router"
