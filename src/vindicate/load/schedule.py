"""A rate and a manner of arriving, or a trace file → when each request is meant to be sent, and what it says."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from vindicate.errors import MisuseError

__all__ = ["ARRIVALS", "Arrivals", "TraceLine", "arrival_times", "read_trace"]

Arrivals = Literal["poisson", "constant", "burst"]
ARRIVALS: tuple[Arrivals, ...] = ("poisson", "constant", "burst")
_BLOCK_WORDS = 512
_WORDS = "time way year work day world life hand part place case week system program question number night point home water room fact".split()


def arrival_times(
    rate: float, chance: random.Random, *, arrivals: Arrivals = "poisson", burst: int = 8, ramp_s: float = 0.0
) -> Iterator[float]:
    """Seconds since the beginning at which requests arrive, for ever; *rate* a second in the mean.

    Args:
        arrivals: ``poisson``: independent of one another, as many users are; ``constant``: evenly spaced; ``burst``: *burst* at once.
        ramp_s: So long the rate grows from nothing, in a line.

    Arrivals are drawn at rate 1 and brought to the wanted intensity by inverting its integral
    (Çinlar, *Introduction to Stochastic Processes*, 1975, section 4.7): half of *rate · ramp_s* arrive during the ramp.
    """
    during_ramp = rate * ramp_s / 2
    drawn = 0.0
    while True:
        for _ in range(burst if arrivals == "burst" else 1):
            yield (2 * drawn * ramp_s / rate) ** 0.5 if drawn < during_ramp else ramp_s / 2 + drawn / rate
        drawn += chance.expovariate(1.0) if arrivals == "poisson" else float(burst if arrivals == "burst" else 1)


class TraceLine(msgspec.Struct, frozen=True):
    """One request of a trace, as Mooncake writes them, or with its text.

    Attributes:
        timestamp: Milliseconds, as in Mooncake's files; *at_s* says it in seconds.
        input_length: Tokens of the prompt, where no *prompt* is given; a made-up word stands for each.
        hash_ids: One for each 512 tokens of the prompt: equal ids are equal text, so that prefixes are shared as in the original.
        output_length: Tokens to generate at most.
    """

    timestamp: float | None = None
    at_s: float | None = None
    prompt: str | None = None
    input_length: int | None = None
    hash_ids: tuple[int, ...] = ()
    output_length: int | None = None

    @property
    def due_s(self) -> float | None:
        """When it was sent, in seconds."""
        return self.at_s if self.at_s is not None or self.timestamp is None else self.timestamp / 1000

    def text(self, seed: int, number: int) -> str:
        """What it says."""
        if self.prompt is not None:
            return self.prompt
        words: list[str] = []
        length = self.input_length or 1
        for name in self.hash_ids or (f"line {number}",):
            chance = random.Random(f"{seed}/{name}")  # noqa: S311 made-up words
            words += chance.choices(_WORDS, k=_BLOCK_WORDS if self.hash_ids else length)
        return " ".join(words[:length])


def read_trace(path: Path) -> tuple[TraceLine, ...]:
    """Read a trace, a JSON object a line, in the order of time; the first is sent at once.

    Raises:
        MisuseError: It cannot be read, or a line has no time or no prompt.
    """
    remedy = 'a line is {"timestamp": MS, "input_length": N, "output_length": M} or {"at_s": S, "prompt": "…"}'
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise MisuseError(f"{path}: cannot be read: {error.strerror}", remedy="check the path") from error
    found = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            read = msgspec.json.decode(line, type=TraceLine)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise MisuseError(f"{path}:{number}: {error}", remedy=remedy) from error
        if read.due_s is None or read.due_s < 0 or (read.prompt is None and (read.input_length or 0) < 1):
            raise MisuseError(
                f"{path}:{number} has no time from 0 on, or neither prompt nor input_length", remedy=remedy
            )
        if read.output_length is not None and read.output_length < 1:
            raise MisuseError(f"{path}:{number}: output_length is {read.output_length}", remedy=remedy)
        found.append(read)
    if not found:
        raise MisuseError(f"{path} holds no request", remedy=remedy)
    first = min(line.due_s or 0.0 for line in found)
    shifted = (msgspec.structs.replace(line, at_s=(line.due_s or 0.0) - first) for line in found)
    return tuple(sorted(shifted, key=lambda line: line.due_s or 0.0))
