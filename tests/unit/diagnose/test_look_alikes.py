"""Healthy chains, and faults elsewhere, that look like a fault of the service in question: one observation is one kind of evidence."""

from dataclasses import replace

import pytest

import fakes.captures as built
from fakes.captures import PLAIN, Scenery
from vindicate.diagnose.judge import judge, scene_of
from vindicate.record.observation import Address

TWO_DECODES = {
    "proxy": ("router",),
    "router": ("prefill", "decode", "decode2"),
    "prefill": (),
    "decode": (),
    "decode2": (),
}


@pytest.fixture
def two_decodes(monkeypatch):
    """A router with two decodes; a request passes one of them."""
    monkeypatch.setitem(built.PORTS, "decode2", 30005)
    monkeypatch.setitem(built.PIDS, "decode2", 45)
    scene = Scenery(TWO_DECODES)
    scene.roles["decode2"] = "decode"
    return scene


def narrow(scene, target, *args, **kwargs):
    """A probe that must pass what stands alone, and passes one of the decodes."""
    must = ("proxy", "router", "prefill")
    scene.probe(target, *args, covers=must[must.index(target) :], **kwargs)
    scene.probes[-1] = replace(scene.probes[-1], may_pass=("decode", "decode2"))
    return scene


def slow(scene, *targets, gaps=(3.3,)):
    """A stream of one token per 3.3 s, cut by our deadline."""
    for target in targets:
        scene.probe(target, "stalled", tokens=1)
        scene.probes[-1] = replace(scene.probes[-1], first_byte_s=7.0 - sum(gaps), gaps_s=gaps, total_s=8.0)
    return scene


# ---- one probe is one kind ----


@pytest.mark.parametrize("error", ["no_headers", "stalled", "no_end", "truncated", "garbage"])
def test_convicts_no_engine_from_one_probe_alone_and_says_how_long_to_look(error):
    diagnosis = judge(Scenery(PLAIN).probe("proxy", error).probe("engine", error).capture())
    assert (diagnosis.status, diagnosis.suspects[0].service) == ("undetermined", "engine")
    if error in ("no_headers", "stalled"):
        assert any("slow from stopped" in text and "--window 30s" in text for text in diagnosis.next)


@pytest.mark.parametrize("gaps", [(3.3,), ()])
def test_takes_a_model_of_one_token_in_3_seconds_for_slow_and_not_for_stalled(gaps):
    diagnosis = judge(slow(Scenery(PLAIN), "proxy", "engine", gaps=gaps).capture())
    assert (diagnosis.status, diagnosis.suspects) == ("undetermined", ())
    assert "too slowly to tell" in diagnosis.summary
    assert any("--window" in text for text in diagnosis.next)


def test_says_healthy_for_a_slow_stream_that_kept_its_pace():
    diagnosis = judge(slow(Scenery(PLAIN), "proxy", "engine", gaps=(2.0, 2.0)).capture())
    assert diagnosis.status == "healthy"
    assert "slow" in diagnosis.summary


def test_convicts_no_engine_in_a_long_prefill_that_keeps_probes_waiting():
    scene = Scenery(PLAIN).waiting(3, "client", "proxy", since=6).waiting(3, "proxy", "engine", since=6)
    assert judge(scene.probe("proxy", "no_headers").probe("engine", "no_headers").capture()).status == "undetermined"


def test_convicts_no_engine_in_a_long_prefill_whose_only_counter_moves_with_tokens():
    scene = Scenery(PLAIN).waiting(1, "client", "proxy", since=6).waiting(1, "proxy", "engine", since=6)
    scene.figures("engine", waiting=1).probe("proxy", "no_headers").probe("engine", "no_headers")
    assert judge(scene.capture()).status == "undetermined"


def test_convicts_an_engine_that_left_users_without_a_byte_for_several_deadlines():
    scene = Scenery(PLAIN).waiting(3, "client", "proxy", since=30).waiting(3, "proxy", "engine", since=30)
    diagnosis = judge(scene.probe("proxy", "no_headers").probe("engine", "no_headers").capture())
    assert (diagnosis.service, diagnosis.mechanism) == ("engine", "engine.no_first_token")


# ---- a relay that waits its turn ----


def at_its_limit(scene, *hops):
    scene.waiting(12, "client", "proxy", since=20)
    for hop in hops:
        scene.waiting(4, *hop, since=20)
    return scene


def test_says_healthy_for_a_proxy_at_its_limit_with_long_answers_that_do_not_stream():
    scene = at_its_limit(Scenery(PLAIN), ("proxy", "engine")).figures("engine", running=4, http=4, tokens=500)
    assert judge(scene.probe("proxy", "no_headers").probe("engine").capture()).status == "healthy"
    scene.probes.clear()
    assert judge(scene.capture()).status != "fault"


def test_convicts_nobody_for_a_relay_that_hands_on_after_two_seconds():
    scene = Scenery(PLAIN).waiting(4, "client", "proxy", since=20).waiting(4, "proxy", "engine", since=18)
    diagnosis = judge(scene.capture())
    assert (diagnosis.status, {s.service for s in diagnosis.suspects}) == ("undetermined", {"engine"})


def test_does_not_take_a_request_of_ours_upstream_for_one_that_was_handed_on():
    scene = Scenery(PLAIN).waiting(1, "client", "proxy", since=20)
    scene.probe("proxy", "no_headers", t=0.75).forwarded("proxy", "engine", t=0.75)
    assert len(scene_of(scene.capture()).account.nodes["proxy"].held) == 1


@pytest.mark.parametrize("n", [1, 2])
def test_convicts_nobody_for_a_request_or_two_that_an_idle_proxy_keeps_without_probes(n):
    scene = Scenery(PLAIN).waiting(n, "client", "proxy", since=20)
    assert judge(scene.capture()).status == "undetermined"
    assert judge(scene.figures("engine").silent(2, "proxy", "engine").capture()).status == "undetermined"


def test_says_healthy_for_a_busy_chain_beside_idle_connections():
    scene = Scenery().streaming(4, "client", "proxy").streaming(4, "proxy", "router").streaming(4, "router", "decode")
    scene.waiting(4, "client", "proxy", since=4).silent(2, "proxy", "router").figures("prefill", tokens=300)
    scene.figures("decode", running=4, http=4, tokens=500).probe("proxy", "no_headers").probe("router").probe("decode")
    assert judge(scene.capture()).status == "healthy"


def test_says_healthy_for_one_request_that_runs_as_four_beside_idle_connections():
    scene = Scenery(PLAIN).streaming(1, "client", "proxy").streaming(1, "proxy", "engine")
    scene.silent(4, "client", "proxy").silent(4, "proxy", "engine").figures("engine", running=4, http=1, tokens=800)
    assert judge(scene.probe("proxy").probe("engine").capture()).status == "healthy"


# ---- whose doing it is ----


def test_suspects_the_service_that_owes_our_probe_and_not_the_relay_that_handed_it_on():
    scene = Scenery().idle_engines().probe("proxy", "no_headers").forwarded("proxy", "router")
    diagnosis = judge(scene.probe("router").probe("decode").capture())
    assert (diagnosis.status, [s.service for s in diagnosis.suspects]) == ("undetermined", ["router"])
    assert "router" not in {c.service for c in diagnosis.cleared}


def test_convicts_a_relay_that_keeps_the_whole_answer_to_our_probe():
    scene = Scenery().idle_engines().probe("proxy", "no_headers").forwarded("proxy", "router", answered=True)
    diagnosis = judge(scene.probe("router").probe("decode").capture())
    assert (diagnosis.service, diagnosis.mechanism) == ("proxy", "proxy.holds_response")


def test_convicts_no_proxy_for_a_stream_that_one_of_two_decodes_stalled(two_decodes):
    narrow(two_decodes, "proxy", "stalled").forwarded("proxy", "router", "decode", answered=True)
    assert judge(narrow(two_decodes, "router").capture()).status == "undetermined"


def test_clears_no_decode_that_no_probe_is_known_to_have_passed(two_decodes):
    two_decodes.idle_engines().figures("decode2").waiting(8, "client", "proxy")
    diagnosis = judge(narrow(narrow(two_decodes, "proxy", "no_headers"), "router").capture())
    assert diagnosis.service == "proxy"
    assert not {"decode", "decode2"} & {c.service for c in diagnosis.cleared}


def test_finds_a_service_called_by_another_address_of_its_host():
    scene = Scenery(PLAIN).waiting(4, "client", "proxy", since=20).waiting(4, "proxy", "engine", since=20)
    made = scene.capture()
    moved = tuple(
        replace(s, address=Address("10.0.0.5", s.address.port)) if s.name == "engine" else s for s in made.services
    )
    elsewhere = judge(replace(made, services=moved))
    assert (elsewhere.status, elsewhere.suspects) == (judge(made).status, judge(made).suspects)
    away = tuple(replace(s, remote=True) if s.name == "engine" else s for s in moved)
    assert not scene_of(replace(made, services=away)).account.nodes["engine"].down


def test_says_nothing_of_bytes_that_the_kernel_did_not_count():
    scene = Scenery().idle_engines().waiting(8, "client", "proxy").probe("proxy", "no_headers").probe("router")
    made = scene.probe("decode").capture()
    blind = tuple(
        replace(c, samples=tuple(replace(s, rx=0, tx=0, counted=False, last_rx_age_s=None) for s in c.samples))
        for c in made.connections
    )
    diagnosis = judge(replace(made, connections=blind))
    assert "conservation" not in {f.kind for f in diagnosis.findings}
    assert diagnosis.confidence <= 0.85 < judge(made).confidence


@pytest.mark.parametrize("http", [0, 4])
def test_convicts_no_decode_for_stale_gauges_beside_idle_connections_all_the_way(http):
    scene = Scenery().silent(4, "client", "proxy").silent(4, "proxy", "router").silent(4, "router", "decode")
    scene.figures("prefill").figures("decode", running=4, http=http).probe("proxy").probe("router").probe("decode")
    assert judge(scene.capture()).status == ("undetermined" if http else "healthy")
