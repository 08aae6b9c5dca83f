"""The TCP sockets of this host, as the kernel tells them, and which process holds each."""

import contextlib
import ctypes
import os
import socket
import struct
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vindicate.errors import CannotError
from vindicate.record.observation import Address
from vindicate.wire.sockdiag import (
    LISTEN,
    STATES,
    DumpReader,
    NetlinkRefusedError,
    SockDiagError,
    SocketTable,
    address_text,
    decode,
    empty_table,
    joined,
    payload_received,
    payload_sent,
    request,
)

__all__ = [
    "EndedSockets",
    "InodeOwners",
    "NamespaceSockets",
    "RawSocket",
    "dump_sockets",
    "dump_table",
    "has_sock_diag",
    "open_netlink",
    "raw_sockets",
    "table_of_proc",
]

_NETLINK_SOCK_DIAG = 4
_SO_RCVBUFFORCE = 33
_CLONE_NEWNET = 0x40000000
_BUFFER, _MOST_READ = 1 << 20, 1 << 16  # the kernel writes at most 32 KiB of a dump at once


@dataclass(frozen=True, slots=True)
class RawSocket:
    """One TCP socket. *rx* and *tx* are payload bytes, ``None`` where the kernel did not say; for a listener *rqueue* is
    the accept queue's length and *wqueue* its limit. *rx_age_s* and *tx_age_s* are those of the last payload, ``None`` before any."""  # noqa: D205, D209 the sentence is one

    state: str
    local: Address
    remote: Address
    inode: int
    uid: int
    cookie: int
    rqueue: int
    wqueue: int
    rx: int | None
    tx: int | None
    rx_age_s: float | None = None
    tx_age_s: float | None = None


def dump_table(ports: Iterable[int] = ()) -> SocketTable:
    """All TCP sockets of this network namespace, IPv4 and IPv6, as one table; with *ports* only those that touch one.

    Without `sock_diag` (not permitted, no such module) they come from /proc/net/tcp and tcp6; then ``has_info`` is false.

    Raises:
        CannotError: Neither can be read.
    """
    try:
        return joined(_dump(family, tuple(ports)) for family in (socket.AF_INET, socket.AF_INET6))
    except (OSError, SockDiagError):
        return _proc_table()


def has_sock_diag() -> bool:
    """Whether this process may ask the kernel by `sock_diag`; without it there are no byte counters."""
    try:
        _dump(socket.AF_INET, (9,))
    except (OSError, SockDiagError):
        return False
    return True


def _dump(family: int, ports: tuple[int, ...], link: socket.socket | None = None) -> SocketTable:
    """By a socket of this namespace that is opened for it, or by *link*, of whatever namespace that is."""
    if link is None:
        with open_netlink() as fresh:
            return _dump(family, ports, fresh)
    try:
        return _ask(request(family, ports=ports), link)
    except NetlinkRefusedError:
        if not ports:
            raise
    table = _ask(request(family), link)  # an older kernel, that does not know this filter
    chosen = np.isin(table["sport"], ports) | np.isin(table["dport"], ports)
    return table[chosen]


def open_netlink() -> socket.socket:
    """A socket that asks `sock_diag`, and waits two seconds for an answer."""
    link = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG)
    # Not settimeout(): that would poll before each of some hundred reads.
    link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 2, 0))
    return link


def _ask(message: bytes, link: socket.socket) -> SocketTable:
    reader = DumpReader()
    link.send(message)
    buffer = np.empty(_BUFFER, np.uint8).data
    while not reader.done:
        filled = link.recv_into(buffer)
        with contextlib.suppress(BlockingIOError):  # the more messages are decoded together, the less each costs
            while filled <= _BUFFER - _MOST_READ:
                filled += link.recv_into(buffer[filled:], 0, socket.MSG_DONTWAIT)
        reader.feed(buffer[:filled])
    return reader.table()


def _proc_table(pid: int | None = None) -> SocketTable:
    """From /proc/net/tcp and tcp6, or those of the namespace of *pid*, which need no privilege for processes of one's own."""
    folder = Path("/proc/net" if pid is None else f"/proc/{pid}/net")
    texts: list[str] = []
    problem: OSError | None = None
    for name in ("tcp", "tcp6"):
        try:
            texts.append((folder / name).read_text(encoding="ascii"))
        except OSError as error:
            problem = error
            texts.append("")
    if not any(texts) and problem is not None:
        raise CannotError(
            f"the sockets of this host cannot be read: {problem}", remedy="vindicate diagnose needs Linux with /proc"
        ) from problem
    return table_of_proc(*texts)


def table_of_proc(tcp: str, tcp6: str) -> SocketTable:
    """The table that /proc/net/tcp and tcp6, as text, give; without byte counters.

    Raises:
        ValueError: It is no such text.
    """
    texts = ((tcp, socket.AF_INET), (tcp6, socket.AF_INET6))
    return joined([_proc_row(line.split(), family) for text, family in texts for line in text.splitlines()[1:]])


def _proc_row(words: list[str], family: int) -> SocketTable:
    row = empty_table(1)
    row["family"] = family
    row["state"] = int(words[3], 16)
    for text, port, address in ((words[1], "sport", "src"), (words[2], "dport", "dst")):
        host, _, number = text.partition(":")
        # Each group of four bytes is printed as a number of the host's own byte order.
        raw = b"".join(bytes.fromhex(host[at : at + 8])[::-1] for at in range(0, len(host), 8))
        row[port] = int(number, 16)
        row[address] = np.void(raw.ljust(16, b"\0"))
    row["wqueue"], row["rqueue"] = (int(part, 16) for part in words[4].split(":"))
    row["timer"] = int(words[5].split(":")[0], 16)
    row["uid"], row["inode"] = int(words[7]), int(words[9])
    row["cookie"] = hash((words[1], words[2])) & (2**63 - 1)  # the same at each look while the ends are the same
    return row


def raw_sockets(table: SocketTable) -> list[RawSocket]:
    """One object a row; who opened a connection is told from the listening ports in the table."""
    passive = np.isin(table["sport"], table["sport"][table["state"] == LISTEN])
    rx, tx = payload_received(table).tolist(), payload_sent(table, passive).tolist()
    known = table["has_bytes"].tolist()
    out = []
    for index, row in enumerate(table):
        family = int(row["family"])
        out.append(
            RawSocket(
                state=STATES[row["state"]] if row["state"] < len(STATES) else STATES[0],
                local=Address(address_text(family, row["src"].tobytes()), int(row["sport"])),
                remote=Address(address_text(family, row["dst"].tobytes()), int(row["dport"])),
                inode=int(row["inode"]),
                uid=int(row["uid"]),
                cookie=int(row["cookie"]),
                rqueue=int(row["rqueue"]),
                wqueue=int(row["wqueue"]),
                rx=rx[index] if known[index] else None,
                tx=tx[index] if known[index] else None,
                rx_age_s=int(row["last_data_recv"]) / 1000 if known[index] and rx[index] else None,
                tx_age_s=int(row["last_data_sent"]) / 1000 if known[index] and tx[index] else None,
            )
        )
    return out


def dump_sockets(ports: Iterable[int] = ()) -> list[RawSocket]:
    """All TCP sockets of this host as objects; see `dump_table`.

    Raises:
        CannotError: They cannot be read.
    """
    return raw_sockets(dump_table(ports))


class EndedSockets:
    """The kernel's notices of TCP sockets that end (`SKNLGRP_INET_TCP_DESTROY` and its IPv6 twin, include/uapi/linux/sock_diag.h).

    Each carries the last counters, so that a connection that lives between two looks is counted, and the last bytes of
    every other one too. While it is open the kernel writes one such message for every TCP socket of this namespace that ends.
    """

    _GROUPS = (1 << 0) | (1 << 2)

    def __init__(self) -> None:
        self.lost = False
        self._link: socket.socket | None = None
        try:
            kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
            self._link = socket.socket(socket.AF_NETLINK, kind, _NETLINK_SOCK_DIAG)
            self._link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
            with contextlib.suppress(OSError):  # past the host's limit, where we may
                self._link.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 1 << 22)
            self._link.bind((0, self._GROUPS))
        except OSError:
            self.close()

    @property
    def open(self) -> bool:
        """Whether the kernel lets us listen."""
        return self._link is not None

    def drain(self) -> SocketTable:
        """The sockets that ended since the last call; *lost* is set when there were more than the queue holds."""
        tables: list[SocketTable] = []
        while self._link is not None:
            try:
                tables.append(decode(self._link.recv(_BUFFER)))
            except BlockingIOError:
                break
            except (OSError, SockDiagError):  # ENOBUFS: the queue was full
                self.lost = True
        return joined(tables)

    def close(self) -> None:
        """Stop listening."""
        if self._link is not None:
            self._link.close()
            self._link = None


class NamespaceSockets:
    """The TCP sockets of another network namespace of this host, that of *pid*, as a container has one.

    It is entered once, by a thread that does nothing else (setns(2), which needs CAP_SYS_ADMIN there); without that leave its
    sockets are read from /proc, without byte counters.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.ended = EndedSockets()
        self.ended.close()  # of this namespace
        self._link: socket.socket | None = None
        entering = threading.Thread(target=self._enter, name="namespace")
        entering.start()
        entering.join()

    def _enter(self) -> None:
        with contextlib.suppress(OSError), open(f"/proc/{self.pid}/ns/net", "rb") as file:
            if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), _CLONE_NEWNET) == 0:
                self._link, self.ended = open_netlink(), EndedSockets()

    def dump(self, ports: Iterable[int] = ()) -> SocketTable:
        """As `dump_table`; empty once nobody lives there any more."""
        try:
            if self._link is not None:
                return joined(_dump(family, tuple(ports), self._link) for family in (socket.AF_INET, socket.AF_INET6))
        except (OSError, SockDiagError):
            self.close()
        try:
            return _proc_table(self.pid)
        except CannotError:
            return empty_table(0)

    def close(self) -> None:
        """Leave it."""
        self.ended.close()
        if self._link is not None:
            self._link.close()
            self._link = None


class InodeOwners:
    """Socket inode → the processes that hold it; only inodes not seen before are looked for.

    Processes that were found to hold one before are searched first; all others at most once in *full_every_s*.
    """

    def __init__(self, full_every_s: float = 1.0) -> None:
        self._owners: dict[int, tuple[int, ...]] = {}
        self._tried: set[int] = set()
        self._full_every_s = full_every_s
        self._missed: set[int] = set()  # not held by a process that held others
        self._next_near = self._next_full = 0.0
        self._unreadable = False

    @property
    def saw_foreign(self) -> bool:
        """Whether a process of another user could not be searched."""
        return self._unreadable

    def __getitem__(self, inode: int) -> tuple[int, ...]:
        """The holders of *inode* as last resolved; empty when unknown or out of sight."""
        return self._owners.get(inode, ())

    def resolve(self, inodes: Iterable[int]) -> None:
        """Look for the holders of those *inodes* that are new.

        Cost:
            Some microseconds for each open file of the processes searched; a search is put off until nine times as long as
            the one before it took has gone by.
        """
        wanted = {inode for inode in inodes if inode and not self._owners.get(inode)}
        new = wanted - self._missed
        begun = time.monotonic()
        if wanted and begun >= self._next_full:
            self._search(wanted, {int(name) for name in os.listdir("/proc") if name.isdigit()})
            self._next_full = max(begun + self._full_every_s, _rested(begun))
        elif new and begun >= self._next_near:
            self._search(new, {pid for pids in self._owners.values() for pid in pids})
            self._next_near = _rested(begun)
        else:
            return
        self._missed |= wanted

    def resolve_among(self, inodes: Iterable[int], pids: set[int]) -> None:
        """Look for the holders of those *inodes* that are new, in *pids* only; each inode is looked for once.

        Cost:
            As `resolve`.
        """
        wanted = {inode for inode in inodes if inode not in self._owners and inode not in self._tried}
        begun = time.monotonic()
        if wanted and begun >= self._next_near:
            self._tried |= wanted - self._search(wanted, pids)
            self._next_near = _rested(begun)

    def _search(self, wanted: set[int], pids: set[int]) -> set[int]:
        found: dict[int, list[int]] = {}
        for pid in sorted(pids):
            try:
                held = _socket_inodes(pid)
            except PermissionError:
                self._unreadable = True
                continue
            except OSError:
                continue
            for inode in held & wanted:
                found.setdefault(inode, []).append(pid)
        self._owners.update({inode: tuple(holders) for inode, holders in found.items()})
        return set(found)


def _rested(begun: float) -> float:
    """When to search again after a search that began at *begun* and has just ended: so that searching takes a tenth of the time."""
    now = time.monotonic()
    return now + 9 * (now - begun)


def _socket_inodes(pid: int) -> set[int]:
    folder = os.open(f"/proc/{pid}/fd", os.O_RDONLY | os.O_DIRECTORY)
    try:
        inodes = set()
        for name in os.listdir(folder):
            with contextlib.suppress(OSError):
                link = os.readlink(name, dir_fd=folder)
                if link.startswith("socket:["):
                    inodes.add(int(link[8:-1]))
        return inodes
    finally:
        os.close(folder)
