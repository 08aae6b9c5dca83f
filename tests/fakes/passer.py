"""A small HTTP/1.1 relay, a real process whose file of settings says how it treats what it passes. Usage: passer.py --config FILE

Settings (JSON): `listen` and `to` are ports. Without others it is correct: unbuffered, connections kept alive on both sides,
disconnects propagated. The others, each off when absent:

host     address to listen on; `to_host`: to call, else 127.0.0.1
hold     bytes of an answer that it collects before it passes them on
age      seconds after which it cuts every exchange
first    seconds without an answer byte after which it answers 403 itself
body     most bytes of a request that it reads; `over` says what then: `refuse` (400 by itself) or `pass` (handed on as far as read)
streams  exchanges upstream at a time; the others wait
lookup   seconds that each of its name lookups takes, in a pool of two threads, before it connects upstream (with reuse off)
reuse    false: a connection upstream for each request, closed by the relay
stale    seconds after which an idle connection upstream has an expired timer that its next user gets to feel
parse    `text`: takes events apart by blank lines, each read decoded by itself
beat     seconds between comments that it sends instead of the end of an answer
turned   requests that are answered 429 at once, every so many-th
files    most file descriptors that it may have open
leaks    true: it leaves a file open for each request
spool    a folder: it writes each request into a file there first, and answers 500 where it cannot
tls      files of its certificate and key
"""

import argparse
import asyncio
import contextlib
import json
import os
import resource
import signal
import ssl
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path


class RefusedError(Exception):
    """The relay answers by itself: status and text."""


class Relay:
    def __init__(self, settings):
        self.set = settings
        self.idle = []
        self.room = asyncio.Semaphore(settings.get("streams", 1 << 30))
        self.n = 0
        self.kept = []
        self.pool = ThreadPoolExecutor(2)
        self.log = open(Path(settings["spool"]) / "log", "ab", buffering=0) if "spool" in settings else None  # noqa: SIM115

    async def connection(self, reader, writer):
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                self.n += 1
                if not await self.request(head, reader, writer):
                    return
        except (asyncio.IncompleteReadError, ConnectionError, EOFError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()

    async def request(self, head, reader, writer):
        length = content_length(head)
        body = await reader.readexactly(length)
        try:
            if self.set.get("leaks"):
                self.kept.append(os.open(os.devnull, os.O_RDONLY))
            if self.log is not None:
                self.log.write(body)
        except OSError as problem:
            await refuse(writer, 500, os.strerror(problem.errno or 0))
            return True
        most = self.set.get("body", 1 << 60)
        if length > most:
            if self.set.get("over", "refuse") == "refuse":
                await refuse(writer, 400, "Invalid JSON in request body")
                return True
            body = body[:most]
        if self.set.get("turned") and self.n % self.set["turned"] == 0:
            await refuse(writer, 429, "Too many requests")
            return True
        work = asyncio.ensure_future(self.pass_on(head, body, writer))
        watch = asyncio.ensure_future(reader.read(1))
        await asyncio.wait({work, watch}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            work.cancel()
            await asyncio.wait({work})
            return False
        watch.cancel()
        await asyncio.wait({watch})
        return work.result()

    async def pass_on(self, head, body, writer):
        """One exchange; true when the connection of the caller can be used again."""
        line, *rest = head.decode("latin-1").split("\r\n")
        kept = [x for x in rest if x and x.lower().split(":")[0] not in ("content-length", "connection", "host")]
        message = "\r\n".join([line, f"Host: x:{self.set['to']}", f"Content-Length: {len(body)}", *kept, "", ""])
        up = None
        try:
            async with self.room, asyncio.timeout(self.set.get("age")):
                up = await self.upstream()
                up[1].write(message.encode("latin-1") + body)
                whole = await self.answer(up, writer)
        except RefusedError as problem:
            await refuse(writer, *problem.args)
            return True
        except (TimeoutError, ConnectionError, EOFError, OSError):
            writer.close()  # the head may be out: the caller must see that this is no end
            return False
        else:
            if whole and self.set.get("reuse", True):
                self.idle.append((*up, time.monotonic()))
                up = None
            return True
        finally:
            if up is not None:
                up[1].close()

    async def upstream(self):
        while self.idle:
            reader, writer, since = self.idle.pop()
            if reader.at_eof() or writer.is_closing():
                writer.close()
                continue
            if time.monotonic() - since > self.set.get("stale", 1 << 30):
                writer.close()
                raise RefusedError(504, "Timeout on reading data from socket")
            return reader, writer
        if "lookup" in self.set:
            await asyncio.get_running_loop().run_in_executor(self.pool, time.sleep, self.set["lookup"])
        try:
            return await asyncio.open_connection(self.set.get("to_host", "127.0.0.1"), self.set["to"], limit=1 << 20)
        except OSError as problem:
            raise RefusedError(502, f"connect: {os.strerror(problem.errno or 0)}") from problem

    async def answer(self, up, writer):
        """Pass the answer on; true when it came whole."""
        reader = up[0]
        pieces = chunks(reader)
        try:
            async with asyncio.timeout(self.set.get("first")):
                head = await reader.readuntil(b"\r\n\r\n")
                length = content_length(head) if b"content-length" in head.lower() else None
                if length is not None:
                    piece = await reader.readexactly(length)
                    writer.write(head + piece)
                    await writer.drain()
                    return b"connection: close" not in head.lower()
                first = await anext(pieces, b"")
        except TimeoutError:
            raise RefusedError(403, "upstream connect error or disconnect/reset before headers") from None
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        async for piece in self.treated(first, pieces):
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            await writer.drain()
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return b"connection: close" not in head.lower()

    async def treated(self, first, pieces):
        """What goes out for what comes in."""

        async def everything():
            yield first
            async for one in pieces:
                yield one

        held, most = b"", self.set.get("hold", 0)
        async for piece in everything():
            if self.set.get("parse") == "text":
                held += piece.decode("utf-8", errors="replace").encode()
                while b"\n\n" in held:
                    event, _, held = held.partition(b"\n\n")
                    yield event + b"\n\n"
                continue
            if self.set.get("beat") and b"[DONE]" in piece:
                async for _ in pieces:
                    pass
                while True:
                    await asyncio.sleep(self.set["beat"])
                    yield b": beat\n\n"
            held += piece
            if held and len(held) >= most:
                yield held
                held = b""
        if held and self.set.get("parse") is None:
            yield held


def content_length(head):
    lines = head.lower().split(b"\r\n")
    return next((int(x.split(b":")[1]) for x in lines if x.startswith(b"content-length:")), 0)


async def chunks(reader):
    while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
        data = await reader.readexactly(size + 2)
        yield data[:-2]
    await reader.readuntil(b"\r\n")


async def refuse(writer, status, text):
    data = json.dumps({"error": {"message": text}}).encode()
    head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    writer.write(head.encode() + data)
    await writer.drain()


def read_settings():
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", required=True)
    return json.loads(Path(parser.parse_args().config).read_text(encoding="utf-8"))


async def main(settings):
    relay = Relay(settings)
    if "files" in settings:
        resource.setrlimit(resource.RLIMIT_NOFILE, (settings["files"], settings["files"]))
    context = None
    if "tls" in settings:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*settings["tls"])
    server = await asyncio.start_server(
        relay.connection,
        settings.get("host", "127.0.0.1"),
        settings.get("listen", 0),
        backlog=1024,
        limit=1 << 22,
        ssl=context,
    )
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.call_later(settings.get("lifetime", 90), stop.set)
    print(f"listening on http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await stop.wait()
    os._exit(0)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main(read_settings()))
