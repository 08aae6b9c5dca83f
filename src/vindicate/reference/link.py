r"""The TCP connection on which decode registers a room with prefill's bootstrap port and pulls the KV; one connection a room.

    decode → prefill    {"room": 123}\n
    prefill → decode    header (kv.py), KV bytes
    decode → prefill    ok\n

Either side drops the room by closing the connection, and the other side notices at once.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from vindicate.reference.kv import HEADER, KvError, check, header, read_header

__all__ = ["Receiver", "Rooms", "Source", "register"]

_LOG = logging.getLogger("vindicate.reference")
_CONNECT_TRIES = 15
_CONNECT_PAUSE_S = 1.0


class Receiver:
    """Decode, as prefill sees it: somebody who waits for the KV of one room."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._answer = asyncio.create_task(_line(reader))

    async def answer(self) -> bytes:
        """What decode says at the end: ``ok``; empty when it went away."""
        return await asyncio.shield(self._answer)

    async def push(self, room: int, kv: bytes) -> None:
        """Send *kv* and wait until decode says that it has it.

        Raises:
            KvError: Decode went away, or did not want it.
        """
        with suppress(OSError):
            self._writer.writelines((header(room, kv), kv))
            await self._writer.drain()
        if await self.answer() != b"ok\n":
            raise KvError(f"decode did not take the KV of room {room}")

    def close(self) -> None:
        """Drop the room; decode notices."""
        self._writer.close()
        self._answer.cancel()


async def _line(reader: asyncio.StreamReader) -> bytes:
    with suppress(OSError, ValueError):
        return await reader.readline()
    return b""


class Rooms:
    """Prefill's side: brings the two legs of a room together, whichever comes first."""

    def __init__(self) -> None:
        self._expected: dict[int, asyncio.Future[Receiver]] = {}
        self._arrived: dict[int, Receiver] = {}
        self._open: set[Receiver] = set()
        self._server: asyncio.Server | None = None

    async def listen(self, host: str, port: int) -> None:
        """Accept decode's connections.

        Raises:
            OSError: The port cannot be had.
        """
        self._server = await asyncio.start_server(self._accept, host, port, backlog=1024)

    def close(self) -> None:
        """Close the port and every connection."""
        if self._server is not None:
            self._server.close()
        for receiver in list(self._open):
            receiver.close()

    async def receiver(self, room: int) -> Receiver:
        """Wait for decode's registration of *room*.

        Raises:
            KvError: Another request waits for this room.

        Cancelled:
            The room is free again.
        """
        if room in self._arrived:
            return self._arrived.pop(room)
        if room in self._expected:
            raise KvError(f"room {room} is taken by another request")
        future: asyncio.Future[Receiver] = asyncio.get_running_loop().create_future()
        self._expected[room] = future
        try:
            return await future
        finally:
            del self._expected[room]

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            room = int(json.loads(await _line(reader))["room"])
        except (ValueError, KeyError, TypeError) as error:
            _LOG.warning("bootstrap: a connection that registers no room: %s", error)
            writer.close()
            return
        receiver = Receiver(reader, writer)
        self._open.add(receiver)
        expected = self._expected.get(room)
        if expected is not None and not expected.done():
            expected.set_result(receiver)
        elif room not in self._arrived:
            self._arrived[room] = receiver
        else:
            _LOG.warning("bootstrap: room %d is registered twice", room)
            receiver.close()
        with suppress(asyncio.CancelledError):
            await receiver.answer()
        if self._arrived.get(room) is receiver:
            del self._arrived[room]
        self._open.discard(receiver)
        receiver.close()


class Source:
    """Prefill, as decode sees it: where the KV of one room comes from."""

    def __init__(self, room: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._room = room
        self._reader = reader
        self._writer = writer

    async def pull(self) -> bytes:
        """The KV, checked and acknowledged.

        Raises:
            KvError: It came corrupted or in part, or prefill went away.
        """
        try:
            length, checksum = read_header(await self._reader.readexactly(HEADER.size), self._room)
            kv = check(await self._reader.readexactly(length), checksum)
            self._writer.write(b"ok\n")
            await self._writer.drain()
        except asyncio.IncompleteReadError as error:
            raise KvError(f"prefill dropped room {self._room} after {len(error.partial)} bytes") from error
        except OSError as error:
            raise KvError(f"prefill went away during the transfer of room {self._room}: {error}") from error
        return kv


@asynccontextmanager
async def register(host: str, port: int, room: int) -> AsyncIterator[Source]:
    """Register *room* with prefill; leaving the block closes the connection, and drops the room if it is not done.

    Raises:
        KvError: No connection after 15 tries a second apart, as in SGLang.
    """
    reader, writer = await _connect(host, port)
    try:
        writer.write(json.dumps({"room": room}).encode() + b"\n")
        yield Source(room, reader, writer)
    finally:
        writer.close()


async def _connect(host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    for attempt in range(_CONNECT_TRIES):
        try:
            return await asyncio.open_connection(host, port)
        except OSError as error:
            if attempt == _CONNECT_TRIES - 1:
                raise KvError(f"prefill's bootstrap port {host}:{port} cannot be reached: {error}") from error
            await asyncio.sleep(_CONNECT_PAUSE_S)
    raise AssertionError("unreachable")
