"""The sockets of this host, looked at now and again → who listens where, and whom every process calls; in containers too."""

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from vindicate.record.observation import Address
from vindicate.stack.named import is_model_server, is_no_server, named_by
from vindicate.stack.namespaces import addresses_in, namespace_of, process_at
from vindicate.stack.process import is_local
from vindicate.stack.sockets import (
    InodeOwners,
    NamespaceSockets,
    RawSocket,
    dump_sockets,
    raw_sockets,
)
from vindicate.stack.unix import unix_connections

__all__ = ["NOT_HTTP", "HostCalls", "Listening"]

_OF_THE_SYSTEM = (
    "/run/systemd/",
    "/run/dbus/",
    "/var/run/dbus/",
    "/run/user/",
    "/run/nscd/",
    "/var/run/nscd/",
    "/tmp/.X11-unix/",  # noqa: S108 compared, not opened
    "/run/docker",
)
# Ports of ssh, DNS, databases, queues, telemetry.
NOT_HTTP = frozenset(
    {22, 25, 53, 111, 2049, 2379, 2380, 3306, 4222, 4317, 4318, 5432, 5672, 6379, 9092, 11211, 14268, 27017}
)
_OUTGOING = ("ESTABLISHED", "SYN_SENT", "CLOSE_WAIT")
_ANY = ("0.0.0.0", "::")  # noqa: S104 compared, not bound


@dataclass(frozen=True, slots=True)
class Listening:
    """Who takes connections at a port: *hosts* are the addresses bound; *hidden*: user ids of holders that cannot be seen."""

    hosts: tuple[str, ...]
    pids: tuple[int, ...]
    hidden: tuple[int, ...] = ()

    def takes(self, host: str) -> bool:
        """Whether a connection to *host*, a local name or numeric address, comes to it; only families are told apart."""
        if host in ("localhost", "", *_ANY):
            return True
        return any(one == "::" or (":" in one) == (":" in host) for one in self.hosts)


@dataclass(frozen=True, slots=True)
class _Place:
    """A network namespace of its own, and the address by which it is called from outside."""

    sockets: NamespaceSockets
    owners: InodeOwners
    host: str
    addresses: frozenset[str]


class HostCalls:
    """What `look` has seen so far: listeners as of the last look, calls of all looks.

    *inside* holds the listeners in those namespaces that were `follow`ed, by an address of theirs.
    """

    def __init__(self) -> None:
        self.owners = InodeOwners(full_every_s=0.3)
        self.sockets: list[RawSocket] = []
        self.listening: dict[int, Listening] = {}
        self.by_pid: dict[int, set[Address]] = {}
        self.inside: dict[Address, Listening] = {}
        self._places: dict[int, _Place] = {}

    def follow(self, host: str) -> None:
        """Look from now on, and at once, also into the namespace of this host that has the address *host*, if one has."""
        pid = None if is_local(host) else process_at(host)
        number = namespace_of(pid) if pid is not None else None
        if pid is not None and number is not None and number not in self._places:
            self._places[number] = _Place(NamespaceSockets(pid), InodeOwners(0.3), host, addresses_in(pid))
            self._look_inside(self._places[number])

    def close(self) -> None:
        """Leave the namespaces that were followed."""
        for place in self._places.values():
            place.sockets.close()

    def look(self) -> None:
        """Note who listens and who calls whom right now.

        Raises:
            CannotError: The sockets of this host cannot be read.
        """
        self.sockets = dump_sockets()
        self.owners.resolve(one.inode for one in self.sockets if one.state == "LISTEN" or one.state in _OUTGOING)
        self.listening = {}
        for one in self.sockets:
            if one.state == "LISTEN":
                known, pids = self.listening.get(one.local.port, Listening((), ())), self.owners[one.inode]
                self.listening[one.local.port] = Listening(
                    (*known.hosts, one.local.host),
                    tuple(sorted({*known.pids, *pids})),
                    known.hidden if pids else (*known.hidden, one.uid),
                )
        for one in self.outgoing():
            self._note_call(self.owners[one.inode], one.remote)
        for place in self._places.values():
            self._look_inside(place)

    def _look_inside(self, place: _Place) -> None:
        """As `look`; a call over the loopback there goes to the namespace's own address."""
        sockets = raw_sockets(place.sockets.dump())
        place.owners.resolve(one.inode for one in sockets if one.state == "LISTEN" or one.state in _OUTGOING)
        listening = {one.local.port: place.owners[one.inode] for one in sockets if one.state == "LISTEN"}
        for port, pids in listening.items():
            for host in place.addresses:
                self.inside[Address(host, port)] = Listening((host,), pids)
        for one in sockets:
            if one.state in _OUTGOING and one.local.port not in listening:
                own = one.remote.host == "::1" or one.remote.host.startswith("127.")
                remote = Address(place.host, one.remote.port) if own else one.remote
                self._note_call(place.owners[one.inode], remote)

    def _note_call(self, pids: Iterable[int], remote: Address) -> None:
        for pid in pids:
            self.by_pid.setdefault(pid, set()).add(remote)

    def outgoing(self) -> list[RawSocket]:
        """Connections of the last look, from the end that opened them."""
        return [one for one in self.sockets if one.state in _OUTGOING and one.local.port not in self.listening]

    def holders(self, port: int) -> tuple[int, ...]:
        """The processes that listen at *port*."""
        heard = self.listening.get(port)
        return heard.pids if heard is not None else ()

    def holders_at(self, address: Address) -> tuple[int, ...]:
        """The processes that listen at *address*, on this host or in a namespace that is followed."""
        if is_local(address.host):
            return self.holders(address.port)
        heard = self.inside.get(address)
        return heard.pids if heard is not None else ()

    def leads_to_a_model(self, pids: set[int], seen: set[int]) -> bool:
        """Whether *pids* serve models by their own words, or name as an upstream or call a local port of some that do."""
        if any(is_model_server(pid) for pid in pids):
            return True
        further = set[int]()
        for pid in pids - seen:
            ports = {one.port for one in named_by(pid) if one.upstream and is_local(one.host.strip("[]"))}
            ports |= {one.port for one in self.by_pid.get(pid, ()) if is_local(one.host)} - NOT_HTTP
            further |= {holder for port in ports for holder in self.holders(port) if not is_no_server(holder)}
        further -= pids | seen
        return bool(further) and self.leads_to_a_model(further, seen | pids)

    def unix_calls(self, pids: set[int]) -> dict[str, tuple[int, ...]]:
        """Paths of Unix sockets to which *pids* are connected right now, with the processes at the other end; those of the system left out."""
        sockets = {one.inode: one for one in unix_connections()}
        owners = InodeOwners()  # one search, at once
        owners.resolve(sockets)
        found: dict[str, tuple[int, ...]] = {}
        for one in sockets.values():
            peer = sockets.get(one.peer or 0)
            if peer is None or one.name or not peer.name.startswith("/") or peer.name.startswith(_OF_THE_SYSTEM):
                continue
            if not pids.isdisjoint(owners[one.inode]) and pids.isdisjoint(owners[peer.inode]):
                found[peer.name] = owners[peer.inode]
        return found

    def clients(self) -> Counter[int]:
        """Established connections at each listening port, our own excepted."""
        ours = {one.local.port for one in self.sockets if os.getpid() in self.owners[one.inode]}
        return Counter(
            one.local.port
            for one in self.sockets
            if one.state in ("ESTABLISHED", "CLOSE_WAIT")
            and one.local.port in self.listening
            and one.remote.port not in ours
        )
