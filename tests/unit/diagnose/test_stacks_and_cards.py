"""What threads of a process did, and how a GPU was busy: the more exact names that they allow, and whom they leave alone."""

from dataclasses import replace

import pytest

from fakes.captures import PIDS, PLAIN, Scenery
from vindicate.diagnose.judge import judge, scene_of
from vindicate.diagnose.threads import full_pool
from vindicate.record.observation import CardFacts, CardSample, ProcessFacts, StackLook, ThreadStack

WORKER = (
    "_WorkItem.run (concurrent/futures/thread.py:58)",
    "_worker (concurrent/futures/thread.py:83)",
    "Thread.run (threading.py:982)",
)
FREE = WORKER[1:]
LOOKUP = ("getaddrinfo (socket.py:962)", *WORKER)
LOOP = (
    "EpollSelector.select (selectors.py:468)",
    "BaseEventLoop._run_once (asyncio/base_events.py:1884)",
    "BaseEventLoop.run_forever (asyncio/base_events.py:607)",
)


def looks(service, *threads, later=None):
    at = {1.0: threads, 6.0: threads if later is None else later}
    return tuple(
        StackLook(
            pid=PIDS[service],
            t_s=t,
            threads=tuple(ThreadStack(name=f"t{n}", frames=one) for n, one in enumerate(all_of)),
        )
        for t, all_of in at.items()
    )


@pytest.mark.parametrize(
    ("stacks", "n", "looks_up"),
    [
        (looks("proxy", LOOP, WORKER, LOOKUP), 2, True),
        (looks("proxy", LOOP, WORKER, WORKER), 2, False),
        (looks("proxy", LOOP, WORKER, FREE), None, None),  # one is free
        (looks("proxy", LOOP, WORKER, WORKER, later=(LOOP, FREE, WORKER)), None, None),  # one was
        (looks("proxy", LOOP, LOOKUP), None, None),  # a thread of its own
        (looks("proxy", LOOP, WORKER, LOOKUP)[:1], None, None),  # seen once
        (looks("engine", LOOP, WORKER, LOOKUP), None, None),
    ],
)
def test_a_pool_is_used_up_when_none_of_its_threads_was_free_at_either_look(stacks, n, looks_up):
    capture = Scenery(PLAIN).capture()
    found = full_pool(scene_of(replace(capture, stacks=stacks)), "proxy")
    assert (found and (found.n_threads, found.looks_up)) == (n and (n, looks_up))


def test_threads_that_stood_still_are_said_of_nobody_s_guilt_and_waiting_ones_are_not_said():
    stuck = ("acquire (app.py:7)", "handle (app.py:9)")
    scene = (
        Scenery(PLAIN).probe("proxy").probe("engine").streaming(2, "client", "proxy").streaming(2, "proxy", "engine")
    )
    capture = replace(scene.capture(), stacks=looks("proxy", LOOP, FREE, stuck))
    diagnosis = judge(capture)
    said = [finding for finding in diagnosis.findings if "stood at the same place" in finding.text]
    assert [(one.service, one.direction) for one in said] == [("proxy", "neutral")]
    assert "acquire (app.py:7)" in said[0].text
    assert "select" not in said[0].text
    assert diagnosis.status == "healthy"


def cards(busy, traffic, pid=PIDS["engine"]):
    samples = tuple(
        CardSample(t_s=t, busy_pct=busy, memory_traffic_pct=traffic, power_w=130.0) for t in (6.0, 7.0, 8.0)
    )
    return (CardFacts(index=3, name="a card", pids=(pid,), power_limit_w=700.0, samples=samples),)


@pytest.mark.parametrize(
    ("seen", "mechanism"),
    [
        (cards(100, 0), "engine.collective_deadlock"),
        (cards(100, 60), "engine.stall_mid_stream"),  # it computes something
        (cards(0, 0), "engine.stall_mid_stream"),
        (cards(100, 0, pid=4711), "engine.stall_mid_stream"),  # a stranger's
        ((), "engine.stall_mid_stream"),
    ],
)
def test_a_card_that_is_busy_and_moves_nothing_names_the_kind_of_stall(seen, mechanism):
    scene = Scenery(PLAIN).figures("engine", running=4).silent(4, "client", "proxy").silent(4, "proxy", "engine")
    scene.probe("proxy", "stalled").probe("engine", "stalled")
    facts = ProcessFacts(pid=PIDS["engine"], ppid=1, name="engine", argv=(), started_at="")
    diagnosis = judge(replace(scene.capture(), cards=seen, processes=(facts,)))
    assert (diagnosis.service, diagnosis.mechanism) == ("engine", mechanism)
    assert any("GPU 3" in finding.text for finding in diagnosis.findings) == (mechanism == "engine.collective_deadlock")
