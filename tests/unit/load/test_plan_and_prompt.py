import random
import re

import msgspec
import pytest

from vindicate.errors import MisuseError
from vindicate.load.dialect import request_of
from vindicate.load.plan import LoadPlan, read_sessions, server_url
from vindicate.load.prompt import cancel_point, session_random, turns

PLAN = LoadPlan(url="http://h:1", rounds=12)


def session(number, *, seed=5, level=8, plan=PLAN):
    return list(turns(plan, session_random(seed, level, number), number))


def test_each_round_plants_a_value_and_asks_for_an_earlier_one():
    planted = {}
    for count, turn in enumerate(session(0)):
        key, value = re.match(r"The value of (KEY-\w+) is (VAL-\w+)\.", turn.say).groups()
        asked = re.search(r"What is the value of (KEY-\w+)\?", turn.say)[1]
        assert key not in planted
        if count == 0:
            assert (asked, turn.expect) == (key, value)
        else:
            assert turn.expect == planted[asked]
        planted[key] = value


def test_one_seed_gives_the_same_prompts_and_another_gives_none_of_them():
    assert session(3) == session(3)
    said = {turn.say for turn in session(3)}
    others = [turn.say for turn in session(3, seed=6) + session(4) + session(3, level=16)]
    assert said.isdisjoint(others)


def test_about_the_asked_share_of_streams_is_abandoned():
    plan = LoadPlan(url="http://h:1", cancel_share=0.25)
    chance = random.Random(1)
    points = [cancel_point(plan, chance) for _ in range(2000)]
    assert 430 < sum(point is not None for point in points) < 570
    assert all(1 <= point <= 8 for point in points if point is not None)


def test_no_share_abandons_none_and_the_whole_share_all():
    chance = random.Random(1)
    assert all(cancel_point(PLAN, chance) is None for _ in range(100))
    every = LoadPlan(url="http://h:1", cancel_share=1.0, max_tokens=1)
    assert {cancel_point(every, chance) for _ in range(100)} == {1}


@pytest.mark.parametrize(
    "given", ["http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/", "http://h:1/v1/chat/completions"]
)
def test_a_url_may_be_given_with_the_api_path(given):
    assert server_url(given) == "http://h:1"


def test_a_prefix_of_the_api_is_kept():
    assert server_url("https://h/team/v1") == "https://h/team"


@pytest.mark.parametrize("given", ["", "h:1", "ftp://h", "http://", "http://h:99999", "http://h:x", "http://[::1"])
def test_what_is_no_url_is_refused_with_its_text(given):
    with pytest.raises(MisuseError, match="no URL"):
        server_url(given)


@pytest.mark.parametrize(
    ("field", "value"),
    [("levels", ()), ("levels", (0,)), ("rounds", 0), ("cancel_share", 1.5), ("stall_after_s", 0), ("duration_s", -1)],
)
def test_a_plan_that_cannot_be_is_refused(field, value):
    with pytest.raises(MisuseError, match=str(value).replace("(", r"\(").replace(")", r"\)")):
        LoadPlan(url="http://h:1", **{field: value})


def test_without_a_budget_every_slot_plays_one_session():
    assert PLAN.budget(8) == 96
    assert LoadPlan(url="http://h:1", requests_per_level=10).budget(8) == 10
    assert LoadPlan(url="http://h:1", duration_s=10.0).budget(8) is None


def test_sessions_are_read_from_a_file(tmp_path):
    file = tmp_path / "s.jsonl"
    file.write_text('{"rounds": [{"say": "a"}, {"say": "b", "expect": "c"}]}\n\n{"rounds": []}\n')
    sessions = read_sessions(file)
    assert [[turn.say for turn in one] for one in sessions] == [["a", "b"]]
    plan = LoadPlan(url="http://h:1", sessions=sessions)
    assert [turn.expect for turn in session(7, plan=plan)] == [None, "c"]


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"rounds": [{"expect": "x"}]}', "\xff", '{"rounds": []}'])
def test_a_sessions_file_that_holds_something_else_is_refused_with_its_line(tmp_path, text):
    file = tmp_path / "s.jsonl"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(MisuseError, match=r"s\.jsonl"):
        read_sessions(file)


def test_a_key_variable_that_is_not_set_is_named(monkeypatch):
    monkeypatch.delenv("SOME_KEY", raising=False)
    with pytest.raises(MisuseError, match="SOME_KEY"):
        LoadPlan(url="http://h:1", api_key_env="SOME_KEY").api_key()


@pytest.mark.parametrize("api", ["chat", "completions", "generate"])
def test_a_fixed_length_is_asked_for_in_the_engine_s_own_words_and_only_then(api):
    messages = [{"role": "user", "content": "hi"}]
    free, fixed = (
        request_of(api, "m", messages, max_tokens=8, streaming=True, ignore_eos=ignore)[1] for ignore in (False, True)
    )
    assert b"ignore_eos" not in free
    body = msgspec.json.decode(fixed)
    assert body.get("sampling_params", body)["ignore_eos"] is True
