"""A Stack that runs → for as long as one watches, what is new every interval, and a capture of the last seconds. Reads only, and little."""

import asyncio
import contextlib
import os
import platform
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace

from vindicate.clock import utc_now
from vindicate.errors import VindicateError
from vindicate.observe.account import SocketAccount
from vindicate.observe.capture_file import SCHEMA, without_secrets
from vindicate.observe.inside import Inside
from vindicate.observe.plan import reading_plan
from vindicate.observe.processes import ProcessWatch
from vindicate.observe.scrape import scrape
from vindicate.observe.seen import process_name, seen_clients, seen_service
from vindicate.record.observation import Address, Capture, Scrape
from vindicate.stack.http import OwnSockets, resolve
from vindicate.stack.model import Service, Stack
from vindicate.stack.namespaces import process_at
from vindicate.stack.process import is_local, process_tree, service_pids

__all__ = ["Onlooker", "onlooking"]

WINDOW_S = 24.0  # the longest capture; then a new window takes over
OVERLAP_S = 9.0  # so long both are kept, so that the new one has something to show when the old one goes
_KINDS = ("metrics", "loads")
_SOCKETS_EVERY_S = 0.5
_SHARE = 0.03  # of one core for looks at the sockets, and of the time of an endpoint for its answers
_SLOWEST_S = 15.0
_DEADLINE_S = 2.5
_AGAIN_S = 3.0  # before an endpoint is asked again that did not answer
_PROCESSES_EVERY_S = 5.0
_PAGES_EVERY_S = 3.0  # a diagnosis compares pages that are some seconds apart


@dataclass(slots=True)
class _Window:
    """What is recorded from *began* on."""

    began: float
    account: SocketAccount
    processes: ProcessWatch
    own: OwnSockets
    inside: Inside
    started_at: str = field(default_factory=utc_now)
    pages: list[Scrape] = field(default_factory=list)

    def close(self) -> None:
        """Stop listening for what ends."""
        self.account.close()
        self.inside.close()


class _OwnOfAll(OwnSockets):
    """Notes a connection of ours in every window that is open."""

    def __init__(self, windows: list[_Window]) -> None:
        super().__init__()
        self._windows = windows

    def add(self, local: Address, remote: Address) -> None:
        for window in self._windows:
            window.own.add(local, remote)


class Onlooker:
    """Looks on; started and ended by `onlooking`."""

    def __init__(self, stack: Stack, interval_s: float, renew: Callable[[Stack], Stack]) -> None:
        self.stack = stack
        self.interval_s = interval_s
        self._renew = renew
        self._windows: list[_Window] = []
        self._own = _OwnOfAll(self._windows)
        self._fresh: list[Scrape] = []
        self._pids: dict[str, tuple[int, ...]] = {}
        self._listening: frozenset[str] = frozenset()
        self._addresses: dict[str, Address] = {}
        self._lock = asyncio.Lock()
        self._readers: dict[tuple[str, str, str], asyncio.Task[None]] = {}
        self._tasks: list[asyncio.Task[None]] = []

    # ---- what is new ---------------------------------------------------------------------------------------------

    def take(self) -> tuple[Scrape, ...]:
        """The scrapes since the last call."""
        fresh, self._fresh[:] = tuple(self._fresh), []
        return fresh

    @property
    def listening(self) -> frozenset[str]:
        """Services on whose port somebody on this host listened at the last look."""
        return self._listening

    @property
    def local(self) -> frozenset[str]:
        """Services whose listening socket would be seen here."""
        return frozenset(name for name, one in self.stack.services.items() if is_local(one.host))

    @property
    def pids(self) -> dict[str, tuple[int, ...]]:
        """Processes by service."""
        return dict(self._pids)

    async def capture(self) -> Capture:
        """The chain over the last seconds, at most 24."""
        window, stack = self._windows[0], self.stack
        async with self._lock:
            connections = await asyncio.to_thread(window.account.connections) + window.inside.connections()
            listeners = window.account.listeners() + window.inside.listeners()
            inside = window.inside.addresses(self._pids)
            callers = window.account.connected_to(stack.service(stack.entry).port)
        known = {pid for pids in self._pids.values() for pid in pids} | {os.getpid()}
        clients = {f"client:{process_name(pid)}:{pid}": (pid,) for pid in sorted(callers - known)}
        services = tuple(
            seen_service(
                stack, one, self._addresses.get(one.name), self._pids.get(one.name, ()), inside.get(one.name, ())
            )
            for one in stack.services.values()
        )
        return without_secrets(
            Capture(
                schema=SCHEMA,
                host=platform.node(),
                started_at=window.started_at,
                window_s=round(time.monotonic() - window.began, 3),
                entry=stack.entry,
                services=services + seen_clients(stack.service(stack.entry), clients, connections),
                connections=connections,
                listeners=listeners,
                scrapes=tuple(window.pages),
                processes=window.processes.facts(),
                n_looks=window.account.n_looks,
                looks_cpu_s=round(window.account.cost_s, 4),
            )
        )

    # ---- looking -------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Look for the first time, and go on by itself.

        Raises:
            CannotError: The sockets of this host cannot be read at all.
        """
        self._open()
        await asyncio.to_thread(self._find_processes)
        await self._look()
        await self._resolve()
        self._follow_endpoints()
        self._tasks = [asyncio.create_task(self._look_on()), asyncio.create_task(self._follow())]

    async def close(self) -> None:
        """Stop looking."""
        tasks = [*self._tasks, *self._readers.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for window in self._windows:
            window.close()

    def failed(self) -> BaseException | None:
        """Why looking ended by itself, when it did."""
        ended = [task for task in self._tasks if task.done() and not task.cancelled()]
        return ended[0].exception() if ended else None

    def _open(self) -> None:
        ports = [one.port for one in self.stack.services.values() if is_local(one.host) or process_at(one.host)]
        ports = ports or [one.port for one in self.stack.services.values()]
        began, own = time.monotonic(), OwnSockets()
        account = SocketAccount(ports, self._chain_pids, own=own, started=began)
        inside = Inside(self._chain_pids, own=own, started=began)
        self._windows.append(_Window(began, account, ProcessWatch(began), own, inside))

    def _chain_pids(self) -> set[int]:
        return {pid for pids in self._pids.values() for pid in pids} - {os.getpid()}

    async def _look_on(self) -> None:
        while True:
            cost_s = max(one.account.look_cost_s + one.inside.look_cost_s for one in self._windows) * len(self._windows)
            await asyncio.sleep(min(_SLOWEST_S, max(_SOCKETS_EVERY_S, cost_s / _SHARE)))
            await self._look()
            await self._turn()

    async def _look(self) -> None:
        async with self._lock:
            newest = self._windows[-1].account
            before = [len(one.waiting) for one in newest.listeners()]
            for window in self._windows:
                await asyncio.to_thread(window.account.look)
                await asyncio.to_thread(window.inside.look)
            after = newest.listeners()
        by_port: dict[int, set[int]] = {}
        for index, found in enumerate(after):
            if index >= len(before) or len(found.waiting) > before[index]:
                by_port.setdefault(found.local.port, set()).update(found.pids)
        local = [service for service in self.stack.services.values() if is_local(service.host)]
        self._listening = frozenset(service.name for service in local if service.port in by_port)
        for service in local:
            pids = by_port.get(service.port, set())
            if pids and not _found_otherwise(service) and not pids <= set(self._pids.get(service.name, ())):
                self._pids[service.name] = process_tree(pids)

    async def _turn(self) -> None:
        """Begin a new window when the old one is long enough, and let the old one go when the new one is."""
        now = time.monotonic()
        if len(self._windows) > 1 and now - self._windows[-1].began >= OVERLAP_S:
            self._windows.pop(0).close()
        elif len(self._windows) == 1 and now - self._windows[0].began >= WINDOW_S - OVERLAP_S:
            await self._renewed()
            self._open()
            self._windows[-1].processes.add(pid for pids in self._pids.values() for pid in pids)

    async def _renewed(self) -> None:
        """Read the stack anew: ports may have moved."""
        with contextlib.suppress(VindicateError):  # a stack file in the middle of an edit: the old one holds
            self.stack = await asyncio.to_thread(self._renew, self.stack)
            self._pids = {name: pids for name, pids in self._pids.items() if name in self.stack.services}
            self._follow_endpoints()
            await self._resolve()

    async def _resolve(self) -> None:
        """Find the addresses of services that are named by host."""
        for one in self.stack.services.values():
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(2.0):
                    host = await resolve("127.0.0.1" if one.host == "localhost" else one.host, one.port)
                    self._addresses[one.name] = Address(host.split("%")[0], one.port)

    async def _follow(self) -> None:
        searched = time.monotonic()
        while True:
            await asyncio.sleep(1.0)
            if time.monotonic() - searched >= _PROCESSES_EVERY_S:
                await asyncio.to_thread(self._find_processes)
                searched = time.monotonic()
            for window in self._windows:
                await asyncio.to_thread(window.processes.look)

    def _find_processes(self) -> None:
        """The processes that stack file keys name, and what those of the ports have started since."""
        for one in self.stack.services.values():
            roots = self._pids.get(one.name, ())
            with contextlib.suppress(VindicateError):  # a pidfile that is being written
                roots = service_pids(one) if _found_otherwise(one) or not roots else roots
            self._pids[one.name] = process_tree(roots)
        for window in self._windows:
            window.processes.add(pid for pids in self._pids.values() for pid in pids)

    # ---- endpoints -----------------------------------------------------------------------------------------------

    def _follow_endpoints(self) -> None:
        wanted = {
            (service.name, kind, service.url + service.metrics): service
            for service, kind, _ in reading_plan(self.stack, 1.0)
            if kind in _KINDS
        }
        for key in [key for key in self._readers if key not in wanted]:
            self._readers.pop(key).cancel()
        for key, service in wanted.items():
            if key not in self._readers:
                self._readers[key] = asyncio.create_task(self._read(service, key[1]))

    async def _read(self, service: Service, kind: str) -> None:
        """Read one endpoint again and again: the dearer an answer is to make or to take in, the less often."""
        while True:
            begun = time.monotonic()
            seen = await scrape(service, kind, began=begun, deadline_s=_DEADLINE_S, own=self._own)
            took_s = time.monotonic() - begun
            if kind != "metrics" and seen.status in (404, 405):
                return
            self._fresh.append(seen)
            for window in self._windows:
                last = next(
                    (page for page in reversed(window.pages) if (page.service, page.kind) == (service.name, kind)), None
                )
                t_s = begun - window.began
                if t_s >= 0 and (last is None or t_s - last.t_s >= _PAGES_EVERY_S):
                    window.pages.append(replace(seen, t_s=round(t_s, 4)))
            rest_s = _AGAIN_S if (seen.error or "").startswith("timeout") else took_s / _SHARE
            await asyncio.sleep(max(0.0, self.interval_s - took_s, min(_SLOWEST_S, rest_s)))


def _found_otherwise(service: Service) -> bool:
    """Whether its processes are named by the stack file rather than found from its port."""
    return service.pid is not None or service.pidfile is not None or service.match is not None


@contextlib.asynccontextmanager
async def onlooking(stack: Stack, interval_s: float, renew: Callable[[Stack], Stack]) -> AsyncIterator[Onlooker]:
    """Look at *stack* until the block ends.

    Args:
        interval_s: How often endpoints that answer quickly are read.
        renew: Gives the stack anew, called about every 15 s; ports move when a service is started elsewhere.
    """
    onlooker = Onlooker(stack, interval_s, renew)
    try:
        await onlooker.start()
        yield onlooker
    finally:
        await onlooker.close()
