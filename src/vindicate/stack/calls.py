"""The sockets of this host, looked at now and again → who listens where, and whom every process calls."""

import os
from collections import Counter
from dataclasses import dataclass

from vindicate.record.observation import Address
from vindicate.stack.sockets import InodeOwners, RawSocket, dump_sockets

__all__ = ["HostCalls", "Listening"]

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


class HostCalls:
    """What `look` has seen so far: listeners as of the last look, calls of all looks."""

    def __init__(self) -> None:
        self.owners = InodeOwners(full_every_s=0.3)
        self.sockets: list[RawSocket] = []
        self.listening: dict[int, Listening] = {}
        self.by_pid: dict[int, set[Address]] = {}

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
            for pid in self.owners[one.inode]:
                self.by_pid.setdefault(pid, set()).add(one.remote)

    def outgoing(self) -> list[RawSocket]:
        """Connections of the last look, from the end that opened them."""
        return [one for one in self.sockets if one.state in _OUTGOING and one.local.port not in self.listening]

    def holders(self, port: int) -> tuple[int, ...]:
        """The processes that listen at *port*."""
        heard = self.listening.get(port)
        return heard.pids if heard is not None else ()

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
