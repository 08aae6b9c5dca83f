"""One HTTP/1.1 request on a fresh connection → its answer, byte arrival times included; bounded in bytes and time.

Written on bare streams because the question is when each byte came and how a stream ended, and because whatever a broken
service sends must end in a few words, never in an exception or a full memory. Redirects are not followed.
"""

import asyncio
import contextlib
import errno
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from socket import AF_UNSPEC, SOCK_STREAM, gaierror, getaddrinfo
from typing import Any
from urllib.parse import urlsplit

from vindicate.record.observation import ONLY_ITS_DATE, Address

__all__ = ["Exchange", "OwnSockets", "exchange", "resolve"]

_HEAD_LIMIT = 65536
_CHUNK = 65536
OnBody = Callable[[float, bytes], bool]


class OwnSockets:
    """The connections that we opened ourselves, by both ends; they count for nobody."""

    def __init__(self) -> None:
        self._pairs: set[tuple[Address, Address]] = set()

    def add(self, local: Address, remote: Address) -> None:
        """Remember a connection, from both sides."""
        self._pairs |= {(local, remote), (remote, local)}

    def __contains__(self, pair: object) -> bool:
        """Whether (local, remote) is either side of one of ours."""
        return pair in self._pairs


@dataclass(slots=True)
class Exchange:
    """What came of one request. Times are seconds since it was begun.

    Attributes:
        error: ``None`` when head and body came whole; else ``unresolved``, ``refused``, ``unreachable``, ``connect_timeout``,
            ``certificate`` (it is not trusted, see *problem*), ``tls`` (the handshake failed otherwise), ``tls_timeout`` (it never ended), ``no_headers``, ``no_first_byte``, ``stalled``, ``reset``, ``truncated``, ``too large``, ``garbage`` or ``no permission``.
        complete: The body ended as its framing demands (last chunk, content length, or close where neither is given).
        arrivals: When body bytes came.
        problem: Why a certificate is not trusted, in OpenSSL's words; with `ONLY_ITS_DATE` where that is all.
    """

    url: str
    connect_s: float | None = None
    total_s: float = 0.0
    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    arrivals: list[float] = field(default_factory=list)
    complete: bool = False
    error: str | None = None
    sent_bytes: int = 0
    received_bytes: int = 0
    problem: str = ""


async def exchange(
    url: str,
    *,
    deadline_s: float,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    body: bytes = b"",
    limit_bytes: int = 8_000_000,
    own: OwnSockets | None = None,
    on_body: OnBody | None = None,
) -> Exchange:
    """Send one request and read its answer until it ends, the deadline comes or the limit is reached; never raises for a peer's doing.

    Args:
        limit_bytes: Most body bytes to take; one more is ``too large``.
        own: Where the connection is noted as ours as soon as it has a port, before it is made.
        on_body: Called with each piece of the body and its time, instead of keeping it; returns true to stop reading.

    Cancelled:
        The connection is dropped at once.
    """
    made = _Run(url, deadline_s, limit_bytes, on_body)
    try:
        async with asyncio.timeout(deadline_s):
            await made.go(method, headers or {}, body, own)
    except TimeoutError:
        made.result.error = made.result.error or made.waiting_for
    except ssl.SSLCertVerificationError as problem:
        made.result.error, made.result.problem = "certificate", problem.verify_message
        if problem.verify_code in _DATE_IS_WRONG and await _trusted_but_for_its_date(
            url, deadline_s - made.since(), own
        ):
            made.result.problem += ONLY_ITS_DATE
    except ssl.SSLError:
        made.result.error = "tls"
    except OSError as problem:
        made.result.error = "tls" if made.waiting_for == "tls_timeout" else _os_error(problem)
    except (ValueError, EOFError) as problem:
        made.result.error = problem.args[0] if problem.args and problem.args[0] in _OWN_WORDS else "garbage"
    finally:
        made.close()
    made.result.total_s = made.since()
    return made.result


_OWN_WORDS = ("too large", "truncated", "garbage")
_DATE_IS_WRONG = (9, 10)  # X509_V_ERR_CERT_NOT_YET_VALID, X509_V_ERR_CERT_HAS_EXPIRED
_NO_CHECK_TIME = 0x200000  # X509_V_FLAG_NO_CHECK_TIME, which Python does not name


async def _trusted_but_for_its_date(url: str, within_s: float, own: OwnSockets | None) -> bool:
    """Whether a handshake that leaves the certificate's dates out of account succeeds; nothing is asked on it."""
    parts = urlsplit(url)
    context = ssl.create_default_context()
    context.verify_flags |= _NO_CHECK_TIME
    try:
        async with asyncio.timeout(within_s):
            link = await _connect(parts.hostname or "", parts.port or 443, own)
            _, writer = await asyncio.open_connection(sock=link, ssl=context, server_hostname=parts.hostname)
    except (OSError, TimeoutError):
        return False
    writer.transport.abort()
    return True


def _os_error(problem: OSError) -> str:
    if isinstance(problem, gaierror):
        return "unresolved"
    if isinstance(problem, ConnectionRefusedError):
        return "refused"
    if isinstance(problem, ConnectionResetError | BrokenPipeError | ConnectionAbortedError):
        return "reset"
    if isinstance(problem, PermissionError):
        return "no permission"
    return "connect_timeout" if problem.errno == errno.ETIMEDOUT else "unreachable"


class _Run:
    """The steps of one exchange; *waiting_for* names what a deadline would have cut."""

    def __init__(self, url: str, deadline_s: float, limit_bytes: int, on_body: OnBody | None) -> None:
        self.started = time.monotonic()
        self.result = Exchange(url)
        self.deadline_s = deadline_s
        self.limit_bytes = limit_bytes
        self.on_body = on_body
        self.waiting_for = "connect_timeout"
        self.pieces: list[bytes] = []
        self.n_body = 0
        self.writer: asyncio.StreamWriter | None = None

    def since(self) -> float:
        return time.monotonic() - self.started

    def close(self) -> None:
        self.result.body = b"".join(self.pieces)
        if self.writer is not None:
            with contextlib.suppress(RuntimeError, OSError):
                self.writer.transport.abort() if self.result.error else self.writer.close()

    async def go(self, method: str, headers: Mapping[str, str], body: bytes, own: OwnSockets | None) -> None:
        parts = urlsplit(self.result.url)
        secure = parts.scheme == "https"
        host, port = parts.hostname or "", parts.port or (443 if secure else 80)
        link = await _connect(host, port, own)
        if secure:
            self.waiting_for = "tls_timeout"
        tls = ssl.create_default_context() if secure else None
        reader, self.writer = await asyncio.open_connection(
            sock=link, ssl=tls, server_hostname=host if tls else None, limit=_HEAD_LIMIT
        )
        self.result.connect_s = self.since()
        self.waiting_for = "no_headers"
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        lines = [f"{method} {target} HTTP/1.1", f"Host: {parts.netloc.rpartition('@')[2]}", "Connection: close"]
        given = {"Accept-Encoding": "identity", "User-Agent": "vindicate", **headers}
        if body:
            given["Content-Length"] = str(len(body))
        message = (
            "\r\n".join([*lines, *(f"{name}: {value}" for name, value in given.items())]).encode() + b"\r\n\r\n" + body
        )
        self.writer.write(message)
        self.result.sent_bytes = len(message)
        await self.writer.drain()
        await self._head(reader)
        self.waiting_for = "no_first_byte"
        await self._body(reader, method)

    async def _head(self, reader: asyncio.StreamReader) -> None:
        while True:
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except asyncio.IncompleteReadError as cut:
                self.result.received_bytes += len(cut.partial)
                if cut.partial and not cut.partial.startswith(b"HTTP/"):
                    raise ValueError("garbage") from cut
                raise ConnectionResetError from cut  # closed before a status: to a client this is a reset
            except asyncio.LimitOverrunError as flood:
                raise ValueError("garbage") from flood
            self.result.received_bytes += len(head)
            first, *rest = head.decode("latin-1").split("\r\n")
            words = first.split(" ", 2)
            if not first.startswith("HTTP/") or len(words) < 2 or not words[1].isascii() or not words[1].isdigit():
                raise ValueError("garbage")
            if words[1] == "100":
                continue
            self.result.status = int(words[1])
            self.result.headers = {
                name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in rest if line)
            }
            return

    async def _body(self, reader: asyncio.StreamReader, method: str) -> None:
        headers = self.result.headers
        if method == "HEAD" or self.result.status in (204, 304):
            self.result.complete = True
        elif "chunked" in headers.get("transfer-encoding", "").lower():
            await self._chunks(reader)
        elif "content-length" in headers:
            length = headers["content-length"]
            if not (length.isascii() and length.isdigit()):
                raise ValueError("garbage")
            if int(length) > self.limit_bytes:
                raise ValueError("too large")
            await self._exactly(reader, int(length))
            self.result.complete = True
        else:
            while piece := await reader.read(_CHUNK):
                if self._take(piece):
                    return
            self.result.complete = True

    async def _chunks(self, reader: asyncio.StreamReader) -> None:
        while True:
            try:
                line = await reader.readuntil(b"\n")
            except asyncio.IncompleteReadError as cut:
                raise EOFError("truncated") from cut
            except asyncio.LimitOverrunError as flood:
                raise ValueError("garbage") from flood
            self.result.received_bytes += len(line)
            size = int(line.split(b";")[0].strip() or b"x", 16)
            if size < 0:
                raise ValueError("garbage")
            if size == 0:
                await self._trailer(reader)
                return
            if await self._exactly(reader, size):
                return
            self.result.received_bytes += len(await self._bytes(reader, 2))

    async def _trailer(self, reader: asyncio.StreamReader) -> None:
        for _ in range(64):
            line = await reader.readline()
            self.result.received_bytes += len(line)
            if not line.endswith(b"\n"):
                raise EOFError("truncated")
            if not line.strip():
                self.result.complete = True
                return
        raise ValueError("garbage")

    async def _exactly(self, reader: asyncio.StreamReader, length: int) -> bool:
        """Take *length* body bytes as they come; true when the taker has had enough."""
        while length:
            piece = await reader.read(min(_CHUNK, length))
            if not piece:
                raise EOFError("truncated")
            length -= len(piece)
            if self._take(piece):
                return True
        return False

    @staticmethod
    async def _bytes(reader: asyncio.StreamReader, length: int) -> bytes:
        try:
            return await reader.readexactly(length)
        except asyncio.IncompleteReadError as cut:
            raise EOFError("truncated") from cut

    def _take(self, piece: bytes) -> bool:
        at = self.since()
        self.waiting_for = "stalled"
        self.result.received_bytes += len(piece)
        if len(self.result.arrivals) < 4096:
            self.result.arrivals.append(at)
        self.n_body += len(piece)
        if self.n_body > self.limit_bytes:
            raise ValueError("too large")
        if at > self.deadline_s:
            raise TimeoutError  # an endless body that is always ready never lets the loop's own timer in
        if self.on_body is None:
            self.pieces.append(piece)
            return False
        return self.on_body(at, piece)


def _end(name: Any) -> Address:
    host = str(name[0]).split("%")[0]
    return Address(host.removeprefix("::ffff:"), int(name[1]))


async def _connect(host: str, port: int, own: OwnSockets | None) -> socket.socket:
    """Connect to the first address of *host* at which somebody listens: `localhost` may be ::1 before it is 127.0.0.1."""
    problem: OSError | None = None
    for address in await _addresses(host, port):
        try:
            return await _connect_to(address, port, own)
        except OSError as met:
            problem = met
    raise problem or gaierror(os.strerror(errno.EINVAL))


async def _connect_to(address: str, port: int, own: OwnSockets | None) -> socket.socket:
    family, kind, proto, _, where = socket.getaddrinfo(address, port, AF_UNSPEC, SOCK_STREAM, 0, socket.AI_NUMERICHOST)[
        0
    ]
    link = socket.socket(family, kind, proto)
    link.setblocking(False)
    try:
        begun = link.connect_ex(where)
        if own is not None:  # it has its port now; whoever looks at the sockets from here on knows that it is ours
            own.add(_end(link.getsockname()), _end(where))
        if begun == errno.EINPROGRESS:
            await asyncio.get_running_loop().sock_connect(link, where)
        elif begun:
            raise OSError(begun, os.strerror(begun))  # noqa: TRY301 the socket is closed in one place
    except BaseException:
        link.close()
        raise
    return link


async def resolve(host: str, port: int) -> str:
    """The first address of *host*; raises OSError when there is none."""
    return (await _addresses(host, port))[0]


async def _addresses(host: str, port: int) -> list[str]:
    """The addresses of *host*, each once. A resolver that hangs is left behind in a daemon thread, so that it delays nobody."""
    if host.replace(".", "").isdigit() or ":" in host:
        return [host]
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[list[str]] = loop.create_future()

    def put(found: list[str] | None, problem: OSError | None) -> None:
        if not answer.done():
            answer.set_exception(problem) if problem else answer.set_result(found or [host])

    def work() -> None:
        try:
            found = getaddrinfo(host, port, AF_UNSPEC, SOCK_STREAM)
            texts, problem = list(dict.fromkeys(str(one[4][0]) for one in found)), None
        except (OSError, UnicodeError) as error:
            texts, problem = [], error if isinstance(error, OSError) else gaierror(os.strerror(errno.EINVAL))
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(put, texts, problem)

    threading.Thread(target=work, daemon=True, name="resolve").start()
    return await answer
