"""A request body → what is asked of the engine; tokens and an end → chunks and bodies of the OpenAI API; pure."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from vindicate.reference.model import USER_MARK

__all__ = ["DONE", "BadRequestError", "Order", "Writer", "error_body", "read_order"]

DONE = b"data: [DONE]\n\n"
_DEFAULT_MAX_TOKENS = 64


class BadRequestError(Exception):
    """The body cannot be served; the text says which field holds what."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What a request asks for, read and checked. *room* pairs its two legs; they meet at *bootstrap_host* and *_port*."""

    rid: str
    prompt: str
    chat: bool
    model: str
    max_tokens: int
    ignore_eos: bool
    stream: bool
    include_usage: bool
    stop: tuple[str, ...]
    bootstrap_host: str | None
    bootstrap_port: int | None
    room: int


def read_order(body: Any, *, chat: bool, model: str, request_id: str | None) -> Order:
    """Read the body of a chat completion or a completion.

    Args:
        body: Parsed JSON of any shape.
        model: Taken when the body names none.
        request_id: Taken as rid when the body has none.

    Raises:
        BadRequestError: A field is missing or cannot be what it is.
    """
    if not isinstance(body, dict):
        raise BadRequestError(f"the body is {type(body).__name__}, and should be an object")
    options = body.get("stream_options")
    return Order(
        rid=_typed(body, "rid", str, None) or request_id or uuid4().hex,
        prompt=_chat_prompt(body.get("messages")) if chat else _plain_prompt(body.get("prompt")),
        chat=chat,
        model=_typed(body, "model", str, None) or model,
        max_tokens=_max_tokens(body),
        ignore_eos=bool(body.get("ignore_eos", False)),
        stream=bool(body.get("stream", False)),
        include_usage=isinstance(options, dict) and bool(options.get("include_usage")),
        stop=_stop(body),
        bootstrap_host=_typed(body, "bootstrap_host", str, None),
        bootstrap_port=_typed(body, "bootstrap_port", int, None),
        room=_room(body),
    )


def _typed(body: Mapping[str, Any], name: str, kind: type, default: Any) -> Any:
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, kind) or isinstance(value, bool):
        raise BadRequestError(f"{name} is {value!r}, and should be {kind.__name__}")
    return value


def _stop(body: Mapping[str, Any]) -> tuple[str, ...]:
    stop = body.get("stop")
    stops = [] if stop is None else stop if isinstance(stop, list) else [stop]
    if not all(isinstance(each, str) and each for each in stops):
        raise BadRequestError(f"stop is {stop!r:.80}, and should be a text or a list of texts, none of them empty")
    return tuple(stops)


def _room(body: Mapping[str, Any]) -> int:
    room = _typed(body, "bootstrap_room", int, None)
    if room is None:
        raise BadRequestError(
            "a disaggregated engine got a request without bootstrap_room; send it through the router, "
            "or send both legs with bootstrap_host, bootstrap_port and the same bootstrap_room"
        )
    if not 0 <= room < 1 << 63:
        raise BadRequestError(f"bootstrap_room is {room}, and should have at most 63 bits")
    return int(room)


def _max_tokens(body: Mapping[str, Any]) -> int:
    name = "max_completion_tokens" if body.get("max_completion_tokens") is not None else "max_tokens"
    number = _typed(body, name, int, _DEFAULT_MAX_TOKENS)
    if number < 1:
        raise BadRequestError(f"{name} is {number}, and should be 1 or more")
    if body.get("n") not in (None, 1):
        raise BadRequestError(f"n is {body['n']!r}; this engine gives one choice")
    return int(number)


def _chat_prompt(messages: Any) -> str:
    if not isinstance(messages, list) or not messages:
        raise BadRequestError("messages is missing or empty, and should be a list of {role, content}")
    parts = []
    for message in messages:
        if not isinstance(message, dict):
            raise BadRequestError(f"messages holds {message!r}, and should hold {{role, content}}")
        mark = USER_MARK if message.get("role") == "user" else f"<|{message.get('role')}|>\n"
        parts.append(f"{mark}{_text(message.get('content'))}\n")
    return "".join(parts)


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return "" if content is None else str(content)


def _plain_prompt(prompt: Any) -> str:
    if not isinstance(prompt, str):
        raise BadRequestError(f"prompt is {prompt!r:.80}, and should be a text")
    return prompt


def error_body(message: str, status: int) -> dict[str, Any]:
    """An error as SGLang writes it."""
    kind = "BadRequestError" if status < 500 else "InternalServerError"
    return {"object": "error", "message": message, "type": kind, "param": None, "code": status}


class Writer:
    """Writes the answer to one order; what does not change from token to token is written once."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.created = int(time.time())
        token = self._chunk([self._choice({"content": "\0"} if order.chat else "\0", None)])
        self._before, _, self._after = token.rpartition(b'"\\u0000"')

    def role(self) -> bytes:
        """The first chunk of a chat: who speaks. Empty for a plain completion."""
        return self._chunk([self._choice({"role": "assistant", "content": ""}, None)]) if self.order.chat else b""

    def token(self, text: str) -> bytes:
        """One token."""
        return b"".join((self._before, json.dumps(text).encode(), self._after))

    def finish(self, reason: str, matched: str | None) -> bytes:
        """The chunk with the finish reason, and the stop string that was *matched*."""
        return self._chunk([self._choice({} if self.order.chat else "", reason) | {"matched_stop": matched}])

    def usage(self, n_prompt: int, n_output: int) -> bytes:
        """The chunk with the token counts, when it was asked for."""
        return self._chunk([], usage=_usage(n_prompt, n_output)) if self.order.include_usage else b""

    def error(self, message: str, status: int) -> bytes:
        """What a stream says that cannot go on."""
        return b"data: " + json.dumps({"error": error_body(message, status)}).encode() + b"\n\n"

    def whole(self, text: str, reason: str, matched: str | None, n_prompt: int, n_output: int) -> dict[str, Any]:
        """The body of an answer that is not streamed."""
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": reason, "matched_stop": matched}
        choice |= {"message": {"role": "assistant", "content": text}} if self.order.chat else {"text": text}
        kind = "chat.completion" if self.order.chat else "text_completion"
        return self._envelope(kind) | {"choices": [choice], "usage": _usage(n_prompt, n_output)}

    def _envelope(self, kind: str) -> dict[str, Any]:
        return {"id": self.order.rid, "object": kind, "created": self.created, "model": self.order.model}

    def _choice(self, delta: Any, reason: str | None) -> dict[str, Any]:
        name = "delta" if self.order.chat else "text"
        return {"index": 0, name: delta, "logprobs": None, "finish_reason": reason, "matched_stop": None}

    def _chunk(self, choices: list[Any], usage: dict[str, Any] | None = None) -> bytes:
        kind = "chat.completion.chunk" if self.order.chat else "text_completion"
        data = self._envelope(kind) | {"choices": choices, "usage": usage}
        return b"data: " + json.dumps(data).encode() + b"\n\n"


def _usage(n_prompt: int, n_output: int) -> dict[str, Any]:
    return {"prompt_tokens": n_prompt, "completion_tokens": n_output, "total_tokens": n_prompt + n_output}
