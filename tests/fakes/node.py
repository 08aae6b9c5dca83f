"""One engine, one half of a split pair, or a router, as a real process that follows a file: `node.py FILE`.

The file (JSON) holds the role, ports and figures, and under "bent" how it goes wrong; nothing of it shows in arguments, names
or logs. Roles: engine, prefill, decode, route. Pages are SGLang's or vLLM's, by "dialect", with the figures that those engines show and
no more: gauges are written by the scheduler's own step, so that they stand still when it does.
"""

import asyncio
import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import aiohttp
from aiohttp import web

SPIN = "import os,sys\nsys.stdin.readline()\np=os.getppid()\nwhile os.getppid()==p:\n for _ in range(10**6): pass\n"
WAIT = "import sys\nsys.stdin.readline()\n"
BOUNDS = (0.01, 0.03, 0.1, 0.3, 1.0, float("inf"))
PUBLISHED = ("running", "waiting", "usage", "bootstrap", "inflight", "prealloc", "transfer")


class Req:
    def __init__(self, body, size):
        self.prompt, self.limit, self.room = max(1, size // 4), body.get("max_tokens") or 64, body.get("bootstrap_room")
        self.n, self.tokens, self.stage, self.gone = 0, asyncio.Queue(), "waiting", False
        self.ready, self.asked_for = asyncio.Event(), asyncio.Event()
        self.at = None

    @property
    def held(self):
        return self.prompt + self.n


class Node:
    def __init__(self, plan):
        self.plan, self.bent = plan, plan.get("bent", {})
        self.role, self.vllm = plan["role"], plan.get("dialect", "sglang") == "vllm"
        self.itl, self.slots, self.pool = plan.get("itl", 0.03), plan.get("slots", 64), plan.get("pool", 30_000)
        self.reqs, self.http, self.aborts, self.n_requests = [], 0, 0, 0
        self.itl_sum = self.itl_count = self.tokens = self.done = self.prompts = self.realtime = self.retracted = 0
        self.under = dict.fromkeys(BOUNDS, 0)
        self.failed, self.idle_s, self.busy_s = 0, 0.0, 0.0
        self.shown = dict.fromkeys(PUBLISHED, 0)
        self.ranks = [dict.fromkeys(PUBLISHED, 0) for _ in range(plan.get("ranks", 1))]
        self.halted = self.paused = False
        self.written = self.moved = self.stepped = time.time()
        self.unmet, self.children, self.next_peer = set(), [], itertools.count()

    def kind(self, name):
        return self.bent.get("kind") == name

    def strike(self, reached):
        return reached >= self.bent.get("after", 0)

    def at(self, *stages):
        return [r for r in self.reqs if r.stage in stages]

    def free(self):
        return self.pool - sum(r.held for r in self.at("running", "inflight", "transfer", "parked"))

    # ---- the scheduler -----------------------------------------------------------------------------------------------
    async def schedule(self):
        last, due, slow_since = time.monotonic(), 0.0, None
        while True:
            crawl = self.kind("collapse") and self.strike(self.n_requests) and self.free() < 0.15 * self.pool
            step = self.itl * (20 if crawl else 1)
            await asyncio.sleep(step if self.at("running", "waiting", "forward") else min(step, 0.05))
            now = time.monotonic()
            elapsed, last = now - last, now
            self.bend()
            if self.halted:
                continue
            self.busy_s += elapsed if self.reqs else 0
            self.idle_s += 0 if self.reqs else elapsed
            if not self.paused:
                self.admit()
                # One that falls behind because the loop was blocked has stepped on by itself: another process does it.
                due = min(due + elapsed / step, 400) if self.plan.get("apart") else 1
                while due >= 1:
                    due -= 1
                    self.step(step)
            if crawl and (slow_since is None or now - slow_since > 1.5):
                slow_since, self.retracted = now, self.retracted + 1
            self.publish()

    def bend(self):
        hit = self.strike(self.n_requests)
        if hit and self.kind("pause"):
            self.paused = True
        if hit and self.kind("halt") and self.at("running") and self.at("running")[0].n > 8:
            self.halt()
        if self.kind("diverge") and hit:
            self.halt()
            for number, rank in enumerate(self.ranks):
                rank.update(self.shown, waiting=3 if number == 0 else 0, inflight=1 if number == 0 else 0)
        if self.kind("wedge") and hit and not self.retracted and len(self.at("running")) > 3:
            for r in [r for r in self.at("running") if r.n > 8][:3]:
                r.stage, self.retracted = "stuck", self.retracted + 1

    def halt(self):
        if self.halted:
            return
        self.halted = True
        if self.bent.get("die"):
            os.kill(self.children[0].pid, signal.SIGKILL)
        for child in self.children[: self.bent.get("spin", 0)]:
            child.stdin.write(b"\n")
            child.stdin.flush()

    def admit(self):
        for r in self.at("waiting"):
            if len(self.at("running")) >= self.slots or r.held > self.free():
                return  # first come, first served
            self.prompts += r.prompt
            r.at = time.monotonic() + r.prompt / self.plan.get("prefill_rate", 20_000)
            r.stage = "running"

    def step(self, seconds):
        now = time.monotonic()
        for r in self.at("running"):
            if r.at is not None and now < r.at:
                continue
            if self.role == "prefill":
                r.stage = "bootstrap"
                r.ready.set()
                self.realtime += r.prompt
                continue
            r.n += 1
            self.tokens += 1
            self.realtime += 1
            self.moved = time.time()
            if r.n > 1:
                self.itl_sum, self.itl_count = self.itl_sum + seconds, self.itl_count + 1
                for bound in BOUNDS:
                    self.under[bound] += seconds <= bound
            r.tokens.put_nowait(r.n >= r.limit)
            if r.n >= r.limit:
                self.finish(r)

    def finish(self, r):
        if r in self.reqs:
            self.reqs.remove(r)
            self.done += 1

    def publish(self):
        inflight = len(self.at("inflight"))
        self.shown = {
            "running": len(self.at("running")),
            "waiting": len(self.at("waiting")),
            "usage": round(1 - self.free() / self.pool, 3),
            "bootstrap": len(self.at("bootstrap")),
            "inflight": inflight,
            "prealloc": len(self.at("prealloc", "stuck")),
            "transfer": len(self.at("transfer", "parked")),
        }
        for rank in self.ranks:
            rank.update(self.shown)
        self.written = time.time()

    # ---- requests ----------------------------------------------------------------------------------------------------
    async def chat(self, request):
        raw = await request.read()
        body = json.loads(raw)
        self.n_requests += 1
        if self.kind("block") and self.strike(self.n_requests):
            end = time.monotonic() + len(raw) / self.bent["bytes_per_s"]
            while time.monotonic() < end:
                pass
        self.http += 1
        r = Req(body, len(raw))
        try:
            return await getattr(self, f"serve_{self.role}")(request, body, r)
        except (asyncio.CancelledError, ConnectionError):
            self.aborts += 1
            r.gone = True
            if not self.kind("forget") and not self.halted and r in self.reqs:
                self.reqs.remove(r)
            raise
        finally:
            self.http -= 1

    async def serve_engine(self, request, body, r):
        self.reqs.append(r)
        return await self.stream(request, r, plain=not body.get("stream"))

    async def serve_prefill(self, request, body, r):
        self.reqs.append(r)
        await r.ready.wait()
        await r.asked_for.wait()
        return await self.stream(request, r, plain=not body.get("stream"), one=True)

    async def serve_decode(self, request, body, r):
        r.stage = "prealloc"
        self.reqs.append(r)
        reader, writer = await asyncio.open_connection(body["bootstrap_host"], int(body["bootstrap_port"]))
        try:
            writer.write(json.dumps([r.room, self.plan["name"]]).encode() + b"\n")
            await writer.drain()
            r.stage = "transfer"
            if not await reader.readline():
                r.stage = "parked"  # the other side let go; nobody here has a clock
            if r.stage == "parked":
                await asyncio.sleep(3600)
        finally:
            writer.close()
        r.stage = "waiting"
        return await self.stream(request, r, plain=not body.get("stream"))

    async def serve_kv(self, reader, writer):
        """Decode asks for a room; the KV is there when the prompt was computed."""
        with contextlib.suppress(ConnectionError, ValueError):
            room, peer = json.loads(await reader.readline())
            r = None
            while r is None:
                r = next((r for r in self.reqs if r.room == room), None)
                await asyncio.sleep(0.02)
            await r.ready.wait()
            r.stage = "inflight"
            if self.kind("shun") and peer == self.bent["peer"] and self.strike(self.n_requests):
                self.failed += 1
                r.stage = "shunned"
                await asyncio.sleep(3600)
            if self.kind("keep") and self.strike(self.n_requests):
                await asyncio.sleep(3600)
            lost = self.kind("lose") and self.strike(self.n_requests) and self.n_requests % self.bent["every"] == 0
            if lost:
                self.failed += 1
            else:
                writer.write(b"sent\n")
                await writer.drain()
            r.tokens.put_nowait(True)
            r.asked_for.set()
            self.moved = time.time()
            self.finish(r)
        writer.close()

    async def stream(self, request, r, *, plain=False, one=False):
        if plain:
            while not await r.tokens.get():
                pass
            return web.json_response({"choices": [{"index": 0, "message": {"content": "x"}, "finish_reason": "stop"}]})
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        last = False
        while not last:
            last = await r.tokens.get()
            if not answer.prepared:
                await answer.prepare(request)
            await self.event(
                answer, {"choices": [{"index": 0, "delta": {"content": f"w{r.n} "}, "finish_reason": None}]}
            )
        await self.event(answer, {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop" if one else "length"}]})
        await self.event(answer, {"choices": [], "usage": {"prompt_tokens": r.prompt, "completion_tokens": r.n}})
        await answer.write(b"data: [DONE]\n\n")
        await answer.write_eof()
        return answer

    async def event(self, answer, document):
        await answer.write(b"data: " + json.dumps({"id": "x", "model": "m", **document}).encode() + b"\n\n")

    async def serve_route(self, request, body, r):
        """Both legs at once, each request to the next pair; what decode says is passed on."""
        pairs = [(p, d) for d in self.plan["decode"] for p in self.plan["prefill"]]
        (prefill, kv), decode = pairs[next(self.next_peer) % len(pairs)]
        body |= {"bootstrap_host": "127.0.0.1", "bootstrap_port": kv, "bootstrap_room": time.time_ns()}
        path = "/v1/chat/completions"
        async with contextlib.AsyncExitStack() as stack:

            async def leg(url):
                return await stack.enter_async_context(self.session.post(url + path, json=body))

            first = asyncio.ensure_future(leg(prefill))
            try:
                got = await leg(decode)
                answer = web.StreamResponse(status=got.status, headers={"Content-Type": got.headers["Content-Type"]})
                await answer.prepare(request)
                async for piece in got.content.iter_any():
                    await answer.write(piece)
                await answer.write_eof()
                return answer
            finally:
                if not first.done():
                    first.cancel()
                await asyncio.gather(first, return_exceptions=True)

    # ---- what it says of itself --------------------------------------------------------------------------------------
    async def health(self, request):
        stale = time.time() - self.moved > 3 and bool(self.reqs)
        if self.plan.get("health") == "progress" and stale:
            print(
                "Health check failed. Server couldn't get a response from detokenizer for last 3 seconds.", flush=True
            )
            return web.Response(status=503)
        return web.Response()

    async def ready(self, request):
        return web.Response(status=503 if self.paused else 200)

    async def models(self, request):
        return web.json_response({"object": "list", "data": [{"id": "m", "object": "model"}]})

    async def loads(self, request):
        if not self.plan.get("loads"):
            return web.Response(status=404)
        live = not self.halted
        if live:
            self.publish()
        s = self.shown
        load = {
            "timestamp": self.written, "dp_rank": 0, "num_running_reqs": s["running"], "num_waiting_reqs": s["waiting"],
            "num_waiting_uncached_tokens": sum(r.prompt for r in self.at("waiting")), "max_total_num_tokens": self.pool, "token_usage": s["usage"],
            "queues": {"waiting": s["waiting"], "grammar": 0, "paused": 0, "retracted": 0},
        }  # fmt: skip
        return web.json_response({"timestamp": time.time(), "version": "0.5.20", "loads": [load]})

    async def metrics(self, request):
        if self.plan.get("dialect") == "none":
            return web.Response(status=404)
        lines = self.vllm_page() if self.vllm else self.sglang_page()
        return web.Response(text="\n".join(lines) + "\n")

    def vllm_page(self):
        if not self.halted:
            self.publish()
        s, label = self.shown, '{engine="0",model_name="m"}'
        deferred = s["transfer"] + s["prealloc"]
        reason = '{{engine="0",model_name="m",reason="{}"}}'
        yield f"vllm:num_requests_running{label} {s['running']}"
        yield f"vllm:num_requests_waiting{label} {s['waiting'] + deferred}"
        yield f"vllm:num_requests_waiting_by_reason{reason.format('capacity')} {s['waiting']}"
        yield f"vllm:num_requests_waiting_by_reason{reason.format('deferred')} {deferred}"
        yield f"vllm:kv_cache_usage_perc{label} {s['usage']}"
        yield f"vllm:num_preemptions_total{label} {self.retracted}"
        yield f"vllm:prompt_tokens_total{label} {self.prompts}"
        yield f"vllm:generation_tokens_total{label} {self.tokens}"
        yield f'vllm:request_success_total{{engine="0",finished_reason="length",model_name="m"}} {self.done}'
        yield f"vllm:inter_token_latency_seconds_sum{label} {self.itl_sum}"
        yield f"vllm:inter_token_latency_seconds_count{label} {self.itl_count}"
        yield f"vllm:nixl_num_failed_transfers_total{label} {self.failed}"

    def sglang_page(self):
        kind = self.role if self.role != "engine" else "unified"
        names = {"running": "num_running_reqs", "waiting": "num_queue_reqs", "usage": "token_usage"}
        if self.role == "prefill":
            names |= {q: f"num_prefill_{q}_queue_reqs" for q in ("bootstrap", "inflight")}
        if self.role == "decode":
            names |= {q: f"num_decode_{q}_queue_reqs" for q in ("prealloc", "transfer")}
        for number, rank in enumerate(self.ranks):
            label = f'{{engine_type="{kind}",model_name="m",moe_ep_rank="0",pp_rank="{number}",tp_rank="0"}}'
            for stage, name in names.items():
                yield f"sglang:{name}{label} {rank[stage]}"
        label = f'{{engine_type="{kind}",model_name="m",moe_ep_rank="0",pp_rank="0",tp_rank="0"}}'
        plain = f'{{engine_type="{kind}",model_name="m"}}'
        yield f"sglang:max_total_num_tokens{label} {self.pool}"
        yield f"sglang:scheduler_idle_seconds_total{label} {self.idle_s}"
        yield f"sglang:scheduler_process_cpu_seconds_total{label} {self.busy_s}"
        yield f'sglang:realtime_tokens_total{{engine_type="{kind}",mode="decode",model_name="m",pp_rank="0",tp_rank="0"}} {self.realtime}'
        yield f"sglang:inter_token_latency_seconds_sum{plain} {self.itl_sum}"
        yield f"sglang:inter_token_latency_seconds_count{plain} {self.itl_count}"
        for bound, n in self.under.items():
            le = str(bound).replace("inf", "+Inf")
            yield f'sglang:inter_token_latency_seconds_bucket{{engine_type="{kind}",le="{le}",model_name="m"}} {n}'
        yield f"sglang:num_requests_total{plain} {self.done}"
        yield f"sglang:num_aborted_requests_total{plain} {self.aborts}"
        yield f"sglang:num_retracted_requests_total{label} {self.retracted}"
        yield f"sglang:num_transfer_failed_reqs_total{label} {self.failed}"
        yield f'sglang:http_requests_active{{endpoint="/v1/chat/completions",method="POST"}} {self.http}'

    # ---- life --------------------------------------------------------------------------------------------------------
    async def run(self):
        for name in self.plan.get("children", ()):
            code = SPIN if name != "detokenizer" else WAIT
            if self.plan.get("titles"):
                code = f"open('/proc/self/comm','w').write('sglang::{name}'[:15])\n" + code
            self.children.append(subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE))  # noqa: ASYNC220 at once
        app = web.Application(client_max_size=1 << 28)
        app.router.add_post("/v1/chat/completions", self.chat)
        for path in ("health", "ready", "metrics"):
            app.router.add_get(f"/{path}", getattr(self, path))
        app.router.add_get("/readiness", self.health)
        app.router.add_get("/v1/models", self.models)
        app.router.add_get("/v1/loads", self.loads)
        runner = web.AppRunner(app, handler_cancellation=True, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", self.plan["port"], backlog=1024).start()
        if self.role == "prefill":
            await asyncio.start_server(self.serve_kv, "127.0.0.1", self.plan["kv_port"])
        self.session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None)
        )
        print(f"listening on http://127.0.0.1:{self.plan['port']}", flush=True)
        asyncio.get_running_loop().call_later(self.plan.get("life", 100), self.end)
        await (self.schedule() if self.role != "route" else asyncio.sleep(3600))

    def end(self):
        for child in self.children:
            child.kill()
        os._exit(0)


if __name__ == "__main__":
    asyncio.run(Node(json.loads(Path(sys.argv[1]).read_text())).run())
