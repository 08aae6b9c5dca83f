"""Stalls of engines under their exact names, each with the healthy or different look-alike that must not get that name."""

from dataclasses import replace

import pytest

from fakes.captures import PIDS, PLAIN, PORTS, SOME, Scenery
from vindicate.diagnose.judge import judge
from vindicate.record.observation import MetricValue, ProcessFacts, ProcessSample, Scrape

ENGINE = {"engine": ()}
PAIR = {"router": ("prefill", "decode"), "prefill": (), "decode": ()}


def more(scene, service, **figures):
    """Add figures to every metrics page of *service*; a list is the value over time, a key with `__` a label behind it."""
    scene.scrapes = [
        replace(s, values=(*s.values, *(_value(name, v, round(s.t_s // 3.2)) for name, v in figures.items())))
        if s.service == service and s.kind == "metrics"
        else s
        for s in scene.scrapes
    ]
    return scene


def _value(name, value, i):
    name, _, label = name.partition("__")
    labels = (tuple(label.split("_is_")),) if label else ()
    return MetricValue(
        name=f"sglang:{name}", labels=labels, value=float(value[min(i, 3)] if isinstance(value, list) else value)
    )


def burning(scene, pid, *, parent, share=1.0, name="python", state="R"):
    samples = tuple(ProcessSample(t_s=t, state=state, cpu_s=share * t, n_threads=1) for t in (0.0, 5.0, 10.0))
    scene.processes.append(ProcessFacts(pid=pid, ppid=parent, name=name, argv=(), started_at="", samples=samples))
    return scene


def mechanism_of(scene):
    verdict = judge(scene.capture())
    return verdict.status, verdict.layer, verdict.service, verdict.mechanism


def queue_behind(head_bytes):
    scene = Scenery(ENGINE).link("client", "engine", {0.0: (head_bytes, 0)}, before=(40.0, None))
    scene.waiting(6, "client", "engine", since=30).figures("engine", waiting=7, http=7).probe("engine", "no_headers")
    return more(scene, "engine", token_usage=0, max_total_num_tokens=6000)


def test_names_a_request_too_large_for_the_pool_that_heads_the_queue():
    assert mechanism_of(queue_behind(60_000)) == ("fault", "engine", "engine", "engine.unservable_head_of_line")


def test_does_not_blame_the_head_of_a_queue_of_equals():
    assert mechanism_of(queue_behind(500))[3] != "engine.unservable_head_of_line"


def test_does_not_blame_the_head_of_a_queue_while_the_pool_is_taken():
    assert mechanism_of(more(queue_behind(60_000), "engine", kv_cache_usage_perc=0, full=1, token_usage__a_is_b=0.6))[
        3
    ] != ("engine.unservable_head_of_line")


def test_says_that_an_engine_is_paused_when_it_says_so():
    scene = queue_behind(60_000).health("engine")
    url = f"http://127.0.0.1:{PORTS['engine']}/ready"
    scene.scrapes.append(
        Scrape(service="engine", kind="ready", url=url, t_s=3.4, took_s=0.01, status=503, error="http 503")
    )
    assert mechanism_of(scene) == ("fault", "engine", "engine", "engine.paused")


def stuck(**words):
    scene = Scenery(PLAIN).silent(6, "client", "proxy").silent(6, "proxy", "engine")
    return (
        scene.figures("engine", running=6, http=6, **words).probe("proxy", "no_headers").probe("engine", "no_headers")
    )


@pytest.mark.parametrize(("ranks", "named"), [(2, "engine.collective_deadlock"), (1, "engine.stall_mid_stream")])
def test_calls_it_a_collective_only_when_several_ranks_spin(ranks, named):
    scene = stuck()
    for number in range(ranks):
        burning(scene, 500 + number, parent=PIDS["engine"])
    assert mechanism_of(scene)[3] == named


def test_spinning_schedulers_whose_loop_goes_round_are_no_collective():
    scene = more(stuck(), "engine", scheduler_process_cpu_seconds_total=[1, 4, 7, 10])
    burning(burning(scene, 500, parent=PIDS["engine"]), 501, parent=PIDS["engine"])
    assert mechanism_of(scene)[3] == "engine.stall_mid_stream"


@pytest.mark.parametrize(("share", "named"), [(0.0, "engine.detokenizer_is_victim"), (0.9, "engine.stall_mid_stream")])
def test_acquits_a_detokenizer_that_idles_and_not_one_that_burns(share, named):
    scene = burning(stuck().health("engine", 503), 500, parent=PIDS["engine"], share=share, name="sglang::detoken")
    assert (mechanism_of(scene)[3] == "engine.detokenizer_is_victim") is (named == "engine.detokenizer_is_victim")


def test_names_green_health_over_a_dead_worker():
    scene = burning(stuck().health("engine"), 500, parent=PIDS["engine"], share=0, state="Z")
    assert mechanism_of(scene)[3] == "engine.false_green_health"


def parked(**decode):
    scene = Scenery(PAIR).figures("prefill").figures("decode", **decode)
    return scene.probe("router").probe("decode")


@pytest.mark.parametrize(("usage", "guilty"), [(0.1, True), (0.95, False)])
def test_names_the_wedge_after_a_retraction_only_while_the_pool_is_free(usage, guilty):
    scene = parked(decode_prealloc=3, http=3).silent(3, "client", "router").silent(3, "router", "decode")
    more(scene, "decode", token_usage=usage, num_retracted_requests_total=3)
    assert (mechanism_of(scene)[3] == "decode.prealloc_wedge_after_retraction") is guilty


def remote_wait(inflight):
    scene = Scenery(PAIR).figures("prefill", prefill_inflight=inflight).figures("decode", decode_transfer=4, http=4)
    scene.waiting(4, "client", "router").waiting(4, "router", "decode").probe("router").probe("decode")
    more(scene, "prefill", num_transfer_failed_reqs_total=4)
    return scene


def test_names_a_wait_for_kv_that_nobody_will_send():
    assert mechanism_of(remote_wait(0)) == ("fault", "transfer", "decode", "kv.remote_wait_without_timeout")


def test_a_wait_for_kv_that_prefill_still_holds_is_not_that():
    assert mechanism_of(remote_wait(4))[3] != "kv.remote_wait_without_timeout"


def crawl(*, retracted, usage):
    scene = Scenery(PAIR).figures("prefill").figures("decode", running=6, http=6, tokens=40)
    scene.streaming(6, "client", "router", step=1.0).streaming(6, "router", "decode", step=1.0).probe("router").probe(
        "decode"
    )
    return more(
        scene,
        "decode",
        token_usage=usage,
        num_retracted_requests_total=retracted,
        inter_token_latency_seconds_sum=[20, 40, 60, 80],
    )


def test_names_the_crawl_of_a_full_pool_that_throws_requests_out():
    assert mechanism_of(crawl(retracted=[2, 3, 5, 8], usage=0.95)) == (
        "fault",
        "decode",
        "decode",
        "decode.retraction_collapse",
    )


@pytest.mark.parametrize(("retracted", "usage"), [(0, 0.95), ([2, 3, 5, 8], 0.4)])
def test_a_slow_decode_is_no_collapse(retracted, usage):
    assert mechanism_of(crawl(retracted=retracted, usage=usage))[0] == "healthy"


def ranks(*values, tokens=0):
    scene = Scenery(PAIR).figures("prefill", http=4, tokens=tokens).figures("decode", decode_transfer=4, http=4)
    scene.waiting(4, "client", "router").waiting(4, "router", "prefill").waiting(4, "router", "decode")
    scene.probe("router", "no_headers").probe(
        "decode", "no_headers", legs={"prefill": "no_headers", "decode": "no_headers"}
    )
    held = {f"num_prefill_inflight_queue_reqs__pp_rank_is_{n}": value for n, value in enumerate(values)}
    return more(scene, "prefill", num_aborted_requests_total=9, **held)


def test_names_ranks_of_prefill_that_hold_different_queues():
    assert mechanism_of(ranks(3, 0, 0)) == ("fault", "prefill", "prefill", "prefill.pp_divergence_after_abort_storm")


def test_ranks_that_agree_have_not_diverged():
    assert mechanism_of(ranks(3, 3, 3))[3] == "prefill.inflight_parked"


def zombies(*, readers):
    scene = (
        Scenery(ENGINE)
        .figures("engine", running=4, waiting=6, http=6, tokens=200)
        .waiting(5, "client", "engine", since=20)
    )
    scene.probe("engine", "no_headers")
    return scene.streaming(readers, "client", "engine") if readers else scene


def test_names_requests_that_run_for_nobody():
    assert mechanism_of(zombies(readers=0)) == ("fault", "engine", "engine", "engine.zombie_after_disconnect")


def test_an_engine_at_capacity_with_readers_has_no_zombies():
    assert mechanism_of(zombies(readers=4))[0] == "healthy"


@pytest.mark.parametrize(("answer", "status"), [(6000, "healthy"), (0, "fault")])
def test_readers_that_come_and_go_are_readers_even_if_none_is_there_at_the_last_look(answer, status):
    scene = Scenery(ENGINE).figures("engine", running=[8, 12, 12, 12], tokens=200).probe("engine")
    for start in (0.5, 3.0, 6.0):  # each with a connection of its own, closed after its answer, or before any
        timeline = {start: (SOME, 0), start + 0.25: (SOME, answer), start + 1.25: (SOME, 2 * answer)}
        scene.links(8, "client", "engine", timeline, closed=6)
    found = mechanism_of(scene)
    assert found[0] == status
    assert status == "healthy" or found[3] == "engine.zombie_after_disconnect"


def matrix(*bad):
    upstream = {
        "router": ("prefill", "prefill1", "decode", "decode1"),
        "prefill": (),
        "prefill1": (),
        "decode": (),
        "decode1": (),
    }
    PORTS.update(prefill1=30010, decode1=30011)
    PIDS.update(prefill1=31, decode1=41)
    scene = Scenery(upstream)
    scene.roles = {"prefill1": "prefill", "decode1": "decode"}
    scene.figures("prefill").figures("prefill1").figures("decode").figures("decode1", decode_transfer=2, http=2)
    more(scene, "prefill", num_transfer_failed_reqs_total=2)
    for decode in ("decode", "decode1"):
        for prefill in ("prefill", "prefill1"):
            wrong = (decode, prefill) in bad
            scene.probe(decode, "no_headers" if wrong else None, covers=(decode, prefill))
    scene.probes = [replace(p, shape="pd_pair") for p in scene.probes]
    return scene.waiting(2, "client", "router").waiting(2, "router", "decode1").waiting(2, "router", "prefill")


def test_names_the_one_pair_that_passes_no_kv():
    assert mechanism_of(matrix(("decode1", "prefill"))) == ("fault", "transfer", "prefill", "kv.session_blacklist")


def test_a_decode_that_fails_with_every_prefill_is_not_blacklisted():
    assert mechanism_of(matrix(("decode1", "prefill"), ("decode1", "prefill1")))[3] != "kv.session_blacklist"
