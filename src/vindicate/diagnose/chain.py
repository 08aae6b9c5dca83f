"""The services of a capture → who is above whom, which process and which address belongs to which."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit

from vindicate.record.observation import Address, Capture, SeenService

__all__ = ["RELAYS", "Chain", "address_in", "chain_of", "port_in", "same_host"]

RELAYS = ("proxy", "gateway", "router")
_ANY_HOST = ("0.0.0.0", "::", "*", "")  # noqa: S104 compared with, never bound


@dataclass(frozen=True, slots=True)
class Chain:
    """The nodes of a capture, callers before those they call.

    Attributes:
        services: By name, without clients.
        order: Names from the entry down.
        owner_of: Process id → name of the service or client it belongs to, descendants included.
        hosts: Addresses of the hosts that were looked at.
        ports: Port → the one service of these hosts that listens there, by its own processes where they are seen.
        forwarders: Service in a network namespace of its own → processes that listen at its address out here and forward to it;
            none at all where somebody does who cannot be seen.
    """

    entry: str | None
    services: Mapping[str, SeenService]
    clients: tuple[SeenService, ...]
    order: tuple[str, ...]
    owner_of: Mapping[int, str]
    hosts: frozenset[str] = frozenset()
    ports: Mapping[int, str] = field(default_factory=dict)
    forwarders: Mapping[str, frozenset[int]] = field(default_factory=dict)

    def role(self, name: str) -> str:
        """The role of the service, ``client`` for anything that is none."""
        return self.services[name].role if name in self.services else "client"

    def is_relay(self, name: str) -> bool:
        """Whether it hands requests on: it has somebody to hand them to, or its role says so."""
        return name in self.services and (bool(self.services[name].upstream) or self.role(name) in RELAYS)

    def below(self, name: str) -> tuple[str, ...]:
        """Every service under *name*, nearest first."""
        found: list[str] = []
        todo = list(self.services[name].upstream) if name in self.services else []
        while todo:
            here = todo.pop(0)
            if here in self.services and here not in found and here != name:
                found.append(here)
                todo.extend(self.services[here].upstream)
        return tuple(found)

    def callee_at(self, address: Address) -> str | None:
        """The service that listens at *address*, under whichever of its host's addresses it was declared."""
        for name in self.order:
            where = self.services[name].address
            if address in self.services[name].inside:
                return name
            if where is not None and where.port == address.port and same_host(where.host, address.host):
                return name
        local = address.host in self.hosts or _is_loopback(address.host)
        return self.ports.get(address.port) if local else None


def address_in(url: str | None) -> Address | None:
    """Host and port that *url* names, with a scheme or without; ``None`` where it names no port."""
    try:
        parts = urlsplit(url if url and "://" in url else f"http://{url or ''}")
        return Address(parts.hostname or "", parts.port) if parts.port else None
    except ValueError:
        return None


def port_in(url: str | None) -> int | None:
    """The port that *url* names."""
    address = address_in(url)
    return address.port if address is not None else None


def same_host(declared: str, seen: str) -> bool:
    """Whether a connection end *seen* can belong to a listener *declared*; loopback names are one host."""
    if declared in _ANY_HOST or declared == seen:
        return True
    return _is_loopback(declared) and _is_loopback(seen)


def _is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or (host.startswith("127.") and "%" not in host)


def chain_of(capture: Capture) -> Chain:
    """Put the services of *capture* in order and find the owner of every process it mentions."""
    names = {seen.name for seen in capture.services if not seen.client}
    services = {seen.name: _known_upstream(seen, names) for seen in capture.services if not seen.client}
    clients = tuple(seen for seen in capture.services if seen.client)
    owner_of: dict[int, str] = {}
    for seen in capture.services:
        for pid in seen.pids:
            owner_of.setdefault(pid, seen.name)
    parent = {process.pid: process.ppid for process in capture.processes}
    for pid in parent:
        here, steps = pid, 0
        while here not in owner_of and here in parent and steps < 64:
            here, steps = parent[here], steps + 1
        if here in owner_of:
            owner_of.setdefault(pid, owner_of[here])
    return Chain(
        entry=capture.entry if capture.entry in services else None,
        services=services,
        clients=clients,
        order=_top_down(services, capture.entry),
        owner_of=owner_of,
        hosts=frozenset(c.local.host for c in capture.connections if "%" not in c.local.host)
        - {one.host for seen in services.values() for one in seen.inside},
        ports=_ports(capture, services, owner_of),
        forwarders={
            name: _forwarders(capture, seen)
            for name, seen in services.items()
            if seen.inside and seen.address not in seen.inside
        },
    )


def _forwarders(capture: Capture, seen: SeenService) -> frozenset[int]:
    """Who listens at the address of a service that itself listens in a namespace of its own."""
    where = seen.address
    found = frozenset(
        pid
        for one in capture.listeners
        if where is not None and one.local not in seen.inside and one.local.port == where.port
        and same_host(one.local.host, where.host)
        for pid in one.pids
    )  # fmt: skip
    return found - set(seen.pids)


def _known_upstream(seen: SeenService, names: set[str]) -> SeenService:
    """The service with those upstream that were looked at, and opaque when some were not."""
    upstream = tuple(name for name in dict.fromkeys(seen.upstream) if name in names and name != seen.name)
    return seen if upstream == seen.upstream else replace(seen, upstream=upstream, opaque=True)


def _ports(capture: Capture, services: Mapping[str, SeenService], owner_of: Mapping[int, str]) -> dict[int, str]:
    """Which local service listens on which port; none where two do, or where another process holds it."""
    found: dict[int, list[str]] = {}
    for name, seen in services.items():
        if seen.address is None or seen.remote:
            continue
        holders = {owner_of.get(pid) for x in capture.listeners if x.local.port == seen.address.port for pid in x.pids}
        if name in holders or not holders:
            found.setdefault(seen.address.port, []).append(name)
    return {port: names[0] for port, names in found.items() if len(names) == 1}


def _top_down(services: Mapping[str, SeenService], entry: str | None) -> tuple[str, ...]:
    depth: dict[str, int] = {}

    def visit(name: str, level: int) -> None:
        if name in services and depth.get(name, -1) < level <= len(services):
            depth[name] = level
            for below in services[name].upstream:
                visit(below, level + 1)

    if entry in services:
        visit(str(entry), 0)
    for name in services:
        if name not in depth:
            visit(name, 0 if entry not in services else 1)
    return tuple(sorted(services, key=lambda name: (depth[name], list(services).index(name))))
