"""Prompts in → their KV out: bootstrap → waiting → running → inflight until decode has pulled it."""

import asyncio
from collections import deque
from functools import partial
from typing import ClassVar

from vindicate.reference.engine import Engine
from vindicate.reference.kv import KvError
from vindicate.reference.link import Receiver, Rooms
from vindicate.reference.sequence import End, Sequence, Stage
from vindicate.reference.serve import port_error

__all__ = ["Prefill"]

_MAX_BATCH_TOKENS = 8192


class Prefill(Engine):
    """Computes KV in batches; each sequence waits for its decode leg before, and for the transfer after."""

    role: ClassVar[str] = "prefill"

    async def start(self) -> None:
        """Open the bootstrap port, and begin to step.

        Raises:
            CannotError: The port cannot be had.
        """
        self.rooms = Rooms()
        self.waiting: deque[Sequence] = deque()
        host, port = self.settings.host, self.settings.bootstrap_port
        try:
            await self.rooms.listen(host, port)
        except OSError as error:
            raise port_error(host, port, error) from error
        await super().start()

    async def close(self) -> None:
        """Stop, and drop every room."""
        await super().close()
        self.rooms.close()

    async def live_through(self, sequence: Sequence) -> None:
        """See `Engine.live_through`."""
        room = sequence.order.room
        async with asyncio.timeout(self.settings.bootstrap_timeout_s):
            receiver = await self.rooms.receiver(room)
        try:
            sequence.move(Stage.WAITING)
            self.waiting.append(sequence)
            self.work.set()
            await self._computed(sequence, receiver)
            sequence.move(Stage.INFLIGHT)
            if self.fault.hits("inflight_parked", sequence.number):
                await asyncio.Event().wait()
            started = asyncio.get_running_loop().time()
            await receiver.push(room, sequence.kv)
            self.metrics.transferred(len(sequence.kv), asyncio.get_running_loop().time() - started)
        finally:
            receiver.close()
        # As in SGLang, prefill's own answer is the first token and ends there.
        first = await self.device.compute(partial(self._first_token, sequence.kv))
        sequence.emit(first, asyncio.get_running_loop().time())
        self.end(sequence, End("length"))

    async def _computed(self, sequence: Sequence, receiver: Receiver) -> None:
        """Wait for the forward pass, or for decode to go away before it."""
        computed = asyncio.create_task(sequence.computed.wait())
        gone = asyncio.create_task(receiver.answer())
        try:
            await asyncio.wait((computed, gone), return_when=asyncio.FIRST_COMPLETED)
            if not computed.done():
                raise KvError(f"decode dropped room {sequence.order.room} before its KV was computed")
        finally:
            computed.cancel()
            gone.cancel()

    def _first_token(self, kv: bytes) -> str:
        answer = self.model.begin(kv)
        try:
            return self.model.advance([answer])[0] or ""
        finally:
            self.model.end(answer)

    async def step(self) -> bool:
        """One forward pass over the oldest prompts that fit."""
        batch = self._next_batch()
        if not batch:
            return False
        n_tokens = sum(sequence.n_prompt for sequence in batch)
        for sequence in batch:
            sequence.move(Stage.RUNNING)
        await asyncio.sleep(self.device.prefill_s(n_tokens))
        for sequence in batch:
            if sequence.stage is Stage.RUNNING:
                sequence.kv = await self.device.compute(partial(self.model.prefill, sequence.order.prompt))
                sequence.computed.set()
        self.metrics.stepped("prefill_compute", n_tokens)
        return True

    def _next_batch(self) -> list[Sequence]:
        batch: list[Sequence] = []
        n_tokens = 0
        while self.waiting and len(batch) < self.settings.max_running:
            sequence = self.waiting[0]
            if sequence.stage is Stage.WAITING:
                if batch and n_tokens + sequence.n_prompt > _MAX_BATCH_TOKENS:
                    break
                batch.append(sequence)
                n_tokens += sequence.n_prompt
            self.waiting.popleft()
        return batch
