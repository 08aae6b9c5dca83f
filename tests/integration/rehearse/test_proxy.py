"""Against real processes: an engine, the proxy before it, and clients that come and go."""

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import pytest
from yarl import URL

from fakes.start import eventually, fake_engine, open_sockets, rehearsed_proxy

BODY = {"messages": [{"role": "user", "content": "hello"}], "stream": True, "max_tokens": 400}


def seen(engine):
    with urllib.request.urlopen(f"{engine.url}/seen", timeout=5) as answer:
        return json.load(answer)


def port_of(process):
    return urlsplit(process.url).port


async def whole(session, url, *, body=BODY, timeout=15):
    async with session.post(f"{url}/v1/chat/completions", json=body, timeout=aiohttp.ClientTimeout(timeout)) as answer:
        return await answer.read()


async def leave_after(session, url, n_bytes=1):
    """Read a little, then close the connection, as an agent that is interrupted."""
    answer = await session.post(f"{url}/v1/chat/completions", json=BODY)
    got = b""
    while len(got) < n_bytes:
        got += await answer.content.readany()
    answer.close()


async def starve(url, slots):
    async with aiohttp.ClientSession() as session:
        for _ in range(slots):
            await leave_after(session, url)


async def hangs(url, *, for_s=0.7):
    async with aiohttp.ClientSession() as session:
        try:
            await whole(session, url, body={**BODY, "max_tokens": 10}, timeout=for_s)
        except TimeoutError:
            return True
        return False


# ---- the correct proxy -------------------------------------------------------------------------------------------


def test_64_streams_at_once_come_through_byte_for_byte():
    async def compare(engine, proxy):
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            direct = await whole(session, engine.url)
            through = await asyncio.gather(*(whole(session, proxy.url) for _ in range(64)))
            assert {len(body) for body in through} == {len(direct)}
            assert set(through) == {direct}

    with fake_engine("--tokens", 60, "--itl", 0.005) as engine, rehearsed_proxy(engine.url) as proxy:
        asyncio.run(compare(engine, proxy))


def test_a_token_is_passed_on_before_the_next_one_is_made():
    async def first_bytes(proxy):
        async with aiohttp.ClientSession() as session:
            await asyncio.wait_for(leave_after(session, proxy.url), 5)

    with fake_engine("--stall-at", 1) as engine, rehearsed_proxy(engine.url) as proxy:
        asyncio.run(first_bytes(proxy))


def test_a_client_that_leaves_closes_the_upstream_exchange():
    with fake_engine("--itl", 0.05, "--tokens", 400) as engine, rehearsed_proxy(engine.url) as proxy:
        asyncio.run(starve(proxy.url, 3))
        eventually(lambda: seen(engine)["aborted"] == 3)
        assert seen(engine)["running"] == 0


def test_a_client_that_leaves_before_any_answer_closes_it_too():
    with fake_engine("--stall-at", 0) as engine, rehearsed_proxy(engine.url) as proxy:
        assert asyncio.run(hangs(proxy.url, for_s=0.5))
        eventually(lambda: seen(engine)["aborted"] == 1)


@pytest.mark.parametrize("switch", ["--cut", "--reset"])
def test_an_upstream_that_breaks_off_is_never_made_to_look_whole(switch):
    async def read(proxy):
        async with aiohttp.ClientSession() as session:
            with pytest.raises(aiohttp.ClientError):
                await whole(session, proxy.url)

    with fake_engine(switch) as engine, rehearsed_proxy(engine.url) as proxy:
        asyncio.run(read(proxy))


def test_a_dead_upstream_is_a_502_that_says_so():
    async def answer(proxy):
        async with aiohttp.ClientSession() as session, session.get(f"{proxy.url}/health") as got:
            return got.status, await got.json()

    with rehearsed_proxy("http://127.0.0.1:1") as proxy:
        status, document = asyncio.run(answer(proxy))
    assert (status, document["error"]["message"]) == (502, "upstream: ClientConnectorError")


def test_waiting_for_a_slot_ends_in_a_503(monkeypatch):
    from vindicate.rehearse import pool
    from vindicate.rehearse.fault import Fault

    monkeypatch.setattr(pool, "PATIENCE_S", 0.05)

    async def two():
        slots = pool.Pool(Fault(slots=1))
        async with slots.lease(1):
            with pytest.raises(pool.PoolFullError):
                async with slots.lease(2):
                    pass
        async with slots.lease(3) as lease:
            lease.whole = True

    asyncio.run(two())


def test_method_path_query_body_and_status_are_kept_and_hop_headers_are_not():
    async def talk():
        got = {}

        async def answer(reader, writer):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            length = int(
                next(line for line in head.split("\r\n") if line.lower().startswith("content-length")).split(":")[1]
            )
            got["head"], got["body"] = head, await reader.readexactly(length)
            writer.write(
                b"HTTP/1.1 418 Teapot\r\nX-Worker: w7\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\nKeep-Alive: timeout=9\r\nContent-Length: 2\r\n\r\nok"
            )
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        upstream = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/base"
        started = await asyncio.to_thread(contextlib.ExitStack().__enter__)
        proxy = await asyncio.to_thread(started.enter_context, rehearsed_proxy(upstream))
        try:
            async with aiohttp.ClientSession() as session:
                headers = {
                    "Connection": "keep-alive, X-Private",
                    "X-Private": "1",
                    "X-Kept": "2",
                    "X-Request-Id": "r-1",
                }
                async with session.put(
                    URL(f"{proxy.url}/a%20b?q=%2F&r", encoded=True), data=b"\x00\xff", headers=headers
                ) as answer_:
                    assert (answer_.status, answer_.reason, await answer_.read()) == (418, "Teapot", b"ok")
                    assert answer_.headers["X-Worker"] == "w7"
                    assert answer_.headers.getall("Set-Cookie") == ["a=1", "b=2"]
                    assert "Keep-Alive" not in answer_.headers
                    assert answer_.headers["X-Request-Id"] == "r-1"
        finally:
            await asyncio.to_thread(started.close)
            server.close()
        return got

    got = asyncio.run(talk())
    lines = got["head"].split("\r\n")
    assert lines[0] == "PUT /base/a%20b?q=%2F&r HTTP/1.1"
    assert "X-Request-Id: r-1" in lines
    assert "X-Kept: 2" in lines
    assert not any(line.startswith("X-Private") for line in lines)
    assert got["body"] == b"\x00\xff"


def test_a_request_without_an_id_gets_one():
    with (
        fake_engine() as engine,
        rehearsed_proxy(engine.url) as proxy,
        urllib.request.urlopen(f"{proxy.url}/anything", timeout=5) as answer,
    ):
        assert len(answer.headers["X-Request-Id"]) == 32


def test_a_client_that_asks_before_it_sends_is_told_to_go_on():
    async def ask(url):
        async with aiohttp.ClientSession() as session:
            async with asyncio.timeout(5):
                return (
                    b"[DONE]"
                    in await (await session.post(f"{url}/v1/chat/completions", json=BODY, expect100=True)).read()
                )

    with fake_engine() as engine, rehearsed_proxy(engine.url) as proxy:
        assert asyncio.run(ask(proxy.url))


def test_a_head_request_has_its_length_and_no_body():
    async def ask(url):
        async with aiohttp.ClientSession() as session, session.head(url) as answer:
            return answer.status, answer.headers["Content-Length"], await answer.read()

    with fake_engine() as engine, rehearsed_proxy(engine.url) as proxy:
        length = str(len(b'{"path": "/", "ok": true}'))
        assert asyncio.run(ask(proxy.url)) == (200, length, b"")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_with_0_and_no_traceback_also_with_streams_open(number):
    async def hold(proxy):
        async with aiohttp.ClientSession() as session:
            answer = await session.post(f"{proxy.url}/v1/chat/completions", json=BODY)
            try:
                return await asyncio.to_thread(proxy.stop, number)
            finally:
                answer.close()

    with fake_engine("--itl", 0.05, "--tokens", 400) as engine, rehearsed_proxy(engine.url) as proxy:
        assert asyncio.run(hold(proxy)) == 0
        assert proxy.output == f"listening on {proxy.url}\n"


def test_a_port_in_use_is_named():
    with fake_engine() as engine:
        words = ["rehearse", "proxy", "--upstream", engine.url, "--listen", f"127.0.0.1:{port_of(engine)}"]
        ended = subprocess.run([sys.executable, "-m", "vindicate", *words], capture_output=True, text=True, check=False)
        assert ended.returncode == 4
        assert f"127.0.0.1:{port_of(engine)}" in ended.stderr
        assert "Traceback" not in ended.stderr


# ---- the proxy that was at fault ---------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", ["pinned", "permit"])
def test_after_as_many_cancels_as_slots_a_request_hangs_and_nothing_reaches_upstream(variant):
    fault = ("--fault", "proxy.connector_starvation", "--variant", variant, "--slots", 3)
    with fake_engine("--itl", 0.03, "--tokens", 300) as engine, rehearsed_proxy(engine.url, *fault) as proxy:
        asyncio.run(starve(proxy.url, 2))
        assert not asyncio.run(hangs(proxy.url, for_s=15))
        asyncio.run(starve(proxy.url, 1))
        eventually(lambda: seen(engine)["running"] == 0 or variant == "pinned")
        before = seen(engine)["requests"]
        assert asyncio.run(hangs(proxy.url))
        assert seen(engine)["requests"] == before
        held = open_sockets(proxy.process.pid, port_of(engine))
        assert held == (3 if variant == "pinned" else 0)
        assert seen(engine)["aborted"] == (0 if variant == "pinned" else 3)
        assert proxy.output == f"listening on {proxy.url}\n"
        assert proxy.stop() == 0


def test_streams_that_fail_upstream_leak_too():
    async def fail(proxy):
        async with aiohttp.ClientSession() as session:
            for _ in range(2):
                with pytest.raises(aiohttp.ClientError):
                    await whole(session, proxy.url)

    fault = ("--fault", "proxy.connector_starvation", "--variant", "permit", "--slots", 2)
    with fake_engine("--cut") as engine, rehearsed_proxy(engine.url, *fault) as proxy:
        asyncio.run(fail(proxy))
        assert asyncio.run(hangs(proxy.url))


def test_pinned_streams_leave_the_slot_taken_when_upstream_has_long_finished():
    fault = ("--fault", "proxy.connector_starvation", "--slots", 1)
    with fake_engine("--itl", 0.01, "--tokens", 20) as engine, rehearsed_proxy(engine.url, *fault) as proxy:
        asyncio.run(starve(proxy.url, 1))
        eventually(lambda: seen(engine)["completed"] == 1)
        assert asyncio.run(hangs(proxy.url))


def test_the_first_requests_are_treated_correctly_when_asked():
    fault = ("--fault", "proxy.connector_starvation", "--slots", 1, "--after", 2)
    with fake_engine("--itl", 0.01, "--tokens", 20) as engine, rehearsed_proxy(engine.url, *fault) as proxy:
        asyncio.run(starve(proxy.url, 2))
        assert not asyncio.run(hangs(proxy.url, for_s=15))
        asyncio.run(starve(proxy.url, 1))
        assert asyncio.run(hangs(proxy.url))


def test_the_fault_can_be_read_from_a_file_so_that_the_command_line_does_not_tell(tmp_path):
    file = tmp_path / "secret"
    file.write_text("proxy.connector_starvation permit\n")
    with (
        fake_engine("--itl", 0.03, "--tokens", 300) as engine,
        rehearsed_proxy(engine.url, "--fault-file", file) as proxy,
    ):
        asyncio.run(starve(proxy.url, 4))
        assert asyncio.run(hangs(proxy.url))
        assert open_sockets(proxy.process.pid, port_of(engine)) == 0


# ---- other faults ------------------------------------------------------------------------------------------------


def faulty(mechanism, *more):
    return ("--fault", mechanism, *more)


def test_buffering_holds_tokens_back_and_loses_none():
    async def times(engine, proxy):
        async with aiohttp.ClientSession() as session:
            direct = await whole(session, engine.url)
            loop = asyncio.get_running_loop()
            async with session.post(f"{proxy.url}/v1/chat/completions", json=BODY) as answer:
                start = loop.time()
                first = await answer.content.readany()
                return direct, first + await answer.read(), loop.time() - start

    with (
        fake_engine("--itl", 0.02, "--tokens", 20) as engine,
        rehearsed_proxy(engine.url, *faulty("proxy.sse_buffering")) as proxy,
    ):
        direct, through, first_after = asyncio.run(times(engine, proxy))
    assert through == direct
    assert first_after > 0.3


def test_a_dropped_stream_reads_everything_and_passes_on_a_part():
    async def part(proxy):
        got = b""
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{proxy.url}/v1/chat/completions", json=BODY) as answer,
        ):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    while data := await answer.content.readany():
                        got += data
                raise AssertionError("the stream ended")
        return got

    with (
        fake_engine("--itl", 0.01, "--tokens", 30) as engine,
        rehearsed_proxy(engine.url, *faulty("proxy.drop_stream")) as proxy,
    ):
        got = asyncio.run(part(proxy))
        assert b"data:" in got
        assert b"[DONE]" not in got
        assert seen(engine)["completed"] == 1


def test_a_missing_end_is_masked_by_heartbeats():
    async def part(proxy):
        got = b""
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{proxy.url}/v1/chat/completions", json=BODY) as answer,
        ):
            async with asyncio.timeout(10):
                while b": heartbeat" not in got:
                    data = await answer.content.readany()
                    assert data
                    got += data
        return got

    with (
        fake_engine("--tokens", 5) as engine,
        rehearsed_proxy(engine.url, *faulty("stream.missing_done_masked_by_heartbeat")) as proxy,
    ):
        got = asyncio.run(part(proxy))
        assert b'"finish_reason": "stop"' in got
        assert b"[DONE]" not in got
        assert seen(engine)["completed"] == 1


def test_a_total_timeout_cuts_a_lively_stream_at_its_age():
    async def cut(proxy):
        loop = asyncio.get_running_loop()
        start = loop.time()
        async with aiohttp.ClientSession() as session:
            with pytest.raises(aiohttp.ClientError):
                await whole(session, proxy.url)
        return loop.time() - start

    with (
        fake_engine("--itl", 0.02, "--tokens", 300) as engine,
        rehearsed_proxy(engine.url, *faulty("gateway.total_timeout", "--limit", "500ms")) as proxy,
    ):
        assert 0.45 < asyncio.run(cut(proxy)) < 2.0
        eventually(lambda: seen(engine)["aborted"] == 1)


def test_a_first_byte_timeout_answers_403_and_leaves_quick_answers_alone():
    async def status(proxy):
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{proxy.url}/v1/chat/completions", json=BODY) as answer,
        ):
            return answer.status

    limit = faulty("gateway.idle_timeout_before_first_byte", "--limit", "300ms")
    for delay, expected in ((0.0, 200), (1.0, 403)):
        with fake_engine("--delay-first", delay) as engine, rehearsed_proxy(engine.url, *limit) as proxy:
            assert asyncio.run(status(proxy)) == expected


def test_body_truncation_depends_on_size_alone():
    async def status(url, size):
        body = {**BODY, "messages": [{"role": "user", "content": "x" * size}]}
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{url}/v1/chat/completions", json=body) as answer,
        ):
            return answer.status

    with fake_engine() as engine, rehearsed_proxy(engine.url, *faulty("proxy.body_truncation")) as proxy:
        assert asyncio.run(status(proxy.url, 60_000)) == 200
        assert asyncio.run(status(proxy.url, 70_000)) == 400
        assert asyncio.run(status(engine.url, 70_000)) == 200


def test_a_cancel_that_is_not_propagated_lets_the_engine_go_on():
    with (
        fake_engine("--itl", 0.02, "--tokens", 30) as engine,
        rehearsed_proxy(engine.url, *faulty("router.cancel_not_propagated")) as proxy,
    ):
        asyncio.run(starve(proxy.url, 2))
        eventually(lambda: seen(engine)["completed"] == 2)
        assert seen(engine)["aborted"] == 0


def test_every_fault_in_the_list_has_a_test_here():
    from vindicate.rehearse.fault import FAULTS

    text = Path(__file__).read_text(encoding="utf-8")
    assert [name for name in FAULTS if name != "none" and f'"{name}"' not in text] == []


def test_an_unknown_fault_is_refused_with_the_list():
    words = ["rehearse", "proxy", "--upstream", "http://h:1", "--fault", "proxy.gremlins"]
    ended = subprocess.run([sys.executable, "-m", "vindicate", *words], capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "proxy.gremlins" in ended.stderr
    assert "proxy.connector_starvation" in ended.stderr
