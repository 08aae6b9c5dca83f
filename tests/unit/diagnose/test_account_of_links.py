"""Who owes whom, told from byte counters over several looks; an open and silent connection owes nothing that is shown."""

import pytest

from fakes.captures import Scenery
from vindicate.diagnose.judge import scene_of


def states_at(scene, service="proxy"):
    return [link.state for link in scene_of(scene.capture()).account.nodes[service].down]


@pytest.mark.parametrize(
    ("timeline", "before", "state"),
    [
        ({0.0: (500, 0)}, (30.0, None), "owed"),
        ({0.0: (500, 6000)}, (35.0, 30.0), "open"),
        ({0.0: (500, 6000), 4.0: (1000, 6000)}, (35.0, 30.0), "owed"),
        ({0.0: (500, 6000), 9.75: (1000, 6000)}, (35.0, 30.0), "young"),
        ({0.0: (500, 6000), 4.0: (1000, 6000), 4.25: (1000, 6400)}, (35.0, 30.0), "open"),
        ({0.0: (0, 0)}, None, "unused"),
        ({t / 4: (20_000 * (t + 1), 0) for t in range(41)}, None, "uploading"),
        ({0.0: (500, 100)} | {t / 4: (500, 100 + 200 * t) for t in range(1, 41)}, (2.0, 1.0), "moving"),
        ({0.0: (500, 100)} | {float(t): (500, 100 + 200 * t) for t in range(0, 11, 3)}, (2.0, 1.0), "moving"),
        ({0.0: (500, 100)} | {t / 4: (500, 100 + 200 * t) for t in range(1, 12)}, (2.0, 1.0), "open"),
        ({0.0: (500, 100)} | {float(t): (500, 100 + 18 * t) for t in range(11)}, (2.0, 1.0), "open"),
        ({0.0: (500, 100)} | {float(t): (500, 100 + 15 * (t // 5)) for t in range(11)}, (2.0, 1.0), "open"),
    ],
)
def test_judges_a_link_by_what_its_counters_did(timeline, before, state):
    assert states_at(Scenery().link("client", "proxy", timeline, before=before)) == [state]


def test_calls_a_caller_that_left_abandoned_and_a_service_that_left_ended():
    scene = Scenery().link("client", "proxy", {0.0: (500, 900)}, before=(5.0, 4.0), server_state="CLOSE_WAIT")
    scene.link("client", "proxy", {0.0: (500, 900)}, before=(5.0, 4.0), client_state="CLOSE_WAIT")
    assert states_at(scene) == ["abandoned", "ended"]


def test_holds_only_requests_for_which_none_left_upstream_at_their_time():
    scene = Scenery().waiting(3, "client", "proxy", since=20).waiting(2, "proxy", "router", since=20)
    node = scene_of(scene.capture()).account.nodes["proxy"]
    assert (len(node.owed), len(node.held)) == (3, 1)


def test_does_not_take_an_older_upstream_request_for_the_one_that_waits():
    scene = Scenery().waiting(3, "client", "proxy", since=20).waiting(3, "proxy", "router", since=90)
    assert len(scene_of(scene.capture()).account.nodes["proxy"].held) == 3


def test_counts_a_caller_that_gave_up_unanswered_as_owed():
    scene = Scenery().link("client", "proxy", {1.0: (500, 0)}, closed=16)
    assert len(scene_of(scene.capture()).account.nodes["proxy"].owed) == 1


def test_keeps_our_own_probes_and_their_echo_below_out_of_what_users_are_owed():
    scene = Scenery().probe("proxy", "no_headers").forwarded("proxy", "router", "decode")
    nodes = scene_of(scene.capture()).account.nodes
    assert [len(nodes[name].owed) for name in ("proxy", "router", "decode")] == [0, 0, 0]
    assert len(nodes["proxy"].own) == 1


def test_attributes_a_worker_process_to_the_service_that_started_it():
    scene = Scenery().process("proxy", "S", pid=11, ppid=10).waiting(1, "proxy", "router")
    capture = scene.capture()
    moved = [
        c if c.pids != (10,) else type(c)(**{f: getattr(c, f) for f in c.__slots__} | {"pids": (11,)})
        for c in capture.connections
    ]
    account = scene_of(scene.capture(connections=tuple(moved))).account
    assert [(link.caller, link.callee) for link in account.nodes["proxy"].up] == [("proxy", "router")]
    assert [link.caller for link in account.nodes["router"].down] == ["proxy"]


def test_takes_unread_answers_as_standing_only_when_they_stay():
    scene = Scenery().silent(1, "proxy", "router", unread=700)
    assert scene_of(scene.capture()).account.nodes["proxy"].up[0].unread_response == 700


def test_says_idle_moving_stuck_or_unknown_by_gauges_and_the_counters_that_move_meanwhile():
    scene = Scenery().figures("proxy").figures("router", running=4, tokens=50).figures("prefill", running=4)
    progress = scene_of(scene.capture()).progress
    assert [progress[name].work for name in ("proxy", "router", "prefill", "decode")] == [
        "idle",
        "moving",
        "stuck",
        "unknown",
    ]


def test_takes_the_tokens_of_our_own_probes_off_the_counters():
    scene = Scenery().figures("decode", running=3, tokens=2).probe("decode")
    assert scene_of(scene.capture()).progress["decode"].live_delta <= 4
    scene = Scenery().figures("decode", running=3, tokens=[0, 0][0]).probe("decode")
    assert scene_of(scene.capture()).progress["decode"].work == "stuck"


def test_owes_nothing_to_callers_that_had_left_before_we_looked():
    scene = Scenery().waiting(2, "router", "decode")
    scene.links(9, "router", "decode", {0.0: (150, 0)}, before=(30.0, None), server_state="CLOSE_WAIT")
    assert len(scene_of(scene.capture()).account.nodes["decode"].owed) == 2
