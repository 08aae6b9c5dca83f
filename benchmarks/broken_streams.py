"""Does the load harness count every kind of broken answer as what it is? One faulty answer in 50, of each kind → a table.

    python benchmarks/broken_streams.py [--requests 200] [--concurrency 16] [--every 50]

The server answers in 16 tokens at 2 ms; every K-th answer is broken in one way. For each way the harness must count exactly
those as broken, by the right name, give a stalled stream's age, and end; a stall must not lower the rate of the rest.
Exit code 1: something was counted wrong.
"""

import argparse
import asyncio
import contextlib
import json
import socket
import struct
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from vindicate.load.plan import LoadPlan, Turn
from vindicate.load.run import run_load
from vindicate.record.load import LevelSummary

STALL_S, TOKENS = 0.5, 16
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
TEXT = "é🙂"


def event(document: object) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(document, ensure_ascii=False).encode() + b"\n\n"


def token(text: str = TEXT) -> bytes:
    """An event with a token."""
    return event({"model": "m", "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]})


FINISH = event({"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]})
USAGE = event({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": TOKENS}})
DONE = b"data: [DONE]\n\n"


class Answer:
    """The connection that an answer is written to."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.writer = writer

    async def raw(self, data: bytes) -> None:
        """Bytes as they are."""
        self.writer.write(data)
        await self.writer.drain()

    async def chunk(self, data: bytes) -> None:
        """One HTTP chunk."""
        await self.raw(b"%x\r\n%b\r\n" % (len(data), data))

    async def tokens(self, n: int = TOKENS) -> None:
        """The head, and some tokens."""
        await self.raw(HEAD)
        for _ in range(n):
            await self.chunk(token())
            await asyncio.sleep(0.002)

    async def end(self) -> None:
        """The last chunk."""
        await self.raw(b"0\r\n\r\n")

    async def good(self) -> None:
        """All of it."""
        await self.tokens()
        await self.chunk(FINISH)
        await self.chunk(USAGE + DONE)
        await self.end()

    def reset(self) -> None:
        """RST instead of FIN."""
        self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


Play = Callable[[Answer], Awaitable[None]]
FAULTS: dict[str, tuple[str | None, str | None, Play]] = {}


def fault(outcome: str | None, error: str | None = None) -> Callable[[Play], Play]:
    """Enter a play: what the harness must call it; ``None`` where it is no fault at all."""

    def enter(play: Play) -> Play:
        FAULTS[play.__name__] = (outcome, error, play)  # type: ignore[attr-defined]
        return play

    return enter


@fault("stalled", "no_headers")
async def silent(_answer: Answer) -> None:
    """No byte at all."""
    await asyncio.sleep(60)


@fault("stalled", "no_first_byte")
async def head_then_silent(answer: Answer) -> None:
    """Headers, and nothing more."""
    await answer.raw(HEAD)
    await asyncio.sleep(60)


@fault("stalled", "stalled")
async def stops_in_the_middle(answer: Answer) -> None:
    """Half the tokens, then silence."""
    await answer.tokens(8)
    await asyncio.sleep(60)


@fault("stalled", "no_first_byte")
async def only_pings(answer: Answer) -> None:
    """Heartbeats for ever."""
    await answer.raw(HEAD)
    while True:
        await answer.chunk(b": ping\n\n")
        await asyncio.sleep(0.05)


@fault("stalled", "stalled")
async def pings_after_half(answer: Answer) -> None:
    """Half the tokens, then heartbeats for ever."""
    await answer.tokens(8)
    while True:
        await answer.chunk(b": ping\n\n")
        await asyncio.sleep(0.05)


@fault("stalled", "no_end")
async def never_ends(answer: Answer) -> None:
    """All tokens, a finish_reason, and no end."""
    await answer.tokens()
    await answer.chunk(FINISH)
    await asyncio.sleep(60)


@fault("failed", "reset")
async def drops_before_the_head(answer: Answer) -> None:
    """The connection is closed before any byte."""
    answer.writer.close()


@fault("truncated", "truncated")
async def drops_after_the_head(answer: Answer) -> None:
    """The connection is closed after the headers."""
    await answer.raw(HEAD)
    answer.writer.close()


@fault("truncated", "truncated")
async def drops_in_the_middle(answer: Answer) -> None:
    """The connection is closed after half the tokens."""
    await answer.tokens(8)
    answer.writer.close()


@fault("failed", "reset")
async def resets_in_the_middle(answer: Answer) -> None:
    """RST after half the tokens."""
    await answer.tokens(8)
    answer.reset()


@fault("truncated", "truncated")
async def clean_end_after_half(answer: Answer) -> None:
    """Half the tokens, and a body that is whole as HTTP."""
    await answer.tokens(8)
    await answer.end()


@fault("truncated", "truncated")
async def clean_end_without_finish(answer: Answer) -> None:
    """All tokens, but no finish_reason, usage or [DONE]."""
    await answer.tokens()
    await answer.end()


@fault("truncated", "truncated")
async def ends_inside_a_character(answer: Answer) -> None:
    """A body that ends in half a character."""
    await answer.tokens(8)
    await answer.chunk(token()[: token().index(TEXT.encode()) + 1])
    await answer.end()


@fault("truncated", "truncated")
async def empty_body(answer: Answer) -> None:
    """200, and no event."""
    await answer.raw(HEAD)
    await answer.end()


@fault("failed", "garbage")
async def garbage(answer: Answer) -> None:
    """Random bytes as an event stream."""
    await answer.raw(HEAD)
    while True:
        await answer.chunk(bytes(range(1, 256)) * 64)
        await asyncio.sleep(0.01)


@fault("failed", "garbage")
async def no_json(answer: Answer) -> None:
    """An event that is no JSON."""
    await answer.tokens(4)
    await answer.chunk(b"data: {truncated\n\n")
    await answer.end()


@fault("failed", "garbage")
async def broken_chunk_size(answer: Answer) -> None:
    """The chunked framing breaks."""
    await answer.tokens(4)
    await answer.raw(b"zz\r\nrubbish\r\n")
    await asyncio.sleep(60)


@fault("failed", "not_http")
async def no_http(answer: Answer) -> None:
    """Something else than HTTP."""
    await answer.raw(b"SSH-2.0-OpenSSH_9.6\r\n")
    await asyncio.sleep(60)


@fault("failed", "over_length")
async def endless(answer: Answer) -> None:
    """Tokens for ever."""
    await answer.tokens(1)
    while True:
        await answer.chunk(token())
        await asyncio.sleep(0.001)


@fault("failed", "error_event")
async def error_inside(answer: Answer) -> None:
    """An error object in the stream, then a clean end."""
    await answer.tokens(4)
    await answer.chunk(event({"error": {"message": "out of memory", "code": 500}}) + DONE)
    await answer.end()


@fault("failed", "error_event")
async def error_as_json(answer: Answer) -> None:
    """200 with a JSON error where a stream was asked for."""
    body = b'{"error": {"message": "overloaded"}}'
    await answer.raw(
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    )


@fault("failed", "aborted")
async def aborted(answer: Answer) -> None:
    """The engine gave it up in good form."""
    await answer.tokens(4)
    await answer.chunk(event({"choices": [{"index": 0, "delta": {}, "finish_reason": "abort"}]}) + DONE)
    await answer.end()


@fault("failed", "http_503")
async def refused(answer: Answer) -> None:
    """An error status whose body never ends."""
    await answer.raw(b"HTTP/1.1 503 Busy\r\nContent-Type: text/plain\r\nContent-Length: 900\r\n\r\nbusy")
    await asyncio.sleep(60)


@fault(None)
async def byte_by_byte(answer: Answer) -> None:
    """A good answer, every byte a write of its own: characters, events and chunks are cut everywhere."""
    pieces: list[bytes] = []
    whole = Answer(answer.writer)
    whole.raw = lambda data: _keep(pieces, data)  # type: ignore[method-assign]
    await whole.good()
    answer.writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for byte in b"".join(pieces):
        await answer.raw(bytes([byte]))
        await asyncio.sleep(0)


@fault(None)
async def crlf_and_comments(answer: Answer) -> None:
    """A good answer with CRLF lines, heartbeats and field names that nobody knows."""
    await answer.raw(HEAD)
    for _ in range(TOKENS):
        await answer.chunk(b": ping\r\nid: 7\r\nunknown: x\r\n" + token().replace(b"\n", b"\r\n"))
    await answer.chunk(FINISH + USAGE + DONE)
    await answer.end()


async def _keep(pieces: list[bytes], data: bytes) -> None:
    pieces.append(data)


@contextlib.asynccontextmanager
async def serving(every: int) -> AsyncIterator[str]:
    """A server whose path names the fault; yields its URL."""
    seen: dict[str, int] = {}
    open_now: dict[asyncio.StreamWriter, asyncio.Task[None]] = {}

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_now[writer] = asyncio.current_task()
        # Those that are silent for ever are cancelled at the end.
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                lengths = [line[15:] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
                await reader.readexactly(int(lengths[0]) if lengths else 0)
                name = head.split(b"/", 2)[1].decode()
                seen[name] = seen.get(name, 0) + 1
                broken = name in FAULTS and seen[name] % every == 0
                await (FAULTS[name][2](Answer(writer)) if broken else Answer(writer).good())
        del open_now[writer]
        writer.close()

    server = await asyncio.start_server(connection, "127.0.0.1", 0, backlog=1024)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in (left := list(open_now.values())):
            task.cancel()
        await asyncio.gather(*left)
        await asyncio.sleep(0)  # now the loop closes the sockets


@dataclass
class Verdict:
    """How one kind was counted."""

    name: str
    level: LevelSummary
    problems: list[str]


def judge(name: str, level: LevelSummary, broken: int) -> Verdict:
    """What is wrong with how *level* counts *broken* answers of kind *name*."""
    outcome, error, _ = FAULTS[name]
    expected = {error: broken} if error else {}
    problems = [] if level.errors == expected else [f"errors are {level.errors}, not {expected}"]
    counts = {kind: getattr(level, kind) for kind in ("completed", "failed", "stalled", "truncated", "cancelled")}
    right = dict.fromkeys(counts, 0) | {"completed": level.requests - (broken if outcome else 0)}
    if outcome:
        right[outcome] = broken
    if counts != right:
        problems.append(f"counted {counts}, not {right}")
    ages = level.stall_ages_s
    if outcome == "stalled" and not (len(ages) == broken and all(STALL_S <= age < STALL_S + 2 for age in ages)):
        problems.append(f"ages are {ages}")
    return Verdict(name, level, problems)


async def measure(requests: int, concurrency: int, every: int, only: str | None = None) -> list[Verdict]:
    """Run every kind, all at the same time."""
    names = [name for name in FAULTS if only in (None, name)]
    async with serving(every) as url:
        plans = [
            LoadPlan(
                url=f"{url}/{name}", model="m", levels=(concurrency,), requests_per_level=requests, stall_after_s=STALL_S,
                deadline_s=30, max_tokens=TOKENS, seed=1, sessions=((Turn("Say it."),),),
            )
            for name in names
        ]  # fmt: skip
        found = (
            [await run_load(plan) for plan in plans] if requests > 40 else await asyncio.gather(*map(run_load, plans))
        )
    return [judge(name, run.levels[0], requests // every) for name, run in zip(names, found, strict=True)]


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--every", type=int, default=50)
    parser.add_argument("--only", choices=FAULTS)
    options = parser.parse_args()
    verdicts = asyncio.run(measure(options.requests, options.concurrency, options.every, options.only))
    print(f"{'kind':<26}{'completed':>10}{'failed':>8}{'stalled':>8}{'truncated':>10}{'req/s':>9}  errors")
    for verdict in verdicts:
        level = verdict.level
        print(
            f"{verdict.name:<26}{level.completed:>10}{level.failed:>8}{level.stalled:>8}{level.truncated:>10}"
            f"{level.requests_per_s or 0:>9.1f}  {level.errors}  {'; '.join(verdict.problems) or 'right'}"
        )
    wrong = [verdict for verdict in verdicts if verdict.problems]
    print(f"{len(verdicts) - len(wrong)} of {len(verdicts)} kinds counted right")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
