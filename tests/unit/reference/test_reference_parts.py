import asyncio
import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vindicate.errors import BugError, MisuseError
from vindicate.reference.decode import Memory
from vindicate.reference.device import KNOB, SPEED, CpuDevice, make_device
from vindicate.reference.fault import FAULTS, Fault, read_fault
from vindicate.reference.front import _launch_command
from vindicate.reference.kv import HEADER, KvError, check, header, read_header
from vindicate.reference.openai import BadRequestError, Writer, read_order
from vindicate.reference.sequence import LIFE, End, Sequence, Stage
from vindicate.reference.stop import StopStrings
from vindicate.reference.worker import Worker, pick


def body(**fields):
    return {"messages": [{"role": "user", "content": "hi"}], "bootstrap_room": 1, **fields}


def order(**fields):
    return read_order(body(**fields), chat=True, model="m", request_id=None)


# ---- the life of a sequence


@pytest.mark.parametrize("role", LIFE)
def test_a_sequence_goes_one_stage_on_or_to_its_end_and_nowhere_else(role):
    life = LIFE[role]
    for at, here in enumerate(life):
        for there in Stage:
            sequence = Sequence(order(), role, 1, 1)
            sequence.stage = here
            allowed = here is not Stage.DONE and there in (*life[at + 1 : at + 2], Stage.DONE)
            if allowed:
                sequence.move(there)
                assert sequence.stage is there
            else:
                with pytest.raises(BugError):
                    sequence.move(there)
                assert sequence.stage is here


def test_a_sequence_ends_once_and_the_first_reason_counts():
    sequence = Sequence(order(), "decode", 1, 1)
    sequence.end(End("error", 500, "first"))
    sequence.end(End("abort"))
    assert sequence.events.get_nowait() == End("error", 500, "first")
    assert sequence.events.empty()


@given(st.text("ab", max_size=30), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3), st.integers(1, 4))
def test_a_text_ends_before_its_first_stop_string_however_it_is_cut_into_tokens(text, stops, size):
    watch = StopStrings(tuple(stops))
    sent, matched = "", None
    for at in range(0, len(text), size):
        passed, matched = watch.passes(text[at : at + size])
        sent += passed
        if matched:
            break
    ends = [at + len(stop) for stop in stops if (at := text.find(stop)) >= 0]
    assert (matched is not None) == bool(ends)
    if matched:
        assert sent + matched == text[: len(sent) + len(matched)]
        assert not any(stop in sent for stop in stops)
        assert watch.rest() == ""
    else:
        assert sent + watch.rest() == text


def test_no_more_is_held_back_than_may_become_a_stop_string():
    watch = StopStrings(("said above",))
    assert [watch.passes(token)[0] for token in (" was", " said", " so", " said", " above;")] == [
        " wa", "s ", "said so", " ", ""
    ]  # fmt: skip


# ---- decode's memory


def test_memory_is_first_come_first_served_and_a_big_one_holds_up_those_behind():
    async def play():
        memory = Memory(10)
        await memory.take(6)
        big, small = asyncio.create_task(memory.take(8)), asyncio.create_task(memory.take(1))
        await asyncio.sleep(0)
        assert not big.done()
        assert not small.done()
        memory.give(6)
        await asyncio.wait_for(asyncio.gather(big, small), 1)
        assert memory.used == 9

    asyncio.run(play())


def test_memory_lets_the_line_move_up_when_its_head_gives_up():
    async def play():
        memory = Memory(10)
        await memory.take(6)
        big, small = asyncio.create_task(memory.take(8)), asyncio.create_task(memory.take(1))
        await asyncio.sleep(0)
        big.cancel()
        await asyncio.wait_for(small, 1)
        assert memory.used == 7

    asyncio.run(play())


# ---- the device


def test_steps_take_what_the_wave_model_says(monkeypatch):
    times = {}
    for target in ("256", "512"):
        monkeypatch.setenv(KNOB, target)
        device = make_device("simulated:rtx-pro-6000", has_knob=True)
        times[target] = [device.step_s(batch) for batch in (48, 64, 80, 96)]
    gains = [round(100 * a / b - 100, 1) for a, b in zip(times["256"], times["512"], strict=True)]
    assert gains == [0.0, 13.0, 0.0, 5.3]


def test_an_unset_knob_is_256(monkeypatch):
    monkeypatch.delenv(KNOB, raising=False)
    assert make_device("simulated:h200", has_knob=True).target_ctas == 256


@pytest.mark.parametrize("value", ["", "0", "-1", "2.5", "auto", "٣", " 256"])
def test_a_knob_that_is_no_number_stops_decode_and_not_prefill(monkeypatch, value):
    monkeypatch.setenv(KNOB, value)
    assert make_device("simulated:h200", has_knob=False)
    with pytest.raises(MisuseError, match=KNOB):
        make_device("simulated:h200", has_knob=True)


@pytest.mark.parametrize("value", ["", "0", "nan", "fast", "1e9"])
def test_a_speed_that_cannot_be_is_refused(monkeypatch, value):
    monkeypatch.setenv(SPEED, value)
    with pytest.raises(MisuseError, match=SPEED):
        make_device("simulated:h200", has_knob=False)


@pytest.mark.parametrize("name", ["cpu:2", "simulated:gtx", "h200"])
def test_a_device_that_is_not_there_is_refused_with_the_ones_that_are(name):
    with pytest.raises(MisuseError) as caught:
        make_device(name, has_knob=False)
    assert "simulated:rtx-pro-6000" in caught.value.remedy


def test_a_step_on_the_cpu_takes_what_it_takes_and_a_slow_one_its_multiple():
    device = CpuDevice()
    assert asyncio.run(device.compute(lambda: time.sleep(0.05) or 7)) == 7
    assert device.step_s(1) == 0
    assert device.step_s(1, slowdown=5) >= 4 * 0.05


def test_what_nobody_waits_for_comes_after_what_is_under_way_and_its_failure_is_said(caplog):
    seen = []

    async def play():
        device = CpuDevice()
        work = asyncio.create_task(device.compute(lambda: time.sleep(0.05) or seen.append("work")))
        await asyncio.sleep(0)
        device.later(lambda: seen.append("later"))
        device.later(lambda: 1 / 0)
        await work
        await device.compute(lambda: None)

    asyncio.run(play())
    assert seen == ["work", "later"]
    assert "division by zero" in caplog.text


# ---- faults


def test_a_fault_shows_from_the_request_after_its_number_on():
    fault = read_fault("no_end", 2, "decode")
    assert [fault.hits("no_end", number) for number in (1, 2, 3, 4)] == [False, False, True, True]
    assert not fault.hits("slow", 9)


def test_hold_takes_its_number_either_way():
    assert read_fault("hold:3", 0, "router") == Fault("hold", 3, 3)
    assert read_fault("hold", 3, "router").after == 3


@pytest.mark.parametrize(
    ("role", "text"),
    [("decode", "hold"), ("router", "no_end"), ("decode", "slow:x"), ("decode", "slow:0"), ("prefill", "")],
)
def test_a_fault_that_a_role_does_not_have_is_refused(role, text):
    with pytest.raises(MisuseError):
        read_fault(text, 0, role)


def test_the_launch_command_does_not_show_a_fault():
    argv = ["decode", "--fault", "no_end", "--port", "1", "--fault-after", "3", "--fault=slow:2"]
    assert _launch_command(argv) == ["decode", "--port", "1"]
    assert all(name not in " ".join(_launch_command(argv)) for name in FAULTS["decode"])


# ---- KV on the wire


def test_kv_with_one_bit_wrong_is_refused():
    length, checksum = read_header(header(7, b"abc"), 7)
    assert length == 3
    assert check(b"abc", checksum) == b"abc"
    with pytest.raises(KvError, match="checksum"):
        check(b"abb", checksum)


def test_kv_of_another_room_is_refused():
    with pytest.raises(KvError, match="room 7"):
        read_header(header(7, b"abc"), 8)
    with pytest.raises(KvError, match="header"):
        read_header(b"H" * HEADER.size, 7)


# ---- the API


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"bootstrap_room": None}, "bootstrap_room"),
        ({"bootstrap_room": 1 << 63}, "bootstrap_room"),
        ({"bootstrap_room": True}, "bootstrap_room"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": "9"}, "max_completion_tokens"),
        ({"n": 2}, "n is 2"),
        ({"messages": []}, "messages"),
        ({"messages": ["hi"]}, "messages"),
        ({"rid": 5}, "rid"),
        ({"stop": 5}, "stop"),
        ({"stop": ["a", ""]}, "stop"),
    ],
)
def test_a_bad_field_is_named(fields, names):
    with pytest.raises(BadRequestError, match=names):
        order(**fields)


def test_a_rid_comes_from_the_body_then_from_the_request_id():
    assert order(rid="mine").rid == "mine"
    assert read_order(body(), chat=True, model="m", request_id="header").rid == "header"
    assert order().rid != order().rid


def test_reads_content_in_parts():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert order(messages=[{"role": "user", "content": parts}]).prompt.endswith("ab\n")


@pytest.mark.parametrize("chat", [True, False])
@pytest.mark.parametrize("text", [' "quoted"\n', "\0", "é"])
def test_a_token_chunk_is_json_whatever_the_token_and_the_rid(chat, text):
    given = {"prompt": "hi", **body(rid="\0", model='m"')}
    writer = Writer(read_order(given, chat=chat, model="m", request_id=None))
    data = json.loads(writer.token(text).removeprefix(b"data: "))
    choice = data["choices"][0]
    assert (choice["delta"]["content"] if chat else choice["text"]) == text
    assert data["id"] == "\0"


# ---- the router's workers


def test_workers_take_turns_and_the_sick_and_the_broken_are_left_out():
    workers = [Worker("decode", f"http://{name}", None) for name in "abc"]
    workers[0].healthy = False
    for _ in range(10):
        workers[1].failed(now=0)
    assert pick(workers, now=1) is workers[2]
    assert workers[1].breaker(61) == 2
    workers[1].succeeded()
    assert {pick(workers, now=1).url for _ in range(2)} == {"http://b", "http://c"}


def test_says_none_when_no_worker_is_left():
    assert pick([Worker("decode", "http://a", None, healthy=False)], now=0) is None
