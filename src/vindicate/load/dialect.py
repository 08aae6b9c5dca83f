"""Messages of a session → the path and body of a request, in the words of one of three interfaces."""

from collections.abc import Sequence
from typing import Literal

import msgspec

from vindicate.wire.openai import GenerateStream, OpenAIStream

__all__ = ["APIS", "Api", "Message", "request_of", "stream_of"]

Api = Literal["chat", "completions", "generate"]
APIS: tuple[Api, ...] = ("chat", "completions", "generate")
Message = dict[str, str]


def request_of(
    api: Api,
    model: str | None,
    messages: Sequence[Message],
    *,
    max_tokens: int,
    streaming: bool,
    ignore_eos: bool = False,
) -> tuple[str, bytes]:
    """Path and body: OpenAI chat, OpenAI completions, or SGLang's native `/generate`; the latter two get the messages as one text.

    *ignore_eos* is a word of SGLang's and vLLM's, and is left out where it is not asked for: other servers may refuse it.
    """
    fixed: dict[str, object] = {"ignore_eos": True} if ignore_eos else {}
    body: dict[str, object]
    text = "\n".join(message["content"] for message in messages)
    if api == "generate":
        sampling = {"max_new_tokens": max_tokens, "temperature": 0, **fixed}
        return "/generate", msgspec.json.encode({"text": text, "sampling_params": sampling, "stream": streaming})
    body = {"model": model, "max_tokens": max_tokens, "temperature": 0, "stream": streaming, **fixed}
    if streaming:
        body["stream_options"] = {"include_usage": True}
    if api == "chat":
        return "/v1/chat/completions", msgspec.json.encode({**body, "messages": messages})
    return "/v1/completions", msgspec.json.encode({**body, "prompt": text})


def stream_of(api: Api) -> OpenAIStream:
    """What reads the answer."""
    return GenerateStream() if api == "generate" else OpenAIStream()
