"""Bytes of an OpenAI-compatible stream, chat or plain completion → token texts, finish, usage, end, errors; no input or output."""

from dataclasses import dataclass, field
from typing import Any

import msgspec

from vindicate.redact import redact_text
from vindicate.wire.sse import SseParser

__all__ = ["DONE", "GenerateStream", "OpenAIStream", "Usage"]

DONE = "[DONE]"


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts as the server gives them in its last chunk; *cached_tokens*: prompt tokens that it had computed before."""

    prompt_tokens: int | None
    completion_tokens: int | None
    cached_tokens: int | None = None


class _Delta(msgspec.Struct):
    content: str


class _Choice(msgspec.Struct):
    delta: _Delta
    finish_reason: None = None


class _Token(msgspec.Struct):
    """A chat chunk that holds text and decides nothing; whatever else a chunk may be does not decode as this."""

    choices: tuple[_Choice, ...]
    error: None = None
    usage: None = None


_read_token = msgspec.json.Decoder(_Token).decode


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
        plain = self._parser.plain(data)
        if plain is not None:
            for text in plain:
                # Past the first, nearly every chunk is one token and nothing else.
                if self.model is None or not self._token(text):
                    self.take(text)
            return self.n_token_chunks - before
        for event in self._parser.feed(data):
            self.take(event.data, event.name)
        return self.n_token_chunks - before

    def feed_each(self, pieces: list[bytes]) -> list[int] | None:
        """:meth:`feed` several pieces of which each is one plain event, at once; ``None``, and nothing taken, when one is not.

        Returns:
            The number of token chunks in each piece.
        """
        if not all(piece.startswith(b"data: ") and piece.endswith(b"\n\n") for piece in pieces):
            return None
        whole = b"".join(pieces)
        texts = self._parser.plain(whole) if whole.count(b"\n") == 2 * len(pieces) else None
        if texts is None or len(texts) != len(pieces):
            return None
        found = []
        for text in texts:
            before = self.n_token_chunks
            if self.model is None or not self._token(text):
                self.take(text)
            found.append(self.n_token_chunks - before)
        return found

    def _token(self, text: str) -> bool:
        try:
            choices = _read_token(text).choices
        except (msgspec.DecodeError, RecursionError):
            return False
        if len(choices) != 1 or not (fresh := choices[0].delta.content):
            return False
        self.n_events += 1
        self.n_token_chunks += 1
        self.texts.append(fresh)
        return True

    def take(self, text: str, name: str = "message") -> None:
        """Take the payload of one event, or a whole answer that was not streamed."""
        self.n_events += 1
        if text.strip() == DONE:
            self.done = True
        elif name == "error":
            self.error = _short(text)
        else:
            self._chunk(text)

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
        except (msgspec.DecodeError, RecursionError):  # the latter: brackets nested a thousand deep
            chunk = None
        if not isinstance(chunk, dict):
            self.garbage = self.garbage or _short(text)
            return
        if chunk.get("error") or chunk.get("object") == "error":
            self.error = _short(_message(chunk.get("error") or chunk))
            return
        self._read(chunk)

    def _read(self, chunk: dict[str, Any]) -> None:
        self.model = self.model or _text(chunk.get("model"))
        usage = chunk.get("usage")
        if isinstance(usage, dict):
            details = usage.get("prompt_tokens_details")
            cached = _count(details.get("cached_tokens")) if isinstance(details, dict) else None
            self.usage = Usage(_count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens")), cached)
        choices = chunk.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict):
                self._choice(choice)

    def _choice(self, choice: dict[str, Any]) -> None:
        delta = choice.get("delta")
        if delta is None:
            delta = choice.get("message")  # an answer that was not streamed
        source = delta if isinstance(delta, dict) else choice
        text = source.get("content") or source.get("text")
        if text and isinstance(text, str):
            self.texts.append(text)
            self.n_token_chunks += 1
        elif source.get("reasoning_content") or source.get("reasoning") or source.get("tool_calls"):
            self.n_token_chunks += 1
        reason = choice.get("finish_reason")
        if reason is not None:
            self.finish_reason = _text(reason) or self.finish_reason


class GenerateStream(OpenAIStream):
    """The same for SGLang's native `/generate`, whose events hold all text so far, or with incremental output the new text."""

    def _read(self, chunk: dict[str, Any]) -> None:
        meta = chunk.get("meta_info")
        meta = meta if isinstance(meta, dict) else {}
        before, count = self.n_tokens if self.usage else 0, _count(meta.get("completion_tokens"))
        if count is not None:
            self.usage = Usage(_count(meta.get("prompt_tokens")), count, _count(meta.get("cached_tokens")))
        reason = meta.get("finish_reason")
        self.finish_reason = _text(reason.get("type") if isinstance(reason, dict) else reason) or self.finish_reason
        text, known = _text(chunk.get("text")) or "", self.text
        fresh = text.removeprefix(known)
        if fresh:
            self.texts.append(fresh)
        if fresh or (count or 0) > before:
            self.n_token_chunks += 1


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _message(error: Any) -> str:
    message = error.get("message") if isinstance(error, dict) else error
    return message if isinstance(message, str) else str(error)


def _short(text: str) -> str:
    return redact_text(text[:400])[:200]
