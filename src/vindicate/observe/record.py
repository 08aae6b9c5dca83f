"""A Stack → one Capture: sockets, metrics, probes, processes, host and logs, all within the same window and in bounded time."""

import asyncio
import contextlib
import os
import platform
import time
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from vindicate.clock import utc_now
from vindicate.errors import MisuseError
from vindicate.observe.account import SocketAccount
from vindicate.observe.blind import blind_spots
from vindicate.observe.capture_file import SCHEMA, without_secrets
from vindicate.observe.cards import CardWatch
from vindicate.observe.host import host_facts, mark_host
from vindicate.observe.inside import Inside
from vindicate.observe.logs import read_log_tail
from vindicate.observe.plan import reading_plan
from vindicate.observe.probing import GRACE_S, Probing
from vindicate.observe.processes import ProcessWatch
from vindicate.observe.scrape import scrape
from vindicate.observe.seen import process_name, seen_clients, seen_service
from vindicate.observe.stacks import StackWatch
from vindicate.record.observation import Address, Capture, Scrape
from vindicate.stack.http import OwnSockets, resolve
from vindicate.stack.model import Service, Stack
from vindicate.stack.namespaces import process_at
from vindicate.stack.process import is_local, matching_pids, process_tree, service_pids

__all__ = ["Progress", "record_capture"]

Progress = Callable[[float, str], None]

_SCRAPE_DEADLINE_S = 2.5
_LAST_SCRAPE_S = 1.5  # a scrape may end this long after the window
_HEALTH_DEADLINE_S = 6.0  # SGLang's health endpoint makes a token, and takes a second or more on a good day
_PROBE_DEADLINE_S = 8.0
_CPU_SHARE = 0.1
_BURST, _BURST_EVERY_S = 6, 0.12  # scrapes of a port that several processes answer


def record_capture(
    stack: Stack,
    *,
    window_s: float = 10.0,
    probe: bool = True,
    probe_tokens: int = 32,
    probe_deadline_s: float | None = None,
    client_pids: Iterable[int] = (),
    samples_per_s: float = 4.0,
    on_progress: Progress | None = None,
) -> Capture:
    """Watch *stack* for a window; ends within *window_s* + 5 s, whatever the services do.

    Args:
        probe: Whether to send small requests of our own.
        probe_tokens: Most tokens that all of them together may ask for.
        probe_deadline_s: How long a probe may take; default 8 s, in a short window less, in a long one most of it. It is cut to what the time allows.
        client_pids: Processes that call the entry, besides those declared and those found connected.
        samples_per_s: Looks at the sockets a second; fewer when a look costs too much CPU.
        on_progress: Called about twice a second with the seconds gone by and what is being done.

    Raises:
        MisuseError: The window or the budget is no positive number, or a pidfile of the stack holds no number.
        CannotError: The sockets of this host cannot be read at all.
    """
    if not (0 < window_s <= 86400 and 0 < samples_per_s <= 100 and probe_tokens >= 0):
        raise MisuseError(
            f"a window of {window_s} s, {samples_per_s} looks a second and {probe_tokens} tokens cannot be observed",
            remedy="try: --window 10s --probe-budget 32tok",
        )
    recording = _Recording(
        stack,
        window_s,
        samples_per_s,
        probe_tokens if probe else 0,
        min(window_s, max(_PROBE_DEADLINE_S, 0.8 * window_s - 3)) if probe_deadline_s is None else probe_deadline_s,
        tuple(client_pids),
        on_progress,
    )
    return asyncio.run(recording.run())


@dataclass(slots=True)
class _Recording:
    """One window. Every task adds to what is here as it goes, so that whatever is cut short leaves what it had."""

    stack: Stack
    window_s: float
    samples_per_s: float
    probe_tokens: int
    probe_deadline_s: float
    client_pids: tuple[int, ...]
    on_progress: Progress | None
    began: float = field(default_factory=time.monotonic)
    started_at: str = field(default_factory=utc_now)
    own: OwnSockets = field(default_factory=OwnSockets)
    scrapes: list[Scrape] = field(default_factory=list)
    pids: dict[str, tuple[int, ...]] = field(default_factory=dict)
    clients: dict[str, tuple[int, ...]] = field(default_factory=dict)
    hanging: set[str] = field(default_factory=set)
    addresses: dict[str, Address] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    _account: SocketAccount | None = None
    _watch: ProcessWatch | None = None
    probing: Probing = field(init=False)
    stacks: StackWatch = field(init=False)
    cards: CardWatch = field(init=False)
    inside: Inside = field(init=False)

    def __post_init__(self) -> None:
        self.probing = Probing(
            self.stack, self.probe_tokens, self.probe_deadline_s, self.window_s, self.began, self.own, self.scrapes
        )
        self.stacks = StackWatch(self.began, self.window_s)
        self.inside = Inside(self._chain_pids, own=self.own, started=self.began)

    @property
    def account(self) -> SocketAccount:
        assert self._account is not None
        return self._account

    @property
    def watch(self) -> ProcessWatch:
        assert self._watch is not None
        return self._watch

    def since(self) -> float:
        return time.monotonic() - self.began

    async def run(self) -> Capture:
        self.cards = await asyncio.to_thread(CardWatch, self.began)  # a driver with many cards takes its time
        with contextlib.closing(self.cards):
            return await self._record()

    async def _record(self) -> Capture:
        first = mark_host(self.since())
        self._watch = ProcessWatch(self.began)
        # A remote service's connections are found by the process that calls it: others may call the same port elsewhere.
        local = [one.port for one in self.stack.services.values() if is_local(one.host) or process_at(one.host)]
        ports = local or [service.port for service in self.stack.services.values()]
        self._account = SocketAccount(ports, self._chain_pids, own=self.own, started=self.began)
        try:
            await asyncio.to_thread(self._find_processes)
            await asyncio.to_thread(self._look)
            await self._together()
        finally:
            self.account.close()
            self.inside.close()
        last = mark_host(self.since())
        return self._capture(first, last)

    def _chain_pids(self) -> set[int]:
        """Processes whose every connection counts: the services'; a client's count where they touch a port of the chain."""
        return {pid for pids in self.pids.values() for pid in pids} - {os.getpid()}

    def _find_processes(self) -> None:
        for service in self.stack.services.values():
            self.pids[service.name] = process_tree(service_pids(service))
            knobs = [knob for knob in self.stack.knobs.values() if service.name in knob.services]
            self.watch.add(self.pids[service.name], knobs)
        for client in self.stack.clients.values():
            found = (client.pid,) if client.pid is not None else matching_pids(client.match or "\0")
            self.clients[client.name] = process_tree(found)
        for pid in self.client_pids:
            name = f"client:{process_name(pid)}:{pid}"
            self.clients[name] = process_tree([pid])
            self.hanging.add(name)
        for pids in self.clients.values():
            self.watch.add(pids)
        self.watch.look()

    async def _together(self) -> None:
        tasks: list[Coroutine[Any, Any, None]] = [
            self._look_on(), self._follow_processes(), self._resolve_hosts(), self.stacks.run(self._in_order_of_interest),
        ]  # fmt: skip
        tasks.extend(
            self._read_endpoint(service, kind, at) for service, kind, at in reading_plan(self.stack, self.window_s)
        )
        if self.probe_tokens:
            tasks.append(self.probing.run())
        running = [asyncio.ensure_future(task) for task in tasks]
        try:
            _, late = await asyncio.wait(running, timeout=self.window_s + GRACE_S - self.since())
        except asyncio.CancelledError:
            late = set(running)
            raise
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
        for task in running:
            if task not in late and (problem := task.exception()) is not None:
                raise problem

    # ---- sockets and processes -----------------------------------------------------------------------------------

    def _look(self) -> None:
        self.account.look()
        self.inside.look()

    def _look_cost_s(self) -> float:
        return self.account.look_cost_s + self.inside.look_cost_s

    async def _look_on(self) -> None:
        """Look at the sockets at a steady rate; slower when one look would cost more than a tenth of a core."""
        step_s = 1 / self.samples_per_s
        slowest_s = step_s
        next_s = self.since()
        while True:
            pace_s = max(step_s, self._look_cost_s() / _CPU_SHARE)
            slowest_s = max(slowest_s, pace_s)
            next_s = max(next_s + pace_s, self.since())
            if next_s > self.window_s:
                break
            await asyncio.sleep(next_s - self.since())
            await asyncio.to_thread(self._look)
        await asyncio.sleep(max(0.0, self.window_s - self.since()))
        await asyncio.to_thread(self._look)
        if slowest_s > step_s * 1.5 and self.account.n_looks < self.window_s / (step_s * 1.5):
            self.notes.append(
                f"the sockets were looked at {self.account.n_looks / self.window_s:.1f} times a second, not "
                f"{self.samples_per_s:g}: one look costs {self._look_cost_s() * 1000:.0f} ms of CPU on this host, "
                f"and all of them may take {_CPU_SHARE:.0%} of one"
            )
        elif self.account.n_looks < self.window_s / (step_s * 2):
            self.notes.append(
                f"this host was too busy to look at the sockets more than {self.account.n_looks} times in "
                f"{self.window_s:.0f} s: look longer with --window, or from a quieter moment"
            )

    async def _follow_processes(self) -> None:
        step_s = min(1.0, self.window_s / 4)
        shown = 0.0
        while self.since() < self.window_s + GRACE_S:
            await asyncio.sleep(max(0.05, min(step_s, 0.5)))
            if self.on_progress is not None:
                self.on_progress(self.since(), "probing" if self.probing.busy else "watching sockets")
            if self.since() - shown < step_s or self.since() > self.window_s + step_s:
                continue
            shown = self.since()
            self.watch.add(self._connected_clients())
            await asyncio.to_thread(self.watch.look)
            await asyncio.to_thread(self.cards.look)
            if self.since() >= self.window_s:
                return

    def _in_order_of_interest(self) -> list[int]:
        """Clients that are said to hang, the services from the entry down, then whoever else calls; each process once."""
        named = [pid for name, pids in self.clients.items() if name in self.hanging for pid in pids]
        path = [pid for name in self.stack.path_from(self.stack.entry) for pid in self.pids.get(name, ())]
        return [*dict.fromkeys([*named, *path, *self._connected_clients()])]

    def _connected_clients(self) -> set[int]:
        """Processes with a connection to the entry that are neither a service of the chain nor ourselves."""
        entry = self.stack.service(self.stack.entry)
        known = {pid for pids in self.pids.values() for pid in pids} | {os.getpid()}
        return (self.account.connected_to(entry.port) | self.inside.connected_to(entry.port)) - known

    async def _resolve_hosts(self) -> None:
        for service in self.stack.services.values():
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(2.0):
                    host = await resolve("127.0.0.1" if service.host == "localhost" else service.host, service.port)
                    self.addresses[service.name] = Address(host.split("%")[0], service.port)

    # ---- endpoints -----------------------------------------------------------------------------------------------

    async def _read_endpoint(self, service: Service, kind: str, times: list[float]) -> None:
        for at in times:
            if at > 0 and self.since() > self.window_s:
                return
            await asyncio.sleep(max(0.0, at - self.since()))
            patience_s = _HEALTH_DEADLINE_S if kind == "health" else _SCRAPE_DEADLINE_S
            deadline_s = max(_LAST_SCRAPE_S, min(patience_s, self.window_s + _LAST_SCRAPE_S - self.since()))
            seen = await scrape(service, kind, began=self.began, deadline_s=deadline_s, own=self.own)
            self.scrapes.append(seen)
            if kind == "models" and len({one.service for one in self.scrapes if one.kind == kind}) == len(self.pids):
                self.probing.models_said.set()
            if kind == "metrics" and at == 0 and seen.values and self._is_shared(service):
                await self._read_in_a_row(service)
            if kind != "health" and seen.status in (404, 405):
                return  # it has no such endpoint; asking again would only fill the capture

    def _is_shared(self, service: Service) -> bool:
        """Whether more than one process, or more than one socket, takes the connections at its port."""
        here = [one for one in self.account.listeners() if one.local.port == service.port]
        return len(here) > 1 or any(len(one.pids) > 1 for one in here)

    async def _read_in_a_row(self, service: Service) -> None:
        """Read its metrics some times at once: processes that keep figures of their own then disagree, though nothing moves."""
        for _ in range(_BURST):
            await asyncio.sleep(_BURST_EVERY_S)
            self.scrapes.append(
                await scrape(service, "metrics", began=self.began, deadline_s=_LAST_SCRAPE_S, own=self.own)
            )

    def _all_clients(self) -> dict[str, tuple[int, ...]]:
        """Declared clients, then whoever else was connected to the entry."""
        found = dict(self.clients)
        declared = {pid for pids in found.values() for pid in pids}
        names = {facts.pid: facts.name for facts in self.watch.facts()}  # one that has ended since has its name here
        for pid in sorted(self._connected_clients() - declared):
            found[f"client:{names.get(pid) or process_name(pid)}:{pid}"] = (pid,)
        return found

    # ---- the result ----------------------------------------------------------------------------------------------

    def _capture(self, first: Any, last: Any) -> Capture:
        connections = self.account.connections() + self.inside.connections()
        inside = self.inside.addresses(self.pids)
        services = tuple(
            seen_service(
                self.stack,
                service,
                self.addresses.get(service.name),
                self.pids[service.name],
                inside.get(service.name, ()),
            )
            for service in self.stack.services.values()
        )
        clients = seen_clients(self.stack.service(self.stack.entry), self._all_clients(), connections, self.hanging)
        logs = [
            line
            for service in self.stack.services.values()
            if service.launcher.log is not None
            for line in read_log_tail(service.name, service.launcher.log)
        ]
        capture = Capture(
            schema=SCHEMA,
            host=platform.node(),
            started_at=self.started_at,
            window_s=self.window_s,
            entry=self.stack.entry,
            services=services + clients,
            connections=connections,
            listeners=self.account.listeners() + self.inside.listeners(),
            scrapes=tuple(sorted(self.scrapes, key=lambda seen: seen.t_s)),
            probes=tuple(sorted(self.probing.results, key=lambda made: made.t_s)),
            processes=self.watch.facts(),
            host_facts=replace(
                host_facts(first, last, home=self.stack.home),
                n_time_wait=self.account.n_time_wait,
                time_wait_to=self.account.time_wait_to,
            ),
            log_lines=tuple(logs),
            n_looks=self.account.n_looks,
            looks_cpu_s=round(self.account.cost_s, 4),
            stacks=tuple(self.stacks.looks),
            cards=self.cards.facts(),
        )
        spots = blind_spots(
            capture,
            probed=self.probe_tokens > 0,
            counted=self.account.counted,
            n_left_out=self.account.n_left_out,
            lost=self.account.ended.lost,
            saw_foreign=self.account.owners.saw_foreign,
        )
        return without_secrets(
            replace(capture, blind=(*spots, *self.notes, *self.probing.notes, *self.stacks.notes, *self.inside.notes))
        )
