"""Faults of a relay behind another one: the guilty one is named, and not the one that only suffers it."""

from fakes.captures import PLAIN, Scenery
from vindicate.diagnose.judge import judge

SMALL, LARGE, CUT = 500, 60_000, 30_000


def chain():
    scene = Scenery({"proxy": ("router",), "router": ("engine",), "engine": ()}).figures("engine", tokens=100)
    return scene.probe("proxy").probe("router").probe("engine")


def test_a_router_that_turns_shortened_requests_away_is_innocent():
    scene = chain()
    for n in range(4):
        at = 1.0 + 2 * n
        scene.link("client", "proxy", {at: (LARGE, 0), at + 0.25: (LARGE, 200)})
        scene.link("proxy", "router", {at: (CUT, 0), at + 0.25: (CUT, 200)})
        small = {at + 1.0: (SMALL, 0), at + 1.25: (SMALL, 2000)}
        for hop in (("client", "proxy"), ("proxy", "router"), ("router", "engine")):
            scene.link(*hop, small)
        medium = {at + 0.5: (9000, 0), at + 0.75: (9000, 2000)}
        for hop in (("client", "proxy"), ("proxy", "router"), ("router", "engine")):
            scene.link(*hop, medium)
    diagnosis = judge(scene.capture())
    assert diagnosis.service == "proxy", diagnosis.summary
    assert diagnosis.mechanism == "proxy.body_truncation"


def gives_up(*, large=LARGE, callers_stay=True):
    """A router that closes each large request upstream after 2.5 s without a byte, and asks again; small ones are answered."""
    scene = chain()
    for n in range(3):
        at = 0.5 + n * 0.25
        stay = 0 if callers_stay else 11
        scene.link("client", "proxy", {at: (large, 0)}, closed=stay).link(
            "proxy", "router", {at: (large, 0)}, closed=stay
        )
        for k in range(3):
            scene.link("router", "engine", {at + 2.75 * k: (large, 0)}, closed=11)
        small = {4.0 + n: (SMALL, 0), 4.25 + n: (SMALL, 2000)}
        for hop in (("client", "proxy"), ("proxy", "router"), ("router", "engine")):
            scene.link(*hop, small)
    return judge(scene.capture())


def test_names_the_relay_whose_patience_is_shorter_than_what_large_requests_take():
    diagnosis = gives_up()
    assert (diagnosis.service, diagnosis.mechanism) == ("router", "gateway.idle_timeout_before_first_byte")


def test_and_where_its_callers_asked_before_the_window_on_connections_that_are_used_again():
    scene = chain()
    for n in range(3):
        at, over = 0.5 + n * 0.25, 5.5 + n * 0.25
        # The request before the window is not seen; its answer, the next request and a small answer to that are.
        scene.link(
            "proxy", "router",
            {0.0: (LARGE, 0), over: (LARGE, 230), over + 0.25: (LARGE + SMALL, 230), over + 0.5: (LARGE + SMALL, 2200)},
            before=(2.0, None),
        )  # fmt: skip
        scene.link("router", "engine", {at: (LARGE, 0)}, closed=11)
        small = {over + 0.25: (SMALL, 0), over + 0.5: (SMALL, 2000)}
        scene.link("client", "proxy", small).link("router", "engine", small)
    diagnosis = judge(scene.capture())
    assert (diagnosis.service, diagnosis.mechanism) == ("router", "gateway.idle_timeout_before_first_byte")


def test_does_not_blame_its_patience_for_requests_no_larger_than_others_or_whose_callers_left():
    for diagnosis in (gives_up(large=SMALL), gives_up(callers_stay=False)):
        assert diagnosis.mechanism != "gateway.idle_timeout_before_first_byte"


def test_answers_that_come_to_a_relay_and_reach_none_of_its_callers_make_no_chain_healthy():
    scene = Scenery(PLAIN).figures("engine", running=4, tokens=300).streaming(4, "proxy", "engine")
    scene.waiting(6, "client", "proxy", since=2).probe("proxy", "no_headers").probe("engine", "no_headers")
    diagnosis = judge(scene.capture())
    assert diagnosis.status != "healthy", diagnosis.summary
    assert diagnosis.service in (None, "proxy")


def test_callers_who_asked_later_do_not_own_the_answers_of_those_who_left():
    scene = Scenery(PLAIN).figures("engine", running=8, tokens=300)
    scene.streaming(4, "proxy", "engine").links(8, "client", "proxy", {6.0: (SMALL, 0)})
    for at in (1.0, 2.0, 3.0, 4.0):  # served meanwhile, so that answers flow
        for hop in (("client", "proxy"), ("proxy", "engine")):
            scene.link(*hop, {at: (SMALL, 0), at + 0.25: (SMALL, 900)}, closed=30)
    diagnosis = judge(scene.probe("proxy").probe("engine").capture())
    assert (diagnosis.service, diagnosis.mechanism) == ("proxy", "router.cancel_not_propagated")


def test_a_request_goes_to_one_of_two_engines_and_is_not_looked_for_at_the_other():
    scene = Scenery({"router": ("engine", "decode"), "engine": (), "decode": ()})
    scene.roles["decode"] = "engine"
    for n in range(8):
        scene.waiting(1, "client", "router", since=20.0 - 0.1 * n)
        scene.waiting(1, "router", ("engine", "decode")[n in (1, 2, 5, 7)], since=20.0 - 0.1 * n)
    for at in (2.0, 3.0, 4.0, 5.0, 6.0):
        scene.link("client", "router", {at: (SMALL, 0), at + 0.5: (SMALL, 3000)})
        scene.link("router", "engine", {at: (SMALL, 0), at + 0.5: (SMALL, 3000)})
    findings = judge(scene.probe("router").probe("engine").capture()).findings
    assert not any("went no further" in finding.text for finding in findings)
