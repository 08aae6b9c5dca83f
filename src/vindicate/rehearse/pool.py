"""A request of a rehearsed proxy → a slot of its upstream pool; honest, or leaking as the rehearsed fault demands."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp

from vindicate.rehearse.fault import Fault

__all__ = ["PATIENCE_S", "Lease", "Pool", "PoolFullError"]

# How long a correct proxy lets a request wait for a slot before it answers 503.
PATIENCE_S = 10.0
_STARVATION = "proxy.connector_starvation"


class PoolFullError(Exception):
    """No slot came free within the patience of a correct proxy."""


@dataclass(slots=True)
class Lease:
    """One request's hold on a slot. *whole* is set when the exchange ended as its protocol demands."""

    number: int
    response: aiohttp.ClientResponse | None = None
    whole: bool = False


@dataclass(slots=True)
class Pool:
    """Bounded upstream exchanges.

    With the ``pinned`` fault the bound is aiohttp's own connection limit, and a response that is never released
    stays acquired there, with its socket. With the ``permit`` fault, and in a correct proxy, it is a semaphore.
    """

    fault: Fault
    _permits: asyncio.Semaphore = field(init=False)
    _kept: list[aiohttp.ClientResponse] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._permits = asyncio.Semaphore(self.fault.slots)

    @property
    def starves(self) -> bool:
        """Whether this pool leaks."""
        return self.fault.mechanism == _STARVATION

    @property
    def pins(self) -> bool:
        """Whether it leaks by keeping sockets."""
        return self.starves and self.fault.variant == "pinned"

    def connector(self) -> aiohttp.TCPConnector:
        """The connector that belongs to this pool."""
        # Idle upstream connections are closed before servers do it (uvicorn: 5 s), else a request may be written to one that is
        # just going. A proxy that drops streams holds on to them.
        idle_s = 3600.0 if self.fault.mechanism == "proxy.drop_stream" else 2.0
        return aiohttp.TCPConnector(limit=self.fault.slots if self.pins else 0, keepalive_timeout=idle_s)

    @asynccontextmanager
    async def lease(self, number: int) -> AsyncIterator[Lease]:
        """Wait for a slot, hold it, and give it back, or not.

        Raises:
            PoolFullError: A correct proxy waited long enough.
        """
        if not self.pins:
            await self._permit()
        lease = Lease(number)
        try:
            yield lease
        finally:
            self._end(lease)

    async def _permit(self) -> None:
        if self.starves:
            await self._permits.acquire()
            return
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self._permits.acquire()
        except TimeoutError:
            raise PoolFullError from None

    def _end(self, lease: Lease) -> None:
        response = lease.response
        leaks = not lease.whole and self.fault.hits(_STARVATION, lease.number)
        if self.pins and leaks and response is not None and response.connection is not None:
            transport = response.connection.transport
            if transport is not None and not transport.is_closing():
                transport.pause_reading()
            self._kept.append(response)
            return
        if response is not None and not lease.whole:
            response.close()
        if not self.pins and not leaks:
            self._permits.release()

    def close(self) -> None:
        """Let go of what was pinned, at the end of the process."""
        for response in self._kept:
            response.close()
