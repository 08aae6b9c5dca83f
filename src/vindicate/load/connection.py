"""A server's address → connections to it, each kept for the next request; a read is stamped before anything looks at it."""

import asyncio
import base64
import contextlib
import ssl
import time
from socket import SOCK_STREAM, gaierror
from typing import Protocol, cast
from urllib.parse import unquote, urlsplit

from vindicate.errors import EngineError
from vindicate.redact import redact_text

__all__ = ["Connection", "Pool", "Taker"]

# Servers close an idle connection after 5 s or more (uvicorn); a request must not meet that moment.
_KEEP_S = 4.0
_MAX_READS = 64
_LARGE_READ = 16 * 1024


class Taker(Protocol):
    """Whoever takes what comes on a connection.

    Attributes:
        reads: The reads that were not looked at yet, each with its time.
        eager: It wants to look at each read at once.
    """

    reads: list[tuple[float, bytes]]
    eager: bool

    def digest(self) -> None:
        """Look at the reads."""

    def lost(self, error: Exception | None) -> None:
        """The connection is gone; without *error* the peer ended it in good form."""


class Connection(asyncio.Protocol):
    """One connection; one request at a time.

    To parse each token as it comes would cost more than all else, and delay the stamps of other streams. So reads only
    gather here, and are looked at when they may hold the end of the answer, are many, or a timer asks.
    """

    def __init__(self) -> None:
        self.taker: Taker | None = None
        self.idle_since = 0.0
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Stamp, and parse only when it is time."""
        now = time.monotonic()
        taker = self.taker
        if taker is None:  # nobody asked for this; such a connection serves nobody any more
            self.transport.abort()
            return
        taker.reads.append((now, data))
        # A chunked body ends with an empty line, whatever the reads' borders.
        if (
            taker.eager
            or data.endswith(b"\r\n\r\n")
            or len(data) < 5
            or len(data) > _LARGE_READ
            or len(taker.reads) >= _MAX_READS
        ):
            taker.digest()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell whoever waits."""
        if self.taker is not None:
            self.taker.lost(exc)


class Pool:
    """Connections to one server, without a bound: a bound in the client would be the very fault we look for."""

    def __init__(self, url: str, headers: dict[str, str]) -> None:
        parts = urlsplit(url)
        self.url, self.headers = url, headers
        self._host = parts.hostname or ""
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._port = parts.port or (443 if self._tls else 80)
        self._address = self._host
        self._idle: list[Connection] = []
        self._path = parts.path
        given = {"Host": parts.netloc.rpartition("@")[2], "Accept-Encoding": "identity", "User-Agent": "vindicate"}
        if parts.username is not None:
            pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            given["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        self._head = "".join(f"{name}: {value}\r\n" for name, value in {**given, **headers}.items())

    def message(self, path: str, body: bytes, request_id: str) -> bytes:
        """A whole POST request."""
        head = f"POST {self._path}{path} HTTP/1.1\r\n{self._head}X-Request-Id: {request_id}\r\nContent-Length: {len(body)}\r\n\r\n"
        return head.encode() + body

    async def find(self, within_s: float) -> None:
        """Find the address of the host that takes connections: `localhost` may be ::1 before it is 127.0.0.1.

        Raises:
            EngineError: None does, within so many seconds.
        """
        problem: OSError | None = None
        try:
            async with asyncio.timeout(within_s):
                loop = asyncio.get_running_loop()
                for found in await loop.getaddrinfo(self._host, self._port, type=SOCK_STREAM):
                    self._address = str(found[4][0])
                    try:
                        self.give(await self._connect())
                    except OSError as error:
                        problem = error
                    else:
                        return
        except TimeoutError:
            problem = problem or TimeoutError(f"no connection within {within_s:g} s")
        except (gaierror, UnicodeError) as error:
            problem = error if isinstance(error, gaierror) else gaierror(str(error))
        reason = "connection refused" if isinstance(problem, ConnectionRefusedError) else str(problem or "no address")
        shown = redact_text(self.url)
        raise EngineError(
            f"{shown} does not take connections: {reason}", remedy=f"try: vindicate diagnose {shown}"
        ) from problem

    async def take(self) -> Connection:
        """A connection that idles, else a new one.

        Raises:
            OSError: There is none to be had.
        """
        now = time.monotonic()
        while self._idle:
            connection = self._idle.pop()
            if not connection.transport.is_closing() and now - connection.idle_since < _KEEP_S:
                return connection
            connection.transport.abort()
        return await self._connect()

    async def warm(self, n: int, within_s: float) -> None:
        """Have *n* connections ready, as far as they can be had: a burst of connects is no part of the first requests' latency."""
        missing = n - len(self._idle)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                for made in await asyncio.gather(*(self._connect() for _ in range(missing)), return_exceptions=True):
                    if isinstance(made, Connection):
                        self.give(made)

    def give(self, connection: Connection) -> None:
        """Keep *connection* for the next request."""
        connection.taker, connection.idle_since = None, time.monotonic()
        self._idle.append(connection)

    async def close(self) -> None:
        """Drop what idles."""
        for connection in self._idle:
            connection.transport.abort()
        self._idle.clear()
        await asyncio.sleep(0)  # the transports close in the loop's next turn

    async def _connect(self) -> Connection:
        _, connection = await asyncio.get_running_loop().create_connection(
            Connection, self._address, self._port, ssl=self._tls, server_hostname=self._host if self._tls else None
        )
        return connection
