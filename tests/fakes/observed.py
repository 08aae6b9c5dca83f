"""Small real servers to be observed. Usage: observed.py MODE [--upstream PORT] [--also PORT…] [--life S] [--arg TEXT]…; prints `listening on PORT`.

relay     passes whole connections on to --upstream, byte for byte; tells --also PORT of each request, as tracing does
aside     as relay, but it answers GETs by itself: 404
pusher    a collector of what others push: takes it, says OK, and keeps the connection
engine    /v1/models, /metrics (sglang names), /model_info, /server_info with secrets, streamed chat; --arg prefill|decode: that role
stall     as engine, but a chat stops after two tokens; ping: it is heartbeats and nothing else
silent    accepts and never says a word
endless   answers everything with a body that never ends
huge      answers everything with 200 MB
slowloris one byte of a header a second
noise     random bytes to everyone
redirect  a redirect to itself
deaf      listens and never accepts
hello     plain 404s
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import sys

SECRET = "sk-planted-0123456789abcdef"
PAGE = """# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{model_name="m"} 1
sglang:generation_tokens_total{model_name="m"} 12
"""


def head(status, kind, length=None, extra=""):
    size = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
    return f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nConnection: close\r\n{extra}{size}\r\n\r\n".encode()


async def plain(writer, text, status=200, kind="application/json", extra=""):
    data = text.encode()
    writer.write(head(status, kind, len(data), extra) + data)
    await writer.drain()


async def sse(writer, event):
    data = f"data: {event}\n\n".encode()
    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
    await writer.drain()


async def chat(writer, body, mode):
    writer.write(head(200, "text/event-stream"))
    while mode == "ping":
        writer.write(b"8\r\n: ping\n\n\r\n")
        await writer.drain()
        await asyncio.sleep(0.05)
    for n in range(min(body.get("max_tokens") or 16, 64)):
        if mode == "stall" and n == 2:
            await asyncio.sleep(3600)
        await sse(writer, json.dumps({"choices": [{"index": 0, "delta": {"content": "w"}, "finish_reason": None}]}))
        await asyncio.sleep(0.01)
    await sse(writer, json.dumps({"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]}))
    await sse(writer, "[DONE]")
    writer.write(b"0\r\n\r\n")
    await writer.drain()


async def engine(reader, writer, options):
    lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    method, path, _ = lines[0].split(" ", 2)
    length = next((int(line.split(":")[1]) for line in lines if line.lower().startswith("content-length")), 0)
    body = await reader.readexactly(length)
    if method == "POST":
        await chat(writer, json.loads(body), options.mode)
    elif path == "/v1/models":
        await plain(writer, json.dumps({"object": "list", "data": [{"id": "tiny"}]}))
    elif path == "/metrics":
        workers = "".join(f'smg_worker_health{{worker="http://127.0.0.1:{port}"}} 1\n' for port in options.also)
        await plain(writer, workers or PAGE, kind="text/plain")
    elif path == "/model_info":
        await plain(writer, json.dumps({"model_path": "tiny", "disaggregation_mode": options.arg or "null"}))
    elif path == "/server_info":
        await plain(
            writer,
            json.dumps({"api_key": "planted-plainly", "version": "0.5", "launch_command": f"x --api-key {SECRET}"}),
        )
    elif path.startswith("/v1/loads"):
        await plain(
            writer,
            json.dumps(
                {
                    "timestamp": 1.5,
                    "loads": [{"num_running_reqs": 1, "note": f"bearer {SECRET}", "auth_token": "planted-plainly"}],
                }
            ),
        )
    else:
        await plain(writer, "{}", 200 if path == "/health" else 404)


async def tell(port, size):
    """One short-lived call that says how large a request was."""
    with contextlib.suppress(OSError):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b'{"request": %d}' % size)
        await writer.drain()
        writer.close()


async def keep_calling(port):
    """A connection that stays, and a small write every 20 ms: a metrics pusher's."""
    while True:
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            while True:
                writer.write(b"PING\r\n")
                await writer.drain()
                await asyncio.sleep(0.02)
        await asyncio.sleep(0.02)


async def collect(reader, writer, options):
    while data := await reader.read(4096):
        if b"HTTP/1" in data:
            print("asked", flush=True)
        writer.write(b"+PONG\r\n")


async def aside(reader, writer, options):
    head = await reader.readuntil(b"\r\n\r\n")
    if head.startswith(b"GET"):
        await plain(writer, "not here", 404, "text/plain")
    else:
        await relay(reader, writer, options, head)


async def relay(reader, writer, options, first=b""):
    other_reader, other_writer = await asyncio.open_connection("127.0.0.1", options.upstream)
    other_writer.write(first)

    async def pump(source, target):
        try:
            while data := await source.read(65536):
                for port in options.also if source is reader else ():
                    await tell(port, len(data))
                target.write(data)
                await target.drain()
        except ConnectionError:
            pass
        finally:
            target.close()

    await asyncio.gather(pump(reader, other_writer), pump(other_reader, writer))


async def hostile(reader, writer, options):
    if options.mode == "silent":
        await asyncio.sleep(3600)
    if options.mode == "noise":
        source = random.Random(7)
        for _ in range(200):
            writer.write(source.randbytes(1000))
            await writer.drain()
        return
    if options.mode == "slowloris":
        for letter in "HTTP/1.1 200 OK\r\n" + "X-Slow: yes\r\n" * 1000:
            writer.write(letter.encode())
            await writer.drain()
            await asyncio.sleep(1)
    await reader.readuntil(b"\r\n\r\n")
    if options.mode == "redirect":
        await plain(writer, "", 302, extra=f"Location: http://127.0.0.1:{options.port}/again\r\n")
    elif options.mode == "hello":
        await plain(writer, "not here", 404, "text/plain")
    else:
        writer.write(head(200, "text/plain", 200_000_000 if options.mode == "huge" else None))
        piece = b"sglang:num_running_reqs 1\n" * 2000
        while True:
            writer.write(piece if options.mode == "huge" else f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
            await writer.drain()


async def main(options):
    play = {"engine": engine, "stall": engine, "ping": engine, "relay": relay, "aside": aside, "pusher": collect}.get(
        options.mode, hostile
    )

    async def connection(reader, writer):
        try:
            await play(reader, writer, options)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    if options.mode == "deaf":
        listener = socket.create_server(("127.0.0.1", 0), backlog=4)
        options.port = listener.getsockname()[1]
    else:
        server = await asyncio.start_server(connection, options.host, options.port, backlog=512)
        options.port = server.sockets[0].getsockname()[1]
    print(f"listening on {options.port}", flush=True)
    pushing = [asyncio.ensure_future(keep_calling(port)) for port in options.push]
    await asyncio.sleep(options.life)
    del pushing


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("mode")
    parser.add_argument("--upstream", type=int)
    parser.add_argument("--also", type=int, nargs="*", default=[])
    parser.add_argument("--push", type=int, nargs="*", default=[])
    parser.add_argument("--served-model-name")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--config")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--life", type=float, default=50)
    parser.add_argument("--arg", default="")
    parser.add_argument("--api-key", default="")
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    asyncio.run(main(parser.parse_args()))
    sys.exit(0)
