"""What does the load client itself cost, and how wrong are its clocks? Ours beside a floor client, against a mock of known timing.

    python benchmarks/load_client.py [--concurrency 64,256] [--requests 300,1800] [--repeats 3]

The mock answers each request with 64 tokens, the first after 50 ms, then one every 5 ms, and stamps with its own clock when a
request came and when its first token went out. The floor client is the least that can be done: a raw protocol that stamps
each read and looks for the last chunk; it parses nothing. CPU is that of the client's whole process, taken as the slope between
a short and a long run, so that starting Python is no part of it. Both use uvloop where it is installed.

Bars: CPU at most 1.6 times the floor's; mean TTFT error at most 2 times the floor's, and under 1 ms at concurrency 64.
Exit code 1: a bar is missed.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

TOKENS, FIRST_S, GAP_S = 64, 0.050, 0.005
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def event(document: object) -> bytes:
    """One event as one HTTP chunk."""
    data = b"data: " + (document if isinstance(document, bytes) else json.dumps(document).encode()) + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(data), data)


def chunk(delta: dict[str, str], finish: str | None = None) -> bytes:
    """An OpenAI chat chunk."""
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    return event(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion.chunk",
            "created": 1764550000,
            "model": "mock",
            "choices": [choice],
        }
    )


TOKEN = chunk({"content": " token"})
USAGE = {"prompt_tokens": 32, "total_tokens": 32 + TOKENS, "completion_tokens": TOKENS}
END = (
    chunk({}, "stop")
    + event({"object": "chat.completion.chunk", "choices": [], "usage": USAGE})
    + event(b"[DONE]")
    + b"0\r\n\r\n"
)


class Mock(asyncio.Protocol):
    """Answers on time and remembers when."""

    true_ttft_s: list[float] = []  # noqa: RUF012 one list for the whole process

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self.transport, self.rest = transport, b""
        self.loop = asyncio.get_running_loop()

    def data_received(self, data: bytes) -> None:
        """Take requests; one at a time on a connection."""
        now = time.monotonic()
        self.rest += data
        head, found, body = self.rest.partition(b"\r\n\r\n")
        if not found:
            return
        if head.startswith(b"GET"):
            self.rest = b""
            page = json.dumps(Mock.true_ttft_s).encode()
            Mock.true_ttft_s.clear()
            self.transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(page), page))
            return
        length = int(next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))[15:])
        if len(body) < length:
            return
        self.rest, self.received, self.sent = b"", now, 0
        self.transport.write(HEAD)
        self.loop.call_at(self.loop.time() + FIRST_S, self.token, self.loop.time() + FIRST_S)

    def token(self, due: float) -> None:
        """Write one token; the next is due at a fixed pace."""
        self.sent += 1
        if self.sent == 1:
            Mock.true_ttft_s.append(time.monotonic() - self.received)
        self.transport.write(TOKEN if self.sent < TOKENS else TOKEN + END)
        if self.sent < TOKENS:
            self.loop.call_at(due + GAP_S, self.token, due + GAP_S)


class Floor(asyncio.Protocol):
    """The least a client can do: stamp each read, know the end, send again."""

    def __init__(self, run: "FloorRun") -> None:
        self.run = run

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the first."""
        self.transport = transport
        self.send()

    def send(self) -> None:
        """Send one more, or be done."""
        if self.run.left == 0:
            self.transport.close()
            return
        self.run.left -= 1
        self.stamps = [time.monotonic()]
        self.transport.write(self.run.request)

    def data_received(self, data: bytes) -> None:
        """Stamp."""
        self.stamps.append(time.monotonic())
        if data.endswith(b"0\r\n\r\n"):
            # The head comes in a read of its own: the mock writes it 50 ms before the first token.
            self.run.ttft_s.append(self.stamps[2] - self.stamps[0])
            self.run.ended += 1
            self.send()

    def connection_lost(self, _error: Exception | None) -> None:
        """Count."""
        self.run.open -= 1
        if self.run.open == 0:
            self.run.over.set()


class FloorRun:
    """What the floor's connections share."""

    def __init__(self, left: int, open_: int) -> None:
        self.left, self.open, self.ended, self.ttft_s = left, open_, 0, []
        self.over = asyncio.Event()
        body = json.dumps(
            {
                "model": "mock",
                "messages": [{"role": "user", "content": "word " * 32}],
                "max_tokens": TOKENS,
                "stream": True,
            }
        ).encode()
        self.request = (
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: mock\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
            % (len(body), body)
        )


async def floor(port: int, concurrency: int, requests: int) -> None:
    """Run the floor client; print its TTFTs."""
    run = FloorRun(requests, concurrency)
    for _ in range(concurrency):
        await asyncio.get_running_loop().create_connection(lambda: Floor(run), "127.0.0.1", port)
    await run.over.wait()
    print(json.dumps({"completed": run.ended, "ttft_ms": 1000 * statistics.mean(run.ttft_s)}))


async def mock() -> None:
    """Serve until killed."""
    server = await asyncio.get_running_loop().create_server(Mock, "127.0.0.1", 0, backlog=2048)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.Event().wait()


def run_loop(main) -> None:  # noqa: ANN001 any coroutine
    """With uvloop where it is installed."""
    try:
        from uvloop import new_event_loop
    except ImportError:
        new_event_loop = asyncio.new_event_loop
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(main)


def measured(argv: list[str]) -> tuple[float, dict]:
    """CPU seconds of a child, and the JSON it printed."""
    with tempfile.TemporaryFile() as out:
        child = subprocess.Popen(argv, stdout=out, stderr=subprocess.DEVNULL)
        _, _, used = os.wait4(child.pid, 0)
        child.returncode = 0
        out.seek(0)
        return used.ru_utime + used.ru_stime, json.loads(out.read())


def one_run(client: str, port: int, concurrency: int, requests: int, folder: Path) -> tuple[float, float]:
    """CPU seconds, and mean TTFT error in ms."""
    if client == "floor":
        cpu, said = measured(
            [
                sys.executable,
                __file__,
                "--floor",
                str(port),
                "--concurrency",
                str(concurrency),
                "--requests",
                str(requests),
            ]
        )
        reported, completed = said["ttft_ms"], said["completed"]
    else:
        sessions = folder / "sessions.jsonl"
        sessions.write_text(json.dumps({"rounds": [{"say": "word " * 32}]}) + "\n")
        words = [
            f"http://127.0.0.1:{port}",
            "--model",
            "mock",
            "--sessions",
            sessions,
            "--concurrency",
            concurrency,
            "--requests",
            requests,
            "--max-tokens",
            TOKENS,
            "--json",
            "--out",
            tempfile.mkdtemp(dir=folder),
        ]
        cpu, said = measured([sys.executable, "-m", "vindicate", "load", *map(str, words)])
        reported, completed = said["levels"][0]["ttft_ms"]["mean"], said["levels"][0]["completed"]
    assert completed == requests, (client, completed, requests)
    true = json.load(urllib.request.urlopen(f"http://127.0.0.1:{port}/"))
    assert len(true) == requests
    return cpu, reported - 1000 * statistics.mean(true)


def main() -> int:
    """Measure and judge."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--concurrency", default="64,256")
    parser.add_argument("--requests", default="300,1800")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--mock", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--floor", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.mock or options.floor:
        run_loop(mock() if options.mock else floor(options.floor, int(options.concurrency), int(options.requests)))
        return 0
    short, long = map(int, options.requests.split(","))
    missed = []
    server = subprocess.Popen([sys.executable, __file__, "--mock"], stdout=subprocess.PIPE)
    try:
        port = int(server.stdout.readline())
        print(f"{'c':>4} {'client':>9} {'CPU s/1000':>11} {'TTFT error ms':>14}   (of {options.repeats} runs: median)")
        with tempfile.TemporaryDirectory() as folder:
            for concurrency in map(int, options.concurrency.split(",")):
                found = {"floor": [], "vindicate": []}
                for _ in range(options.repeats):
                    for client, rows in found.items():
                        first, _ = one_run(client, port, concurrency, max(short, concurrency), Path(folder))
                        second, error = one_run(client, port, concurrency, long, Path(folder))
                        rows.append(((second - first) / (long - max(short, concurrency)) * 1000, error))
                cost = {client: statistics.median(row[0] for row in rows) for client, rows in found.items()}
                error = {client: statistics.median(row[1] for row in rows) for client, rows in found.items()}
                for client in found:
                    print(f"{concurrency:>4} {client:>9} {cost[client]:>11.3f} {error[client]:>14.3f}")
                ratio, times = cost["vindicate"] / cost["floor"], error["vindicate"] / error["floor"]
                print(
                    f"{concurrency:>4} CPU {ratio:.2f} x floor (bar 1.6), TTFT error {times:.2f} x floor (bar 2)",
                    flush=True,
                )
                missed += [f"CPU at {concurrency}"] * (ratio > 1.6) + [f"TTFT error at {concurrency}"] * (times > 2)
                missed += [f"TTFT error at {concurrency} is over 1 ms"] * (
                    concurrency == 64 and error["vindicate"] >= 1
                )
    finally:
        server.kill()
        server.wait()
    print("missed: " + ", ".join(missed) if missed else "every bar is met")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
