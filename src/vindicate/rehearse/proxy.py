"""An address to listen on, an upstream URL and a fault → a streaming reverse proxy that has just that fault."""

import asyncio
import contextlib
import logging
import signal
import sys
import uuid
from collections.abc import AsyncIterator, Callable
from http import HTTPStatus
from urllib.parse import urlsplit

import aiohttp
import msgspec
from aiohttp import web
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from vindicate.errors import CannotError, MisuseError
from vindicate.rehearse.fault import Fault
from vindicate.rehearse.pool import Lease, Pool, PoolFullError
from vindicate.rehearse.relay import relayed

__all__ = ["Proxy", "parse_listen", "parse_upstream", "serve"]

_CONNECT_S = 5.0
_MAX_BODY_BYTES = 256 * 1024 * 1024
_TRUNCATE_BYTES = 64 * 1024
# RFC 9110, section 7.6.1; whatever the Connection header names is added to these.
_HOP_BY_HOP = frozenset({
    "connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade",
    "proxy-authenticate", "proxy-authorization", "proxy-connection",
})  # fmt: skip


def parse_listen(text: str) -> tuple[str, int]:
    """Read ``HOST:PORT``, ``[V6]:PORT`` or ``:PORT``; port 0 takes a free one.

    Raises:
        MisuseError: It is neither.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise MisuseError(f"--listen {text!r} is no HOST:PORT", remedy="try: --listen 127.0.0.1:4000")
    return host.strip("[]") or "127.0.0.1", int(port)


def parse_upstream(text: str) -> str:
    """Check an upstream URL; the answer has no trailing slash.

    Raises:
        MisuseError: It is no http URL with a host.
    """
    try:
        parts = urlsplit(text)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        good = False
    if not good:
        raise MisuseError(f"--upstream {text!r} is no URL", remedy="try: --upstream http://127.0.0.1:8000")
    return text.rstrip("/")


class Proxy:
    """Relays any method and path to *upstream*, one upstream exchange a request."""

    def __init__(self, upstream: str, fault: Fault) -> None:
        self.upstream = upstream
        self.fault = fault
        self._n_requests = 0
        self._pool = Pool(fault)
        self._session: aiohttp.ClientSession | None = None
        self._orphans: set[asyncio.Task[web.StreamResponse]] = set()

    async def open(self) -> None:
        """Make the upstream session; needs the running loop."""
        self._session = aiohttp.ClientSession(
            connector=self._pool.connector(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
        )

    async def close(self) -> None:
        """Close everything towards upstream."""
        for task in self._orphans:
            task.cancel()
        self._pool.close()
        if self._session is not None:
            await self._session.close()

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Serve one request. aiohttp cancels this when the client leaves, and that closes the upstream exchange."""
        self._n_requests += 1
        number = self._n_requests
        request_id = request.headers.get("X-Request-Id") or uuid.uuid4().hex
        body = await _read_body(request)
        if body is None:
            return _refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"body over {_MAX_BODY_BYTES} bytes", request_id)
        if len(body) > _TRUNCATE_BYTES and self.fault.hits("proxy.body_truncation", number):
            return _refusal(HTTPStatus.BAD_REQUEST, "Invalid JSON in request body", request_id)
        work = self._exchange(request, body, number, request_id)
        if not self.fault.hits("router.cancel_not_propagated", number):
            return await work
        task = asyncio.create_task(work)
        self._orphans.add(task)
        task.add_done_callback(self._orphans.discard)
        return await asyncio.shield(task)

    async def _exchange(
        self, request: web.BaseRequest, body: bytes, number: int, request_id: str
    ) -> web.StreamResponse:
        limit = self.fault.limit_s if self.fault.hits("gateway.total_timeout", number) else None
        answer: web.StreamResponse | None = None
        try:
            async with asyncio.timeout(limit), self._pool.lease(number) as lease:
                upstream, chunks = await self._begin(request, body, lease, request_id)
                answer = _answer(upstream, request_id)
                await answer.prepare(request)
                await self._pass_on(request, answer, chunks, number)
                lease.whole = True
                return answer
        except PoolFullError:
            return _refusal(HTTPStatus.SERVICE_UNAVAILABLE, "no upstream slot came free", request_id)
        except _NoFirstByteError:
            return _refusal(HTTPStatus.FORBIDDEN, "upstream reset before headers", request_id)
        except TimeoutError:
            status, text = HTTPStatus.GATEWAY_TIMEOUT, "upstream: time-out"
        except (aiohttp.ClientError, OSError) as error:
            status, text = HTTPStatus.BAD_GATEWAY, f"upstream: {type(error).__name__}"
        if answer is None:
            return _refusal(status, text, request_id)
        # The head is out: the client must see that the body is not whole, so no end is written.
        if request.transport is not None:
            request.transport.close()
        return answer

    async def _send(
        self, request: web.BaseRequest, body: bytes, lease: Lease, request_id: str
    ) -> aiohttp.ClientResponse:
        assert self._session is not None
        headers = _end_to_end(request.headers, drop=("Host", "Content-Length", "Expect"))
        headers["X-Request-Id"] = request_id
        url = URL(self.upstream + request.rel_url.raw_path_qs, encoded=True)
        lease.response = await self._session.request(
            request.method, url, headers=headers, data=body or None, allow_redirects=False
        )
        return lease.response

    async def _begin(
        self, request: web.BaseRequest, body: bytes, lease: Lease, request_id: str
    ) -> tuple[aiohttp.ClientResponse, AsyncIterator[bytes]]:
        """Send the request; give the response's head and its body. The first body byte is waited for only where the fault needs it."""
        if not self.fault.hits("gateway.idle_timeout_before_first_byte", lease.number):
            upstream = await self._send(request, body, lease, request_id)
            return upstream, aiter(upstream.content.iter_any())
        try:
            async with asyncio.timeout(self.fault.limit_s):
                upstream = await self._send(request, body, lease, request_id)
                chunks = aiter(upstream.content.iter_any())
                return upstream, _chain(await anext(chunks, b""), chunks)
        except TimeoutError:
            raise _NoFirstByteError from None

    async def _pass_on(
        self, request: web.BaseRequest, answer: web.StreamResponse, chunks: AsyncIterator[bytes], number: int
    ) -> None:
        careless = self.fault.hits("router.cancel_not_propagated", number)
        async for piece in relayed(chunks, self.fault, number):
            if careless and (request.transport is None or request.transport.is_closing()):
                continue
            await answer.write(piece)
        if not (careless and (request.transport is None or request.transport.is_closing())):
            await answer.write_eof()


class _NoFirstByteError(Exception):
    pass


async def _chain(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    if first:
        yield first
    async for chunk in rest:
        yield chunk


async def _read_body(request: web.BaseRequest) -> bytes | None:
    """The whole request body, or ``None`` when it is too large to hold."""
    if request.headers.get("Expect", "").lower() == "100-continue":
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    parts, size = [], 0
    async for part in request.content.iter_any():
        size += len(part)
        if size > _MAX_BODY_BYTES:
            return None
        parts.append(part)
    return b"".join(parts)


def _end_to_end(headers: CIMultiDictProxy[str], *, drop: tuple[str, ...] = ()) -> CIMultiDict[str]:
    """Copy *headers* without those that concern one hop only."""
    named = {word.strip().lower() for line in headers.getall("Connection", []) for word in line.split(",")}
    unwanted = _HOP_BY_HOP | named | {name.lower() for name in drop}
    return CIMultiDict((name, value) for name, value in headers.items() if name.lower() not in unwanted)


def _answer(upstream: aiohttp.ClientResponse, request_id: str) -> web.StreamResponse:
    headers = _end_to_end(upstream.headers)
    headers.setdefault("X-Request-Id", request_id)
    return web.StreamResponse(status=upstream.status, reason=upstream.reason, headers=headers)


def _refusal(status: HTTPStatus, message: str, request_id: str) -> web.Response:
    body = msgspec.json.encode({"error": {"message": message, "type": "proxy_error", "code": status.value}})
    return web.Response(status=status, body=body, content_type="application/json", headers={"X-Request-Id": request_id})


async def serve(host: str, port: int, proxy: Proxy, *, on_ready: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT; *on_ready* gets the URL once connections are accepted.

    Raises:
        CannotError: The address cannot be listened on.
    """
    # aiohttp would print tracebacks for clients that leave; our own answers carry what went wrong.
    logging.getLogger("aiohttp").addHandler(logging.NullHandler())
    logging.getLogger("aiohttp").propagate = False
    logging.getLogger("asyncio").addHandler(logging.NullHandler())
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await proxy.open()
    runner = web.ServerRunner(
        web.Server(proxy.handle, handler_cancellation=True, access_log=None), shutdown_timeout=0.5
    )
    try:
        await runner.setup()
        site = web.TCPSite(runner, host, port, backlog=1024)
        try:
            await site.start()
        except OSError as error:
            raise CannotError(
                f"cannot listen on {host}:{port}: {error.strerror or error}",
                remedy="choose another port, or --listen 127.0.0.1:0 for a free one",
            ) from error
        bound = runner.addresses[0]
        shown = f"[{bound[0]}]" if ":" in bound[0] else bound[0]
        on_ready(f"http://{shown}:{bound[1]}")
        await stop.wait()
    finally:
        with contextlib.suppress(aiohttp.ClientError):
            await proxy.close()
        await runner.cleanup()
        sys.stdout.flush()
