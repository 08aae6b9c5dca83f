"""Looks at the sockets of this host, several a second → one record a connection and listener of the chain."""

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from vindicate.observe.history import History, Seen, rows_of, thin
from vindicate.record.observation import Address, Connection, Listener
from vindicate.stack.http import OwnSockets
from vindicate.stack.sockets import EndedSockets, InodeOwners, dump_table
from vindicate.wire.sockdiag import (
    LISTEN,
    STATES,
    TIME_WAIT,
    SocketTable,
    address_text,
    is_remnant,
    picked,
)

__all__ = ["SocketAccount", "Source", "settle_fin"]

_CLOSE = STATES.index("CLOSE")  # a socket that the kernel has just destroyed
_MAX_CONNECTIONS = 40_000
_MAX_SAMPLES = 4000
_FEW_STRANGERS, _ALL_EVERY_S, _MOST_FILTERED = 500, 1.0, 48

Ends = tuple[Address, Address]
_Mask = npt.NDArray[np.bool_]
_Numbers = npt.NDArray[np.int64]

_BOOK = np.dtype([("alive", "?"), ("last_look", "i8"), ("inode", "i8")])


class Source(Protocol):
    """Where sockets are told of that are not those of our own namespace."""

    @property
    def ended(self) -> EndedSockets:
        """Notices of those that end."""

    def dump(self, ports: Iterable[int] = ()) -> SocketTable:
        """All of them, or those that touch one of *ports*."""


@dataclass(slots=True)
class _Track:
    """One connection while the window runs; its looks are in the `History`, under its number."""

    local: Address
    remote: Address
    fresh: bool
    first_s: float
    pids: tuple[int, ...] = ()

    @property
    def ends(self) -> Ends:
        """What identifies it at one time."""
        return (self.local, self.remote)


class SocketAccount:
    """Keeps the connections that touch *ports* at either end, or that one of *pids* holds, from look to look.

    *pids* is a callable, because processes come and go while the window runs. Connections are told apart by the kernel's
    cookie, so that two ends that are used again are two connections; here each has a number.

    On a host with many sockets of others the kernel is asked for those of the chain's ports only, and once a second for
    all, to find what else the chain's processes hold; the ports of that are asked for from then on.

    With *inside* all that is said is said of that network namespace, or that other host, whose *owners* are given then.
    """

    def __init__(
        self,
        ports: Iterable[int],
        pids: Callable[[], set[int]],
        *,
        own: OwnSockets,
        started: float | None = None,
        inside: Source | None = None,
        owners: InodeOwners | None = None,
    ) -> None:
        self.ports = frozenset(ports)
        self._is_port = _ports_mask(self.ports)
        self.pids = pids
        self.own = own
        self.started = time.monotonic() if started is None else started
        self.owners = InodeOwners() if owners is None else owners
        self.ended = EndedSockets() if inside is None else inside.ended
        self._dump = dump_table if inside is None else inside.dump
        self.n_looks = 0
        self.counted = True
        self.n_left_out = 0
        self.n_time_wait: int | None = None
        self.time_wait_to: dict[str, int] = {}
        self.cost_s = 0.0
        # The least of the latest three: one with a search for owners, or with thousands of notices, says nothing of the next.
        self.look_cost_s = 0.0
        self._look_costs = deque((0.0, 0.0, 0.0), maxlen=3)
        self._times_s = [0.0]  # by look, which are counted from 1
        self._history = History()
        self._tracks: list[_Track] = []
        self._numbers: dict[int, int] = {}  # by cookie
        self._last_numbered: tuple[npt.NDArray[np.uint64], _Numbers] = (np.zeros(0, np.uint64), np.zeros(0, np.int64))
        self._book = np.zeros(256, _BOOK)  # by number
        self._unowned: dict[int, int] = {}  # number → inode
        self._last_gone: dict[Ends, int] = {}
        self._remnants: set[tuple[int, int]] = set()  # cookie and state
        self._listeners: dict[
            tuple[Address, int], tuple[int, list[int]]
        ] = {}  # several may share an address (SO_REUSEPORT)
        self._names: dict[tuple[int, bytes], str] = {}
        self._listening = _ports_mask(())
        self._beside: frozenset[int] = frozenset()  # ports of connections that pass none of the chain's
        self._n_strangers = 0
        self._last_all_s = float("-inf")

    def look(self, t_s: float | None = None) -> None:
        """Dump the sockets once and note what belongs to the chain; *t_s*: when that was, where it was not now.

        Raises:
            CannotError: The sockets of this host cannot be read.

        Cost:
            One kernel dump, and some array operations over its rows; microseconds for each connection that is new or ends.
        """
        begun = time.thread_time()
        t_s = round(time.monotonic() - self.started, 4) if t_s is None else t_s
        ended = self.ended.drain()
        self.n_looks += 1
        self._times_s.append(t_s)
        rows = self._chosen_rows(t_s)
        remnant = is_remnant(rows)
        is_listener = rows["state"] == LISTEN
        self._note_listeners(picked(rows, is_listener))
        self._note_ended(ended)
        self._note_connections(picked(rows, ~remnant & ~is_listener))
        self._note_remnants(picked(rows, remnant))
        book = self._book[: len(self._tracks)]
        for number in np.flatnonzero(book["alive"] & (book["last_look"] < self.n_looks)).tolist():
            self._end(number)
        self._find_owners(rows["inode"][is_listener].tolist())
        took_s = time.thread_time() - begun
        self.cost_s += took_s
        self._look_costs.append(took_s if self.n_looks > 1 else 0.0)
        self.look_cost_s = min(self._look_costs)

    # ---- choosing ------------------------------------------------------------------------------------------------

    def _chosen_rows(self, t_s: float) -> SocketTable:
        """The rows of the chain; those of the others are counted at most."""
        ports = self.ports | self._beside
        filtered = (
            self._n_strangers > _FEW_STRANGERS
            and t_s - self._last_all_s < _ALL_EVERY_S
            and len(ports) <= _MOST_FILTERED
        )
        table = self._dump(ports if filtered else ())
        whole = ~is_remnant(table)  # the kernel counts nothing for what is in TIME_WAIT
        if whole.any() and not table["has_info"][whole].any():
            self.counted = False
        if not filtered:
            self._last_all_s = t_s
            self._listening = _ports_mask(table["sport"][table["state"] == LISTEN])
            self._count_time_wait(table)
        near = self._is_near(table)
        chosen = near | self._is_held(table, ~near)
        rows = picked(table, chosen)
        if not filtered:
            self._n_strangers = len(table) - len(rows)
            beside = rows[~near[chosen]]
            ours = self._listening[beside["sport"]]
            self._beside = frozenset(np.where(ours, beside["sport"], beside["dport"]).tolist())
        return rows

    def _is_near(self, table: SocketTable) -> _Mask:
        return np.asarray(self._is_port[table["sport"]] | self._is_port[table["dport"]])

    def _is_held(self, table: SocketTable, among: _Mask) -> _Mask:
        """Those *among* the rows that a process of the chain holds."""
        pids = self.pids()
        inodes = table["inode"][among & (table["inode"] != 0)].tolist() if pids else []
        if not inodes:
            return np.zeros(len(table), np.bool_)
        self.owners.resolve_among(inodes, pids)
        held = [inode for inode in inodes if not pids.isdisjoint(self.owners[inode])]
        return np.asarray(among & np.isin(table["inode"], held))

    def _count_time_wait(self, table: SocketTable) -> None:
        waiting = picked(table, table["state"] == TIME_WAIT)
        self.n_time_wait = len(waiting)
        near = waiting[self._is_port[waiting["dport"]]]
        ends, counts = np.unique(near[["family", "dst", "dport"]], return_counts=True)
        self.time_wait_to = {}
        for end, count in zip(ends, counts, strict=True):
            name = self._address(int(end["family"]), end["dst"].tobytes(), int(end["dport"]))
            self.time_wait_to[f"{name.host}:{name.port}"] = int(count)

    def _address(self, family: int, raw: bytes, port: int) -> Address:
        key = (family, raw)
        name = self._names.get(key)
        if name is None:
            name = self._names[key] = address_text(family, raw)
        return Address(name, port)

    def _ends(self, row: Any) -> Ends:
        family = int(row["family"])
        return (
            self._address(family, row["src"].tobytes(), int(row["sport"])),
            self._address(family, row["dst"].tobytes(), int(row["dport"])),
        )

    # ---- noting --------------------------------------------------------------------------------------------------

    def _note_listeners(self, rows: SocketTable) -> None:
        for row in rows:
            local, _ = self._ends(row)
            key = (local, int(row["inode"]))
            _, waiting = self._listeners.get(key, (0, []))
            waiting.append(int(row["rqueue"]))
            self._listeners[key] = (int(row["wqueue"]), waiting)

    def _note_connections(self, rows: SocketTable) -> None:
        numbers = self._numbered(rows)
        if len(numbers) and numbers.min() < 0:
            rows, numbers = rows[numbers >= 0], numbers[numbers >= 0]
        self._history.note(numbers, rows_of(rows, self._listening[rows["sport"]], self.n_looks))
        self._book["alive"][numbers] |= rows["state"] != _CLOSE  # one dump may have missed it
        self._book["last_look"][numbers] = self.n_looks
        inodes = rows["inode"].astype(np.int64)
        new = (inodes != 0) & (inodes != self._book["inode"][numbers])
        self._book["inode"][numbers[new]] = inodes[new]
        self._unowned.update(zip(numbers[new].tolist(), inodes[new].tolist(), strict=True))

    def _find_owners(self, listening: list[int]) -> None:
        self.owners.resolve([*listening, *self._unowned.values()])
        found = {number: pids for number, inode in self._unowned.items() if (pids := self.owners[inode])}
        for number, pids in found.items():
            self._tracks[number].pids = pids
            del self._unowned[number]

    def _numbered(self, rows: SocketTable) -> _Numbers:
        """The number of each row's connection; below 0 where there are too many to keep."""
        cookies = rows["cookie"]
        if np.array_equal(cookies, self._last_numbered[0]):  # as a rule: the kernel keeps their order
            return self._last_numbered[1]
        numbers = [self._numbers.get(cookie, -1) for cookie in cookies.tolist()]
        for index in [index for index, number in enumerate(numbers) if number < 0]:
            numbers[index] = self._begin(rows[index])
        self._last_numbered = (cookies, np.array(numbers, np.int64))
        return self._last_numbered[1]

    def _begin(self, row: Any) -> int:
        number = len(self._tracks)
        if number >= _MAX_CONNECTIONS:
            self.n_left_out += 1
            return -1
        if number == len(self._book):
            self._book = np.concatenate([self._book, np.zeros_like(self._book)])
        self._book["alive"][number] = True
        self._numbers[int(row["cookie"])] = number
        self._tracks.append(_Track(*self._ends(row), fresh=self.n_looks > 1, first_s=self._times_s[-1]))
        return number

    def _note_ended(self, rows: SocketTable) -> None:
        """Give each connection that ended its last counters; those that lived between two looks appear here only."""
        if self.n_looks == 1 or not len(rows):
            return
        known = np.array([cookie in self._numbers for cookie in rows["cookie"].tolist()])
        rows = rows[known | self._is_near(rows)]  # a notice may come after the dump that lacks it
        self._note_connections(rows)
        for cookie in rows["cookie"].tolist():
            number = self._numbers.get(cookie)
            if number is not None and self._book["alive"][number]:
                self._end(number)

    def _note_remnants(self, rows: SocketTable) -> None:
        """Give connections that this end closed their last state; of one that was never seen alive, that is all there is."""
        for index, mark in enumerate(zip(rows["cookie"].tolist(), rows["state"].tolist(), strict=True)):
            if mark in self._remnants:
                continue
            self._remnants.add(mark)
            row, state = rows[index], mark[1]
            ends = self._ends(row)
            number = self._last_gone.get(ends, -1)
            if number < 0:
                if self.n_looks == 1 or ends in self.own or (number := self._begin(row)) < 0:
                    continue  # over before the window began, one of our own scrapes, or too many
                self._end(number)
            self._history.note_state(number, state, self.n_looks)

    def _end(self, number: int) -> None:
        self._book["alive"][number] = False
        self._last_gone[self._tracks[number].ends] = number
        self._unowned.pop(number, None)

    def close(self) -> None:
        """Stop listening for sockets that end."""
        self.ended.close()

    # ---- telling -------------------------------------------------------------------------------------------------

    def connected_to(self, port: int) -> set[int]:
        """Processes that have, or had, a connection of their own to *port*."""
        return {pid for track in self._tracks if track.remote.port == port for pid in track.pids}

    def connections(self) -> tuple[Connection, ...]:
        """What was seen, in order of first sight.

        Looks between two equal ones are left out (nothing moved); with very many connections, all keep the same few looks.
        """
        looks = self._history.of_each(len(self._tracks), self._times_s)
        seen_of = {track.ends: looks[number] for number, track in enumerate(self._tracks)}
        for track, seen in zip(self._tracks, looks, strict=True):
            settle_fin(seen, seen_of.get((track.remote, track.local)))
        every = max(1, -(-self.n_looks // max(4, _MAX_SAMPLES // max(1, len(self._tracks)))))
        return tuple(
            Connection(
                id=f"c{number}",
                local=track.local,
                remote=track.remote,
                pids=track.pids,
                samples=tuple(one.sample() for one in thin(seen, every)),
                closed=not alive,
                fresh=track.fresh,
                ours=track.ends in self.own,
            )
            for number, (track, seen, alive) in enumerate(
                zip(self._tracks, looks, self._book["alive"].tolist(), strict=False), 1
            )
        )

    def listeners(self) -> tuple[Listener, ...]:
        """The listening sockets of the chain."""
        return tuple(
            Listener(local=local, pids=self.owners[inode], backlog=backlog, waiting=tuple(waiting))
            for (local, inode), (backlog, waiting) in self._listeners.items()
        )


def _ports_mask(ports: Any) -> _Mask:
    """Which of all port numbers are among *ports*."""
    mask = np.zeros(1 << 16, np.bool_)
    mask[np.fromiter(ports, np.int64)] = True
    return mask


def settle_fin(seen: list[Seen], peer: list[Seen] | None) -> None:
    """Take the peer's FIN out of the last count of a connection that ended.

    What the other end sent is exact, so where it is on this host too it decides. Where it is not: an end that closed first is
    cut off by the kernel before the other's FIN comes (it leaves a remnant), one that closed second has counted it.
    """
    at = next((index for index, one in enumerate(seen) if one.state == _CLOSE), None)
    if at is None:
        return
    end = seen[at]
    sent = peer[-1] if peer else None
    closed_second = at == len(seen) - 1
    fin = end.rx == sent.tx + 1 if sent is not None and sent.counted else closed_second and end.rx > 0
    if fin:
        seen[at:] = [one._replace(rx=one.rx - 1, unread=max(0, one.unread - 1)) for one in seen[at:]]
