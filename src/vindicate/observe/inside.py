"""Processes of the chain in other network namespaces, as those of containers → their sockets, under names that mean one place only."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from vindicate.observe.account import SocketAccount
from vindicate.record.observation import Address, Connection, Listener
from vindicate.stack.http import OwnSockets
from vindicate.stack.namespaces import addresses_in, container_name, foreign_namespaces
from vindicate.stack.sockets import NamespaceSockets

__all__ = ["Inside"]

_MOST = 16
_ANY = ("0.0.0.0", "::")  # noqa: S104 compared, not bound


@dataclass(frozen=True, slots=True)
class _Place:
    """One namespace: how it is called, its own addresses, and its sockets."""

    name: str
    addresses: frozenset[str]
    sockets: NamespaceSockets
    account: SocketAccount


class Inside:
    """Follows the sockets of *pids* in those namespaces of this host in which they live, our own left out.

    Loopback addresses there are written ``127.0.0.1%NAME``, as they are not ours. A listener at any address is one for each
    address of its namespace.
    """

    def __init__(self, pids: Callable[[], set[int]], *, own: OwnSockets, started: float) -> None:
        self._pids, self._own, self._started = pids, own, started
        self._places: dict[int, _Place] = {}

    def look(self) -> None:
        """As `SocketAccount.look`, in each of them; a namespace is followed from the first look at which a process lives there."""
        for number, pid in foreign_namespaces(self._pids()).items():
            if number not in self._places and len(self._places) < _MOST:
                self._places[number] = self._enter(number, pid)
        for place in self._places.values():
            place.account.look()

    def _enter(self, number: int, pid: int) -> _Place:
        sockets = NamespaceSockets(pid)
        account = SocketAccount((), self._pids, own=self._own, started=self._started, inside=sockets)
        return _Place(container_name(pid) or f"net-{number}", addresses_in(pid), sockets, account)

    def connections(self) -> tuple[Connection, ...]:
        """What was seen in all of them; ids are unique among these."""
        return tuple(
            replace(
                one,
                id=f"{place.name}:{one.id}",
                local=_placed(one.local, place.name),
                remote=_placed(one.remote, place.name),
            )
            for place in self._places.values()
            for one in place.account.connections()
        )

    def listeners(self) -> tuple[Listener, ...]:
        """Their listening sockets."""
        return tuple(
            replace(one, local=local)
            for place in self._places.values()
            for one in place.account.listeners()
            for local in _said(one.local, place)
        )

    def addresses(self, services: Mapping[str, Iterable[int]]) -> dict[str, tuple[Address, ...]]:
        """At which addresses each of *services*, by its processes, listens in there."""
        listeners = self.listeners()
        found = {
            name: tuple(dict.fromkeys(one.local for one in listeners if set(one.pids) & {*pids}))
            for name, pids in services.items()
        }
        return {name: where for name, where in found.items() if where}

    def connected_to(self, port: int) -> set[int]:
        """As `SocketAccount.connected_to`."""
        return {pid for place in self._places.values() for pid in place.account.connected_to(port)}

    @property
    def look_cost_s(self) -> float:
        """CPU that one look at all of them takes."""
        return sum(place.account.look_cost_s for place in self._places.values())

    @property
    def notes(self) -> tuple[str, ...]:
        """What could not be seen."""
        return tuple(
            f"the network namespace {place.name} could not be entered, which takes root: of its sockets only states and queues were seen"
            for place in self._places.values()
            if not place.account.counted
        )

    def close(self) -> None:
        """Leave them all."""
        for place in self._places.values():
            place.sockets.close()


def _placed(address: Address, place: str) -> Address:
    return replace(address, host=f"{address.host}%{place}") if _is_loopback(address.host) else address


def _said(local: Address, place: _Place) -> tuple[Address, ...]:
    if local.host not in _ANY:
        return (_placed(local, place.name),)
    fours = tuple(host for host in sorted(place.addresses) if local.host == "::" or ":" not in host)
    return tuple(Address(host, local.port) for host in (*fours, f"127.0.0.1%{place.name}"))


def _is_loopback(host: str) -> bool:
    return host == "::1" or host.startswith("127.")
