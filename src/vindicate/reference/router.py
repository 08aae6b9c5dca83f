"""The router: requests in → a pair of workers for each; and what it tells about itself and its workers."""

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from urllib.parse import urlsplit
from uuid import uuid4

import aiohttp
from aiohttp import web

from vindicate.reference.openai import error_body
from vindicate.reference.pair import Pair, reason
from vindicate.reference.router_metric import RouterMetrics
from vindicate.reference.settings import Settings
from vindicate.reference.worker import Worker, pick

__all__ = ["Router"]

_COMPLETIONS = {"/v1/chat/completions": "chat", "/v1/completions": "completions"}


class Router:
    """A PD router over some prefills and some decodes."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.fault = settings.fault
        self.prefills = [Worker("prefill", url, port) for url, port in settings.prefills]
        self.decodes = [Worker("decode", url, None) for url in settings.decodes]
        self.metrics = RouterMetrics([*self.prefills, *self.decodes])
        self.n_taken = 0

    def app(self) -> web.Application:
        """The application, with all its routes."""
        app = web.Application(middlewares=[self._account], client_max_size=64 << 20)
        for path in _COMPLETIONS:
            app.router.add_post(path, self._route)
        for path in ("/health", "/liveness"):
            app.router.add_get(path, self._liveness)
        app.router.add_get("/readiness", self._readiness)
        app.router.add_get("/workers", self._workers)
        app.router.add_get("/metrics", self._page)
        for path in ("/v1/models", "/get_model_info", "/model_info", "/get_server_info"):
            app.router.add_get(path, self._from_prefill)
        app.cleanup_ctx.append(self._live)
        return app

    async def _live(self, _: web.Application) -> AsyncIterator[None]:
        timeout = aiohttp.ClientTimeout(total=self.settings.request_timeout_s, sock_connect=10)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector, auto_decompress=False) as self.session:
            checks = asyncio.create_task(self._check_health())
            yield
            checks.cancel()
            await asyncio.wait([checks])

    @web.middleware
    async def _account(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        with self.metrics.exchange(request) as exchange:
            response = await handler(request)
            exchange.status = response.status
            return response

    # ---- routing --------------------------------------------------------------------------------------------------

    async def _route(self, request: web.Request) -> web.StreamResponse:
        """Choose a pair, tell both legs where they meet, and relay."""
        data = await request.read()
        request_id = request.headers.get("x-request-id") or uuid4().hex
        try:
            body = json.loads(data)
        except ValueError as error:
            return _refusal(400, f"the body is no JSON: {error}", request_id)
        if not isinstance(body, dict):
            return _refusal(400, f"the body is {type(body).__name__}, and should be an object", request_id)
        self.n_taken += 1
        if self.fault.hits("hold", self.n_taken):
            await asyncio.Event().wait()
        now = time.monotonic()
        prefill, decode = pick(self.prefills, now), pick(self.decodes, now)
        if prefill is None or decode is None:
            role = "prefill" if prefill is None else "decode"
            return _refusal(503, f"no {role} worker is available", request_id)
        self.metrics.routed(_COMPLETIONS[request.path], body)
        body |= {
            "bootstrap_host": urlsplit(prefill.url).hostname,
            "bootstrap_port": prefill.bootstrap_port,
            "bootstrap_room": secrets.randbits(63),
        }
        headers = {"x-request-id": request_id, "Content-Type": "application/json"}
        if "Authorization" in request.headers:
            headers["Authorization"] = request.headers["Authorization"]
        pair = Pair(self.session, request, (prefill, decode), json.dumps(body).encode(), headers)
        return await pair.answer(decode_is_lost=self.fault.hits("dual_dispatch_join", self.n_taken))

    # ---- the workers ----------------------------------------------------------------------------------------------

    async def _check_health(self) -> None:
        while True:
            await asyncio.gather(*(self._check(worker) for worker in (*self.prefills, *self.decodes)))
            await asyncio.sleep(self.settings.health_interval_s)

    async def _check(self, worker: Worker) -> None:
        try:
            async with self.session.get(worker.url + "/health", timeout=aiohttp.ClientTimeout(total=5)) as answer:
                worker.healthy = answer.status == 200
        except (aiohttp.ClientError, TimeoutError):
            worker.healthy = False
        self.metrics.checked(worker)

    # ---- telling --------------------------------------------------------------------------------------------------

    async def _liveness(self, _: web.Request) -> web.Response:
        return web.Response(text="OK")

    async def _readiness(self, _: web.Request) -> web.Response:
        n_ready = [sum(1 for worker in workers if worker.healthy) for workers in (self.prefills, self.decodes)]
        ready = all(n_ready)
        body = {
            "status": "ready" if ready else "not ready",
            "healthy_prefills": n_ready[0],
            "healthy_decodes": n_ready[1],
        }
        return web.json_response(body, status=200 if ready else 503)

    async def _workers(self, _: web.Request) -> web.Response:
        workers = [*self.prefills, *self.decodes]
        listed = [
            {
                "id": worker.url,
                "url": worker.url,
                "worker_type": worker.role,
                "is_healthy": bool(worker.healthy),
                "load": worker.n_active,
                "connection_mode": "http",
                "bootstrap_port": worker.bootstrap_port,
            }
            for worker in workers
        ]
        return web.json_response({"workers": listed, "total": len(listed)})

    async def _page(self, _: web.Request) -> web.Response:
        return web.Response(
            body=self.metrics.page(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        )

    async def _from_prefill(self, request: web.Request) -> web.Response:
        worker = pick(self.prefills, time.monotonic())
        if worker is None:
            return _refusal(503, "no prefill worker is available", "")
        headers = {name: request.headers[name] for name in ("Authorization",) if name in request.headers}
        try:
            async with self.session.get(
                worker.url + request.path, headers=headers, timeout=aiohttp.ClientTimeout(total=10)
            ) as answer:
                return web.Response(status=answer.status, body=await answer.read(), content_type=answer.content_type)
        except (aiohttp.ClientError, TimeoutError) as error:
            return _refusal(502, f"prefill {worker.url} failed: {reason(error)}", "")


def _refusal(status: int, message: str, request_id: str) -> web.Response:
    response = web.json_response(error_body(message, status), status=status)
    if request_id:
        response.headers["x-request-id"] = request_id
    return response
