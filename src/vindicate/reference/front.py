"""HTTP in front of an engine: the OpenAI API, and SGLang's endpoints for operators."""

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import asdict
from typing import Any

from aiohttp import web

from vindicate import __version__
from vindicate.reference.device import KNOB
from vindicate.reference.engine import Engine
from vindicate.reference.metric import QUEUES
from vindicate.reference.openai import DONE, BadRequestError, Writer, error_body, read_order
from vindicate.reference.sequence import End, Sequence
from vindicate.reference.settings import Settings

__all__ = ["Front"]

_OPEN = ("/health", "/health_generate", "/ready", "/metrics")
_CONTEXT_LEN = 131_072
_EXCHANGE: ContextVar["_Exchange"] = ContextVar("exchange")


class _Exchange:
    """One HTTP request in the books of `/metrics`; closed once."""

    def __init__(self, front: "Front", request: web.Request) -> None:
        resource = request.match_info.route.resource
        self._where = (resource.canonical if resource else "unknown", request.method)
        self._metrics = front.engine.metrics
        self._metrics.http_began(*self._where)
        self._open = True

    def close(self, status: int) -> None:
        if self._open:
            self._open = False
            self._metrics.http_ended(*self._where, status)


class Front:
    """The HTTP side of one engine."""

    def __init__(self, settings: Settings, engine: Engine) -> None:
        self.settings = settings
        self.engine = engine
        self.started = time.time()

    def app(self) -> web.Application:
        """The application, with all its routes."""
        app = web.Application(middlewares=[self._account], client_max_size=64 << 20)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/v1/completions", self._completion)
        app.router.add_post("/abort_request", self._abort)
        for path in ("/health", "/health_generate", "/ready"):
            app.router.add_get(path, self._health)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/v1/models", self._models)
        for path in ("/model_info", "/get_model_info"):
            app.router.add_get(path, self._model_info)
        for path in ("/server_info", "/get_server_info"):
            app.router.add_get(path, self._server_info)
        app.router.add_get("/v1/loads", self._loads)
        return app

    @web.middleware
    async def _account(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Count, check the key, echo the request id."""
        exchange = _Exchange(self, request)
        _EXCHANGE.set(exchange)
        status = 499
        try:
            key = self.settings.api_key
            if key and request.path not in _OPEN and request.headers.get("Authorization") != f"Bearer {key}":
                response: web.StreamResponse = web.json_response({"error": "Unauthorized"}, status=401)
            else:
                response = await handler(request)
            if not response.prepared:
                self._label(request, response)
            status = response.status
        except web.HTTPException as refusal:
            status = refusal.status
            raise
        finally:
            exchange.close(status)
        return response

    def _label(self, request: web.Request, response: web.StreamResponse) -> None:
        if self.engine.device.describe()["simulated"]:
            response.headers["x-vindicate-simulated"] = "1"
        if "x-request-id" in request.headers:
            response.headers["x-request-id"] = request.headers["x-request-id"]

    # ---- answering ------------------------------------------------------------------------------------------------

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, chat=True)

    async def _completion(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, chat=False)

    async def _answer(self, request: web.Request, *, chat: bool) -> web.StreamResponse:
        # A request id names a request for as long as that is unambiguous; a rid in the body is taken at its word.
        request_id = request.headers.get("x-request-id")
        if request_id in self.engine.live:
            request_id = None
        try:
            body = await _json(request)
            order = read_order(body, chat=chat, model=self.settings.model, request_id=request_id)
            sequence = self.engine.submit(order)
        except BadRequestError as error:
            return web.json_response(error_body(str(error), 400), status=400)
        try:
            # Nothing is sent before the first token, not even headers; so what fails before it is a proper error.
            first = await sequence.events.get()
            if isinstance(first, End) and first.message:
                return web.json_response(error_body(first.message, first.status), status=first.status)
            if order.stream:
                return await self._stream(request, sequence, first)
            return await self._whole(sequence, first)
        finally:
            self.engine.release(sequence)

    async def _stream(self, request: web.Request, sequence: Sequence, event: str | End) -> web.StreamResponse:
        writer = Writer(sequence.order)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
        self._label(request, response)
        await response.prepare(request)
        ahead = writer.role()
        while not isinstance(event, End):
            await response.write(ahead + writer.token(event))
            ahead = b""
            event = await sequence.events.get()
        if event.reason == "error":
            await response.write(writer.error(event.message, event.status))
        else:
            ending = writer.finish(event.reason, event.matched) + writer.usage(sequence.n_prompt, sequence.n_output)
            await response.write(ahead + ending)
        if self.engine.fault.hits("no_end", sequence.number):
            _EXCHANGE.get().close(200)
            await asyncio.Event().wait()
        await response.write(DONE)
        await response.write_eof()
        return response

    async def _whole(self, sequence: Sequence, event: str | End) -> web.Response:
        tokens = []
        while not isinstance(event, End):
            tokens.append(event)
            event = await sequence.events.get()
        if event.message:
            return web.json_response(error_body(event.message, event.status), status=event.status)
        writer = Writer(sequence.order)
        return web.json_response(
            writer.whole("".join(tokens), event.reason, event.matched, sequence.n_prompt, sequence.n_output)
        )

    async def _abort(self, request: web.Request) -> web.Response:
        """As in SGLang: a rid is a prefix, an unknown or empty one is ignored, and the answer is always an empty 200."""
        body = await _json(request)
        if isinstance(body, dict):
            if body.get("abort_all"):
                self.engine.abort(None)
            elif body.get("rid"):
                self.engine.abort(str(body["rid"]))
        return web.Response()

    # ---- telling --------------------------------------------------------------------------------------------------

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response()

    async def _metrics(self, _: web.Request) -> web.Response:
        page = self.engine.metrics.page(self.engine.load())
        return web.Response(body=page, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    async def _models(self, _: web.Request) -> web.Response:
        model = {
            "id": self.settings.model,
            "object": "model",
            "created": int(self.started),
            "owned_by": "vindicate.reference",
            "root": self.settings.model,
            "max_model_len": _CONTEXT_LEN,
        }
        return web.json_response({"object": "list", "data": [model]})

    async def _model_info(self, _: web.Request) -> web.Response:
        return web.json_response(
            {
                "model_path": self.settings.model,
                "served_model_name": self.settings.model,
                "tokenizer_path": self.settings.model,
                "is_generation": True,
                "preferred_sampling_params": None,
                "weight_version": "default",
                "disaggregation_mode": self.settings.role,
                "model_type": "copy",
                "architectures": [type(self.engine.model).__name__],
                **self.engine.device.describe(),
            }
        )

    async def _server_info(self, _: web.Request) -> web.Response:
        """As in SGLang, every argument, the api key included: whoever collects this must redact it."""
        arguments = {
            name: value
            for name, value in asdict(self.settings).items()
            if name not in ("role", "fault", "prefills", "decodes", "health_interval_s", "request_timeout_s")
        }
        arguments |= {
            "model_path": self.settings.model,
            "disaggregation_mode": self.settings.role,
            "disaggregation_bootstrap_port": self.settings.bootstrap_port,
        }
        load = self.engine.load()
        state = {
            **arguments,
            "startup_time": self.started,
            "last_gen_throughput": load.gen_throughput,
            "effective_max_running_requests_per_dp": self.settings.max_running,
            "kv_pages_taken": self.engine.model.n_pages(),
        }
        if os.environ.get("SGLANG_EXPOSE_OWN_ENV_VARS") == "1":
            state["env_vars"] = {name: value for name, value in os.environ.items() if name == KNOB}
        return web.json_response(
            {
                **arguments,
                **self.engine.device.describe(),
                "launch_command": " ".join(_launch_command(sys.argv)),
                "scheduler_info": {"status": "ready", "max_total_num_tokens": self.settings.max_total_tokens},
                "startup_time": self.started,
                "internal_states": [state],
                "version": __version__,
            }
        )

    async def _loads(self, _: web.Request) -> web.Response:
        """As in SGLang: the outer time is the reply's, the inner one is when the scheduler last came round."""
        load = self.engine.load()
        counts = {name: load.stages[stage] for name, stage in QUEUES.items()}
        core = {
            "timestamp": load.written_at,
            "dp_rank": 0,
            "num_running_reqs": counts["num_running_reqs"],
            "num_waiting_reqs": counts["num_queue_reqs"],
            "num_used_tokens": load.n_used_tokens,
            "max_total_num_tokens": self.settings.max_total_tokens,
            "max_running_requests": self.settings.max_running,
            "token_usage": load.n_used_tokens / self.settings.max_total_tokens,
            "gen_throughput": load.gen_throughput,
        }
        disaggregation = {
            "mode": self.settings.role,
            "prefill_bootstrap_queue_reqs": counts["num_prefill_bootstrap_queue_reqs"],
            "prefill_inflight_queue_reqs": counts["num_prefill_inflight_queue_reqs"],
            "decode_prealloc_queue_reqs": counts["num_decode_prealloc_queue_reqs"],
            "decode_transfer_queue_reqs": counts["num_decode_transfer_queue_reqs"],
            "decode_retracted_queue_reqs": 0,
        }
        queues = {"waiting": counts["num_queue_reqs"], "grammar": 0, "paused": 0, "retracted": 0}
        return web.json_response(
            {
                "timestamp": time.time(),
                "version": __version__,
                "accelerator": self.engine.device.name,
                "loads": [{**core, "disaggregation": disaggregation, "queues": queues}],
            }
        )


def _launch_command(argv: list[str]) -> list[str]:
    """The command line without the options that name a fault, which must not be seen from outside."""
    kept: list[str] = []
    for index, word in enumerate(argv):
        if not word.startswith("--fault") and not (index and argv[index - 1] in ("--fault", "--fault-after")):
            kept.append(word)
    return kept


async def _json(request: web.Request) -> Any:
    try:
        return json.loads(await request.read())
    except ValueError as error:
        raise BadRequestError(f"the body is no JSON: {error}") from error
