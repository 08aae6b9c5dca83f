"""Chunks of an upstream response → chunks for the client: untouched, or as the rehearsed fault makes them."""

import asyncio
from collections.abc import AsyncIterator

from vindicate.rehearse.fault import Fault

__all__ = ["HEARTBEAT_S", "relayed"]

HEARTBEAT_S = 1.0
_BUFFER_BYTES = 16 * 1024
_DROP_AFTER_CHUNKS = 8
_END_MARK = b"data: [DONE]"


async def relayed(chunks: AsyncIterator[bytes], fault: Fault, number: int) -> AsyncIterator[bytes]:
    """Pass on the body of request *number*; the faults that do not end a body never return from here."""
    if fault.hits("proxy.sse_buffering", number):
        async for piece in _buffered(chunks):
            yield piece
    elif fault.hits("proxy.drop_stream", number):
        async for piece in _dropped(chunks):
            yield piece
    elif fault.hits("stream.missing_done_masked_by_heartbeat", number):
        async for piece in _endless(chunks):
            yield piece
    else:
        async for chunk in chunks:
            yield chunk


async def _buffered(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    held = b""
    async for chunk in chunks:
        held += chunk
        if len(held) >= _BUFFER_BYTES:
            yield held
            held = b""
    if held:
        yield held


async def _dropped(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    seen = 0
    async for chunk in chunks:
        seen += 1
        if seen <= _DROP_AFTER_CHUNKS:
            yield chunk
    if seen > _DROP_AFTER_CHUNKS:
        await asyncio.Event().wait()


async def _endless(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    held = b""
    streamed = False
    async for chunk in chunks:
        whole = held + chunk
        at = whole.find(_END_MARK)
        streamed = streamed or b"data:" in whole
        if at >= 0:
            if at:
                yield whole[:at]
            held = b""
            streamed = True
            break
        # Only a beginning of the mark at the very end is held back, so that nothing else is late.
        keep = next((n for n in range(min(len(_END_MARK), len(whole)), 0, -1) if whole.endswith(_END_MARK[:n])), 0)
        held = whole[len(whole) - keep :]
        if len(whole) > keep:
            yield whole[: len(whole) - keep]
    async for _ in chunks:
        pass
    if held:
        yield held
    while streamed:
        await asyncio.sleep(HEARTBEAT_S)
        yield b": heartbeat\n\n"
