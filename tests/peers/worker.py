"""A worker that real routers take for an engine: `worker.py FILE`; the JSON FILE says what it is, and how it goes wrong.

`role` prefill | decode | engine; `dialect` sglang (decode and prefill are asked at once, with bootstrap fields) or vllm (prefill first,
decode with the kv_transfer_params that prefill gave); `port`, `kv_port`, `itl`, `tokens`. Bent from request `after` + 1 on:
`bent` refuse (500), drop (before the headers), stall (after 4 tokens), mute (prefill does its work and keeps its answer), slow.
"""

import asyncio
import contextlib
import json
import os
import sys
import time
from pathlib import Path

from aiohttp import web


class Worker:
    def __init__(self, plan):
        self.plan, self.role, self.vllm = plan, plan["role"], plan.get("dialect") == "vllm"
        self.n_requests = self.running = self.transfer = self.inflight = self.tokens = self.done = self.prompts = 0
        self.rooms = {}

    def bent(self, kind):
        return self.plan.get("bent") == kind and self.n_requests > self.plan.get("after", 0)

    async def generate(self, request):
        body = await request.json()
        self.n_requests += 1
        if self.bent("refuse"):
            return web.json_response(
                {"error": {"message": "CUDA error: an illegal memory access", "code": 500}}, status=500
            )
        if self.bent("drop"):
            request.transport.abort()
            return web.Response()
        size = len(json.dumps(body)) // 4
        self.prompts += size
        if self.role == "prefill":
            return await self.prefill(request, body, size)
        if self.role == "decode" and not self.vllm:
            await self.fetch(body)
        return await self.decode(request, body)

    async def prefill(self, request, body, size):
        await asyncio.sleep(0.02 + size / 50_000)
        if self.vllm:
            if self.bent("mute"):
                await asyncio.sleep(3600)
            given = {"do_remote_decode": False, "do_remote_prefill": True, "remote_engine_id": "e", "remote_block_ids": [1],
                     "remote_host": "127.0.0.1", "remote_port": self.plan["kv_port"]}  # fmt: skip
            if body.get(
                "stream"
            ):  # asked by somebody else than its router: a vLLM that only prefills answers all the same
                return await self.stream(request, body.get("max_tokens") or 1)
            return web.json_response(self.whole(1) | {"kv_transfer_params": given})
        self.inflight += 1
        try:
            await self.rooms.setdefault(body["bootstrap_room"], asyncio.Event()).wait()
        finally:
            self.inflight -= 1
            self.rooms.pop(body["bootstrap_room"], None)
        self.done += 1
        if self.bent("mute"):
            await asyncio.sleep(3600)
        return await self.stream(request, 1) if body.get("stream") else web.json_response(self.whole(1))

    async def fetch(self, body):
        """Take the KV of our room from prefill."""
        self.transfer += 1
        try:
            reader, writer = await asyncio.open_connection(body["bootstrap_host"], int(body["bootstrap_port"]))
            writer.write(b"%d\n" % body["bootstrap_room"])
            await reader.readline()
            writer.close()
        finally:
            self.transfer -= 1

    async def serve_kv(self, reader, writer):
        room = int(await reader.readline() or 0)
        self.rooms.setdefault(room, asyncio.Event()).set()
        writer.write(b"sent\n")
        with contextlib.suppress(ConnectionError):
            await writer.drain()
        writer.close()

    async def decode(self, request, body):
        n = min(body.get("max_completion_tokens") or body.get("max_tokens") or 16, self.plan.get("tokens", 64))
        self.running += 1
        try:
            if not body.get("stream"):
                await asyncio.sleep(n * self.plan.get("itl", 0.02))
                self.tokens += n
                answer = web.json_response(self.whole(n))
            else:
                answer = await self.stream(request, n)
            self.done += 1
            return answer
        finally:
            self.running -= 1

    async def stream(self, request, n):
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        for i in range(n):
            if self.bent("stall") and i == 4:
                await asyncio.sleep(3600)
            await self.event(
                answer, {"index": 0, "delta": {"content": f"w{i} "}, "logprobs": None, "finish_reason": None}
            )
            self.tokens += self.role != "prefill"
            await asyncio.sleep(self.plan.get("itl", 0.02) * (40 if self.bent("slow") else 1))
        await self.event(answer, {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "length"})
        await answer.write(b"data: [DONE]\n\n")
        await answer.write_eof()
        return answer

    async def event(self, answer, choice):
        document = {
            "id": "c",
            "object": "chat.completion.chunk",
            "created": int(time.time()),
            "model": "m",
            "choices": [choice],
        }
        await answer.write(b"data: " + json.dumps(document).encode() + b"\n\n")

    def whole(self, n):
        message = {"role": "assistant", "content": "w " * n}
        usage = {"prompt_tokens": 8, "completion_tokens": n, "total_tokens": 8 + n}
        return {"id": "c", "object": "chat.completion", "created": int(time.time()), "model": "m", "usage": usage,
                "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": "length"}]}  # fmt: skip

    # ---- what it says of itself --------------------------------------------------------------------------------------
    async def metrics(self, _):
        if self.vllm:
            label = '{engine="0",model_name="m"}'
            names = {"num_requests_running": self.running, "num_requests_waiting": 0, "generation_tokens_total": self.tokens,
                     "prompt_tokens_total": self.prompts, "kv_cache_usage_perc": 0.01 * self.running}  # fmt: skip
            return web.Response(text="".join(f"vllm:{name}{label} {value}\n" for name, value in names.items()))
        label = f'{{engine_type="{self.role}",model_name="m",pp_rank="0",tp_rank="0"}}'
        names = {"num_running_reqs": self.running, "num_queue_reqs": 0, "token_usage": 0.01 * self.running,
                 "num_requests_total": self.done, "generation_tokens_total": self.tokens}  # fmt: skip
        if self.role == "prefill":
            names |= {"num_prefill_bootstrap_queue_reqs": 0, "num_prefill_inflight_queue_reqs": self.inflight}
        if self.role == "decode":
            names |= {"num_decode_prealloc_queue_reqs": 0, "num_decode_transfer_queue_reqs": self.transfer}
        return web.Response(text="".join(f"sglang:{name}{label} {value}\n" for name, value in names.items()))

    async def info(self, _):
        kind = {"prefill": "prefill", "decode": "decode"}.get(self.role, "null")
        return web.json_response({"model_path": "m", "served_model_name": "m", "disaggregation_mode": kind, "version": "0.5.20",
                                  "disaggregation_bootstrap_port": self.plan.get("kv_port"), "is_generation": True,
                                  "tp_size": 1, "dp_size": 1})  # fmt: skip

    async def run(self):
        app = web.Application(client_max_size=1 << 26)
        for path in ("/v1/chat/completions", "/v1/completions"):
            app.router.add_post(path, self.generate)
        for path in ("/health", "/health_generate"):
            app.router.add_get(path, lambda _: asyncio.sleep(0, web.Response()))
        app.router.add_get("/metrics", self.metrics)
        app.router.add_get(
            "/v1/models",
            lambda _: asyncio.sleep(0, web.json_response({"object": "list", "data": [{"id": "m", "object": "model"}]})),
        )
        if not self.vllm:
            for path in ("/server_info", "/model_info"):
                app.router.add_get(path, self.info)
        runner = web.AppRunner(app, handler_cancellation=True, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", self.plan["port"], backlog=1024).start()
        if self.role == "prefill" and not self.vllm:
            await asyncio.start_server(self.serve_kv, "127.0.0.1", self.plan["kv_port"])
        asyncio.get_running_loop().call_later(self.plan.get("life", 120), os._exit, 0)
        await asyncio.sleep(3600)


if __name__ == "__main__":
    asyncio.run(Worker(json.loads(Path(sys.argv[1]).read_text())).run())
