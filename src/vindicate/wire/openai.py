"""Bytes of an OpenAI-compatible stream, chat or plain completion → token texts, finish, usage, end, errors; no input or output."""

from dataclasses import dataclass, field
from typing import Any

import msgspec

from vindicate.redact import redact_text
from vindicate.wire.sse import SseParser

__all__ = ["DONE", "OpenAIStream", "Usage"]

DONE = "[DONE]"


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts as the server gives them in its last chunk."""

    prompt_tokens: int | None
    completion_tokens: int | None


@dataclass(slots=True)
class OpenAIStream:
    """What has come of one stream so far.

    A chunk counts as a token chunk when it carries text, reasoning or a tool call; a chunk with only a role does not.

    Attributes:
        n_events: Events with data, `[DONE]` included, heartbeats not.
        n_token_chunks: Chunks that carried text; a chunk may hold several tokens.
        done: `[DONE]` was seen.
        error: The server's own error object inside the stream, redacted, shortened.
        garbage: The first event that was neither JSON nor `[DONE]`, redacted, shortened.
    """

    n_events: int = 0
    n_token_chunks: int = 0
    texts: list[str] = field(default_factory=list)
    finish_reason: str | None = None
    usage: Usage | None = None
    model: str | None = None
    done: bool = False
    error: str | None = None
    garbage: str | None = None
    _parser: SseParser = field(default_factory=SseParser)

    def feed(self, data: bytes) -> int:
        """Take the next bytes; give the number of token chunks among the events that they completed.

        Raises:
            EngineError: They are no event stream.
        """
        before = self.n_token_chunks
        for event in self._parser.feed(data):
            self.n_events += 1
            if event.data.strip() == DONE:
                self.done = True
            elif event.name == "error":
                self.error = _short(event.data)
            else:
                self._chunk(event.data)
        return self.n_token_chunks - before

    @property
    def text(self) -> str:
        """All text so far."""
        return "".join(self.texts)

    @property
    def n_comments(self) -> int:
        """Comment lines so far: heartbeats."""
        return self._parser.n_comments

    @property
    def is_garbage(self) -> bool:
        """Whether bytes have come that hold no event, and no heartbeat alone either."""
        return self.n_events == 0 and self._parser.n_strange > 0

    @property
    def n_tokens(self) -> int:
        """Completion tokens: the server's own count where it gave one, else the chunks that carried text."""
        counted = self.usage.completion_tokens if self.usage else None
        return self.n_token_chunks if counted is None else counted

    def _chunk(self, text: str) -> None:
        try:
            chunk = msgspec.json.decode(text)
        except msgspec.DecodeError:
            chunk = None
        if not isinstance(chunk, dict):
            self.garbage = self.garbage or _short(text)
            return
        if chunk.get("error") or chunk.get("object") == "error":
            self.error = _short(_message(chunk.get("error") or chunk))
            return
        self.model = self.model or _text(chunk.get("model"))
        usage = chunk.get("usage")
        if isinstance(usage, dict):
            self.usage = Usage(_count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens")))
        choices = chunk.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict):
                self._choice(choice)

    def _choice(self, choice: dict[str, Any]) -> None:
        delta = choice.get("delta")
        source = delta if isinstance(delta, dict) else choice
        text = _text(source.get("content")) or _text(source.get("text"))
        if text:
            self.texts.append(text)
        if text or source.get("reasoning_content") or source.get("reasoning") or source.get("tool_calls"):
            self.n_token_chunks += 1
        self.finish_reason = _text(choice.get("finish_reason")) or self.finish_reason


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _message(error: Any) -> str:
    message = error.get("message") if isinstance(error, dict) else error
    return message if isinstance(message, str) else str(error)


def _short(text: str) -> str:
    return redact_text(text[:400])[:200]
