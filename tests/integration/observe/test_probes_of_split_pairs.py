"""Probes of both sides of a split pair in the order of vLLM, of one side alone, and of an answer that comes compressed; real sockets."""

import asyncio
import time
import zlib
from dataclasses import replace

import pytest
from aiohttp import web

from vindicate.observe import probe as room
from vindicate.observe.probe import Pair, Target, answers_alone, probe, probe_pair, targets_of
from vindicate.stack.http import OwnSockets
from vindicate.stack.model import Service, Stack

GIVEN = {"do_remote_prefill": True, "remote_engine_id": "e", "remote_block_ids": list(range(200)), "remote_port": 5601}
EVENT = b'data: {"choices": [{"index": 0, "delta": {"content": "w"}, "finish_reason": null}]}\n\n'
LAST = b'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]}\n\ndata: [DONE]\n\n'


def side(role, url="http://127.0.0.1:1", engine="vllm"):
    return Service(name=role, role=role, engine=engine, url=url, metrics=url + "/metrics", health="/health")


async def serving(*handlers):
    """The URL of a small server for each handler of chat completions, and what ends them."""
    runners, urls = [], []
    for handler in handlers:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", handler)
        runners.append(web.AppRunner(app, access_log=None, shutdown_timeout=0.1))
        await runners[-1].setup()
        site = web.TCPSite(runners[-1], "127.0.0.1", 0)
        await site.start()
        urls.append(f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}")
    return urls, lambda: asyncio.gather(*(runner.cleanup() for runner in runners))


def asked(prefill, decode, deadline_s=1.0):
    """What the probe of a pair of these two handlers gives."""

    async def run():
        urls, end = await serving(prefill, decode)
        pair = Pair(side("prefill", urls[0]), side("decode", urls[1]), None)
        now = {"model": "m", "max_tokens": 3, "deadline_s": deadline_s, "began": time.monotonic(), "own": OwnSockets()}
        try:
            return await probe_pair(pair, **now)
        finally:
            await end()

    return asyncio.run(run())


async def gives(request):
    body = await request.json()
    assert (body["stream"], body["max_tokens"], body["kv_transfer_params"]["do_remote_decode"]) == (False, 1, True)
    return web.json_response({"choices": [], "kv_transfer_params": GIVEN})


async def takes(request):
    body = await request.json()
    assert (body["stream"], body["max_tokens"], body["kv_transfer_params"]) == (True, 3, GIVEN)
    return web.Response(body=EVENT * 3 + LAST, content_type="text/event-stream")


async def hangs(_request):
    await asyncio.sleep(30)


async def fails(_request):
    return web.json_response({"error": "no memory"}, status=500)


async def gives_nothing(_request):
    return web.json_response({"choices": [], "kv_transfer_params": None})


@pytest.mark.parametrize(
    ("prefill", "decode", "covers", "error", "legs"),
    [
        (gives, takes, ("decode", "prefill"), None, {"prefill": None, "decode": None}),
        (gives, fails, ("decode", "prefill"), "http_500", {"prefill": None, "decode": "http_500"}),
        (gives, hangs, ("decode", "prefill"), "no_headers", {"prefill": None, "decode": "no_headers"}),
        (fails, takes, ("prefill",), "http_500", {"prefill": "http_500"}),
        (hangs, takes, ("prefill",), "no_headers", {"prefill": "no_headers"}),
    ],
)
def test_decode_is_asked_with_what_prefill_gave_and_the_one_that_fails_is_the_one_that_is_named(
    prefill, decode, covers, error, legs
):
    made = asked(prefill, decode)
    assert (made.shape, made.target, made.covers) == ("pd_pair", covers[0], covers)
    assert (made.error, made.legs) == (error, legs)
    assert made.terminated == (error is None)


def test_a_prefill_that_gives_nothing_for_decode_speaks_another_protocol_and_says_nothing():
    assert asked(gives_nothing, takes) is None


# ---- who may be asked alone ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "engine", "may"),
    [
        (("python", "-m", "vllm.entrypoints.openai.api_server"), "vllm", True),
        (("vllm", "serve", "--kv-transfer-config", '{"kv_connector":"NixlConnector","kv_role":"kv_consumer"}'), "vllm", True),
        (("vllm", "serve", "--kv-transfer-config", '{"kv_connector":"P2pNcclConnector"}'), "vllm", False),
        (("vllm", "serve", "--kv-transfer-config.kv_connector", "P2pNcclConnector"), "vllm", False),
        (("vllm", "serve", "--kv-transfer-config", '{"kv_connector":"MultiConnector","x":["NixlConnector"]}'), "vllm", False),
        (("vllm", "serve", "--config", "serve.yaml"), "vllm", False),
        (("python", "-m", "sglang.launch_server"), "sglang", False),
        ((), "vllm", False),
    ],
)  # fmt: skip
def test_one_side_of_a_pair_is_asked_alone_only_where_that_does_no_harm(monkeypatch, argv, engine, may):
    monkeypatch.setattr(room, "service_pids", lambda _service: (1,))
    monkeypatch.setattr(room, "process_tree", lambda pids: pids)
    monkeypatch.setattr(room, "argv_of", lambda _pid: [*argv])
    router = Service(name="router", role="router", engine="vllm-router", url="http://127.0.0.1:2", metrics="m", health="/h",
                     upstream=("prefill", "decode"))  # fmt: skip
    chain = {one.name: one for one in (router, side("prefill", engine=engine), side("decode", engine=engine))}
    found = Stack(name="s", entry="router", services=chain)
    whole, pairs = targets_of(found, {"prefill": 8998})
    assert answers_alone(chain["decode"]) is may
    assert [(one.service.name, one.covers) for one in whole if one.shape == "leg"] == [
        (name, (name,)) for name in ("prefill", "decode") if may
    ]
    assert len(pairs) == (may or engine == "sglang")
    assert len(targets_of(found, {})[1]) == may  # without a bootstrap port those that meet there cannot be asked


# ---- an answer that comes compressed ---------------------------------------------------------------------------------


def streamed(pieces):
    """What a probe makes of a body that comes so, a tenth of a second between two pieces."""

    async def answer(request):
        assert request.headers["Accept-Encoding"] == "gzip"
        stream = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Content-Encoding": "gzip"})
        await stream.prepare(request)
        for number, piece in enumerate(pieces):
            await asyncio.sleep(0.1 * bool(number))
            await stream.write(piece)
        return stream

    async def run():
        (url,), end = await serving(answer)
        target = Target(side("engine", url), ("engine",))
        try:
            return await probe(
                target, model="m", max_tokens=3, deadline_s=3.0, began=time.monotonic(), own=OwnSockets()
            )
        finally:
            await end()

    return asyncio.run(run())


def zipped(*parts, flush=zlib.Z_SYNC_FLUSH):
    packer = zlib.compressobj(wbits=31)
    return [packer.compress(part) + packer.flush(flush) for part in parts] + [packer.flush()]


def test_a_compressed_stream_is_read_as_it_comes():
    made = streamed(zipped(EVENT, EVENT, EVENT + LAST))
    assert (made.error, made.n_tokens, made.compressed, made.terminated) == (None, 3, True, True)
    assert len(made.gaps_s) == 2
    assert min(made.gaps_s) > 0.05


def test_of_a_compressed_stream_that_is_kept_back_only_its_text_counts_as_arrived():
    made = streamed(zipped(EVENT, EVENT, EVENT + LAST, flush=zlib.Z_NO_FLUSH))
    assert (made.error, made.n_tokens, made.gaps_s) == (None, 3, ())
    assert made.first_byte_s > 0.2


@pytest.mark.parametrize("body", [b"\x1f\x8bgarbage", b"".join(zipped(b"x" * 20_000_000))])
def test_a_compressed_answer_that_is_none_or_far_too_large_is_garbage(body):
    assert streamed([body]).error == "garbage"


def test_what_may_be_one_side_of_a_pair_is_not_asked_for_a_whole_answer():
    """Found without a stack file: one request of ours went to both, and nothing says which is which."""
    proxy, a, b = (
        replace(side(name), role=role) for name, role in (("proxy", "proxy"), ("a", "engine"), ("b", "engine"))
    )
    services = (replace(proxy, upstream=("a", "b")), replace(a, is_side=True), b)
    whole, _ = targets_of(Stack(name="s", entry="proxy", services={one.name: one for one in services}), {})
    assert [target.service.name for target in whole] == ["proxy", "b"]
