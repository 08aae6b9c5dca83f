"""Answers that are compared around a change: read whole, and steady only when there is something to compare."""

import threading

import pytest

from vindicate.errors import EngineError
from vindicate.load.plan import LoadPlan
from vindicate.load.run import run_load_blocking
from vindicate.operate.answers import take_baseline, wait_for_answer
from vindicate.operate.services import bring_up


@pytest.fixture
def asked(small_stack):
    """A function that starts a worker with these words and takes the baseline of its answers."""

    def ask(words):
        stack = small_stack(entry="worker", worker=words)
        bring_up(stack, ("worker", "helper"), say=lambda _: None)
        return (*take_baseline(stack), stack)

    return ask


def test_a_list_of_models_that_comes_in_pieces_is_read_whole(asked):
    baseline, _, stack = asked("--models 300")
    assert [answer.steady for answer in baseline.answers] == [True] * 3
    plan = LoadPlan(url=stack.service("worker").url, levels=(1,), requests_per_level=1, rounds=1)
    assert run_load_blocking(plan).model == "fake"


def test_a_refused_list_of_models_is_named_with_its_status(asked):
    baseline, notes, stack = asked("--locked")
    assert baseline is None
    assert "/v1/models answers 401" in notes[0]
    with pytest.raises(EngineError, match="answers 401"):
        run_load_blocking(LoadPlan(url=stack.service("worker").url, levels=(1,), requests_per_level=1))


def test_what_a_model_thought_is_compared_when_it_said_nothing_yet(asked):
    baseline, _, _ = asked("--reasons")
    assert [(answer.steady, answer.recalled) for answer in baseline.answers] == [
        (True, True),
        (True, True),
        (True, None),
    ]


def test_nothing_said_twice_is_not_steady(asked):
    baseline, _, _ = asked("--mute")
    assert [answer.steady for answer in baseline.answers] == [False] * 3


def test_a_router_that_does_not_see_its_workers_yet_is_waited_for(asked):
    _, _, stack = asked("--refuse-file refuse")
    refuse = stack.home.parent / "refuse"
    refuse.write_text("")
    later = threading.Timer(0.7, refuse.unlink)
    later.start()
    try:
        assert wait_for_answer(stack).text.startswith("worker answers a small request, ")
    finally:
        later.join()


def test_a_router_that_never_sees_its_workers_is_named(asked):
    _, _, stack = asked("--refuse-file refuse")
    (stack.home.parent / "refuse").write_text("")
    reached = wait_for_answer(stack, within_s=0.6)
    assert (reached.good, reached.service) == (False, "worker")
    assert reached.text == "worker answers 503 to a small request, 600 ms after the restart"


def test_a_service_that_refuses_us_answers_all_the_same(asked):
    _, _, stack = asked("--locked")
    assert wait_for_answer(stack).good
