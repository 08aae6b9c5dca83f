"""One request inside an engine: which stage of the PD life cycle it is in, and the tokens that it has got."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from vindicate.errors import BugError
from vindicate.reference.openai import Order
from vindicate.reference.stop import StopStrings

__all__ = ["LIFE", "End", "Sequence", "Stage"]


class Stage(StrEnum):
    """Where a sequence is; the names are SGLang's."""

    BOOTSTRAP = "bootstrap"
    PREALLOC = "prealloc"
    TRANSFER = "transfer"
    WAITING = "waiting"
    RUNNING = "running"
    INFLIGHT = "inflight"
    DONE = "done"


# A sequence goes one stage on, or straight to the last one; never back.
LIFE: Mapping[str, tuple[Stage, ...]] = MappingProxyType(
    {
        "prefill": (Stage.BOOTSTRAP, Stage.WAITING, Stage.RUNNING, Stage.INFLIGHT, Stage.DONE),
        "decode": (Stage.PREALLOC, Stage.TRANSFER, Stage.WAITING, Stage.RUNNING, Stage.DONE),
    }
)


@dataclass(frozen=True, slots=True)
class End:
    """Why a sequence ended: ``stop``, ``length``, ``abort``, or ``error`` with an HTTP status and a text.

    Attributes:
        matched: The stop string that it reached.
    """

    reason: str
    status: int = 200
    message: str = ""
    matched: str | None = None


@dataclass(slots=True, eq=False)
class Sequence:
    """A request on its way through one engine.

    Attributes:
        number: 1 for the first request that this engine took, 2 for the second, …
        n_prompt: Tokens of prompt.
        answer: What the model keeps of the answer, once the KV is there.
        kv, computed: What prefill computed, and whether it is there.
        n_reserved: Tokens of decode's memory that it holds.
        stops: Holds back what may turn out to be a stop string.
        stop: Set when it must leave the running batch at the end of the step.
        events: Tokens, then one `End`; read by whoever answers the request.
    """

    order: Order
    role: str
    number: int
    n_prompt: int
    started: float = field(default_factory=time.monotonic)
    n_output: int = 0
    first_token_at: float | None = None
    last_token_at: float = 0.0
    answer: Any = None
    kv: bytes = b""
    n_reserved: int = 0
    stop: End | None = None
    computed: asyncio.Event = field(default_factory=asyncio.Event)
    events: asyncio.Queue[str | End] = field(default_factory=asyncio.Queue)
    task: asyncio.Task[None] | None = None
    stops: StopStrings = field(init=False)
    stage: Stage = field(init=False)

    def __post_init__(self) -> None:
        self.stops = StopStrings(self.order.stop)
        self.stage = LIFE[self.role][0]

    def move(self, stage: Stage) -> None:
        """Go on to *stage*.

        Raises:
            BugError: It is not the next one; nothing is changed.
        """
        life = LIFE[self.role]
        here = life.index(self.stage)
        if self.stage is Stage.DONE or (stage is not Stage.DONE and stage is not life[here + 1]):
            raise BugError(
                f"a {self.role} sequence cannot go from {self.stage} to {stage}",
                remedy="report it with the engine's log",
            )
        self.stage = stage

    def emit(self, token: str, now: float) -> str | None:
        """Hand *token* to whoever answers the request, as far as no stop string holds it back; the stop string that was reached."""
        self.n_output += 1
        if self.first_token_at is None:
            self.first_token_at = now
        self.last_token_at = now
        text, matched = self.stops.passes(token) if self.order.stop else (token, None)
        if text:
            self.events.put_nowait(text)
        return matched

    def end(self, end: End) -> None:
        """Close the life; a second end is ignored, because the first one is the cause."""
        if self.stage is not Stage.DONE:
            self.move(Stage.DONE)
            if rest := self.stops.rest():
                self.events.put_nowait(rest)
            self.events.put_nowait(end)
