"""A prompt → its keys and values → the tokens that follow: a constructed rule that copies from the context.

`Model` is the seam. Two models answer by the same rule, from the KV bytes alone, because they are all that decode gets; so a lost or
altered KV shows as a wrong answer. `AttentionModel` (in `induction`) finds the answer by real attention, on ``--device cpu``. `CopyModel`
is its shortcut, for devices that are simulated: it reads the rule off the text, in microseconds, and a test holds its tokens against
those of attention in float64.

The rule:

1. A token is a piece of text: at most one space and up to 15 other characters; joined, the tokens are the text again.
2. The KV of `CopyModel` is one block of 64 bytes a token, which holds its text; that of `AttentionModel` is described there.
3. The question is the text after the last user mark (all of it, when there is none).
4. The context *defines* a key wherever it says ``value of KEY is VALUE`` or ``KEY=VALUE``; the last definition counts. Full stops,
   commas and the like at a value's end do not belong to it.
5. The key asked for is the last word of the question that is a defined key, definitions inside the question left aside.
6. The answer is that key's value, if any; then come FILLER words, round and round. Where a trained model would end its answer,
   after FILLER_LEN of them, the token is `None`; with ``ignore_eos`` the engine passes over it and goes on.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Final, Protocol, TypeVar

__all__ = [
    "BLOCK_BYTES",
    "FILLER",
    "FILLER_LEN",
    "TOKEN_LEN",
    "USER_MARK",
    "CopyModel",
    "Definition",
    "Model",
    "after_answer",
    "asked_for",
    "definitions",
    "tokenize",
]

BLOCK_BYTES: Final = 64
USER_MARK: Final = "<|user|>\n"
FILLER: Final = (" as", " was", " said", " above;")
FILLER_LEN: Final = 16
TOKEN_LEN: Final = 15

_TOKEN = re.compile(rf"\s?\S{{1,{TOKEN_LEN}}}|\s")
_DEFINITION = re.compile(r"value of\s+(?P<key>[\w.:/-]+)\s+is\s+(?P<value>\S+)|(?P<name>[\w.:/-]+)=(?P<given>\S+)")
_WORD = re.compile(r"[\w.:/-]+")
_TAIL = ".,;:!?\"'"


AnswerT = TypeVar("AnswerT")


class Model(Protocol[AnswerT]):
    """Which tokens come next. *AnswerT* is what a model keeps of an answer that is under way."""

    def prefill(self, prompt: str) -> bytes:
        """The KV of *prompt*: all that decode will know of it."""

    def begin(self, kv: bytes) -> AnswerT:
        """Take *kv* in; nothing is held before the first `advance`.

        Raises:
            ValueError: *kv* is no KV of this model.
        """

    def advance(self, answers: Sequence[AnswerT]) -> list[str | None]:
        """The next token of each, without end; `None` once in each, where the answer is complete."""

    def end(self, answer: AnswerT) -> None:
        """Give back what *answer* holds; a second time does nothing."""

    def n_pages(self) -> int:
        """Pages of KV that answers hold now."""


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

    def advance(self, answers: Sequence[Iterator[str | None]]) -> list[str | None]:
        """See `Model.advance`."""
        return [next(answer) for answer in answers]

    def end(self, answer: Iterator[str | None]) -> None:
        """Nothing is held."""

    def n_pages(self) -> int:
        """None: it keeps text."""
        return 0


def _continue(context: str) -> Iterator[str | None]:
    asked = asked_for(context, definitions(context))
    yield from tokenize("" if asked is None else context[asked.start : asked.stop])
    yield from after_answer()


def after_answer() -> Iterator[str | None]:
    """What follows where the context holds no more of an answer: FILLER_LEN filler words, `None`, and filler words for ever."""
    words = cycle(FILLER)
    yield from islice(words, FILLER_LEN)
    yield None
    yield from words


@dataclass(frozen=True, slots=True)
class Definition:
    """Where a context gives *key* a value: its characters *start* to *stop*. *turn* is 1 the first time, then 2."""

    key: str
    turn: int
    start: int
    stop: int


def definitions(context: str) -> list[Definition]:
    """Every definition, left to right."""
    found = []
    turns: Counter[str] = Counter()
    for match in _DEFINITION.finditer(context):
        key, value = (match["key"], "value") if match["key"] else (match["name"], "given")
        key = key.rstrip(_TAIL)
        turns[key] += 1
        start = match.start(value)
        found.append(Definition(key, turns[key], start, start + len(match[value].rstrip(_TAIL))))
    return found


def asked_for(context: str, found: Sequence[Definition]) -> Definition | None:
    """Which of the definitions *found* in it the context's question asks for: the last one of its last word that has any."""
    last = {definition.key: definition for definition in found}
    question = _DEFINITION.sub(" ", context.rpartition(USER_MARK)[2])
    asked = (word.rstrip(_TAIL) for word in reversed(_WORD.findall(question)))
    return next((last[word] for word in asked if word in last), None)


def tokenize(text: str) -> list[str]:
    """Cut *text* into tokens; joined, they are *text* again.

    Example:
        >>> tokenize("what is KEY-1?")
        ['what', ' is', ' KEY-1?']
    """
    return _TOKEN.findall(text)
