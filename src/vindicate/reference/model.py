"""A prompt → its keys and values → the tokens that follow: a constructed rule that copies from the context.

`Model` is the seam: a real attention model replaces `CopyModel` and nothing around it changes. Whoever implements it must answer
from the KV bytes alone, because they are all that decode gets; so a lost or altered KV shows as a wrong answer.

The rule of `CopyModel`:

1. A token is a piece of text: at most one space and up to 15 other characters; joined, the tokens are the text again.
2. The KV of a token is one block of 64 bytes that holds its text.
3. The question is the text after the last user mark (all of it, when there is none).
4. The context *defines* a key wherever it says ``value of KEY is VALUE`` or ``KEY=VALUE``; the last definition counts. Full stops,
   commas and the like at a value's end do not belong to it.
5. The key asked for is the last word of the question that is a defined key, definitions inside the question left aside.
6. The answer is that key's value, if any; then come FILLER words, round and round. Where a trained model would end its answer,
   after FILLER_LEN of them, the token is `None`; with ``ignore_eos`` the engine passes over it and goes on.
"""

import re
from collections.abc import Iterator
from itertools import cycle, islice
from typing import Final, Protocol

__all__ = ["BLOCK_BYTES", "FILLER", "FILLER_LEN", "USER_MARK", "CopyModel", "Model", "tokenize"]

BLOCK_BYTES: Final = 64
USER_MARK: Final = "<|user|>\n"
FILLER: Final = (" as", " was", " said", " above;")
FILLER_LEN: Final = 16

_TOKEN = re.compile(r"\s?\S{1,15}|\s")
_DEFINITION = re.compile(r"value of\s+(?P<key>[\w.:/-]+)\s+is\s+(?P<value>\S+)|(?P<name>[\w.:/-]+)=(?P<given>\S+)")
_WORD = re.compile(r"[\w.:/-]+")
_TAIL = ".,;:!?\"'"


class Model(Protocol):
    """Which token comes next."""

    def prefill(self, prompt: str) -> bytes:
        """The KV of *prompt*: all that decode will know of it."""

    def begin(self, kv: bytes) -> Iterator[str | None]:
        """The tokens that follow a prompt, without end; `None` once, where the answer is complete.

        Raises:
            ValueError: *kv* is no KV of this model.
        """


class CopyModel:
    """Copies the value of the key that it is asked for out of the KV; see the module's docstring for the rule."""

    def prefill(self, prompt: str) -> bytes:
        """One block a token: a length byte, the text in UTF-8, zeros."""
        texts = (token.encode(errors="replace") for token in tokenize(prompt))
        return b"".join(bytes([len(text)]) + text.ljust(BLOCK_BYTES - 1, b"\0") for text in texts)

    def begin(self, kv: bytes) -> Iterator[str | None]:
        """The answer, FILLER_LEN filler words, `None`, and filler words for ever.

        Raises:
            ValueError: *kv* is not made of whole blocks.
        """
        if len(kv) % BLOCK_BYTES:
            raise ValueError(f"{len(kv)} bytes of KV are no whole blocks of {BLOCK_BYTES}")
        blocks = (kv[start : start + BLOCK_BYTES] for start in range(0, len(kv), BLOCK_BYTES))
        context = b"".join(block[1 : 1 + block[0]] for block in blocks).decode(errors="replace")
        return _continue(context)


def _continue(context: str) -> Iterator[str | None]:
    yield from tokenize(_answer(context))
    words = cycle(FILLER)
    yield from islice(words, FILLER_LEN)
    yield None
    yield from words


def _answer(context: str) -> str:
    defined = {
        (match["key"] or match["name"]).rstrip(_TAIL): (match["value"] or match["given"]).rstrip(_TAIL)
        for match in _DEFINITION.finditer(context)
    }
    question = _DEFINITION.sub(" ", context.rpartition(USER_MARK)[2])
    asked = (word.rstrip(_TAIL) for word in reversed(_WORD.findall(question)))
    return next((defined[word] for word in asked if word in defined), "")


def tokenize(text: str) -> list[str]:
    """Cut *text* into tokens; joined, they are *text* again.

    Example:
        >>> tokenize("what is KEY-1?")
        ['what', ' is', ' KEY-1?']
    """
    return _TOKEN.findall(text)
