"""KV in → tokens out: prealloc → transfer → waiting → running, one token for each running sequence a step."""

import asyncio
import time
from collections import deque
from dataclasses import replace
from functools import partial
from typing import ClassVar

from vindicate.reference.engine import ABORTED, Engine
from vindicate.reference.link import register
from vindicate.reference.openai import BadRequestError, Order
from vindicate.reference.sequence import End, Sequence, Stage

__all__ = ["Decode", "Memory"]

_DEFAULT_BOOTSTRAP_PORT = 8998
_REPORT_STEPS = 10


class Memory:
    """Room for *total* tokens of KV, given out first come first served: one that does not fit holds up all behind it."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.used = 0
        self._line: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def take(self, n_tokens: int) -> None:
        """Wait for *n_tokens*.

        Cancelled:
            Nothing is held.
        """
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line.append((n_tokens, turn))
        self._serve()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give(n_tokens)
            else:
                turn.cancel()
                self._serve()
            raise

    def give(self, n_tokens: int) -> None:
        """Give *n_tokens* back."""
        self.used -= n_tokens
        self._serve()

    def _serve(self) -> None:
        while self._line:
            n_tokens, turn = self._line[0]
            if not turn.done():
                if self.used + n_tokens > self.total:
                    return
                self.used += n_tokens
                turn.set_result(None)
            self._line.popleft()


class Decode(Engine):
    """Continuous batching: sequences join and leave between steps."""

    role: ClassVar[str] = "decode"

    async def start(self) -> None:
        """Begin to step."""
        self.memory = Memory(self.settings.max_total_tokens)
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self._due = 0.0
        self._report = (0.0, 0, 0)
        await super().start()

    def submit(self, order: Order) -> Sequence:
        """Take a request in, and forget its text: decode answers from the KV that prefill sends, and from nothing else."""
        if order.bootstrap_host is None:
            raise BadRequestError("bootstrap_host is missing; decode pulls the KV from there")
        sequence = super().submit(order)
        sequence.order = replace(order, prompt="")
        return sequence

    async def live_through(self, sequence: Sequence) -> None:
        """See `Engine.live_through`."""
        order = sequence.order
        n_tokens = sequence.n_prompt + order.max_tokens
        await self.memory.take(n_tokens)
        sequence.n_reserved = n_tokens
        port = order.bootstrap_port or _DEFAULT_BOOTSTRAP_PORT
        async with register(order.bootstrap_host or "", port, order.room) as source:
            sequence.move(Stage.TRANSFER)
            async with asyncio.timeout(self.settings.waiting_timeout_s):
                kv = await source.pull()
        sequence.answer = self.model.begin(kv)
        sequence.move(Stage.WAITING)
        self.waiting.append(sequence)
        self.work.set()

    def release(self, sequence: Sequence, end: End = ABORTED) -> None:
        """End *sequence*; one that is running leaves its batch when the current step is over."""
        if sequence.stage is Stage.RUNNING:
            sequence.stop = end
        else:
            super().release(sequence, end)

    def end(self, sequence: Sequence, end: End) -> None:
        """Give its memory back, then end it."""
        self.memory.give(sequence.n_reserved)
        sequence.n_reserved = 0
        if sequence.answer is not None:
            self.device.later(partial(self.model.end, sequence.answer))
            sequence.answer = None
        super().end(sequence, end)

    async def close(self) -> None:
        """Stop; what is running ends too."""
        await super().close()
        for sequence in self.running:
            self.end(sequence, ABORTED)

    def n_used_tokens(self) -> int:
        """Tokens of KV that are reserved."""
        return self.memory.used

    async def step(self) -> bool:
        """One token for everybody in the batch."""
        self._join_and_leave()
        if not self.running:
            return False
        hits, limit = self.fault.hits, self.fault.argument
        if any(each.n_output >= limit and hits("stall_mid_stream", each.number) for each in self.running):
            await asyncio.Event().wait()
        batch = [each for each in self.running if each.n_output < limit or not hits("stall_each", each.number)]
        factor = limit if hits("slow", self.n_taken) else 1.0
        await self._pace(self.device.step_s(len(batch) or 1, factor))
        batch = [sequence for sequence in batch if sequence.stop is None]
        tokens = await self._next_tokens(batch)
        now = time.monotonic()
        n_tokens = sum(self._take(sequence, token, now) for sequence, token in zip(batch, tokens, strict=True))
        self.metrics.stepped("decode", n_tokens)
        self._measure(n_tokens, now)
        return True

    def _join_and_leave(self) -> None:
        for sequence in self.running:
            if sequence.stop is not None:
                self.end(sequence, sequence.stop)
        self.running = [sequence for sequence in self.running if sequence.stage is Stage.RUNNING]
        while self.waiting and len(self.running) < self.settings.max_running:
            sequence = self.waiting.popleft()
            if sequence.stage is Stage.WAITING:
                sequence.move(Stage.RUNNING)
                self.running.append(sequence)

    async def _pace(self, step_s: float) -> None:
        """Sleep until one step after the step before, so that our own work does not lengthen the period."""
        now = time.monotonic()
        # After an idle time, or when this process cannot keep up, the debt is forgotten.
        self._due = self._due + step_s if self._due > now - step_s else now + step_s
        await asyncio.sleep(self._due - now)

    async def _next_tokens(self, batch: list[Sequence]) -> list[str | None]:
        """One token for each; `None` for those whose answer is complete and who are to stop there."""
        answers = [sequence.answer for sequence in batch]
        tokens = await self.device.compute(partial(self.model.advance, answers))
        on = [at for at, sequence in enumerate(batch) if tokens[at] is None and sequence.order.ignore_eos]
        if on:
            more = await self.device.compute(partial(self.model.advance, [answers[at] for at in on]))
            for at, token in zip(on, more, strict=True):
                tokens[at] = token
        return tokens

    def _take(self, sequence: Sequence, token: str | None, now: float) -> int:
        """Hand *token* to *sequence*; how many tokens that were."""
        if sequence.stop is not None:
            return 0
        if token is None:
            self.end(sequence, End("stop"))
            return 0
        self.metrics.token(sequence, now)
        matched = sequence.emit(token, now)
        if matched is not None:
            self.end(sequence, End("stop", matched=matched))
        elif sequence.n_output >= sequence.order.max_tokens:
            self.end(sequence, End("length"))
        return 1

    def _measure(self, n_tokens: int, now: float) -> None:
        """Keep `gen_throughput`, over the last steps."""
        since, n_steps, n_before = self._report
        if n_steps + 1 < _REPORT_STEPS:
            self._report = (since or now, n_steps + 1, n_before + n_tokens)
        else:
            self.gen_throughput = (n_before + n_tokens) / max(now - since, 1e-9)
            self._report = (now, 0, 0)
