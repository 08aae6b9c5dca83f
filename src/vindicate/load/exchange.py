"""One request → one RequestRecord, whatever comes back and however long nothing does."""

import asyncio
import ssl
import time
from dataclasses import dataclass, field
from itertools import pairwise
from socket import gaierror

import httptools

from vindicate.clock import utc_now
from vindicate.errors import EngineError
from vindicate.load.connection import Connection, Pool
from vindicate.record.load import Outcome, RequestRecord
from vindicate.redact import redact_text
from vindicate.wire.openai import OpenAIStream

__all__ = ["Exchange", "Limits"]

# The reference stack labels its answers with this header: its figures are not those of a real card.
_SIMULATED = b"x-vindicate-simulated"
# Engines end a stream in good form also when they gave the request up (SGLang: abort).
_NO_GOOD_END = ("abort", "error")
_MAX_BYTES_BEFORE_TOKEN = 4 * 1024 * 1024
_MAX_BYTES_PER_TOKEN = 64 * 1024
_MAX_ERROR_BYTES = 2000
# A timer that fires so much too late tells that we were held up ourselves: what came meanwhile is read first.
_HELD_UP_S = 0.5
_EVENT_STREAM = "text/event-stream"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When a stream is given up."""

    stall_after_s: float
    deadline_s: float
    connect_s: float
    max_tokens: int
    cancel_after: int | None = None


@dataclass(slots=True, kw_only=True, eq=False)
class Exchange:
    """A request on its way; `record` can be asked for at any moment, also after an interruption.

    Attributes:
        streaming: Whether a stream was asked for.
        due: When it was meant to be sent, monotonic, where a schedule says so: all times count from then.
        reads, eager: Of a `Taker`.
    """

    id: str
    level: int
    session: int
    round: int
    epoch: float
    limits: Limits
    expected: str | None = None
    due: float | None = None
    streaming: bool = True
    stream: OpenAIStream = field(default_factory=OpenAIStream)
    started_at: str = ""
    simulated: bool = False
    reads: list[tuple[float, bytes]] = field(default_factory=list)
    eager: bool = True
    _over: asyncio.Future[None] | None = None
    _timer: asyncio.TimerHandle | None = None
    _parser: httptools.HttpResponseParser | None = None
    _headers: dict[bytes, bytes] = field(default_factory=dict)
    _start: float = 0.0
    _sent_at: float | None = None
    _now: float = 0.0
    _due: float = 0.0
    _progress: float = 0.0
    _end: float | None = None
    _given_up: float | None = None
    _arrivals: list[float] = field(default_factory=list)
    _outcome: Outcome | None = None
    _error: str | None = None
    _detail: str = ""
    _status: int | None = None
    _stamps: list[float] = field(default_factory=list)
    _pieces: list[bytes] = field(default_factory=list)
    _body: bytearray = field(default_factory=bytearray)
    _sent: int = 0
    _received: int = 0
    _reusable: bool = False
    _is_sse: bool = False

    async def run(self, pool: Pool, path: str, body: bytes) -> None:
        """Send it and read until it ends, in whatever way; never raises but for a cancellation from outside."""
        self.started_at, self._sent = utc_now(), len(body)
        self._start = time.monotonic() if self.due is None else self.due
        self._over = asyncio.get_running_loop().create_future()
        connection = None
        try:
            connection = await self._connect(pool)
            if connection is not None:
                self._parser = httptools.HttpResponseParser(self)
                connection.taker = self
                self._sent_at = self._progress = time.monotonic()
                connection.transport.write(pool.message(path, body, self.id))
                self._arm()
                await self._over
        except asyncio.CancelledError:
            self.digest()
            if self._outcome is None:
                self._fail("cancelled", "interrupted")
            raise
        finally:
            if self._timer is not None:
                self._timer.cancel()
            if connection is not None:
                self._leave(pool, connection)

    async def _connect(self, pool: Pool) -> Connection | None:
        limits = self.limits
        self._progress = time.monotonic()
        try:
            async with asyncio.timeout(min(limits.connect_s, limits.stall_after_s, limits.deadline_s)):
                return await pool.take()
        except TimeoutError as error:
            if limits.stall_after_s < limits.connect_s:
                self._fail("stalled", "no_headers", "no connection")
            else:
                self._fail("failed", "connect_timeout", str(error))
        except OSError as error:
            self._fail("failed", _kind(error), str(error))
        return None

    def _leave(self, pool: Pool, connection: Connection) -> None:
        connection.taker = None
        if self._reusable and not self.reads and not connection.transport.is_closing():
            pool.give(connection)
        else:
            connection.transport.abort()

    @property
    def silent_s(self) -> float:
        """Seconds since anything of it moved; 0 before it was begun and after it ended."""
        if self._outcome is not None or not self._progress:
            return 0.0
        self.digest()
        return time.monotonic() - self._progress

    # ---- time -----------------------------------------------------------------------------------------------------

    def _arm(self, soonest_s: float = 0.001) -> None:
        now, limits = time.monotonic(), self.limits
        wait = min(self._progress + limits.stall_after_s, self._start + limits.deadline_s) - now
        self._due = now + max(soonest_s, wait)
        self._timer = asyncio.get_running_loop().call_later(self._due - now, self._look)

    def _look(self) -> None:
        """The timer: is it time to give up? Events that came since it was set move it on."""
        now = time.monotonic()
        self.digest()
        if self._outcome is not None:
            return
        limits = self.limits
        late = now - self._start >= limits.deadline_s
        if not late and now - self._progress < limits.stall_after_s:
            self._arm()
        elif now - self._due > _HELD_UP_S:
            self._arm(0.1)
        else:
            self._gave_up(late=late)

    def _gave_up(self, *, late: bool) -> None:
        stream = self.stream
        if self._status not in (None, 200):
            self._refused()
        elif late:
            self._fail("failed", "deadline", f"still going after {self.limits.deadline_s:g} s")
        elif self._status is None:
            self._fail("stalled", "no_headers")
        elif stream.done or stream.finish_reason is not None:
            self._fail("stalled", "no_end", "the last token had come, the end of the stream had not")
        elif stream.is_garbage or (self._received and self._is_sse and not stream.n_events and not stream.n_comments):
            self._fail("failed", "garbage", f"{self._received} bytes without an event")
        elif stream.n_events == 0:
            self._fail("stalled", "no_first_byte")
        else:
            self._fail("stalled", "stalled", f"silent after {stream.n_token_chunks} tokens")

    # ---- what comes: of Taker, then of the HTTP parser -------------------------------------------------------------

    def digest(self) -> None:
        """Parse the reads that have gathered, each as of its own time."""
        reads, self.reads = self.reads, []
        parser = self._parser
        if parser is None:
            return
        try:
            for self._now, data in reads:
                parser.feed_data(data)
                if self._outcome is not None and data is not reads[-1][1]:
                    self._reusable = False  # bytes after the end
                    return
            self._take_pieces()
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._reusable = False
            self._take_pieces()
            if self._outcome is None:
                self._fail("failed", "not_http" if self._status is None else "garbage", str(error))

    def lost(self, error: Exception | None) -> None:
        """The connection ended: by its framing too?"""
        self.digest()
        if self._outcome is not None:
            return
        self._now = time.monotonic()
        framed = b"content-length" in self._headers or b"transfer-encoding" in self._headers
        if self._status is None or error is not None:
            self._fail("failed", "reset", str(error or "the server closed the connection before it answered"))
        elif framed:
            self._fail("truncated", "truncated", "the connection ended before the body did")
        else:
            self._ended()

    def on_message_begin(self) -> None:
        """Nothing, unless the answer is over: then nobody asked for this one."""
        self._reusable = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header."""
        self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        """Know what is to come."""
        assert self._parser is not None
        status = self._parser.get_status_code()
        if status < 200:
            self._headers.clear()
            return
        self._status = status
        self.simulated = _SIMULATED in self._headers
        kind = self._headers.get(b"content-type", b"").split(b";")[0].strip().lower().decode(errors="replace")
        self._is_sse = self.streaming and status == 200 and kind == _EVENT_STREAM
        self.eager = (
            not self._is_sse
            or self.limits.cancel_after is not None
            or b"chunked" not in self._headers.get(b"transfer-encoding", b"").lower()
        )

    def on_body(self, data: bytes) -> None:
        """Take bytes of the body."""
        if self._outcome is not None:
            return
        self._received += len(data)
        if not self._is_sse:
            self._progress = self._now
            if len(self._body) < _MAX_BYTES_BEFORE_TOKEN:
                self._body += data
            if self._status != 200 and len(self._body) >= _MAX_ERROR_BYTES:
                self._refused()
            return
        self._stamps.append(self._now)
        self._pieces.append(data)

    def _take_pieces(self) -> None:
        """Parse what the HTTP parser gave, each piece as of its own time."""
        stamps, self._stamps, pieces, self._pieces = self._stamps, [], self._pieces, []
        if not pieces or self._outcome is not None:
            return
        stream = self.stream
        counts = stream.feed_each(pieces)
        if counts is not None:
            for at, n_tokens in zip(stamps, counts, strict=True):
                if n_tokens:
                    self._arrivals.extend([at] * n_tokens)
            self._progress = stamps[-1]
            if stream.done and self._end is None:
                self._end = stamps[-1]
            self._must_stop()
            return
        for self._now, data in zip(stamps, pieces, strict=True):
            n_events = stream.n_events
            try:
                n_tokens = stream.feed(data)
            except EngineError as error:
                self._fail("failed", "garbage", error.problem)
                return
            self._arrivals.extend([self._now] * n_tokens)
            if stream.n_events > n_events:
                self._progress = self._now
            if stream.done and self._end is None:
                self._end = self._now
            self._must_stop()
            if self._outcome is not None:
                return

    def on_message_complete(self) -> None:
        """The body is whole as HTTP; was it whole as an answer?"""
        if self._status is not None and self._outcome is None:
            assert self._parser is not None
            self._reusable = bool(self._parser.should_keep_alive())  # it no longer knows once the message is over
            self._take_pieces()
            if self._outcome is None:
                self._ended()

    def _must_stop(self) -> None:
        stream, limits = self.stream, self.limits
        if stream.error is not None:
            self._fail("failed", "error_event", stream.error)
        elif stream.garbage is not None:
            self._fail("failed", "garbage", stream.garbage)
        elif stream.n_token_chunks > 2 * limits.max_tokens + 16:
            self._fail(
                "failed", "over_length", f"{stream.n_token_chunks} tokens, asked for at most {limits.max_tokens}"
            )
        elif self._received > _MAX_BYTES_BEFORE_TOKEN + _MAX_BYTES_PER_TOKEN * limits.max_tokens:
            self._fail("failed", "garbage", f"{self._received} bytes with {stream.n_token_chunks} tokens")
        elif limits.cancel_after is not None and stream.n_token_chunks >= limits.cancel_after and not stream.done:
            self._fail("cancelled", None)

    def _ended(self) -> None:
        stream = self.stream
        if self._status != 200:
            self._refused()
            return
        if not self._is_sse:
            stream.take(self._body.decode(errors="replace"))
        if stream.error is not None:
            self._fail("failed", "error_event", stream.error)
        elif stream.finish_reason in _NO_GOOD_END:
            self._fail("failed", "aborted", f"finish_reason is {stream.finish_reason}")
        elif not self._is_sse and self.streaming:
            kind = self._headers.get(b"content-type", b"nothing").decode(errors="replace")
            self._fail("failed", "not_sse", f"Content-Type is {kind}")
        elif stream.garbage is not None:
            self._fail("failed", "garbage", stream.garbage)
        elif stream.done or stream.finish_reason is not None:
            self._outcome = "completed"
            self._finish()
        elif stream.n_events == 0 and self._received:
            self._fail("failed", "garbage", "no event in the whole body")
        else:
            self._fail("truncated", "truncated", "the body ended without finish_reason or [DONE]")

    def _refused(self) -> None:
        self._fail("failed", f"http_{self._status}", self._body[:_MAX_ERROR_BYTES].decode(errors="replace"))

    def _fail(self, outcome: Outcome, error: str | None, detail: str = "") -> None:
        self._outcome, self._error, self._detail = outcome, error, redact_text(detail[:400])[:200]
        self._finish()

    def _finish(self) -> None:
        self._given_up = time.monotonic()
        if self._end is None:
            self._end = self._now if self._outcome == "completed" else self._given_up
        if self._over is not None and not self._over.done():
            self._over.set_result(None)

    def record(self) -> RequestRecord:
        """What is known of it now."""
        now = self._given_up or time.monotonic()
        arrivals, stream = self._arrivals, self.stream
        end = self._end if self._end is not None and self._outcome == "completed" else now
        answered = stream.text if self.expected is not None and stream.texts else None
        silent = self._outcome == "stalled" or self._error in ("interrupted", "deadline")
        return RequestRecord(
            id=self.id,
            level=self.level,
            session=self.session,
            round=self.round,
            started_at=self.started_at,
            start_s=round(self._start - self.epoch, 6),
            outcome=self._outcome or "failed",
            e2e_s=round(end - self._start, 6),
            sent_after_s=round(self._sent_at - self._start, 6) if self._sent_at is not None else None,
            ttft_s=round(arrivals[0] - self._start, 6) if arrivals else None,
            gaps_s=tuple([round(later - sooner, 6) for sooner, later in pairwise(arrivals)]),
            n_prompt_tokens=stream.usage.prompt_tokens if stream.usage else None,
            n_cached_tokens=stream.usage.cached_tokens if stream.usage else None,
            n_tokens=stream.n_tokens,
            sent_bytes=self._sent,
            received_bytes=self._received,
            status=self._status,
            finish_reason=stream.finish_reason,
            error=self._error,
            detail=self._detail,
            stall_age_s=round(now - self._progress, 6) if silent else None,
            asked=self.expected,
            answered=answered[:200] if answered is not None else None,
            recalled=self.expected in stream.text if self.expected and self._outcome == "completed" else None,
        )


def _kind(error: OSError) -> str:
    if isinstance(error, gaierror):
        return "no_address"
    if isinstance(error, ssl.SSLError):
        return "tls"
    if isinstance(error, ConnectionRefusedError):
        return "refused"
    return "reset" if isinstance(error, ConnectionError) else "unreachable"
