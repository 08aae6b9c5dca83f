"""Looks at many connections, one row each, kept as columns → for each connection the few looks that say something."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from vindicate.record.observation import SocketSample
from vindicate.wire.sockdiag import (
    STATES,
    SocketTable,
    payload_received,
    payload_sent,
)

__all__ = ["History", "Rows", "Seen", "rows_of", "thin"]

Rows = npt.NDArray[
    np.int64
]  # shape [n, len(Seen._fields) - 1]: the fields of `Seen` but its time, which follows from the look

_ZERO_WINDOW_TIMER = 4  # idiag_timer: the zero window probe timer
_CLOSE_WAIT = STATES.index("CLOSE_WAIT")
_NEVER = -1  # an age that the kernel did not give
_STEADY = 1000  # connections of which every look is kept


class Seen(NamedTuple):
    """A `SocketSample` in the making, and the look that saw it."""

    look: int
    state: int
    rx: int
    tx: int
    unread: int
    unsent: int
    retransmits: int
    zero_window: int
    counted: int
    rx_age_ms: int
    tx_age_ms: int
    ack_age_ms: int
    t_s: float

    def content(self) -> tuple[float, ...]:
        """What tells one look from the next: all but times and ages."""
        return tuple(self)[_CONTENT]

    def sample(self) -> SocketSample:
        """As it is recorded."""
        return SocketSample(
            t_s=self.t_s,
            state=STATES[self.state] if self.state < len(STATES) else STATES[0],
            rx=self.rx,
            tx=self.tx,
            unread=self.unread,
            unsent=self.unsent,
            last_rx_age_s=_seconds(self.rx_age_ms),
            last_tx_age_s=_seconds(self.tx_age_ms),
            retransmits=self.retransmits,
            zero_window=bool(self.zero_window),
            counted=bool(self.counted),
            last_ack_age_s=_seconds(self.ack_age_ms),
        )


_CONTENT = slice(Seen._fields.index("state"), Seen._fields.index("counted"))
_AGES = slice(Seen._fields.index("rx_age_ms"), Seen._fields.index("t_s"))
_STATE, _LOOK = Seen._fields.index("state"), Seen._fields.index("look")


def _seconds(age_ms: int) -> float | None:
    return None if age_ms == _NEVER else age_ms / 1000


def rows_of(table: SocketTable, passive: npt.NDArray[np.bool_], look: int) -> Rows:
    """The columns that are kept of *table*; *passive*: which connections the other end opened."""
    counted, ages = table["has_bytes"], table["has_info"]
    unread = table["rqueue"].astype(np.int64)
    unread -= (table["state"] == _CLOSE_WAIT) & (unread > 0)  # the FIN stands in the queue too
    rows = np.empty((len(table), len(Seen._fields) - 1), np.int64)
    columns = (
        look,
        table["state"],
        np.where(counted, payload_received(table), 0),
        np.where(counted, payload_sent(table, passive), 0),
        unread,
        table["wqueue"],
        table["total_retrans"],
        table["timer"] == _ZERO_WINDOW_TIMER,
        counted,
        np.where(ages, table["last_data_recv"], _NEVER),
        np.where(ages, table["last_data_sent"], _NEVER),
        np.where(ages, table["last_ack_recv"], _NEVER),
    )
    for index, column in enumerate(columns):
        rows[:, index] = column
    return rows


class History:
    """Of each connection, by a number of its own, the newest row, and of the older ones those on both sides of a move.

    With more than a thousand connections only every n-th look is kept, besides changes of state, so that memory is bounded
    by the number of looks and not by connections times looks.
    """

    def __init__(self) -> None:
        self._newest: Rows = np.zeros((256, len(Seen._fields) - 1), np.int64)
        self._kept = np.zeros(256, np.bool_)  # whether the newest row is among the older ones already
        self._older: list[tuple[npt.NDArray[np.int64], Rows]] = []

    def note(self, numbers: npt.NDArray[np.int64], rows: Rows) -> None:
        """Add a look: one row each for the connections *numbers*; a connection that is new has only zeros before."""
        n_needed = int(numbers.max(initial=-1)) + 1
        while n_needed > len(self._newest):
            self._newest = np.concatenate([self._newest, np.zeros_like(self._newest)])
            self._kept = np.concatenate([self._kept, np.zeros_like(self._kept)])
        before = self._newest[numbers]
        moved = (before[:, _CONTENT] != rows[:, _CONTENT]).any(axis=1)
        every = 1 + len(numbers) // _STEADY
        if every > 1:
            moved &= (rows[:, _LOOK] % every == 0) | (before[:, _STATE] != rows[:, _STATE])
        fresh = before[:, _LOOK] == 0
        self._keep(numbers, before, moved & ~fresh & ~self._kept[numbers])
        self._keep(numbers, rows, moved | fresh)
        self._newest[numbers] = rows
        self._kept[numbers] = moved | fresh

    def _keep(self, numbers: npt.NDArray[np.int64], rows: Rows, which: npt.NDArray[np.bool_]) -> None:
        if which.any():
            self._older.append((numbers[which], rows[which]))

    def note_state(self, number: int, state: int, look: int) -> None:
        """Add that all is as before but the state, of a connection of which only the kernel's remnant is left."""
        row = self._newest[number].copy()
        if row[_LOOK] == 0 or row[_STATE] != state:
            row[_LOOK], row[_STATE], row[_AGES] = look, state, _NEVER
            self.note(np.array([number]), row[None])

    def of_each(self, n_connections: int, times_s: list[float]) -> list[list[Seen]]:
        """All rows that are kept, in order, for each of the first *n_connections*; *times_s*: when each look was, by its number."""
        out: list[list[Seen]] = [[] for _ in range(n_connections)]
        for numbers, rows in self._older:
            for number, row in zip(numbers.tolist(), rows.tolist(), strict=True):
                out[number].append(Seen._make((*row, times_s[row[_LOOK]])))
        for number, row in enumerate(self._newest[:n_connections].tolist()):
            if row[_LOOK] and not self._kept[number]:
                out[number].append(Seen._make((*row, times_s[row[_LOOK]])))
        return out


def thin(all_seen: list[Seen], every: int) -> list[Seen]:
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
