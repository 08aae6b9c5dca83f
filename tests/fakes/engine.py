"""A real process that speaks OpenAI streams and misbehaves on request; it ends by itself after `--lifetime` seconds.

Prints `listening on http://127.0.0.1:PORT` when ready. `GET /seen` says what it met: requests, aborted, completed, running.
"""

import argparse
import asyncio
import json
import os
import random
import re
import signal
import socket
import struct

PLANTED = re.compile(r"The value of (KEY-[0-9a-f]+) is (VAL-[0-9a-f]+)")
ASKED = re.compile(r"What is the value of (KEY-[0-9a-f]+)")


def options(argv=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--tokens", type=int, default=12, help="tokens of an answer, unless max_tokens is less")
    parser.add_argument("--delay-first", type=float, default=0.0)
    parser.add_argument("--itl", type=float, default=0.0)
    parser.add_argument("--every", type=int, default=1, help="only every K-th request meets the fault")
    parser.add_argument("--after", type=int, default=0, help="the first N requests do not")
    parser.add_argument("--stall-at", type=int, help="say nothing more after so many tokens; 0: no byte at all")
    parser.add_argument(
        "--no-done", action="store_true", help="neither [DONE] nor the end of the body after the last token"
    )
    parser.add_argument("--no-end", action="store_true", help="[DONE], but never the end of the body")
    parser.add_argument("--heartbeat", type=float, help="with a stall: a comment every so many seconds")
    parser.add_argument("--truncate", action="store_true", help="a clean end of the body after half the tokens")
    parser.add_argument("--cut", action="store_true", help="close the connection after half the tokens")
    parser.add_argument("--reset", action="store_true", help="reset the connection after half the tokens")
    parser.add_argument("--garbage", action="store_true", help="random bytes as an event stream")
    parser.add_argument("--not-sse", action="store_true", help="a JSON answer to a streaming request")
    parser.add_argument("--error-event", action="store_true", help="an error object inside the stream")
    parser.add_argument("--endless", action="store_true", help="tokens for ever")
    parser.add_argument("--abort", action="store_true", help="give the request up in good form: finish_reason abort")
    parser.add_argument("--http-error", type=int)
    parser.add_argument("--accept-only", action="store_true", help="take connections and never answer")
    parser.add_argument("--die-after-tokens", type=int, help="SIGKILL itself after so many tokens in all")
    parser.add_argument("--forget", action="store_true", help="answer every question wrongly")
    parser.add_argument("--crlf", action="store_true")
    parser.add_argument("--close", action="store_true", help="one request a connection")
    parser.add_argument("--prefill-rate", type=float, help="bytes of prompt a second before the first token")
    parser.add_argument("--check-json", action="store_true", help="400 for a body that is no JSON")
    parser.add_argument("--split", action="store_true", help="each token in two writes, cut inside a character")
    parser.add_argument("--burst", type=int, default=1, help="tokens given at a time")
    parser.add_argument("--lifetime", type=float, default=55.0)
    return parser.parse_args(argv)


class Engine:
    def __init__(self, opts):
        self.opts = opts
        self.close = "Connection: close\r\n" if opts.close else ""
        self.seen = {"requests": 0, "aborted": 0, "completed": 0, "running": 0, "connections": 0, "max_messages": 0}
        self.bodies = []
        self.n_tokens = 0
        self.random = random.Random(7)

    async def connection(self, reader, writer):
        self.seen["connections"] += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                if self.opts.accept_only:
                    await asyncio.sleep(3600)
                lines = head.decode("latin-1").split("\r\n")
                method, path, _ = lines[0].split(" ", 2)
                headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines[1:] if line)}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                if method == "POST" and self.opts.check_json and not readable(body):
                    await self.plain(writer, 400, b'{"error": {"message": "body is no JSON"}}')
                elif method == "POST":
                    await self.chat(reader, writer, body)
                else:
                    await self.get(writer, path, head=method == "HEAD")
                if self.opts.close:
                    return
        except (asyncio.IncompleteReadError, ConnectionError, EOFError):
            pass
        finally:
            writer.close()

    async def get(self, writer, path, *, head=False):
        if path == "/v1/models":
            page = {"object": "list", "data": [{"id": "fake", "object": "model"}]}
        elif path == "/seen":
            page = self.seen
        elif path == "/bodies":
            page = self.bodies
        else:
            page = {"path": path, "ok": True}
        await self.plain(writer, 200, json.dumps(page).encode(), send=not head)

    async def plain(self, writer, status, body, kind="application/json", *, send=True):
        head = f"HTTP/1.1 {status} Fake\r\nContent-Type: {kind}\r\n{self.close}Content-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + (body if send else b""))
        await writer.drain()

    async def chat(self, reader, writer, body):
        self.seen["requests"] += 1
        self.seen["running"] += 1
        number = self.seen["requests"]
        faulty = number > self.opts.after and number % self.opts.every == 0
        # The peer's end of the connection is watched while we stream, as a real engine does.
        work = asyncio.ensure_future(self.answer(writer, json.loads(body), faulty))
        watch = asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait({work, watch}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                work.cancel()
                self.seen["aborted"] += 1
                raise ConnectionError("client left")  # noqa: TRY301 one place counts and closes
            work.result()
            self.seen["completed"] += 1
        except (ConnectionError, asyncio.CancelledError):
            if work.done() and not work.cancelled():
                self.seen["aborted"] += 1
            raise ConnectionError("over") from None
        finally:
            self.seen["running"] -= 1
            if not watch.done():
                watch.cancel()
                await asyncio.wait({watch})
            elif not watch.cancelled() and watch.exception() is None and watch.result():
                raise ConnectionError("pipelined request")

    async def answer(self, writer, request, faulty):
        opts = self.opts
        messages = request.get("messages", [])
        self.seen["max_messages"] = max(self.seen["max_messages"], len(messages))
        self.bodies = [request]
        if faulty and opts.http_error:
            await self.plain(writer, opts.http_error, b'{"error": {"message": "as asked"}}')
            return
        if faulty and opts.not_sse:
            await self.plain(writer, 200, b'{"choices": []}')
            return
        prompt = sum(len(message["content"]) for message in messages)
        await asyncio.sleep(opts.delay_first + (prompt / opts.prefill_rate if opts.prefill_rate else 0.0))
        if faulty and opts.stall_at == 0:
            await asyncio.sleep(3600)
        head = f"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n{self.close}Transfer-Encoding: chunked\r\n\r\n"
        writer.write(head.encode())
        if faulty and opts.garbage:
            while True:
                await self.chunk(writer, self.random.randbytes(4096))
                await asyncio.sleep(0.001)
        if faulty and opts.error_event:
            await self.event(writer, {"error": {"message": "out of memory", "code": 500}})
            await self.end(writer)
            return
        words = self.words(request)
        half = len(words) // 2
        await self.event(writer, {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
        while opts.endless and faulty:
            await self.token(writer, "x ")
            await asyncio.sleep(0.001)
        for sent, word in enumerate(words, 1):
            if sent > 1 and opts.itl and sent % opts.burst == 0:
                await asyncio.sleep(opts.itl * opts.burst)
            await self.token(writer, word)
            if faulty and opts.stall_at == sent:
                await self.silence(writer)
            if faulty and sent == half and opts.truncate:
                await self.end(writer)
                return
            if faulty and sent == half and opts.cut:
                raise ConnectionError("cut, as asked")
            if faulty and sent == half and opts.reset:
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                writer.transport.abort()
                raise ConnectionError("reset, as asked")
        reason = (
            "abort"
            if faulty and opts.abort
            else "stop"
            if len(words) < request.get("max_tokens", 1 << 30)
            else "length"
        )
        await self.event(writer, {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
        if faulty and opts.no_done:
            await self.silence(writer)
        usage = {"prompt_tokens": sum(len(m["content"]) for m in messages) // 4, "completion_tokens": len(words)}
        await self.event(writer, {"choices": [], "usage": usage})
        await self.raw(writer, b"data: [DONE]\n\n")
        if faulty and opts.no_end:
            await self.silence(writer)
        await self.end(writer)

    def words(self, request):
        text = "\n".join(message["content"] for message in request.get("messages", []))
        planted = dict(PLANTED.findall(text))
        asked = ASKED.findall(text)
        answer = planted.get(asked[-1], "unknown") if asked else "hello"
        if self.opts.forget:
            answer = "VAL-000000"
        pieces = [answer[i : i + 4] for i in range(0, len(answer), 4)]
        pieces += [f" é{i}" for i in range(self.opts.tokens - len(pieces))]
        return pieces[: request.get("max_tokens", len(pieces))]

    async def token(self, writer, text):
        self.n_tokens += 1
        await self.event(writer, {"model": "fake", "choices": [{"index": 0, "delta": {"content": text}}]})
        if self.opts.die_after_tokens is not None and self.n_tokens >= self.opts.die_after_tokens:
            os.kill(os.getpid(), signal.SIGKILL)

    async def silence(self, writer):
        while True:
            await asyncio.sleep(self.opts.heartbeat or 3600)
            await self.raw(writer, b": ping\n\n")

    async def event(self, writer, document):
        data = b"data: " + json.dumps(document, ensure_ascii=False).encode() + b"\n\n"
        at = next((i + 1 for i, byte in enumerate(data) if byte >= 0xC0), 0) if self.opts.split else 0
        if at:
            await self.raw(writer, data[:at])
            await asyncio.sleep(0.01)
        await self.raw(writer, data[at:])

    async def raw(self, writer, data):
        await self.chunk(writer, data.replace(b"\n", b"\r\n") if self.opts.crlf else data)

    async def chunk(self, writer, data):
        writer.write(b"%x\r\n%b\r\n" % (len(data), data))
        await writer.drain()

    async def end(self, writer):
        writer.write(b"0\r\n\r\n")
        await writer.drain()


def readable(body):
    try:
        json.loads(body)
    except ValueError:
        return False
    return True


async def main():
    opts = options()
    engine = Engine(opts)
    server = await asyncio.start_server(engine.connection, opts.host, opts.port, backlog=1024)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.call_later(opts.lifetime, stop.set)
    print(f"listening on http://{opts.host}:{server.sockets[0].getsockname()[1]}", flush=True)
    await stop.wait()
    os._exit(0)  # open streams are part of the play; nobody waits for them


if __name__ == "__main__":
    asyncio.run(main())
