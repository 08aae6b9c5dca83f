"""What looks like a fault and is none: nobody is convicted, and usually it is called healthy."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fakes.captures import PLAIN, Scenery
from vindicate.diagnose.catalogue import CATALOGUE
from vindicate.diagnose.judge import judge


def passing(scene):
    return scene.probe("proxy").probe("router").probe("decode")


def status_of(scene, **changes):
    return judge(scene.capture(**changes)).status


def test_says_healthy_when_nobody_does_anything():
    assert status_of(passing(Scenery().idle_engines())) == "healthy"


def test_says_healthy_with_connections_kept_alive_lying_around():
    scene = (
        Scenery()
        .idle_engines()
        .silent(6, "client", "proxy")
        .silent(6, "proxy", "router")
        .silent(6, "router", "decode")
        .silent(6, "router", "prefill")
    )
    assert status_of(passing(scene)) == "healthy"


def test_says_healthy_with_idle_connections_and_no_metrics():
    scene = Scenery(PLAIN).silent(6, "client", "proxy").silent(6, "proxy", "engine").probe("proxy").probe("engine")
    assert status_of(scene) == "healthy"


def test_says_healthy_for_a_busy_chain():
    scene = (
        Scenery().streaming(12, "client", "proxy").streaming(12, "proxy", "router").streaming(12, "router", "decode")
    )
    scene.figures("prefill", tokens=400).figures("decode", running=12, http=12, tokens=900)
    assert status_of(passing(scene)) == "healthy"


def test_says_healthy_for_agents_that_ask_again_at_once():
    scene = Scenery().rounds(4, "client", "proxy").rounds(4, "proxy", "router").rounds(4, "router", "decode")
    scene.figures("prefill", tokens=300).figures("decode", running=4, http=4, tokens=300)
    assert status_of(passing(scene)) == "healthy"


def test_says_healthy_for_a_slow_decode_whose_tokens_still_come():
    scene = (
        Scenery()
        .streaming(3, "client", "proxy", step=2.0)
        .streaming(3, "proxy", "router", step=2.0)
        .streaming(3, "router", "decode", step=2.0)
    )
    scene.figures("prefill").figures("decode", running=3, http=3, tokens=5)
    assert status_of(passing(scene)) == "healthy"


def test_says_healthy_for_a_chain_at_capacity_where_a_probe_waits_in_line():
    scene = Scenery().streaming(4, "client", "proxy").streaming(4, "proxy", "router").streaming(4, "router", "decode")
    scene.waiting(4, "client", "proxy", since=1.5).figures("prefill", tokens=300).figures(
        "decode", running=4, http=4, tokens=500
    )
    scene.probe("proxy", "no_headers").probe("router").probe("decode")
    assert status_of(scene) == "healthy"


def test_convicts_nobody_for_a_request_in_a_long_silent_prefill_and_says_how_long_to_look():
    scene = passing(
        Scenery()
        .waiting(1, "client", "proxy", since=6)
        .waiting(1, "proxy", "router", since=6)
        .waiting(1, "router", "decode", since=6)
    )
    diagnosis = judge(scene.capture())
    assert diagnosis.status == "undetermined"
    assert any("--window" in text for text in diagnosis.next)


def test_says_healthy_when_a_long_prefill_moves_its_counters():
    scene = (
        Scenery()
        .waiting(1, "client", "proxy", since=6)
        .waiting(1, "proxy", "router", since=6)
        .waiting(1, "router", "prefill", since=6)
    )
    scene.waiting(1, "router", "decode", since=6).figures("prefill", running=1, tokens=4000).figures(
        "decode", decode_transfer=1
    )
    assert status_of(passing(scene)) == "healthy"


def test_convicts_nobody_for_gauges_that_freeze_while_nobody_waits():
    assert status_of(passing(Scenery().figures("prefill").figures("decode", running=20))) == "healthy"


def test_convicts_nobody_for_stale_gauges_beside_idle_connections():
    scene = Scenery().silent(20, "client", "proxy").silent(20, "proxy", "router").silent(20, "router", "decode")
    scene.figures("prefill").figures("decode", running=20)
    assert status_of(passing(scene)) == "healthy"


def test_convicts_nobody_for_a_stale_gauge_that_outnumbers_the_idle_connections():
    scene = Scenery().silent(2, "client", "proxy").silent(2, "proxy", "router").silent(2, "router", "decode")
    scene.figures("prefill").figures("decode", running=20)
    assert judge(passing(scene).capture()).status == "healthy"


def test_convicts_nobody_for_a_prefill_leg_that_ended_before_we_looked():
    scene = (
        Scenery()
        .idle_engines()
        .waiting(3, "client", "proxy")
        .waiting(3, "proxy", "router")
        .waiting(3, "router", "decode")
    )
    assert judge(passing(scene).capture()).service is None


def test_convicts_nobody_for_clients_that_cancelled():
    scene = Scenery().idle_engines()
    for _ in range(4):
        scene.link("client", "proxy", {0.5: (500, 0), 0.75: (500, 900)}, closed=8)
    assert status_of(passing(scene)) == "healthy"


def test_convicts_nobody_for_a_large_prompt_that_is_still_uploaded():
    scene = Scenery().idle_engines().link("client", "proxy", {i * 0.25: (20000 * (i + 1), 0) for i in range(41)})
    assert status_of(passing(scene)) == "healthy"


def test_convicts_nobody_when_a_probe_is_not_let_in():
    scene = Scenery().idle_engines().probe("proxy", "http_401").probe("router", "http_401").probe("decode", "http_401")
    assert judge(scene.capture()).service is None


def test_convicts_nobody_when_one_probe_fails_and_its_repetition_passes():
    scene = Scenery().idle_engines().probe("proxy", "reset").probe("router").probe("decode").probe("proxy", t=6.0)
    assert judge(scene.capture()).status != "fault"


def test_says_undetermined_for_silence_without_probes_and_without_metrics():
    scene = Scenery(PLAIN).silent(3, "client", "proxy").silent(3, "proxy", "engine")
    diagnosis = judge(scene.capture())
    assert diagnosis.status == "undetermined"
    assert any("probe" in text for text in diagnosis.next)


def test_says_healthy_without_probes_when_answers_flow():
    scene = Scenery().streaming(4, "client", "proxy").streaming(4, "proxy", "router").streaming(4, "router", "decode")
    assert status_of(scene) == "healthy"


def test_convicts_nobody_below_two_kinds():
    diagnosis = judge(Scenery().probe("proxy", "garbage").probe("router").probe("decode").capture())
    assert diagnosis.status == "undetermined"
    assert diagnosis.suspects[0].service == "proxy"
    assert diagnosis.next


def test_convicts_nobody_when_a_gateway_error_may_be_that_of_a_service_that_is_not_seen():
    scene = Scenery({"engine": ()}).probe("engine", "http_502").health("engine", 502)
    assert judge(scene.capture()).status == "undetermined"


def test_says_healthy_at_capacity_when_the_only_bad_probe_stood_in_line():
    scene = Scenery().streaming(4, "client", "proxy").streaming(4, "proxy", "router").streaming(4, "router", "decode")
    scene.figures("prefill", tokens=300).figures("decode", running=4, http=4, tokens=500)
    assert status_of(scene.probe("proxy", "no_headers").probe("router").probe("decode")) == "healthy"


def test_says_healthy_for_a_plain_engine_at_capacity_where_our_request_waits_in_its_queue():
    scene = Scenery(PLAIN).streaming(4, "client", "proxy").streaming(4, "proxy", "engine")
    scene.waiting(8, "client", "proxy", since=4).waiting(8, "proxy", "engine", since=4)
    assert status_of(scene.probe("proxy", "no_headers").probe("engine", "no_headers")) == "healthy"


def test_convicts_no_engine_for_answers_that_a_slow_reader_leaves_unread():
    scene = Scenery(PLAIN).silent(3, "client", "proxy", unread=90_000).silent(3, "proxy", "engine", unread=90_000)
    scene.figures("engine", http=3)
    assert judge(scene.probe("proxy").probe("engine").capture()).service not in ("proxy", "engine")


def test_suspects_decode_that_its_router_waits_for_though_short_requests_pass():
    scene = (
        Scenery().silent(4, "client", "proxy").silent(4, "proxy", "router").silent(4, "router", "decode").idle_engines()
    )
    diagnosis = judge(passing(scene.awaiting("router", "decode", 4)).capture())
    assert (diagnosis.status, [s.mechanism for s in diagnosis.suspects]) == ("undetermined", ["decode.no_end"])


def test_convicts_nobody_for_a_load_count_of_the_router_that_leaked():
    assert status_of(passing(Scenery().idle_engines().awaiting("router", "decode", 4))) == "healthy"


def test_says_undetermined_without_probes_for_silent_clients_of_idle_engines():
    assert (
        status_of(Scenery().silent(4, "client", "proxy").silent(4, "router", "decode").idle_engines()) == "undetermined"
    )
    scene = Scenery().silent(4, "client", "proxy").silent(4, "router", "decode").idle_engines()
    assert status_of(scene.awaiting("router", "decode", 0)) == "healthy"


NODES = st.sampled_from(["proxy", "router", "prefill", "decode"])
EDGES = st.sampled_from([("client", "proxy"), ("proxy", "router"), ("router", "prefill"), ("router", "decode")])
ERRORS = st.sampled_from(
    [
        None,
        "refused",
        "no_headers",
        "stalled",
        "no_end",
        "reset",
        "truncated",
        "http_500",
        "http_503",
        "http_401",
        "garbage",
        "new word",
    ]
)
STEPS = st.one_of(
    st.tuples(st.sampled_from(["waiting", "silent", "streaming", "rounds"]), st.integers(1, 4), EDGES),
    st.tuples(st.just("probe"), NODES.filter(lambda n: n != "prefill"), ERRORS),
    st.tuples(st.just("figures"), NODES, st.floats(-5, 1e9), st.floats(-100, 1e6)),
    st.tuples(st.just("dead"), NODES, st.none()),
    st.tuples(st.just("process"), NODES, st.sampled_from("RSTZ")),
    st.tuples(st.just("health"), NODES, st.sampled_from([200, 404, 503])),
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(STEPS, max_size=9), st.booleans(), st.sets(NODES, max_size=2))
def test_never_fails_and_never_convicts_on_one_kind_whatever_it_is_shown(steps, blind_entry, hidden):
    scene = Scenery()
    scene.hidden |= hidden
    for step in steps:
        if step[0] in ("waiting", "silent", "streaming", "rounds"):
            getattr(scene, step[0])(step[1], *step[2])
        elif step[0] == "figures":
            scene.figures(step[1], running=step[2], tokens=step[3])
        elif step[0] == "dead":
            scene.dead(step[1])
        else:
            getattr(scene, step[0])(*step[1:])
    diagnosis = judge(scene.capture(**({"entry": None} if blind_entry else {})))
    assert (diagnosis.service is None) == (diagnosis.status != "fault")
    assert 0.0 <= diagnosis.confidence <= 1.0
    named = [diagnosis.mechanism, *(s.mechanism for s in (*diagnosis.suspects, *diagnosis.aggravators))]
    assert set(named) - {None} <= set(CATALOGUE)
    if diagnosis.status == "fault":
        kinds = {f.kind for f in diagnosis.findings if f.service == diagnosis.service and f.direction == "implicates"}
        assert len(kinds) >= 2
        assert diagnosis.confidence >= 0.8
        assert diagnosis.service not in {c.service for c in diagnosis.cleared}


def test_says_healthy_with_little_confidence_after_few_looks():
    capture = passing(Scenery().idle_engines()).capture()
    often, seldom = (replace(capture, n_looks=round(rate * capture.window_s)) for rate in (4, 1))
    assert judge(often).confidence == 0.95
    assert (judge(seldom).status, judge(seldom).confidence) == ("healthy", 0.8)


def stuck_prefill(*, until):
    """Answers flow up to *until*; prefill holds requests and moves none of them, and our request got nothing."""
    scene = Scenery().figures("prefill", running=9).figures("decode", running=2, http=2, tokens=20)
    for caller, callee in (("client", "proxy"), ("proxy", "router"), ("router", "decode")):
        scene.streaming(2, caller, callee, until=until).waiting(8, caller, callee, since=1.5)
    return scene.probe("proxy", "no_headers")


def test_says_undetermined_while_an_engine_stands_still_and_callers_wait():
    diagnosis = judge(stuck_prefill(until=8.0).capture())
    assert diagnosis.status == "undetermined"
    assert "prefill holds requests" in diagnosis.summary
    assert diagnosis.next


def test_says_healthy_while_answers_flow_at_the_entry_though_a_prefill_is_long():
    assert status_of(stuck_prefill(until=10.0)) == "healthy"


def test_says_what_would_settle_a_host_name_that_does_not_resolve():
    diagnosis = judge(Scenery().probe("proxy", "unresolved").capture(connections=()))
    assert diagnosis.status == "undetermined"
    assert "does not resolve" in diagnosis.summary
    assert any("getent hosts" in text for text in diagnosis.next)


def test_always_says_what_would_settle_it():
    assert judge(Scenery(PLAIN).probe("proxy", "http_404").capture(connections=())).next


def test_says_once_that_no_probe_was_sent():
    said = "no probes were sent, so a fault that needs a fresh request to show may be missed; leave out --no-probe"
    blind = judge(Scenery().capture(blind=(said,))).blind
    assert sum("probe" in text for text in blind) == 1


def test_does_not_call_a_chain_healthy_that_turns_our_requests_away():
    scene = Scenery().idle_engines().probe("proxy", error="http_401")
    assert status_of(scene) != "healthy"


@pytest.mark.parametrize(
    ("passed_on", "word"), [(True, "the one that router expects"), (False, "proxy itself answered 401")]
)
def test_a_refused_key_convicts_nobody_and_says_whose_key_to_compare(passed_on, word):
    scene = Scenery().idle_engines().probe("proxy", "http_401").probe("decode")
    if passed_on:
        scene.forwarded("proxy", "router", answered=True)
    diagnosis = judge(scene.capture())
    assert diagnosis.status == "undetermined"
    assert word in " ".join(diagnosis.next)
