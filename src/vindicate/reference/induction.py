"""A prompt → pages of keys and values → the tokens that follow, found by attention with constructed weights: an induction head.

The rule is the one of `model`; here its copying is done by attention over the KV, byte by byte.

- **A row a byte.** Row 0 is the sink; row t + 1 belongs to byte t of the prompt's UTF-8. A row is a key and a value of WIDTH numbers in
  float32, and PAGE rows are a page.
- **A key says what led to its byte**: a code of ±1, the bits of a 64-bit hash, the last of them left out. Inside a defined value the
  hash is of the definition and of how many bytes of the value came before; the definition is its key and how often that key was defined
  so far, so that the last one can be told from those before it. Everywhere else it is of the 8 bytes before.
- **A value says which byte it is**: its 8 bits as ±1, each of them REPEATS times.
- **A query asks for what comes next**: the code of the definition asked for and of a byte's place in its value, times SHARPNESS, and
  SHARPNESS in the last number. HEADS queries share the one head of keys and values and ask for HEADS bytes in a row, so that a token
  takes one pass (more where its characters are wider than one byte).
- **The sink** has a key of zeros but for its last number, so that every query gives it the same logit: below that of a code that is
  equal in all 63 bits, above that of one that differs in more than 4. Its value is zeros, which is no byte: the context says nothing,
  and the filler rule answers.
- A key that matches beats the sink by 32, so what 131,072 other rows add is under 10⁻⁸, and rounding to bits gives the byte exactly,
  in float32 as in float64.

What the layers below such a head would do in a trained model is done by the rule itself: finding definitions, and which of them the
question asks for. That last thing, 8 bytes of it, is the state of the last position; it goes with the pages, as decode's first input does
in a real engine. Every token that is generated adds its rows to the request's pages.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final

import numpy as np
from numpy.typing import NDArray

from vindicate.reference.attention import PAGE, Attend, Floats
from vindicate.reference.model import TOKEN_LEN, Definition, after_answer, asked_for, definitions
from vindicate.reference.pages import Pages, Pool, table_of

__all__ = ["HEADS", "WIDTH", "Answer", "AttentionModel"]

WIDTH: Final = 64
HEADS: Final = 16
SHARPNESS: Final = 4.0
REPEATS: Final = WIDTH // 8
_CONTEXT: Final = 8
_SINK: Final = WIDTH - 1 - 2 * 4
_MAGIC: Final = b"VAI1"
_HEADER: Final = struct.Struct("<4sIQ")
_NOTHING_ASKED: Final = 0

Hashes = NDArray[np.uint64]


@dataclass(slots=True, eq=False)
class Answer:
    """An answer under way.

    Attributes:
        kv: What came from prefill, until it is in pages.
        asked: Hash of the definition asked for.
        offset: Bytes of its value that are said.
        said: The last bytes that were generated, for the keys of the next ones.
    """

    kv: bytes
    n_rows: int
    asked: int
    pages: Pages
    offset: int = 0
    said: bytes = b""
    after: Iterator[str | None] = field(default_factory=after_answer)
    copying: bool = True


class AttentionModel:
    """Answers by *attend* over pages that all its answers share; see the module's docstring."""

    def __init__(self, attend: Attend) -> None:
        self._attend = attend
        self.pool = Pool(WIDTH)

    def prefill(self, prompt: str) -> bytes:
        """A header (magic, rows, what is asked for), then page after page: its keys, its values, the last one filled up with zeros."""
        text = prompt.encode(errors="replace").decode()
        data = text.encode()
        found = definitions(text)
        asked = asked_for(text, found)
        hashes = _context_hashes(data)
        for definition, start, stop in _byte_spans(text, found):
            hashes[start:stop] = _value_hashes(np.array([_hash(definition)], np.uint64), 0, stop - start)[0]
        n_rows = 1 + len(data)
        pages = np.zeros((-(-n_rows // PAGE), 2, PAGE, WIDTH), np.float32)
        keys, values = np.zeros((2, len(pages) * PAGE, WIDTH), np.float32)
        keys[0, -1] = _SINK
        keys[1:n_rows] = _codes(hashes)
        values[1:n_rows] = _bits(data)
        pages[:, 0] = keys.reshape(-1, PAGE, WIDTH)
        pages[:, 1] = values.reshape(-1, PAGE, WIDTH)
        return _HEADER.pack(_MAGIC, n_rows, _NOTHING_ASKED if asked is None else _hash(asked)) + pages.tobytes()

    def begin(self, kv: bytes) -> Answer:
        """See `Model.begin`.

        Raises:
            ValueError: *kv* is not what `prefill` wrote.
        """
        if len(kv) < _HEADER.size:
            raise ValueError(f"{len(kv)} bytes are no KV of this model")
        magic, n_rows, asked = _HEADER.unpack_from(kv)
        n_bytes = -(-n_rows // PAGE) * 2 * PAGE * WIDTH * 4
        if magic != _MAGIC or len(kv) - _HEADER.size != n_bytes:
            raise ValueError(f"{len(kv)} bytes, {kv[:4]!r} first, are no KV of this model with {n_rows} rows")
        return Answer(kv, n_rows, asked, Pages(self.pool))

    def advance(self, answers: Sequence[Answer]) -> list[str | None]:
        """See `Model.advance`: one pass of attention for all of them, and more for those whose next characters are wide."""
        if not answers:
            return []
        for answer in answers:
            self._take_in(answer)
        tokens = [
            self._token(answer, bytes_) for answer, bytes_ in zip(answers, self._next_bytes(answers), strict=True)
        ]
        for answer, token in zip(answers, tokens, strict=True):
            if token:
                _append(answer, token.encode())
        return tokens

    def end(self, answer: Answer) -> None:
        """Give the pages back."""
        answer.kv = b""
        answer.n_rows = 0
        answer.pages.release()

    def n_pages(self) -> int:
        """See `Model.n_pages`."""
        return self.pool.n_taken

    @staticmethod
    def _take_in(answer: Answer) -> None:
        if answer.kv:
            pages = np.frombuffer(answer.kv, np.float32, offset=_HEADER.size).reshape(-1, 2, PAGE, WIDTH)
            keys, values = (pages[:, which].reshape(-1, WIDTH)[: answer.n_rows] for which in (0, 1))
            answer.pages.append(keys, values)
            answer.kv = b""

    @staticmethod
    def _token(answer: Answer, copied: bytes) -> str | None:
        """The next token: what was copied, or what follows when there is nothing more to copy."""
        if answer.copying and copied:
            token = copied.decode(errors="replace")[:TOKEN_LEN]
            answer.offset += len(token.encode())
            return token
        answer.copying = False
        return next(answer.after)

    def _next_bytes(self, answers: Sequence[Answer]) -> list[bytes]:
        """At least the bytes of the next token of each, as far as its context has them."""
        got = self._pass(answers, [0] * len(answers))
        # Wide characters: as long as a pass gave all that it could, and that is less than a token and a character, there may be more.
        open_ = [at for at, bytes_ in enumerate(got) if answers[at].copying and len(bytes_) == HEADS]
        while open_ := [at for at in open_ if len(got[at].decode(errors="replace")) <= TOKEN_LEN]:
            more = self._pass([answers[at] for at in open_], [len(got[at]) for at in open_])
            for at, bytes_ in zip(open_, more, strict=True):
                got[at] += bytes_
            open_ = [at for at, bytes_ in zip(open_, more, strict=True) if len(bytes_) == HEADS]
        return got

    def _pass(self, answers: Sequence[Answer], ahead: Sequence[int]) -> list[bytes]:
        """One pass of attention: the HEADS bytes of each answer's value from *ahead* of where it is on, or fewer at the value's end."""
        asked = np.array([answer.asked for answer in answers], np.uint64)
        offsets = np.array([answer.offset + extra for answer, extra in zip(answers, ahead, strict=True)])
        queries = SHARPNESS * _codes(_value_hashes(asked, offsets[:, None], HEADS))
        queries[..., -1] = SHARPNESS
        table, lengths = table_of([answer.pages for answer in answers])
        taken = self._attend(queries[:, None].astype(np.float32), self.pool.keys, self.pool.values, table, lengths)
        return [_read(row) for row in taken[:, 0]]


def _append(answer: Answer, said: bytes) -> None:
    hashes = _context_hashes(answer.said + said)[len(answer.said) :]
    answer.pages.append(_codes(hashes), _bits(said))
    answer.said = (answer.said + said)[-_CONTEXT:]


# ---- hashes and codes ------------------------------------------------------------------------------------------------


def _hash(definition: Definition) -> int:
    """64 bits of which definition it is: its key, and how often that was defined."""
    return int.from_bytes(blake2b(f"{definition.turn} {definition.key}".encode(), digest_size=8).digest())


def _mixed(hashes: Hashes) -> Hashes:
    """The finalizer of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014)."""
    hashes = (hashes ^ (hashes >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    hashes = (hashes ^ (hashes >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return hashes ^ (hashes >> np.uint64(31))


def _value_hashes(asked: Hashes, offset: int | NDArray[np.int64], count: int) -> Hashes:
    """What leads to bytes *offset*, *offset* + 1, … of the value of each definition in *asked*: a row of *count* for each."""
    places = (np.arange(1, count + 1) + offset).astype(np.uint64)
    return _mixed(asked[:, None] + places * np.uint64(0x9E3779B97F4A7C15))


def _context_hashes(data: bytes) -> Hashes:
    """What leads to each byte of *data*: the 8 bytes before it."""
    before = np.lib.stride_tricks.sliding_window_view(np.frombuffer(bytes(_CONTEXT) + data, np.uint8), _CONTEXT)
    return _mixed(np.ascontiguousarray(before[: len(data)]).view(np.uint64)[:, 0])


def _codes(hashes: Hashes) -> Floats:
    """WIDTH numbers for each hash: its bits as ±1, and 0 for the last."""
    bits = np.unpackbits(np.ascontiguousarray(hashes)[..., None].view(np.uint8), axis=-1)
    codes = bits.astype(np.float32) * 2 - 1
    codes[..., -1] = 0
    return codes


def _bits(data: bytes) -> Floats:
    """WIDTH numbers for each byte: its bits as ±1, each REPEATS times."""
    bits = np.unpackbits(np.frombuffer(data, np.uint8)[:, None], axis=-1)
    return np.repeat(bits.astype(np.float32) * 2 - 1, REPEATS, axis=-1)


def _read(taken: Floats) -> bytes:
    """The bytes that attention found, up to the first place where it found none."""
    votes = taken.reshape(len(taken), 8, REPEATS).sum(axis=-1)
    is_byte = (np.abs(votes) > REPEATS / 2).all(axis=-1)
    n = len(is_byte) if is_byte.all() else int(is_byte.argmin())
    return np.packbits(votes[:n] > 0, axis=-1).tobytes()


def _byte_spans(text: str, found: Sequence[Definition]) -> Iterator[tuple[Definition, int, int]]:
    """Each definition with its value's place in bytes."""
    at = n_bytes = 0
    for definition in found:
        start = n_bytes + len(text[at : definition.start].encode())
        n_bytes = start + len(text[definition.start : definition.stop].encode())
        at = definition.stop
        yield definition, start, n_bytes
