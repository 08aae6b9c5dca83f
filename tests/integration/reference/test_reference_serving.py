import asyncio
import contextlib
import json
import os
import subprocess
import sys

import pytest

from fakes.reference_stack import (
    Answer,
    ask,
    ask_now,
    chat,
    free_ports,
    get,
    metric,
    running_stack,
    start,
    status,
    until,
)
from vindicate.reference.kv import header
from vindicate.reference.model import USER_MARK, CopyModel


@pytest.fixture(scope="module")
def stack(tmp_path_factory):
    with running_stack(tmp_path_factory.mktemp("stack")) as running:
        yield running


def planted(number: int, question: str = "") -> str:
    return f"The value of KEY-{number} is VAL-{number}. {question}"


def asked(number: int) -> str:
    return f"What is the value of KEY-{number}?"


def idle(stack) -> bool:
    gauges = ("running_reqs", "queue_reqs", "prefill_bootstrap_queue_reqs", "prefill_inflight_queue_reqs")
    gauges += ("decode_prealloc_queue_reqs", "decode_transfer_queue_reqs")
    return all(metric(stack.url(role), f"sglang:num_{name}") == 0 for role in ("prefill", "decode") for name in gauges)


def fields_of_metrics(url: str) -> set[str]:
    return {line.split()[2] for line in get(url + "/metrics")[1].decode().splitlines() if line.startswith("# TYPE")}


# ---- answers


def test_eight_sessions_at_once_recall_what_was_said_in_earlier_rounds(stack):
    async def session(number):
        history = []
        for round_ in range(3):
            own, earlier = 10 * number + round_, 10 * number + max(0, round_ - 1)
            question = planted(own, asked(earlier))
            answer = await ask(stack.url("router"), chat(question, history=history, max_tokens=8))
            assert answer.text.startswith(f"VAL-{earlier} "), answer
            assert (answer.status, answer.finish, answer.done) == (200, "length", True)
            history += [{"role": "user", "content": question}, {"role": "assistant", "content": answer.text}]

    async def play():
        await asyncio.gather(*(session(number) for number in range(8)))

    asyncio.run(play())
    until(lambda: idle(stack), "all queues are empty")


def test_streams_one_token_a_chunk_and_counts_them(stack):
    answer = ask_now(
        stack.url("router"), chat(planted(1, asked(1)), max_tokens=5, stream_options={"include_usage": True})
    )
    assert answer.n_tokens == 5
    assert answer.usage["completion_tokens"] == 5
    assert answer.usage["total_tokens"] == answer.usage["prompt_tokens"] + 5
    assert answer.headers["x-vindicate-simulated"] == "1"


def test_stops_after_the_answer_unless_told_to_ignore_the_end(stack):
    short = ask_now(stack.url("router"), chat(planted(1, asked(1)), max_tokens=64))
    full = ask_now(stack.url("router"), chat(planted(1, asked(1)), max_tokens=64, ignore_eos=True))
    assert (short.finish, short.n_tokens) == ("stop", 17)
    assert (full.finish, full.n_tokens) == ("length", 64)


def test_ends_before_a_stop_string_and_says_which(stack):
    streamed = ask_now(stack.url("router"), chat(planted(1, asked(1)), stop=["said above", "no"]))
    assert (streamed.text, streamed.finish, streamed.done) == ("VAL-1 as was ", "stop", True)
    whole = ask_now(stack.url("router"), chat(planted(1, asked(1)), stop="was", stream=False))
    choice = json.loads(whole.body)["choices"][0]
    assert (choice["message"]["content"], choice["matched_stop"]) == ("VAL-1 as ", "was")
    nothing = ask_now(stack.url("router"), chat(planted(1, asked(1)), stop="VAL"))
    assert (nothing.text, nothing.finish, nothing.done) == ("", "stop", True)
    held = ask_now(stack.url("router"), chat(planted(1, asked(1)), stop="was it", max_tokens=3))
    assert (held.text, held.finish) == ("VAL-1 as was", "length")


def test_answers_in_one_piece_when_not_asked_to_stream(stack):
    answer = ask_now(stack.url("router"), chat(planted(1, asked(1)), stream=False, max_tokens=2))
    body = json.loads(answer.body)
    assert body["choices"][0]["message"]["content"] == "VAL-1 as"
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["completion_tokens"] == 2


def test_completes_a_plain_prompt(stack):
    body = {"model": "m", "prompt": "a=b and a?", "max_tokens": 1, "stream": True}
    assert ask_now(stack.url("router"), body, path="/v1/completions").text == "b"


def test_passes_the_request_id_through_and_honours_a_rid(stack):
    answer = ask_now(stack.url("router"), chat("hi", max_tokens=1, stream=False), headers={"x-request-id": "abc"})
    assert answer.headers["x-request-id"] == "abc"
    assert json.loads(answer.body)["id"] == "abc"
    answer = ask_now(stack.url("router"), chat("hi", max_tokens=1, stream=False, rid="mine"))
    assert json.loads(answer.body)["id"] == "mine"


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_lone_engine_refuses_a_plain_request_and_says_why(stack, role):
    answer = ask_now(stack.url(role), chat("hi"))
    assert answer.status == 400
    assert "bootstrap_room" in answer.body


def test_a_prober_can_ask_a_pair_past_the_router(stack):
    body = chat(planted(5, asked(5)), max_tokens=3, **stack.bootstrap(room=4242))

    async def play():
        return await asyncio.gather(ask(stack.url("prefill"), body), ask(stack.url("decode"), body))

    prefill, decode = asyncio.run(play())
    assert (prefill.status, prefill.text, prefill.done) == (200, "VAL-5", True)
    assert (decode.status, decode.text, decode.done) == (200, "VAL-5 as was", True)


# ---- the KV


@contextlib.asynccontextmanager
async def corrupting_relay(port: int, position: int):
    """Passes the bootstrap port on, and flips one bit of what prefill sends."""

    async def relay(reader, writer):
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", port)
        up_writer.write(await reader.readline())
        data = bytearray(await up_reader.read(1 << 20))
        data[position] ^= 1
        writer.write(data)
        up_writer.write(await reader.readline())
        up_writer.close()
        writer.close()

    server = await asyncio.start_server(relay, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()


@pytest.mark.parametrize("position", [0, 8, 100])
def test_kv_corrupted_on_the_way_is_a_visible_failure_of_both_legs(stack, position):
    async def play():
        async with corrupting_relay(stack.ports["bootstrap"], position) as port:
            body = chat(planted(5, asked(5)), max_tokens=3, **stack.bootstrap(room=90 + position, port=port))
            return await asyncio.gather(ask(stack.url("prefill"), body), ask(stack.url("decode"), body))

    before = metric(stack.url("decode"), "sglang:num_transfer_failed_reqs_total")
    prefill, decode = asyncio.run(play())
    assert (prefill.status, decode.status) == (500, 500)
    assert "KV" in decode.body
    assert metric(stack.url("decode"), "sglang:num_transfer_failed_reqs_total") == before + 1
    until(lambda: idle(stack), "both sides are free again")


def test_decode_answers_from_the_kv_and_from_nothing_else(stack):
    other = CopyModel().prefill(f"{USER_MARK}{planted(5).replace('VAL', 'OTHER')}{asked(5)}")

    async def play():
        async def send(reader, writer):
            room = json.loads(await reader.readline())["room"]
            writer.writelines((header(room, other), other))
            assert await reader.readline() == b"ok\n"
            writer.close()

        server = await asyncio.start_server(send, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        body = chat(planted(5, asked(5)), max_tokens=1, **stack.bootstrap(room=77, port=port))
        answer = await ask(stack.url("decode"), body)
        server.close()
        return answer

    assert asyncio.run(play()).text == "OTHER-5"


# ---- leaving


def test_a_client_that_leaves_frees_the_request_on_both_sides(stack):
    aborted = metric(stack.url("decode"), "sglang:num_aborted_requests_total")
    answer = ask_now(stack.url("router"), chat("hi", max_tokens=100_000, ignore_eos=True), patience=0.5)
    assert answer.n_tokens > 3
    assert not answer.ended
    until(lambda: idle(stack), "the request is gone", seconds=3)
    assert metric(stack.url("decode"), "sglang:num_aborted_requests_total") == aborted + 1
    until(lambda: metric(stack.url("router"), "smg_worker_requests_active") == 0, "the router let go", seconds=3)


def test_a_prober_that_sends_one_leg_only_frees_it_by_leaving(stack):
    for role, gauge in (("prefill", "prefill_bootstrap"), ("decode", "decode_transfer")):
        body = chat("hi", **stack.bootstrap(room=1234))

        async def play(role=role, gauge=gauge, body=body):
            leg = asyncio.create_task(ask(stack.url(role), body))
            name = f"sglang:num_{gauge}_queue_reqs"
            await asyncio.to_thread(until, lambda: metric(stack.url(role), name) == 1, f"{role} waits for its peer")
            leg.cancel()

        asyncio.run(play())
        until(lambda: idle(stack), "the leg is gone", seconds=3)


def test_abort_takes_every_rid_that_begins_so_and_no_other(stack):
    async def play():
        bodies = [chat("hi", rid=rid, max_tokens=100_000, ignore_eos=True) for rid in ("ab-1", "ab-2", "b-1")]
        legs = [asyncio.create_task(ask(stack.url("router"), body, patience=15)) for body in bodies]
        running = lambda: metric(stack.url("decode"), "sglang:num_running_reqs") == 3  # noqa: E731
        await asyncio.to_thread(until, running, "three requests run")
        for rid in ("ab", "", "nobody"):
            assert ask_now_post(stack.url("decode") + "/abort_request", {"rid": rid}) == 200
        ended = await asyncio.gather(*legs[:2])
        assert [answer.finish for answer in ended] == ["abort", "abort"]
        assert not legs[2].done()
        ask_now_post(stack.url("decode") + "/abort_request", {"abort_all": True})
        assert (await legs[2]).finish == "abort"

    asyncio.run(play())
    until(lambda: idle(stack), "nothing runs")


def ask_now_post(url: str, body: dict) -> int:
    import urllib.request

    request = urllib.request.Request(url, data=json.dumps(body).encode(), headers={"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=5) as answer:
        return answer.status


def test_a_request_id_may_be_used_twice_at_a_time(stack):
    async def play():
        bodies = [chat(planted(n, asked(n)), max_tokens=5) for n in (1, 2)]
        return await asyncio.gather(
            *(ask(stack.url("router"), body, headers={"x-request-id": "same"}) for body in bodies)
        )

    assert [answer.text.split()[0] for answer in asyncio.run(play())] == ["VAL-1", "VAL-2"]


def test_a_rid_in_use_is_refused(stack):
    async def play():
        first = asyncio.create_task(ask(stack.url("router"), chat("hi", rid="twin", max_tokens=5000, ignore_eos=True)))
        running = lambda: metric(stack.url("decode"), "sglang:num_running_reqs") == 1  # noqa: E731
        await asyncio.to_thread(until, running, "the first one runs")
        second = await ask(stack.url("decode"), chat("hi", rid="twin", **stack.bootstrap(room=5)))
        first.cancel()
        return second

    second = asyncio.run(play())
    assert second.status == 400
    assert "twin" in second.body
    until(lambda: idle(stack), "nothing runs")


# ---- what it tells


def test_token_counters_move_as_in_sglang_some_at_once_and_some_at_the_end(stack):
    url = stack.url("decode")

    async def play():
        counts = {
            name: metric(url, name) for name in ("sglang:generation_tokens_total", "sglang:realtime_tokens_total")
        }
        itl = metric(url, "sglang:inter_token_latency_seconds_count")
        leg = asyncio.create_task(ask(stack.url("router"), chat("hi", max_tokens=150, ignore_eos=True)))
        moved = lambda: metric(url, "sglang:inter_token_latency_seconds_count") > itl + 20  # noqa: E731
        await asyncio.to_thread(until, moved, "tokens come")
        assert metric(url, "sglang:realtime_tokens_total", mode="decode") > counts["sglang:realtime_tokens_total"]
        assert metric(url, "sglang:generation_tokens_total") == counts["sglang:generation_tokens_total"]
        assert metric(url, "sglang:http_requests_active", endpoint="/v1/chat/completions") == 1
        await leg
        assert metric(url, "sglang:generation_tokens_total") == counts["sglang:generation_tokens_total"] + 150

    asyncio.run(play())


def test_the_pages_carry_the_names_of_sglang_and_of_its_router(stack):
    ask_now(stack.url("router"), chat(planted(2, asked(2)), max_tokens=2))
    names = fields_of_metrics(stack.url("decode"))
    assert {
        "sglang:num_running_reqs",
        "sglang:num_queue_reqs",
        "sglang:num_prefill_bootstrap_queue_reqs",
        "sglang:num_decode_transfer_queue_reqs",
        "sglang:generation_tokens_total",
        "sglang:time_to_first_token_seconds",
        "sglang:max_total_num_tokens",
    } <= names
    assert metric(stack.url("prefill"), "sglang:kv_transfer_total_mb_sum", engine_type="prefill") > 0
    names = fields_of_metrics(stack.url("router"))
    assert {"smg_http_connections_active", "smg_http_inflight_request_age_count", "smg_router_requests_total"} <= names
    for role in ("prefill", "decode"):
        assert metric(stack.url("router"), "smg_worker_health", worker=stack.url(role)) == 1
        assert metric(stack.url("router"), "smg_worker_cb_state", worker=stack.url(role)) == 0


def test_loads_carry_two_times_and_the_queues(stack):
    data = json.loads(get(stack.url("decode") + "/v1/loads")[1])
    load = data["loads"][0]
    assert load["timestamp"] == pytest.approx(data["timestamp"], abs=1)
    assert load["disaggregation"]["mode"] == "decode"
    assert load["queues"]["waiting"] == 0


def test_tells_its_role_and_that_its_device_is_simulated(stack):
    for role in ("prefill", "decode"):
        info = json.loads(get(stack.url(role) + "/model_info")[1])
        assert info["disaggregation_mode"] == role
        assert info["device"] == "simulated:rtx-pro-6000"
        assert info["simulated"] is True
    assert json.loads(get(stack.url("router") + "/v1/models")[1])["data"][0]["id"] == "reference-copy"
    assert {each["worker_type"] for each in json.loads(get(stack.url("router") + "/workers")[1])["workers"]} == {
        "prefill",
        "decode",
    }


def test_shows_its_api_key_to_who_has_it_as_sglang_does(tmp_path):
    port = free_ports("decode")["decode"]
    process = start("decode", port, ["--api-key", "sesame-1", "--fault", "no_end"], tmp_path / "log")
    url = f"http://127.0.0.1:{port}"
    try:
        until(lambda: status(url + "/health") == 200, "decode is ready")
        assert get(url + "/server_info")[0] == 401
        code, page = get(url + "/server_info", {"Authorization": "Bearer sesame-1"})
        assert code == 200
        info = json.loads(page)
        assert info["api_key"] == info["internal_states"][0]["api_key"] == "sesame-1"
        assert b"no_end" not in page
    finally:
        process.kill()
        process.wait(10)


# ---- starting and stopping


@pytest.mark.parametrize(
    ("env", "words", "code", "says"),
    [
        ({"SGLANG_SM120_MMA_TARGET_CTAS": ""}, [], 2, "SGLANG_SM120_MMA_TARGET_CTAS is ''"),
        ({"SGLANG_SM120_MMA_TARGET_CTAS": "many"}, [], 2, "'many'"),
        ({"SGLANG_DISAGGREGATION_WAITING_TIMEOUT": "soon"}, [], 2, "'soon'"),
        ({}, ["--device", "h200"], 2, "simulated:h200"),
        ({}, ["--fault", "hold"], 2, "stall_mid_stream"),
    ],
)
def test_a_start_that_cannot_be_says_what_and_what_to_do(env, words, code, says):
    argv = [sys.executable, "-m", "vindicate.reference", "decode", "--port", "1", *words]
    done = subprocess.run(argv, env=os.environ | env, capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == code
    assert says in done.stderr
    assert "try: " in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("taken", ["decode", "bootstrap"])
def test_a_port_in_use_is_named(stack, taken):
    ports = free_ports("http")
    words = ["prefill", "--port", str(ports["http"]), "--bootstrap-port", str(stack.ports[taken])]
    if taken == "decode":
        words = ["decode", "--port", str(stack.ports[taken])]
    argv = [sys.executable, "-m", "vindicate.reference", *words]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 4
    assert str(stack.ports[taken]) in done.stderr
    assert "Traceback" not in done.stderr


def test_sigterm_lets_a_short_request_end_and_leaves_nothing(tmp_path):
    with running_stack(tmp_path) as stack:
        got = Answer()

        async def play():
            leg = asyncio.create_task(ask(stack.url("router"), chat("hi", max_tokens=60, ignore_eos=True), answer=got))
            await asyncio.to_thread(until, lambda: got.n_tokens > 3, "tokens come")
            for process in stack.processes.values():
                process.terminate()
            await leg

        asyncio.run(play())
        assert (got.n_tokens, got.done) == (60, True)
        assert [process.wait(10) for process in stack.processes.values()] == [0, 0, 0]


def test_sigterm_does_not_wait_for_ever_for_a_stalled_stream(tmp_path):
    words = ["--fault", "stall_mid_stream:2", "--drain-timeout", "0.5"]
    with running_stack(tmp_path, decode=words, router=["--drain-timeout", "0.5"]) as stack:
        got = Answer()

        async def play():
            leg = asyncio.create_task(ask(stack.url("router"), chat("hi"), answer=got))
            await asyncio.to_thread(until, lambda: got.n_tokens == 2, "it stalls")
            for process in stack.processes.values():
                process.terminate()
            codes = await asyncio.to_thread(lambda: [process.wait(10) for process in stack.processes.values()])
            with contextlib.suppress(Exception):
                await leg
            return codes

        assert asyncio.run(play()) == [0, 0, 0]


# ---- one leg's trouble


def test_a_decode_that_dies_in_mid_stream_ends_the_stream_with_an_error(tmp_path):
    with running_stack(tmp_path) as stack:
        got = Answer()

        async def play():
            leg = asyncio.create_task(
                ask(stack.url("router"), chat("hi", max_tokens=5000, ignore_eos=True), answer=got)
            )
            await asyncio.to_thread(until, lambda: got.n_tokens > 3, "tokens come")
            stack.processes["decode"].kill()
            await leg

        asyncio.run(play())
        assert got.ended
        assert "decode" in got.error["message"]
        until(lambda: status(stack.url("router") + "/readiness") == 503, "the router notices")
        answer = ask_now(stack.url("router"), chat("hi"))
        assert answer.status == 503
        assert "decode" in answer.body


def test_a_prefill_that_dies_is_an_error_to_the_client_and_frees_decode(tmp_path):
    with running_stack(tmp_path, prefill=["--fault", "inflight_parked"]) as stack:

        async def play():
            leg = asyncio.create_task(ask(stack.url("router"), chat("hi")))
            inflight = lambda: metric(stack.url("prefill"), "sglang:num_prefill_inflight_queue_reqs") == 1  # noqa: E731
            await asyncio.to_thread(until, inflight, "prefill holds it")
            stack.processes["prefill"].kill()
            return await leg

        answer = asyncio.run(play())
        assert answer.status in (500, 502)
        assert metric(stack.url("decode"), "sglang:num_decode_transfer_queue_reqs") == 0


@pytest.mark.parametrize(("role", "name"), [("prefill", "BOOTSTRAP_TIMEOUT"), ("decode", "WAITING_TIMEOUT")])
def test_a_leg_whose_peer_never_comes_fails_when_its_time_is_over(tmp_path, role, name):
    with running_stack(tmp_path, env={f"SGLANG_DISAGGREGATION_{name}": "0.3"}) as stack:
        answer = ask_now(stack.url(role), chat("hi", **stack.bootstrap(room=9)))
        assert answer.status == 500
        assert "waited too long" in answer.body
        assert metric(stack.url(role), "sglang:num_aborted_requests_total") == 1


def test_a_request_that_can_never_fit_is_refused_and_one_that_must_wait_waits(tmp_path):
    with running_stack(tmp_path, decode=["--max-total-tokens", "150"]) as stack:
        refused = ask_now(stack.url("router"), chat("hi", max_tokens=200))
        assert refused.status == 400
        assert "150" in refused.body

        async def play():
            bodies = [chat(planted(n, asked(n)), max_tokens=100, ignore_eos=True) for n in range(3)]
            return await asyncio.gather(*(ask(stack.url("router"), body) for body in bodies))

        assert [answer.n_tokens for answer in asyncio.run(play())] == [100, 100, 100]
        assert metric(stack.url("decode"), "sglang:num_used_tokens") == 0


def test_96_streams_at_once_all_end_well(tmp_path):
    with running_stack(tmp_path, speed=3) as stack:

        async def play():
            bodies = [chat(planted(n, asked(n)), max_tokens=24, ignore_eos=True) for n in range(96)]
            return await asyncio.gather(*(ask(stack.url("router"), body) for body in bodies))

        answers = asyncio.run(play())
        assert [answer.text.split()[0] for answer in answers] == [f"VAL-{n}" for n in range(96)]
        assert {(answer.n_tokens, answer.done) for answer in answers} == {(24, True)}
        until(lambda: idle(stack), "nothing is left")
