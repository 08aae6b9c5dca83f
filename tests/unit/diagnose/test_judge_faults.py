"""Every kind of fault, as a capture built by hand, gets its verdict, from two kinds of evidence at least."""

from dataclasses import replace

import pytest

from fakes.captures import KNOB, PLAIN, Scenery
from vindicate.diagnose.catalogue import CATALOGUE
from vindicate.diagnose.judge import judge


def verdict_of(scenery, **changes):
    diagnosis = judge(scenery.capture(**changes))
    if diagnosis.status == "fault":
        kinds = {f.kind for f in diagnosis.findings if f.service == diagnosis.service and f.direction == "implicates"}
        assert len(kinds) >= 2, kinds
        assert diagnosis.confidence >= 0.8
    return diagnosis


def convicted(diagnosis):
    return diagnosis.status, diagnosis.layer, diagnosis.service, diagnosis.mechanism


def knobs_cleared(diagnosis):
    return {knob for clearance in diagnosis.cleared for knob in clearance.knobs}


def starved(*, pinned):
    scene = Scenery().idle_engines().waiting(8, "client", "proxy")
    if pinned:
        scene.silent(4, "proxy", "router", since=60, unread=900)
    scene.probe("proxy", "no_headers").probe("router").probe("decode").forwarded("router", "decode", answered=True)
    return scene


def stalled_decode(scene, error="stalled"):
    scene.silent(8, "client", "proxy").silent(8, "proxy", "router").silent(8, "router", "decode").silent(
        8, "router", "prefill"
    )
    return (
        scene.probe("proxy", error)
        .probe("router", error)
        .probe("decode", error, legs={"prefill": None, "decode": error})
    )


@pytest.mark.parametrize("pinned", [True, False])
def test_convicts_a_proxy_that_holds_requests_with_sockets_pinned_or_none_at_all(pinned):
    diagnosis = verdict_of(starved(pinned=pinned))
    assert convicted(diagnosis) == ("fault", "proxy", "proxy", "proxy.connector_starvation")
    assert diagnosis.confidence >= 0.95


@pytest.mark.parametrize("pinned", [True, False])
def test_clears_decode_and_its_knob_of_stalling_streams_when_the_proxy_starves(pinned):
    diagnosis = verdict_of(starved(pinned=pinned))
    clearance = next(c for c in diagnosis.cleared if c.service == "decode")
    assert clearance.knobs == (KNOB,)
    assert clearance.of == "stalling streams at this load"
    assert "end of stream included" in clearance.because


def test_convicts_a_starved_proxy_whose_callers_have_all_given_up_from_our_own_probe_alone():
    scene = Scenery().idle_engines().probe("proxy", "no_headers").probe("router").probe("decode")
    assert convicted(verdict_of(scene))[2:] == ("proxy", "proxy.connector_starvation")


def test_convicts_a_starved_proxy_without_probes_and_with_less_confidence():
    scene = Scenery().idle_engines().waiting(8, "client", "proxy").silent(4, "proxy", "router", since=60)
    diagnosis = verdict_of(scene)
    assert convicted(diagnosis)[2:] == ("proxy", "proxy.connector_starvation")
    assert diagnosis.confidence <= 0.88
    assert not knobs_cleared(diagnosis)


def test_convicts_a_starved_proxy_when_no_service_shows_metrics():
    scene = Scenery().waiting(8, "client", "proxy").probe("proxy", "no_headers").probe("router").probe("decode")
    assert convicted(verdict_of(scene))[1:3] == ("proxy", "proxy")


def test_convicts_a_starved_proxy_in_front_of_a_plain_engine():
    scene = Scenery(PLAIN).waiting(5, "client", "proxy").probe("proxy", "no_headers").probe("engine")
    assert convicted(verdict_of(scene))[2:] == ("proxy", "proxy.connector_starvation")


def test_convicts_a_proxy_of_another_user_from_what_never_reached_the_router():
    scene = Scenery()
    scene.hidden.add("proxy")
    scene.idle_engines().waiting(8, "client", "proxy").probe("proxy", "no_headers").probe("router").probe("decode")
    diagnosis = verdict_of(scene)
    assert convicted(diagnosis)[1:3] == ("proxy", "proxy")
    assert diagnosis.confidence <= 0.85
    assert any("proxy" in text for text in diagnosis.blind)


def test_convicts_decode_that_stops_in_mid_stream():
    scene = stalled_decode(Scenery()).figures("prefill").figures("decode", running=8, http=8)
    assert convicted(verdict_of(scene)) == ("fault", "decode", "decode", "decode.stall_mid_stream")
    assert not knobs_cleared(verdict_of(scene))


def test_convicts_decode_in_mid_stream_when_a_fresh_request_gets_no_byte_at_all():
    scene = stalled_decode(Scenery(), error="no_headers").figures("prefill").figures("decode", running=8, http=8)
    assert convicted(verdict_of(scene))[2:] == ("decode", "decode.stall_mid_stream")


def test_convicts_decode_whose_stall_began_while_we_looked():
    scene = Scenery().streaming(6, "client", "proxy", until=2.0).streaming(6, "proxy", "router", until=2.0)
    scene.streaming(6, "router", "decode", until=2.0).figures("prefill").figures("decode", running=6, http=6)
    first = scene.scrapes[4]  # decode's first look: its counter stood lower then
    scene.scrapes[4] = replace(
        first, values=tuple(replace(v, value=400) if "inter_token" in v.name else v for v in first.values)
    )
    scene.probe("proxy", "no_headers").probe("router", "no_headers").probe(
        "decode", "no_headers", legs={"prefill": None}
    )
    assert convicted(verdict_of(scene))[2:] == ("decode", "decode.stall_mid_stream")


def test_convicts_decode_in_mid_stream_without_metrics():
    assert convicted(verdict_of(stalled_decode(Scenery())))[2:] == ("decode", "decode.stall_mid_stream")


def test_convicts_decode_whose_streams_stand_still_though_short_probes_pass():
    scene = Scenery().silent(8, "client", "proxy").silent(8, "proxy", "router").silent(8, "router", "decode")
    scene.figures("prefill").figures("decode", running=8, http=8)
    # The router opened a new connection for our request: those that stand silent are taken.
    scene.probe("proxy").probe("router").probe("decode").forwarded("router", "decode", answered=True)
    diagnosis = verdict_of(scene)
    assert convicted(diagnosis)[2:] == ("decode", "decode.stall_mid_stream")
    assert diagnosis.confidence <= 0.88
    assert not knobs_cleared(diagnosis)


def test_convicts_a_plain_engine_that_stops_in_mid_stream():
    scene = (
        Scenery(PLAIN)
        .silent(3, "client", "proxy")
        .silent(3, "proxy", "engine")
        .probe("proxy", "stalled")
        .probe("engine", "stalled")
    )
    assert convicted(verdict_of(scene)) == ("fault", "engine", "engine", "engine.stall_mid_stream")


def test_convicts_a_router_that_holds_requests():
    scene = Scenery().idle_engines().waiting(6, "client", "proxy", since=30).waiting(6, "proxy", "router", since=30)
    scene.probe("proxy", "no_headers").forwarded("proxy", "router").probe("router", "no_headers").probe("decode")
    diagnosis = verdict_of(scene)
    assert convicted(diagnosis) == ("fault", "router", "router", "router.hold")
    assert KNOB in knobs_cleared(diagnosis)


def test_convicts_a_router_that_lost_the_decode_leg():
    scene = Scenery().waiting(4, "client", "proxy").waiting(4, "proxy", "router").waiting(4, "router", "prefill")
    scene.figures("prefill", prefill_bootstrap=4).figures("decode")
    scene.probe("proxy", "no_headers").probe("router", "no_headers").probe("decode")
    assert convicted(verdict_of(scene))[2:] == ("router", "router.dual_dispatch_join")


def test_convicts_decode_that_never_ends_a_response_and_does_not_clear_its_knob():
    scene = stalled_decode(Scenery(), error="no_end").figures("prefill").figures("decode", running=0, http=8)
    diagnosis = verdict_of(scene)
    assert convicted(diagnosis) == ("fault", "decode", "decode", "decode.no_end")
    assert not knobs_cleared(diagnosis)


def test_convicts_decode_that_never_ends_a_response_without_metrics():
    diagnosis = verdict_of(stalled_decode(Scenery(), error="no_end"))
    assert convicted(diagnosis)[2:] == ("decode", "decode.no_end")
    assert not knobs_cleared(diagnosis)


def test_convicts_a_proxy_that_keeps_the_end_back():
    scene = (
        Scenery().idle_engines().silent(8, "client", "proxy").probe("proxy", "no_end").probe("router").probe("decode")
    )
    scene.link("us", "proxy", {0.0: (SOME, 2000)}, ours=True)
    diagnosis = verdict_of(scene)
    assert convicted(diagnosis)[2:] == ("proxy", "stream.missing_done_masked_by_heartbeat")
    assert KNOB in knobs_cleared(diagnosis)


def test_convicts_a_proxy_that_drops_a_stream_in_the_middle():
    scene = (
        Scenery().idle_engines().silent(8, "client", "proxy").probe("proxy", "stalled").probe("router").probe("decode")
    )
    assert convicted(verdict_of(scene))[2:] == ("proxy", "proxy.drop_stream")


def test_convicts_prefill_that_keeps_kv_parked():
    scene = (
        Scenery()
        .waiting(4, "client", "proxy")
        .waiting(4, "proxy", "router")
        .waiting(4, "router", "prefill")
        .waiting(4, "router", "decode")
    )
    scene.figures("prefill", prefill_inflight=4, http=4).figures("decode", decode_transfer=4, http=4)
    bad = {"prefill": "no_headers", "decode": "no_headers"}
    scene.probe("proxy", "no_headers").probe("router", "no_headers").probe("decode", "no_headers", legs=bad)
    assert convicted(verdict_of(scene)) == ("fault", "prefill", "prefill", "prefill.inflight_parked")


@pytest.mark.parametrize("name", ["proxy", "router", "prefill", "decode"])
def test_convicts_a_service_that_is_not_there(name):
    scene = Scenery(listening={"proxy", "router", "prefill", "decode"} - {name})
    error = "refused" if name == "proxy" else "http_502"
    scene.probe("proxy", error)
    if name != "proxy":
        scene.probe("router", "refused" if name == "router" else "http_502")
    scene.dead(name)
    assert convicted(verdict_of(scene)) == ("fault", name, name, "service.down")


def test_convicts_a_service_that_died_while_we_looked():
    scene = (
        Scenery()
        .health("decode", t=0.1)
        .health("decode", None, "refused")
        .probe("proxy", "truncated")
        .probe("router", "truncated")
    )
    scene.dead("decode", seen_to_end=True)
    assert convicted(verdict_of(scene))[2:] == ("decode", "service.down")


def test_convicts_a_stopped_process_rather_than_those_who_wait_for_it():
    scene = (
        stalled_decode(Scenery(), error="no_headers")
        .process("decode", "T")
        .health("decode", None, "timeout (no_headers)")
    )
    assert convicted(verdict_of(scene))[2:] == ("decode", "service.stopped")


def test_convicts_an_engine_whose_worker_is_stopped_behind_a_green_health():
    scene = Scenery(PLAIN).process("engine", "S").process("engine", "T", pid=51, ppid=50).health("engine")
    scene.waiting(3, "client", "proxy").waiting(3, "proxy", "engine").probe("proxy", "no_headers").probe(
        "engine", "no_headers"
    )
    assert convicted(verdict_of(scene))[2:] == ("engine", "engine.false_green_health")


def test_convicts_a_service_that_accepts_nobody():
    scene = (
        Scenery()
        .probe("proxy", "connect_timeout")
        .probe("router")
        .probe("decode")
        .health("proxy", None, "timeout (no_headers)")
    )
    scene.accept["proxy"] = (129, 129, 129, 129)
    assert convicted(verdict_of(scene))[2:] == ("proxy", "service.not_accepting")


def test_convicts_an_engine_that_answers_its_callers_with_errors():
    scene = Scenery(PLAIN)
    for start in (1.0, 2.0, 3.0):
        scene.link("proxy", "engine", {start: (SOME, 0), start + 0.25: (SOME, 180)})
    scene.probe("proxy", "http_500").probe("engine", "http_500")
    assert convicted(verdict_of(scene))[2:] == ("engine", "service.answers_errors")


def test_convicts_a_router_that_is_not_ready_though_the_pair_behind_it_is():
    scene = Scenery().probe("proxy", "http_503").probe("router", "http_503").probe("decode").health("router", 503)
    assert convicted(verdict_of(scene))[2:] == ("router", "service.not_ready")


def test_suspects_decode_of_which_some_streams_stand_still_while_others_flow():
    scene = Scenery().silent(6, "client", "proxy").silent(6, "proxy", "router").silent(6, "router", "decode")
    scene.streaming(2, "client", "proxy").streaming(2, "proxy", "router").streaming(2, "router", "decode")
    scene.figures("prefill").figures("decode", running=8, http=8, tokens=60)
    diagnosis = judge(scene.probe("proxy").probe("router").probe("decode").capture())
    assert diagnosis.status == "undetermined"
    assert [(s.service, s.mechanism) for s in diagnosis.suspects] == [("decode", "decode.stall_mid_stream")]


def test_names_the_dead_service_as_root_and_what_it_caused_as_no_root():
    scene = Scenery().figures("prefill").waiting(8, "client", "proxy").dead("decode")
    scene.probe("proxy", "no_headers").probe("router", "http_502").probe("decode", "refused")
    assert convicted(verdict_of(scene))[2:] == ("decode", "service.down")


SOME = 500


def all_dead(scene):
    scene.probe("proxy", "refused").probe("router", "refused").probe("decode", "refused")
    for name in scene.upstream:
        scene.dead(name)
    return judge(scene.capture())


def test_convicts_a_dead_entry_before_all_else_that_is_dead_and_says_what_to_start():
    diagnosis = all_dead(Scenery(listening=()))
    assert (diagnosis.service, diagnosis.mechanism) == ("proxy", "service.down")
    assert all(f"{name}" in diagnosis.summary for name in ("router", "decode"))


def test_says_that_nothing_of_the_stack_runs():
    scene = Scenery(PLAIN, listening=())
    scene.probe("proxy", "refused").probe("engine", "refused").dead("proxy").dead("engine")
    assert judge(scene.capture()).next == ("nothing of this stack runs: vindicate stack up",)


def test_names_no_stack_command_for_a_service_that_was_discovered():
    scene = Scenery({"engine": ()}, listening=()).probe("engine", "refused").dead("engine")
    made = scene.capture()
    name = "pid:unknown:30002"
    services = tuple(replace(s, name=name) if s.name == "engine" else s for s in made.services)
    scrapes = tuple(replace(s, service=name) for s in made.scrapes)
    probes = tuple(replace(p, target=name, covers=(name,)) for p in made.probes)
    diagnosis = judge(replace(made, services=services, scrapes=scrapes, probes=probes, entry=name))
    assert (diagnosis.service, diagnosis.mechanism) == (name, "service.down")
    assert "stack restart" not in " ".join(diagnosis.next)


def test_names_the_stack_command_for_a_service_of_the_stack_file():
    scene = Scenery().figures("prefill").dead("decode").probe("proxy", "http_502").probe("decode", "refused")
    assert "vindicate stack restart decode" in judge(scene.capture()).next[0]


def test_tells_nobody_but_a_proxy_to_restart_the_proxy():
    told = [name for name, entry in CATALOGUE.items() if "restart the proxy" in entry.remedy]
    assert [name for name in told if not name.startswith("proxy.")] == []
