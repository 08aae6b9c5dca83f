"""Clients, requests, paths and idle connections: who is at fault, and the healthy ones that look alike."""

from dataclasses import replace

from fakes.captures import END, PIDS, PLAIN, SOME, Scenery
from vindicate.diagnose.judge import judge
from vindicate.record.observation import Address, SeenService


def passing(upstream=PLAIN):
    return Scenery(upstream).probe("proxy").probe("engine")


def verdict(capture):
    made = judge(capture)
    return made.status, made.layer, made.mechanism


def changed(capture, pick, **values):
    """The capture with the samples of the connections that *pick* chooses changed; a callable value is given the sample."""

    def sample(one):
        return replace(one, **{k: v(one) if callable(v) else v for k, v in values.items()})

    return replace(
        capture,
        connections=tuple(
            replace(c, samples=tuple(map(sample, c.samples))) if pick(c) else c for c in capture.connections
        ),
    )


def of_client(c):
    return PIDS["client"] in c.pids


def named(capture):
    """The capture with the client named as one that hangs."""
    return replace(capture, services=tuple(replace(s, said_to_hang=True) if s.client else s for s in capture.services))


def asleep(scene):
    return scene.process("client", "S")


# ---- unread answers ----


def flowing(taken):
    """A stream that flows to the client; *taken*: bytes that it has taken at a time."""
    scene = passing().streaming(1, "client", "proxy").streaming(1, "proxy", "engine")
    return changed(scene.capture(), of_client, unread=lambda s: max(0, s.rx - taken(s.t_s)))


def test_convicts_a_client_that_takes_nothing_of_an_answer_that_flows():
    made = judge(flowing(lambda _: 300))
    assert (made.status, made.layer, made.service, made.mechanism) == (
        "fault",
        "client",
        "harness",
        "client.not_reading",
    )
    assert {c.service for c in made.cleared} == {"proxy"}


def test_convicts_no_slow_reader():
    assert verdict(flowing(lambda t: 300 + 60 * int(t)))[0] == "healthy"


def test_does_not_convict_a_client_with_an_answer_left_unread_that_holds_nobody_up():
    scene = passing().silent(1, "client", "proxy", unread=700).silent(1, "proxy", "engine")
    assert judge(scene.capture()).status != "fault"


def test_convicts_a_client_on_another_host_whose_window_stays_closed():
    scene = passing()
    scene.hidden.add("client")
    scene.silent(1, "client", "proxy")
    capture = away(scene.capture(), unsent=90_000, zero_window=True)
    assert verdict(capture) == ("fault", "client", "client.not_reading")


# ---- closed by the other side ----


def closed(*, fin_after_s, n=2):
    """Connections of the client in CLOSE_WAIT, whose FIN came so long after the last answer byte."""
    scene = passing().links(n, "client", "proxy", {0.0: (SOME, 6000)}, before=(35.0, 30.0), client_state="CLOSE_WAIT")
    scene.connections = [c for c in scene.connections if c.local.port != 4000 or c.ours]
    return changed(
        asleep(scene).capture(), of_client, last_ack_age_s=lambda s: max(0.0, (s.last_rx_age_s or 0.0) - fin_after_s)
    )


def test_convicts_a_client_that_sleeps_on_a_stream_that_was_closed_in_the_middle():
    assert verdict(closed(fin_after_s=0.01)) == ("fault", "client", "client.half_closed_ignored")


def test_says_healthy_for_a_pool_whose_idle_connections_the_server_has_closed():
    assert verdict(closed(fin_after_s=5.0))[0] == "healthy"


def test_convicts_the_owner_of_such_a_pool_when_it_is_named_as_hanging():
    assert verdict(named(closed(fin_after_s=5.0))) == ("fault", "client", "client.pool_slot_leak")


# ---- said to hang ----


def test_convicts_a_named_client_that_has_no_connection_and_asks_for_nothing():
    made = judge(named(asleep(passing()).capture()))
    assert (made.status, made.layer, made.mechanism) == ("fault", "client", "client.waits_inside")


def test_says_healthy_for_the_same_client_when_nobody_says_that_it_hangs():
    assert verdict(asleep(passing()).capture())[0] == "healthy"


def test_does_not_blame_a_named_client_while_a_request_of_its_is_under_way():
    scene = asleep(passing().waiting(1, "client", "proxy").waiting(1, "proxy", "engine"))
    assert judge(named(scene.capture())).status != "fault"


def test_does_not_blame_a_named_client_whose_begun_answer_may_be_stuck_below():
    scene = asleep(passing().silent(1, "client", "proxy").silent(1, "proxy", "engine"))
    assert judge(named(scene.capture())).status != "fault"


# ---- the path ----


def away(capture, host="10.1.2.3", **values):
    """The clients' ends moved to another host, and the entry's ends changed."""

    def moved(c):
        outside = c.local.port == 4000 and not c.ours
        return replace(c, remote=Address(host, c.remote.port)) if outside else c

    capture = replace(
        capture,
        connections=tuple(map(moved, capture.connections)),
        services=(
            *(s for s in capture.services if not s.client),
            SeenService(
                name=f"client:{host}", role="client", engine="generic", url=None, address=Address(host, 0),
                upstream=("proxy",), pids=(), client=True, remote=True,
            ),
        ),
    )  # fmt: skip
    return changed(capture, lambda c: c.remote.host == host and c.remote.port == 40003, **values)


def forgotten(*, others, **values):
    scene = passing()
    scene.hidden.add("client")
    scene.silent(1, "client", "proxy")
    if others:
        scene.streaming(1, "client", "proxy").streaming(1, "proxy", "engine")
    return away(scene.capture(), unsent=6000, retransmits=9, **values)


def test_convicts_a_path_that_forgot_one_of_several_connections_of_a_host():
    assert verdict(forgotten(others=True)) == ("fault", "network", "net.half_open_nat")


def test_convicts_nobody_when_nothing_else_of_that_host_is_heard():
    made = judge(forgotten(others=False))
    assert made.status != "fault"


def test_convicts_no_path_for_a_reader_with_a_closed_window():
    assert judge(forgotten(others=True, zero_window=True)).mechanism != "net.half_open_nat"


# ---- retries ----


def insisting(*, sizes, left_behind):
    """A client that gives up after 2 s and asks again; what it leaves behind below lives on for 3 s more, or is cancelled too."""
    scene = passing()
    for i, size in enumerate(sizes):
        t = 0.5 + 2.25 * i
        scene.link("client", "proxy", {t: (size, 0)}, closed=9)
        scene.link("proxy", "engine", {t: (size, 0)}, closed=21 if left_behind else 9)
    return scene.capture()


def test_convicts_a_client_whose_retries_overlap_below():
    assert verdict(insisting(sizes=(700,) * 4, left_behind=True)) == ("fault", "client", "retry.amplification")


def test_convicts_no_client_whose_cancels_are_passed_on():
    assert judge(insisting(sizes=(700,) * 4, left_behind=False)).mechanism != "retry.amplification"


def test_convicts_no_client_that_gives_up_different_requests():
    assert judge(insisting(sizes=(500, 900, 640, 1200), left_behind=True)).mechanism != "retry.amplification"


# ---- long answers ----


def long_answer(total):
    per_s = 4000  # events of the probe are 260 bytes a token
    timeline = {i * 0.25: (SOME, total + i * per_s) for i in range(int(END / 0.25) + 1)}
    scene = passing()
    for caller, callee in (("client", "proxy"), ("proxy", "engine")):
        scene.link(caller, callee, timeline, before=(total / (4 * per_s), 0.1))
    return scene.figures("engine", running=1, http=1, tokens=200, prefix="vllm:").capture()


def test_says_that_a_request_has_no_end_in_sight_when_its_answer_is_past_any_usual_length():
    assert verdict(long_answer(40_000_000)) == ("fault", "request", "request.endless_generation")


def test_says_healthy_for_a_long_answer_and_how_long_it_is():
    made = judge(long_answer(4_000_000))
    assert made.status == "healthy"
    assert any("tokens so far" in finding.text for finding in made.findings)


# ---- idle connections ----


def reused(*, idle_s, answered=False):
    """A relay sends a request on a connection that was idle so long; it ends at once, and its caller gets an error."""
    scene = passing()
    for i in range(2):
        t = 4.0 + 2 * i
        scene.link(
            "client", "proxy", {0.0: (SOME, 6000), t: (2 * SOME, 6000), t + 0.01: (2 * SOME, 6150)}, before=(5, 4)
        )
        scene.link("proxy", "engine", {0.0: (SOME, 6000)}, before=(5, 4), closed=int(t / 0.25) + 1)
    rx_age, tx_age = (0.0, idle_s) if answered else (idle_s + 0.01, 0.01)
    picked = [c.id for c in scene.connections if PIDS["proxy"] in c.pids and c.remote.port == 30002]
    return changed(scene.capture(), lambda c: c.id in picked, state="CLOSE", last_rx_age_s=rx_age, last_tx_age_s=tx_age)


def test_convicts_a_relay_that_uses_connections_again_which_the_server_closes_when_idle():
    assert verdict(reused(idle_s=5.0)) == ("fault", "proxy", "keepalive.race")


def test_convicts_no_relay_whose_connections_end_after_an_answer():
    assert judge(reused(idle_s=5.0, answered=True)).mechanism != "keepalive.race"


def test_convicts_no_client_that_read_much_at_once_and_works_on_it():
    diagnosis = judge(flowing(lambda _: 200_000))
    assert diagnosis.status == "healthy"
    behind = changed(flowing(lambda _: 300), of_client, rx=lambda s: s.rx + 200_000)
    assert judge(behind).status != "fault"
