"""A loopback server of known timing → streams on time, and its own stamps of when each was asked for, begun and ended.

Started as ``python -m vindicate.load.mock``: prints its port, and ends when its standard input does, so that it never outlives
who started it. ``GET /stamps`` gives the means since the last time, by its own clock.
"""

import asyncio
import json
import sys
import time
from dataclasses import dataclass, field
from typing import cast

from vindicate.load.loop import new_loop

__all__ = ["FIRST_S", "GAP_S", "TOKENS", "serve"]

TOKENS, FIRST_S, GAP_S = 24, 0.050, 0.010
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def _chunk(document: object) -> bytes:
    data = b"data: " + (document if isinstance(document, bytes) else json.dumps(document).encode()) + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(data), data)


def _answer(delta: dict[str, str], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return _chunk({"id": "mock", "object": "chat.completion.chunk", "model": "mock", "choices": [choice]})


_TOKEN = _answer({"content": " token"})
_END = _answer({}, "stop") + _chunk(b"[DONE]") + b"0\r\n\r\n"


@dataclass(slots=True)
class _Stamps:
    """Seconds of every stream that ended, by the mock's clock."""

    ttft: list[float] = field(default_factory=list)
    gap: list[float] = field(default_factory=list)
    e2e: list[float] = field(default_factory=list)

    def take(self) -> dict[str, float]:
        """Their means, and begin anew."""
        told = {
            f"{name}_s": sum(values) / len(values)
            for name, values in (("ttft", self.ttft), ("gap", self.gap), ("e2e", self.e2e))
            if values
        }
        told["requests"] = len(self.e2e)
        self.ttft, self.gap, self.e2e = [], [], []
        return told


class _Mock(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self, stamps: _Stamps) -> None:
        self.stamps = stamps
        self.rest = b""
        self.sent = 0
        self.asked_at = self.first_at = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass
        self.loop = asyncio.get_running_loop()

    def data_received(self, data: bytes) -> None:
        now = time.monotonic()
        self.rest += data
        head, found, body = self.rest.partition(b"\r\n\r\n")
        if not found:
            return
        if head.startswith(b"GET"):
            self.rest = b""
            page = json.dumps(self.stamps.take()).encode() if head.startswith(b"GET /stamps") else b""
            status = b"200 OK" if page else b"404 Not Found"
            self.transport.write(b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n%b" % (status, len(page), page))
            return
        length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        if len(body) >= int(length[15:]):
            self.rest, self.asked_at, self.sent = b"", now, 0
            self.transport.write(_HEAD)
            due = self.loop.time() + FIRST_S
            self.loop.call_at(due, self._token, due)

    def _token(self, due: float) -> None:
        """Write one; the next is due at a fixed pace, so that lateness does not add up."""
        self.sent += 1
        if self.sent == 1:
            self.first_at = time.monotonic()
        if self.sent < TOKENS:
            self.transport.write(_TOKEN)
            self.loop.call_at(due + GAP_S, self._token, due + GAP_S)
            return
        now = time.monotonic()
        self.transport.write(_TOKEN + _END)
        self.stamps.ttft.append(self.first_at - self.asked_at)
        self.stamps.gap.append((now - self.first_at) / (TOKENS - 1))
        self.stamps.e2e.append(now - self.asked_at)


async def serve() -> None:
    """Serve on a free port until standard input ends."""
    loop, stamps, over = asyncio.get_running_loop(), _Stamps(), asyncio.Event()
    server = await loop.create_server(lambda: _Mock(stamps), "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)  # noqa: T201 who started it reads it
    loop.add_reader(sys.stdin.fileno(), over.set)
    await over.wait()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(serve())
