"""Looks at the sockets of this host, several a second → one record a connection and listener of the chain."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from vindicate.record.observation import Address, Connection, Listener, SocketSample
from vindicate.stack.http import OwnSockets
from vindicate.stack.sockets import EndedSockets, InodeOwners, dump_table
from vindicate.wire.sockdiag import (
    LISTEN,
    STATES,
    TIME_WAIT,
    SocketTable,
    address_text,
    is_remnant,
    payload_received,
    payload_sent,
)

__all__ = ["SocketAccount"]

_ZERO_WINDOW_TIMER = 4  # idiag_timer: the zero window probe timer
_ENDED = "CLOSE"  # a socket that the kernel has just destroyed
_ENDED_STATE = STATES.index(_ENDED)
_CLOSE_WAIT = STATES.index("CLOSE_WAIT")
_MAX_CONNECTIONS = 4000
_MAX_SAMPLES = 4000

Ends = tuple[Address, Address]


class _Seen(NamedTuple):
    """A `SocketSample` in the making, and the look that saw it; a tuple, because there are many and few are kept."""

    look: int
    t_s: float
    state: str
    rx: int
    tx: int
    unread: int
    unsent: int
    last_rx_age_s: float | None
    last_tx_age_s: float | None
    retransmits: int
    zero_window: bool
    counted: bool
    last_ack_age_s: float | None = None

    def content(self) -> tuple[object, ...]:
        """What tells one look from the next: all but times and ages."""
        return (self.state, self.rx, self.tx, self.unread, self.unsent, self.retransmits, self.zero_window)

    def sample(self) -> SocketSample:
        """As it is recorded."""
        return SocketSample(
            t_s=self.t_s,
            state=self.state,
            rx=self.rx,
            tx=self.tx,
            unread=self.unread,
            unsent=self.unsent,
            last_rx_age_s=self.last_rx_age_s,
            last_tx_age_s=self.last_tx_age_s,
            retransmits=self.retransmits,
            zero_window=self.zero_window,
            counted=self.counted,
            last_ack_age_s=self.last_ack_age_s,
        )


@dataclass(slots=True)
class _Track:
    """One connection while the window runs."""

    local: Address
    remote: Address
    fresh: bool
    first_s: float
    pids: tuple[int, ...] = ()
    seen: list[_Seen] = field(default_factory=list)
    last_look: int = 0
    closed: bool = False

    @property
    def ends(self) -> Ends:
        """What identifies it at one time."""
        return (self.local, self.remote)


class SocketAccount:
    """Keeps the connections that touch *ports* at either end, or that one of *pids* holds, from look to look.

    *pids* is a callable, because processes come and go while the window runs. Connections are told apart by the kernel's
    cookie, so that two ends that are used again are two connections.
    """

    def __init__(
        self, ports: Iterable[int], pids: Callable[[], set[int]], *, own: OwnSockets, started: float | None = None
    ) -> None:
        self.ports = np.array(sorted(set(ports)), dtype=np.uint16)
        self.pids = pids
        self.own = own
        self.started = time.monotonic() if started is None else started
        self.owners = InodeOwners()
        self.ended = EndedSockets()
        self.n_looks = 0
        self.counted = True
        self.n_left_out = 0
        self.n_time_wait: int | None = None
        self.time_wait_to: dict[str, int] = {}
        self.cost_s = 0.0
        self._live: dict[int, _Track] = {}
        self._gone: dict[int, _Track] = {}
        self._last_gone: dict[Ends, _Track] = {}
        self._remnants: set[int] = set()
        self._listeners: dict[
            tuple[Address, int], tuple[int, list[int]]
        ] = {}  # several may share an address (SO_REUSEPORT)
        self._names: dict[tuple[int, bytes], str] = {}

    def look(self) -> None:
        """Dump the sockets once and note what belongs to the chain.

        Raises:
            CannotError: The sockets of this host cannot be read.

        Cost:
            One kernel dump, a vectorised choice of rows, and a few microseconds for each connection of the chain.
        """
        begun = time.thread_time()
        t_s = round(time.monotonic() - self.started, 4)
        ended = self.ended.drain()
        table = dump_table()
        self.n_looks += 1
        if len(table) and not table["has_info"].any():
            self.counted = False
        self._count_time_wait(table)
        listening = np.unique(table["sport"][table["state"] == LISTEN])
        rows = table[self._chosen(table)]
        remnant = is_remnant(rows)
        is_listener = rows["state"] == LISTEN
        self.owners.resolve(rows["inode"].tolist())
        self._note_listeners(rows[is_listener])
        self._note_ended(ended, listening, t_s)
        self._note_connections(rows[~remnant & ~is_listener], listening, t_s)
        self._note_remnants(rows[remnant], t_s)
        for cookie in [cookie for cookie, track in self._live.items() if track.last_look < self.n_looks]:
            self._end(cookie)
        self.cost_s += time.thread_time() - begun

    def _chosen(self, table: SocketTable) -> npt.NDArray[np.bool_]:
        """Rows with a port of the chain at either end, or held by a process of the chain."""
        chosen = np.isin(table["sport"], self.ports) | np.isin(table["dport"], self.ports)
        pids = self.pids()
        if pids:
            rest = table["inode"][~chosen & (table["inode"] != 0)].tolist()
            self.owners.resolve_among(rest, pids)
            held = [inode for inode in rest if not pids.isdisjoint(self.owners[inode])]
            if held:
                chosen |= np.isin(table["inode"], held)
        return np.asarray(chosen)

    def _count_time_wait(self, table: SocketTable) -> None:
        waiting = table[table["state"] == TIME_WAIT]
        self.n_time_wait = len(waiting)
        near = waiting[np.isin(waiting["dport"], self.ports)]
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

    def _note_listeners(self, rows: SocketTable) -> None:
        for row in rows:
            local, _ = self._ends(row)
            key = (local, int(row["inode"]))
            _, waiting = self._listeners.get(key, (0, []))
            waiting.append(int(row["rqueue"]))
            self._listeners[key] = (int(row["wqueue"]), waiting)

    def _note_connections(self, rows: SocketTable, listening: Any, t_s: float) -> None:
        passive = np.isin(rows["sport"], listening)
        unread = rows["rqueue"].astype(np.int64)
        unread -= (rows["state"] == _CLOSE_WAIT) & (unread > 0)  # the FIN stands in the queue too
        counted = rows["has_bytes"]
        columns = (
            rows["cookie"].tolist(),
            rows["inode"].tolist(),
            rows["state"].tolist(),
            np.where(counted, payload_received(rows), 0).tolist(),
            np.where(counted, payload_sent(rows, passive), 0).tolist(),
            unread.tolist(),
            rows["wqueue"].tolist(),
            (rows["last_data_recv"] / 1000).tolist(),
            (rows["last_data_sent"] / 1000).tolist(),
            rows["total_retrans"].tolist(),
            (rows["timer"] == _ZERO_WINDOW_TIMER).tolist(),
            counted.tolist(),
            rows["has_info"].tolist(),
            (rows["last_ack_recv"] / 1000).tolist(),
        )
        for index, row in enumerate(zip(*columns, strict=True)):
            (
                cookie,
                inode,
                state,
                rx,
                tx,
                n_unread,
                n_unsent,
                rx_age,
                tx_age,
                again,
                closed_window,
                known,
                info,
                heard,
            ) = row
            track = self._live.get(cookie) or self._gone.get(cookie) or self._begin(cookie, rows[index], t_s)
            if track is None:
                continue
            if track.closed and state != _ENDED_STATE:  # one dump had missed it
                track.closed = False
                self._live[cookie] = self._gone.pop(cookie)
            track.last_look = self.n_looks
            if inode:
                track.pids = self.owners[inode] or track.pids
            name = STATES[state] if state < len(STATES) else STATES[0]
            if not info:
                rx_age = tx_age = heard = None
            track.seen.append(
                _Seen(
                    self.n_looks,
                    t_s,
                    name,
                    rx,
                    tx,
                    n_unread,
                    n_unsent,
                    rx_age,
                    tx_age,
                    again,
                    closed_window,
                    known,
                    heard,
                )
            )

    def _begin(self, cookie: int, row: Any, t_s: float) -> _Track | None:
        if len(self._live) + len(self._gone) >= _MAX_CONNECTIONS:
            self.n_left_out += 1
            return None
        track = self._live[cookie] = _Track(*self._ends(row), fresh=self.n_looks > 1, first_s=t_s)
        return track

    def _note_ended(self, rows: SocketTable, listening: Any, t_s: float) -> None:
        """Give each connection that ended its last counters; those that lived between two looks appear here only."""
        if self.n_looks == 1 or not len(rows):
            return
        near = np.isin(rows["sport"], self.ports) | np.isin(rows["dport"], self.ports)
        known = np.array([*self._live, *self._gone], dtype=np.uint64)  # a notice may come after the dump that lacks it
        rows = rows[near | np.isin(rows["cookie"], known)]
        self._note_connections(rows, listening, t_s)
        for cookie in rows["cookie"].tolist():
            if cookie in self._live:
                self._end(cookie)

    def _note_remnants(self, rows: SocketTable, t_s: float) -> None:
        """Give connections that this end closed their last state; of one that was never seen alive, that is all there is."""
        for row in rows:
            cookie, state = int(row["cookie"]), int(row["state"])
            mark = cookie << 4 | state
            if mark in self._remnants:
                continue
            self._remnants.add(mark)
            ends = self._ends(row)
            track = self._last_gone.get(ends)
            if track is None or not track.seen:
                if self.n_looks == 1 or ends in self.own or self._begin(cookie, row, t_s) is None:
                    continue  # over before the window began, one of our own scrapes, or too many
                track = self._end(cookie)
                last = _Seen(self.n_looks, t_s, "", 0, 0, 0, 0, None, None, 0, zero_window=False, counted=False)
            else:
                last = track.seen[-1]
            if last.state != STATES[state]:
                track.seen.append(
                    last._replace(
                        look=self.n_looks,
                        t_s=t_s,
                        state=STATES[state],
                        last_rx_age_s=None,
                        last_tx_age_s=None,
                        last_ack_age_s=None,
                    )
                )

    def _end(self, cookie: int) -> _Track:
        track = self._live.pop(cookie)
        track.closed = True
        self._gone[cookie] = track
        self._last_gone[track.ends] = track
        return track

    def close(self) -> None:
        """Stop listening for sockets that end."""
        self.ended.close()

    def connected_to(self, port: int) -> set[int]:
        """Processes that have, or had, a connection of their own to *port*."""
        tracks = [*self._gone.values(), *self._live.values()]
        return {pid for track in tracks if track.remote.port == port for pid in track.pids}

    def connections(self) -> tuple[Connection, ...]:
        """What was seen, in order of first sight.

        Looks between two equal ones are left out (nothing moved); with very many connections, all keep the same few looks.
        """
        tracks = sorted([*self._gone.values(), *self._live.values()], key=lambda track: track.first_s)
        _settle_fins(tracks)
        every = max(1, -(-self.n_looks // max(4, _MAX_SAMPLES // max(1, len(tracks)))))
        return tuple(
            Connection(
                id=f"c{number}",
                local=track.local,
                remote=track.remote,
                pids=track.pids,
                samples=tuple(seen.sample() for seen in _thin(track.seen, every)),
                closed=track.closed,
                fresh=track.fresh,
                ours=track.ends in self.own,
            )
            for number, track in enumerate((track for track in tracks if track.seen), 1)
        )

    def listeners(self) -> tuple[Listener, ...]:
        """The listening sockets of the chain."""
        return tuple(
            Listener(local=local, pids=self.owners[inode], backlog=backlog, waiting=tuple(waiting))
            for (local, inode), (backlog, waiting) in self._listeners.items()
        )


def _settle_fins(tracks: list[_Track]) -> None:
    """Take the peer's FIN out of the last count of connections that ended.

    What the other end sent is exact, so where it is on this host too it decides. Where it is not: an end that closed first is
    cut off by the kernel before the other's FIN comes (it leaves a remnant), one that closed second has counted it.
    """
    by_ends = {track.ends: track for track in tracks}
    for track in tracks:
        at = next((index for index, seen in enumerate(track.seen) if seen.state == _ENDED), None)
        if at is None:
            continue
        end = track.seen[at]
        peer = by_ends.get((track.remote, track.local))
        sent = peer.seen[-1] if peer is not None and peer.seen else None
        closed_second = at == len(track.seen) - 1
        fin = end.rx == sent.tx + 1 if sent is not None and sent.counted else closed_second and end.rx > 0
        if fin:
            track.seen[at:] = [
                seen._replace(rx=seen.rx - 1, unread=max(0, seen.unread - 1)) for seen in track.seen[at:]
            ]


def _thin(all_seen: list[_Seen], every: int) -> list[_Seen]:
    """First, last, and of the others those of each *every*-th look that differ from a neighbour; changes of state stay."""
    kept = []
    for index, seen in enumerate(all_seen):
        if 0 < index < len(all_seen) - 1:
            before, after = all_seen[index - 1], all_seen[index + 1]
            moved = before.content() != seen.content() or seen.content() != after.content()
            if before.state == seen.state and not (moved and seen.look % every == 0):
                continue
        kept.append(seen)
    return kept
