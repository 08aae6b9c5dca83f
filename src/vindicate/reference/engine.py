"""What prefill and decode have in common: sequences come in, live, and end exactly once, whatever ends them."""

import asyncio
import json
import logging
import os
import time
from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar

from vindicate.reference.device import Device
from vindicate.reference.kv import KvError
from vindicate.reference.metric import EngineMetrics
from vindicate.reference.model import Model, tokenize
from vindicate.reference.openai import BadRequestError, Order
from vindicate.reference.sequence import End, Sequence, Stage
from vindicate.reference.settings import Settings

__all__ = ["Engine", "Load"]

_LOG = logging.getLogger("vindicate.reference")
ABORTED = End("abort", 400, "the request was aborted")


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What an engine carries now. *written_at* is when its step loop last came round, in Unix time."""

    written_at: float
    stages: Counter[Stage]
    n_used_tokens: int
    gen_throughput: float
    idle_s: float


class Engine(ABC):
    """Sequences by rid, and a step loop; prefill and decode add what happens in between."""

    role: ClassVar[str]

    def __init__(self, settings: Settings, model: Model[Any], device: Device, metrics: EngineMetrics) -> None:
        self.settings = settings
        self.model = model
        self.device = device
        self.fault = settings.fault
        self.metrics = metrics
        self.live: dict[str, Sequence] = {}
        self.n_taken = 0
        self.gen_throughput = 0.0
        self.work = asyncio.Event()
        self._loop: asyncio.Task[None] | None = None
        self._passed_at = time.time()
        self._idle_since: float | None = time.monotonic()
        self._idle_s = 0.0

    # ---- what a role adds -----------------------------------------------------------------------------------------

    @abstractmethod
    async def live_through(self, sequence: Sequence) -> None:
        """Take *sequence* through its stages, up to where the step loop takes over.

        Raises:
            KvError: The other leg failed.
            TimeoutError: It never came.
        """

    @abstractmethod
    async def step(self) -> bool:
        """One pass of the step loop; false when there was nothing to do."""

    # ---- the door -------------------------------------------------------------------------------------------------

    def submit(self, order: Order) -> Sequence:
        """Take a request in.

        Raises:
            BadRequestError: Its rid is in use, or it could never fit.
        """
        if order.rid in self.live:
            raise BadRequestError(f"rid {order.rid!r} is in use by a request that is still running")
        n_prompt = len(tokenize(order.prompt))
        if n_prompt + order.max_tokens > self.settings.max_total_tokens:
            raise BadRequestError(
                f"{n_prompt} tokens of prompt and {order.max_tokens} to come are more than the {self.settings.max_total_tokens} that fit"
            )
        self.n_taken += 1
        sequence = Sequence(order, self.role, self.n_taken, n_prompt)
        self.live[order.rid] = sequence
        self._log_request("received", order.rid)
        sequence.task = asyncio.create_task(self._guard(sequence))
        return sequence

    def release(self, sequence: Sequence, end: End = ABORTED) -> None:
        """End *sequence* from outside, in whatever stage it is; nothing happens when it has ended."""
        if sequence.stage is not Stage.DONE:
            if sequence.task is not None:
                sequence.task.cancel()
            self.end(sequence, end)

    def abort(self, rid: str | None) -> None:
        """Release every sequence whose rid starts with *rid*, as SGLang matches; `None` is all of them."""
        for sequence in [each for each in self.live.values() if rid is None or each.order.rid.startswith(rid)]:
            self.release(sequence)

    def end(self, sequence: Sequence, end: End) -> None:
        """The one place where a sequence ends."""
        if sequence.stage is not Stage.DONE:
            sequence.end(end)
            del self.live[sequence.order.rid]
            self._log_request("finished", sequence.order.rid)
            self.metrics.ended(sequence, end)

    def _log_request(self, event: str, rid: str) -> None:
        """A line as of SGLang's `--log-requests-format json`, without what was asked."""
        if self.settings.log_requests:
            now = datetime.now().astimezone().isoformat()
            _LOG.info(json.dumps({"timestamp": now, "event": f"request.{event}", "rid": rid}))

    async def _guard(self, sequence: Sequence) -> None:
        try:
            await self.live_through(sequence)
        except (KvError, ValueError) as error:
            self._fail(sequence, str(error))
        except TimeoutError:
            self._fail(sequence, f"{self.role} waited too long for the other leg in stage {sequence.stage}")
        except Exception as error:  # noqa: BLE001
            # A request that fails through a fault of ours must still be answered.
            _LOG.exception("%s", sequence.order.rid)
            self._fail(sequence, f"{type(error).__name__}: {error}")

    def _fail(self, sequence: Sequence, message: str) -> None:
        _LOG.warning("%s: %s", sequence.order.rid, message)
        self.metrics.failed(sequence)
        self.end(sequence, End("error", 500, message))

    # ---- the step loop --------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin to step."""
        self._loop = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Stop stepping, and end what still lives."""
        self.abort(None)
        if self._loop is not None:
            self._loop.cancel()
            await asyncio.wait([self._loop])

    async def _run(self) -> None:
        try:
            await self._step_for_ever()
        except Exception:  # noqa: BLE001
            # An engine whose step loop is broken must not go on looking healthy.
            _LOG.exception("the step loop failed")
            os._exit(70)

    async def _step_for_ever(self) -> None:
        while True:
            if not await self.step():
                self.work.clear()
                self.gen_throughput = 0.0
                self._idle_since = time.monotonic()
                await self.work.wait()
                self._idle_s += time.monotonic() - self._idle_since
                self._idle_since = None
            self._passed_at = time.time()

    def load(self) -> Load:
        """What the engine carries now."""
        idle_now_s = 0.0 if self._idle_since is None else time.monotonic() - self._idle_since
        return Load(
            written_at=self._passed_at if self._idle_since is None else time.time(),
            stages=Counter(sequence.stage for sequence in self.live.values()),
            n_used_tokens=self.n_used_tokens(),
            gen_throughput=self.gen_throughput,
            idle_s=self._idle_s + idle_now_s,
        )

    def n_used_tokens(self) -> int:
        """Tokens of KV that are held."""
        held = (Stage.RUNNING, Stage.INFLIGHT)
        return sum(sequence.n_prompt for sequence in self.live.values() if sequence.stage in held)
