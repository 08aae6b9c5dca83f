"""Which requests are pinned, and which ids may be sent: never one that reaches another request, never a guess."""

from dataclasses import replace

from vindicate.operate.unpin import Engine, plan_pins
from vindicate.stack.model import Service
from vindicate.wire.request_log import RequestLog

NOW = 10_000.0
OLD = "3f2a9c0d11e84b6f9a7c5d2e8b1f0a4c"
NEW = "99d1c0aa11e84b6f9a7c5d2e8b1f0a4c"


def engine(role, ages=None, *, kind="sglang", held=None, moves=False, whole=True, **stages):
    """*ages*: id → seconds, as its log tells them; ``None``: no log."""
    url = f"http://127.0.0.1:{30000 + len(role)}"
    log = None if ages is None else RequestLog({rid: NOW - age for rid, age in ages.items()}, max(1, len(ages)))
    held = sum(stages.values()) if held is None else held
    return Engine(
        service=Service(name=role, role=role, engine=kind, url=url, metrics=url + "/metrics", health="/health"),
        held=held, floor=held, stages=stages, moves=moves, log=log, whole=whole,
    )  # fmt: skip


def plan(*engines, rids=(), names=None, older=300.0):
    return plan_pins(engines, names or [one.service.name for one in engines], NOW, older_than_s=older, rids=rids)


def test_aborts_an_old_request_at_both_engines_and_leaves_a_young_one():
    made = plan(engine("prefill", {OLD: 400, NEW: 2}, inflight=2), engine("decode", {OLD: 400, NEW: 2}, transfer=2))
    assert [(pin.rid, pin.age_s, pin.engines, pin.state) for pin in made.pins] == [
        (OLD, 400, ("prefill", "decode"), "pinned")
    ]
    assert made.unclear == ()


def test_leaves_alone_what_may_be_a_long_answer():
    made = plan(engine("prefill", {}), engine("decode", {OLD: 400}, running=1, moves=True))
    assert made.pins == ()
    assert f"--rid {OLD}" in made.unclear[0]


def test_takes_an_old_request_that_prefill_still_holds_for_pinned_though_decode_moves():
    prefill, decode = (
        engine("prefill", {OLD: 400}, inflight=1),
        engine("decode", {OLD: 400, NEW: 1}, running=1, transfer=1, moves=True),
    )
    assert [pin.rid for pin in plan(prefill, decode).pins] == [OLD]
    assert [pin.rid for pin in plan(prefill, decode, names=["decode"]).pins] == [OLD]


def test_never_sends_an_id_that_begins_another():
    made = plan(engine("prefill", {"agent-1": 400, "agent-17": 400}, inflight=2))
    assert {pin.rid: pin.state for pin in made.pins} == {"agent-1": "refused", "agent-17": "pinned"}
    assert "agent-17" in next(pin.because for pin in made.pins if pin.rid == "agent-1")


def test_sends_no_short_id_where_others_are_not_known():
    made = plan(engine("prefill", {"agent-1": 400}, inflight=3))
    assert [pin.state for pin in made.pins] == ["refused"]
    assert "holds 3 and more, of which 1" in made.unclear[0]
    assert [pin.state for pin in plan(engine("prefill", {OLD: 400}, inflight=3)).pins] == ["pinned"]


def test_says_that_only_a_restart_helps_behind_a_retracted_request():
    prefill, decode = (
        engine("prefill", {OLD: 400}, bootstrap=1),
        engine("decode", {OLD: 400}, prealloc=1, retracted=1, held=1),
    )
    made = plan(prefill, decode)
    assert ([pin.state for pin in made.pins], made.restart) == (["refused"], ("decode",))
    assert plan(prefill, decode, rids=[OLD]).pins[0].state == "pinned"  # it may be the retracted one itself


def test_says_what_cannot_be_known_without_ids():
    for one in (engine("decode", None, running=3), replace(engine("decode", {}, running=3), log=RequestLog())):
        made = plan(one)
        assert made.pins == ()
        assert "--log-requests" in made.unclear[0]


def test_says_of_an_engine_without_such_an_api_what_frees_a_request():
    made = plan(engine("engine", {OLD: 400}, kind="vllm", running=1))
    assert made.pins == ()
    assert "no way to abort" in made.unclear[0]
    assert plan(engine("engine", {OLD: 400}, kind="vllm", running=1), rids=[OLD]).pins[0].state == "refused"


def test_does_not_trust_a_log_that_lacks_ends():
    made = plan(engine("prefill", {OLD: 400, NEW: 400}, inflight=1))
    assert made.pins == ()
    assert "ends are missing" in made.unclear[0]


def test_finds_nothing_in_engines_that_hold_nothing():
    made = plan(engine("prefill", None, held=0), engine("decode", {OLD: 400}, held=0))
    assert (made.pins, made.unclear) == ((), ())


def test_refuses_a_named_id_that_no_engine_holds():
    assert plan(engine("prefill", {NEW: 400}, inflight=1), rids=[OLD]).pins[0].because == "no engine holds it"
