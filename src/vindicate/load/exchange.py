"""One streaming chat request → one RequestRecord, whatever comes back and however long nothing does."""

import asyncio
import time
from dataclasses import dataclass, field
from itertools import pairwise

import aiohttp

from vindicate.clock import utc_now
from vindicate.errors import EngineError
from vindicate.record.load import Outcome, RequestRecord
from vindicate.redact import redact_text
from vindicate.wire.openai import OpenAIStream

__all__ = ["Exchange", "Limits"]

# The reference stack labels its answers with this header: its figures are not those of a real card.
_SIMULATED = "X-Vindicate-Simulated"
# Engines end a stream in good form also when they gave the request up (SGLang: abort).
_NO_GOOD_END = ("abort", "error")
_MAX_BYTES_BEFORE_TOKEN = 4 * 1024 * 1024
_MAX_BYTES_PER_TOKEN = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When a stream is given up."""

    stall_after_s: float
    deadline_s: float
    max_tokens: int
    cancel_after: int | None = None


@dataclass(slots=True, kw_only=True)
class Exchange:
    """A request on its way; `record` can be asked for at any moment, also after an interruption."""

    id: str
    level: int
    session: int
    round: int
    epoch: float
    limits: Limits
    expected: str | None = None
    stream: OpenAIStream = field(default_factory=OpenAIStream)
    started_at: str = ""
    simulated: bool = False
    _start: float = 0.0
    _progress: float = 0.0
    _end: float | None = None
    _arrivals: list[float] = field(default_factory=list)
    _outcome: Outcome | None = None
    _error: str | None = None
    _detail: str = ""
    _status: int | None = None
    _sent: int = 0
    _received: int = 0

    async def run(self, http: aiohttp.ClientSession, url: str, body: bytes) -> None:
        """Send it and read until it ends, in whatever way; never raises but for a cancellation from outside."""
        self.started_at, self._sent = utc_now(), len(body)
        self._start = self._progress = time.monotonic()
        deadline, stall = asyncio.timeout(self.limits.deadline_s), asyncio.timeout(self.limits.stall_after_s)
        try:
            async with deadline, stall, http.post(url, data=body, headers={"X-Request-Id": self.id}) as response:
                await self._read(response, stall)
        except TimeoutError as error:
            self._gave_up(error, late=deadline.expired())
        except asyncio.CancelledError:
            self._fail("cancelled", "interrupted")
            raise
        except EngineError as error:
            self._fail("failed", "garbage", error.problem)
        except aiohttp.ClientPayloadError as error:
            reset = "ConnectionResetError" in str(error)
            self._fail("failed" if reset else "truncated", "reset" if reset else "truncated", str(error))
        except (aiohttp.ClientError, OSError, ValueError) as error:
            self._fail("failed", _kind(error), str(error))

    async def _read(self, response: aiohttp.ClientResponse, stall: asyncio.Timeout) -> None:
        self._status = response.status
        self.simulated = _SIMULATED in response.headers
        if response.status != 200:
            text = await response.content.read(2000)
            self._fail("failed", f"http_{response.status}", text.decode(errors="replace"))
            response.close()
            return
        if response.content_type != "text/event-stream":
            self._fail("failed", "not_sse", f"Content-Type is {response.content_type}")
            response.close()
            return
        loop = asyncio.get_running_loop()
        stream, limits = self.stream, self.limits
        async for data in response.content.iter_any():
            now = time.monotonic()
            self._received += len(data)
            n_events = stream.n_events
            n_tokens = stream.feed(data)
            if stream.n_events > n_events:
                self._progress = now
                stall.reschedule(loop.time() + limits.stall_after_s)
            if n_tokens:
                self._arrivals.extend([now] * n_tokens)
            if stream.done and self._end is None:
                self._end = now
            if self._must_stop():
                response.close()
                return
        self._ended()

    def _must_stop(self) -> bool:
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
        return self._outcome is not None

    def _ended(self) -> None:
        """The body is whole as HTTP; was it whole as a stream?"""
        stream = self.stream
        if stream.finish_reason in _NO_GOOD_END:
            self._fail("failed", "aborted", f"finish_reason is {stream.finish_reason}")
        elif stream.done or stream.finish_reason is not None:
            self._outcome = "completed"
        elif stream.n_events == 0 and self._received:
            self._fail("failed", "garbage", "no event in the whole body")
        else:
            self._fail("truncated", "truncated", "the body ended without finish_reason or [DONE]")

    def _gave_up(self, error: TimeoutError, *, late: bool) -> None:
        if isinstance(error, aiohttp.ServerTimeoutError):
            self._fail("failed", "connect_timeout", str(error))
        elif late:
            self._fail("failed", "deadline", f"still going after {self.limits.deadline_s:g} s")
        elif self._status is None:
            self._fail("stalled", "no_headers")
        elif self.stream.done or self.stream.finish_reason is not None:
            self._fail("stalled", "no_end", "the last token had come, the end of the stream had not")
        elif self.stream.is_garbage or (self._received and not self.stream.n_events and not self.stream.n_comments):
            self._fail("failed", "garbage", f"{self._received} bytes without an event")
        elif self.stream.n_events == 0:
            self._fail("stalled", "no_first_byte")
        else:
            self._fail("stalled", "stalled", f"silent after {self.stream.n_token_chunks} tokens")

    def _fail(self, outcome: Outcome, error: str | None, detail: str = "") -> None:
        self._outcome, self._error, self._detail = outcome, error, redact_text(detail[:400])[:200]

    def record(self) -> RequestRecord:
        """What is known of it now."""
        now = time.monotonic()
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
            ttft_s=round(arrivals[0] - self._start, 6) if arrivals else None,
            gaps_s=tuple(round(later - sooner, 6) for sooner, later in pairwise(arrivals)),
            n_prompt_tokens=stream.usage.prompt_tokens if stream.usage else None,
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


def _kind(error: Exception) -> str:
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "no_address"
    if isinstance(error, aiohttp.ClientConnectorError):
        return "refused" if isinstance(error.os_error, ConnectionRefusedError) else "unreachable"
    if isinstance(error, aiohttp.ServerDisconnectedError | aiohttp.ClientOSError | ConnectionError):
        return "reset"
    if isinstance(error, aiohttp.ClientResponseError):
        return "not_http"
    return type(error).__name__
