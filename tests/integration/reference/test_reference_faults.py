"""Each fault shows as documented, from the request after `--fault-after` on, and nothing else gives it away."""

import asyncio

import pytest

from fakes.reference_stack import Answer, ask, ask_now, chat, get, metric, running_stack, status, until


def count(stack, role: str, name: str) -> float:
    return metric(stack.url(role), f"sglang:num_{name}_reqs")


def is_quiet(stack, role: str, fault: str) -> bool:
    """Nothing that can be seen over HTTP or in the log holds the fault's name."""
    pages = [
        get(stack.url(role) + path)[1].decode() for path in ("/metrics", "/server_info", "/model_info", "/v1/loads")
    ]
    pages.append((stack.logs / f"{role}.log").read_text())
    return not any(fault in page or "--fault" in page for page in pages)


async def ask_until(stack, got: Answer, holds, what: str, patience: float = 0.3, **fields) -> None:
    """Ask, wait until *holds*, see that nothing comes for a while, and leave."""
    leg = asyncio.create_task(ask(stack.url("router"), chat("hi", ignore_eos=True, **fields), answer=got))
    await asyncio.to_thread(until, holds, what)
    seen = got.n_tokens, got.text, got.done
    await asyncio.sleep(patience)
    assert (got.n_tokens, got.text, got.done) == seen
    assert not leg.done()
    leg.cancel()


def fine(stack, **fields) -> bool:
    answer = ask_now(stack.url("router"), chat("hi", max_tokens=20, **fields), patience=5)
    return answer.done and answer.n_tokens > 0


def test_stall_mid_stream_stops_the_engine_and_not_its_http(tmp_path):
    with running_stack(tmp_path, decode=["--fault", "stall_mid_stream:5", "--fault-after", "1"]) as stack:
        assert fine(stack)
        got = Answer()
        asyncio.run(ask_until(stack, got, lambda: got.n_tokens == 5, "five tokens come"))
        moved = metric(stack.url("decode"), "sglang:realtime_tokens_total")
        late = ask_now(stack.url("router"), chat("hi"), patience=1)
        assert (late.n_tokens, late.status) == (0, 0)
        assert status(stack.url("decode") + "/health") == 200
        assert count(stack, "decode", "running") == 1
        assert metric(stack.url("decode"), "sglang:realtime_tokens_total") == moved
        assert is_quiet(stack, "decode", "stall")


def test_stall_each_stops_every_later_request_and_spares_the_others(tmp_path):
    with running_stack(tmp_path, decode=["--fault", "stall_each:3", "--fault-after", "1"]) as stack:

        async def play():
            first, got = Answer(), Answer()
            leg = asyncio.create_task(
                ask(stack.url("router"), chat("hi", max_tokens=3000, ignore_eos=True), answer=first, patience=15)
            )
            await asyncio.to_thread(until, lambda: first.n_tokens > 2, "the first one runs")
            await ask_until(stack, got, lambda: got.n_tokens == 3, "three tokens come")
            before = first.n_tokens
            await asyncio.to_thread(until, lambda: first.n_tokens > before + 5, "the first one goes on")
            leg.cancel()

        asyncio.run(play())
        until(lambda: count(stack, "decode", "running") == 0, "both are freed")


def test_no_end_sends_everything_but_the_end_and_is_idle(tmp_path):
    with running_stack(tmp_path, decode=["--fault", "no_end"]) as stack:
        got = Answer()

        def engine_is_idle():
            url = stack.url("decode")
            active = metric(url, "sglang:http_requests_active", endpoint="/v1/chat/completions")
            return got.finish == "length" and active == 0 and count(stack, "decode", "running") == 0

        asyncio.run(ask_until(stack, got, engine_is_idle, "the engine thinks it is done", max_tokens=4, patience=1))
        assert got.n_tokens == 4
        assert not got.done
        assert metric(stack.url("decode"), "sglang:num_requests_total") == 1
        assert is_quiet(stack, "decode", "no_end")


def test_slow_takes_its_factor_longer_a_step(tmp_path):
    def itl_s(stack):
        ask_now(stack.url("router"), chat("hi", max_tokens=20, ignore_eos=True))
        url, name = stack.url("decode"), "sglang:inter_token_latency_seconds"
        return metric(url, name + "_sum"), metric(url, name + "_count")

    with running_stack(tmp_path, decode=["--fault", "slow:4", "--fault-after", "1"], speed=4) as stack:
        total_1, n_1 = itl_s(stack)
        total_2, n_2 = itl_s(stack)
        assert n_1 == n_2 - n_1 == 19
        assert (total_2 - total_1) / total_1 == pytest.approx(4, rel=0.35)


def test_hold_reads_and_never_forwards(tmp_path):
    with running_stack(tmp_path, router=["--fault", "hold:1"]) as stack:
        assert fine(stack)
        got = Answer()

        def is_held():
            return metric(stack.url("router"), "smg_http_connections_active") == 2  # this scrape is the other one

        asyncio.run(ask_until(stack, got, is_held, "the router has it"))
        assert got.status == 0
        for role in ("prefill", "decode"):
            assert metric(stack.url(role), "sglang:http_requests_total", endpoint="/v1/chat/completions") == 1
        assert metric(stack.url("router"), "smg_worker_requests_active") == 0
        assert "hold" not in (tmp_path / "router.log").read_text()


def test_dual_dispatch_join_leaves_prefill_waiting_for_a_decode_that_never_heard_of_it(tmp_path):
    with running_stack(tmp_path, router=["--fault", "dual_dispatch_join"]) as stack:
        got = Answer()
        asyncio.run(
            ask_until(stack, got, lambda: count(stack, "prefill", "prefill_bootstrap_queue") == 1, "prefill waits")
        )
        assert got.status == 0
        assert metric(stack.url("decode"), "sglang:http_requests_total", endpoint="/v1/chat/completions") == 0
        until(lambda: count(stack, "prefill", "prefill_bootstrap_queue") == 0, "leaving frees it")


def test_inflight_parked_holds_the_kv_back(tmp_path):
    with running_stack(tmp_path, prefill=["--fault", "inflight_parked", "--fault-after", "1"]) as stack:
        assert fine(stack)
        moved = metric(stack.url("prefill"), "sglang:kv_transfer_total_mb_count")
        got = Answer()

        def is_parked():
            parked = count(stack, "prefill", "prefill_inflight_queue")
            return parked == count(stack, "decode", "decode_transfer_queue") == 1

        asyncio.run(ask_until(stack, got, is_parked, "it is parked"))
        assert got.status == 0
        assert metric(stack.url("prefill"), "sglang:kv_transfer_total_mb_count") == moved
        assert is_quiet(stack, "prefill", "parked")
