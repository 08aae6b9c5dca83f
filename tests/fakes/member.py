"""One member of a chain: a worker that makes tokens, or a relay that hands requests on. Usage: member.py CONFIG.

CONFIG is a JSON file with `host`, `port`, `kind` (worker | relay | shut) and what that kind reads below. Whatever is odd
about a member stands in that file only. It ends by itself after `life` seconds, and with its parent's signal.

worker  tokens, itl, delay_first, slots; stall: {after, at}; loading (seconds of 503); figures: live | lazy (gauges follow work only while it
        works) | twice (a request that is left counts down twice); usage (what token_usage says when idle); processes (how many answer on the port)
relay   workers: [{url, boot?, role?}], pick: rr | least | spare (usage under 0.9); permits + on_full (429 | wait) + scoped;
        detached (upstream is read to its end); counted: scoped | plain; forgets: {worker, at} (its count starts again); breaker (errors until it opens), errors (first so many are answered 500);
        miss: {role, every}; retry_after (seconds without a byte); connect_patience
shut    listens and takes nobody: its accept queue is full from the start
"""

import asyncio
import contextlib
import itertools
import json
import os
import random
import socket
import sys

import aiohttp
from aiohttp import web

HOP = {"host", "content-length", "connection", "transfer-encoding"}


class Worker:
    def __init__(self, config):
        self.config = config
        self.running = self.waiting = 0
        self.shown = (0, 0)
        self.off = 0  # what the gauge says too little
        self.tokens, self.ended = random.randrange(1000), random.randrange(100)
        self.slots = asyncio.Semaphore(config.get("slots", 1000))
        self.number = 0
        self.began = asyncio.get_running_loop().time()

    def app(self):
        app = web.Application(client_max_size=1 << 26)
        app.router.add_post("/v1/chat/completions", self.chat)
        app.router.add_get("/metrics", self.metrics)
        app.router.add_get("/health", self.health)
        app.router.add_get("/v1/models", self.models)
        return app

    @property
    def loading(self):
        return asyncio.get_running_loop().time() - self.began < self.config.get("loading", 0)

    async def health(self, _):
        return web.Response(status=503 if self.loading else 200, headers={"Retry-After": "30"} if self.loading else {})

    async def models(self, _):
        return web.json_response({"object": "list", "data": [{"id": "m"}]})

    async def metrics(self, _):
        if self.config.get("figures", "live") == "lazy":
            running, waiting = self.shown
        else:
            running, waiting = self.running - self.off, self.waiting
        usage = 0.99 if running > 8 else self.config.get("usage", 0.02)
        page = (
            f'sglang:num_running_reqs{{model_name="m"}} {running}\nsglang:num_queue_reqs{{model_name="m"}} {waiting}\n'
            f'sglang:token_usage{{model_name="m"}} {usage}\n'
            f'sglang:inter_token_latency_seconds_count{{model_name="m"}} {self.tokens}\n'
            f'sglang:num_requests_total{{model_name="m"}} {self.ended}\n'
        )
        return web.Response(text=page, content_type="text/plain")

    def step(self):
        self.shown = (self.running, self.waiting)

    async def chat(self, request):
        if self.loading:
            return web.json_response({"error": "loading"}, status=503, headers={"Retry-After": "30"})
        body = await request.json()
        n = min(body.get("max_tokens") or 64, self.config.get("tokens", 64))
        self.number += 1
        stall = self.config.get("stall", {})
        stall_at = stall["at"] if stall and self.number > stall["after"] else None
        self.waiting += 1
        try:
            await self.slots.acquire()
        finally:
            self.waiting -= 1
        self.running += 1
        self.step()
        finished = False
        try:
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            response.enable_chunked_encoding()
            await asyncio.sleep(self.config.get("delay_first", 0))
            await response.prepare(request)
            for i in range(n):
                if i == stall_at:
                    await asyncio.sleep(3600)
                event = {"choices": [{"index": 0, "delta": {"content": "word "}, "finish_reason": None}]}
                await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
                self.tokens += 1
                await asyncio.sleep(self.config.get("itl", 0.02))
                self.step()
            last = {"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]}
            await response.write(b"data: " + json.dumps(last).encode() + b"\n\ndata: [DONE]\n\n")
            finished = True
            self.ended += 1
            await response.write_eof()
            return response
        finally:
            self.slots.release()
            self.running -= 1
            if finished:
                self.step()
            elif self.config.get("figures") == "twice":
                self.off += 1


class Relay:
    def __init__(self, config):
        self.config = config
        self.workers = config["workers"]
        self.turn = itertools.count()
        self.numbers = itertools.count(1)
        self.load = {worker["url"]: 0 for worker in self.workers}
        self.errors, self.open = 0, False
        self.permits = asyncio.Semaphore(config.get("permits", 100_000))
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=config.get("connect_patience", 130))
        self.session = aiohttp.ClientSession(
            timeout=timeout, connector=aiohttp.TCPConnector(limit=0), auto_decompress=False
        )
        self.tasks = set()
        if forgets := config.get("forgets"):
            asyncio.get_running_loop().call_later(forgets["at"], self.load.__setitem__, forgets["worker"], 0)

    def app(self):
        app = web.Application(client_max_size=1 << 26)
        app.router.add_post("/v1/chat/completions", self.chat)
        app.router.add_get("/metrics", self.metrics)
        app.router.add_get("/health", self.health)
        app.router.add_get("/readiness", self.health)
        app.router.add_get("/workers", self.list)
        app.router.add_get("/v1/models", self.models)
        return app

    async def health(self, _):
        return web.Response(text="ok")

    async def list(self, _):
        return web.json_response({"workers": [{"url": w["url"], "is_healthy": True} for w in self.workers]})

    async def models(self, _):
        return web.json_response({"object": "list", "data": [{"id": "m"}]})

    async def metrics(self, _):
        if self.config.get("metrics_of"):  # the page of what stands below
            async with self.session.get(self.config["metrics_of"]) as page:
                return web.Response(text=await page.text(), content_type="text/plain")
        lines = [f'smg_worker_requests_active{{worker="{url}"}} {n}' for url, n in self.load.items()]
        lines += [f'smg_worker_cb_state{{worker="{url}"}} {int(self.open)}' for url in self.load]
        lines += [f'smg_worker_health{{worker="{url}"}} 1' for url in self.load]
        return web.Response(text="\n".join(lines) + "\n", content_type="text/plain")

    async def chat(self, request):
        raw = await request.read()
        if self.open:
            return web.json_response({"error": {"message": "No available workers"}}, status=503)
        if self.config.get("permits") is None:
            return await self.hand_on(request, raw)
        if self.config.get("on_full", 429) == 429 and self.permits.locked():
            return web.json_response({"error": {"message": "too many requests"}}, status=429)
        await self.permits.acquire()
        if self.config.get("scoped", True):
            try:
                return await self.hand_on(request, raw)
            finally:
                self.permits.release()
        answer = await self.hand_on(request, raw)
        self.permits.release()
        return answer

    async def hand_on(self, request, raw):
        if any("role" in worker for worker in self.workers):
            return await self.pair(request, raw)
        worker = await self.choose(self.workers)
        if worker is None:
            return web.json_response({"error": {"message": "no worker"}}, status=503)
        number = next(self.numbers)
        if number <= self.config.get("errors", 0):
            self.errors += 1
            self.open = self.errors >= self.config.get("breaker", 1 << 30)
            return web.json_response({"error": {"message": "worker error"}}, status=500)
        self.load[worker["url"]] += 1
        if self.config.get("counted", "scoped") == "scoped":
            try:
                return await self.relay(request, raw, worker["url"])
            finally:
                self.load[worker["url"]] -= 1
        answer = await self.relay(request, raw, worker["url"])
        self.load[worker["url"]] -= 1
        return answer

    async def choose(self, workers):
        how = self.config.get("pick", "rr")
        if how == "least":
            least = min(self.load[w["url"]] for w in workers)
            workers = [w for w in workers if self.load[w["url"]] == least]
        elif how == "spare":
            workers = [w for w in workers if await self.usage(w["url"]) < 0.9]
        return workers[next(self.turn) % len(workers)] if workers else None

    async def usage(self, url):
        async with self.session.get(url + "/metrics") as page:
            text = await page.text()
        return float(text.split("sglang:token_usage")[1].split("}")[1].split("\n")[0])

    async def relay(self, request, raw, url):
        headers = {k: v for k, v in request.headers.items() if k.lower() not in HOP}
        if self.config.get("detached"):
            return await self.relay_apart(request, raw, url, headers)
        while True:
            try:
                async with asyncio.timeout(self.config.get("retry_after")) as patience:
                    upstream = await self.session.post(url + "/v1/chat/completions", data=raw, headers=headers)
                    patience.reschedule(None)
                break
            except TimeoutError:
                if not self.config.get("retry_after"):
                    return web.json_response({"error": {"message": "no connection"}}, status=502)
            except aiohttp.ClientError:
                return web.json_response({"error": {"message": "upstream"}}, status=502)
        try:
            response = web.StreamResponse(status=upstream.status, headers={"Content-Type": upstream.content_type})
            response.enable_chunked_encoding()
            await response.prepare(request)
            async for piece in upstream.content.iter_any():
                await response.write(piece)
            await response.write_eof()
            return response
        finally:
            upstream.close()

    async def relay_apart(self, request, raw, url, headers):
        queue = asyncio.Queue()

        async def read():
            async with self.session.post(url + "/v1/chat/completions", data=raw, headers=headers) as upstream:
                async for piece in upstream.content.iter_any():
                    queue.put_nowait(piece)
            queue.put_nowait(None)

        task = asyncio.ensure_future(read())
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        while (piece := await queue.get()) is not None:
            await response.write(piece)
        await response.write_eof()
        return response

    async def pair(self, request, raw):
        """Both legs at once; the client gets decode's answer when both have come to their headers."""
        number = next(self.numbers)
        prefill = await self.choose([w for w in self.workers if w["role"] == "prefill"])
        decode = [w for w in self.workers if w["role"] == "decode"][
            number % sum(w["role"] == "decode" for w in self.workers)
        ]
        body = json.loads(raw) | {
            "bootstrap_host": "127.0.0.1", "bootstrap_port": prefill["boot"], "bootstrap_room": random.randrange(1, 2**62),
        }  # fmt: skip
        miss = self.config.get("miss") or {}
        missed = miss.get("role") if miss and number > miss.get("after", 0) and number % miss["every"] == 0 else None
        headers = {"Content-Type": "application/json"}
        first = asyncio.ensure_future(
            self.leg(prefill["url"], body if missed != "prefill" else {"stream": True, "max_tokens": -1}, headers)
        )
        try:
            if missed == "decode":
                await first  # the other leg is lost; the join waits for this one
                return web.json_response({"error": {"message": "decode"}}, status=502)
            upstream = await self.session.post(
                decode["url"] + "/v1/chat/completions", data=json.dumps(body), headers=headers
            )
            response = web.StreamResponse(status=upstream.status, headers={"Content-Type": "text/event-stream"})
            response.enable_chunked_encoding()
            await response.prepare(request)
            async for piece in upstream.content.iter_any():
                await response.write(piece)
            await response.write_eof()
            return response
        finally:
            first.cancel()

    async def leg(self, url, body, headers):
        with contextlib.suppress(aiohttp.ClientError):
            async with self.session.post(
                url + "/v1/chat/completions", data=json.dumps(body), headers=headers
            ) as answer:
                await answer.read()


async def serve(config):
    member = (Worker if config["kind"] == "worker" else Relay)(config)
    runner = web.AppRunner(member.app(), handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(
        runner, config.get("host", "127.0.0.1"), config["port"], reuse_port=config.get("processes", 1) > 1
    ).start()
    await asyncio.sleep(config.get("life", 120))


def shut(config):
    listener = socket.create_server((config.get("host", "127.0.0.1"), config["port"]), backlog=0)
    with socket.create_connection(listener.getsockname()[:2]), contextlib.suppress(OSError):
        asyncio.run(asyncio.sleep(config.get("life", 120)))


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        config = json.load(file)
    children = []
    for _ in range(config.get("processes", 1) - 1):
        if (pid := os.fork()) == 0:
            break
        children.append(pid)
    if config["kind"] == "shut":
        shut(config)
    else:
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(serve(config))


if __name__ == "__main__":
    main()
