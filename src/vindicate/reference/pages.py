"""Rows of keys and values in, request by request → pages of a pool that all requests share, as decode's attention reads them."""

import numpy as np

from vindicate.errors import BugError
from vindicate.reference.attention import PAGE, Floats, Ints

__all__ = ["Pages", "Pool", "table_of"]


class Pool:
    """Pages for keys and for values; it doubles when all are taken, and says at any time how many are."""

    def __init__(self, size: int, n_pages: int = 64) -> None:
        self.keys: Floats = np.zeros((n_pages, PAGE, 1, size), np.float32)
        self.values: Floats = np.zeros_like(self.keys)
        self._free = set(range(n_pages))

    @property
    def n_taken(self) -> int:
        """Pages that somebody holds."""
        return len(self.keys) - len(self._free)

    def take(self) -> int:
        """The number of a page that nobody else holds; what is in it is left over from its last holder."""
        if not self._free:
            n_pages = len(self.keys)
            self._free = set(range(n_pages, 2 * n_pages))
            self.keys, self.values = (np.concatenate((pool, np.zeros_like(pool))) for pool in (self.keys, self.values))
        return self._free.pop()

    def give(self, page: int) -> None:
        """Take *page* back.

        Raises:
            BugError: Nobody held it.
        """
        if page in self._free:
            raise BugError(f"page {page} of the KV is given back twice", remedy="report it with the engine's log")
        self._free.add(page)


class Pages:
    """The pages of one request, left to right, and how many rows of them are filled."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self.numbers: list[int] = []
        self.n_rows = 0

    def append(self, keys: Floats, values: Floats) -> None:
        """Put rows behind the last one; new pages are taken as they are needed."""
        done = 0
        while done < len(keys):
            at = self.n_rows % PAGE
            if at == 0:
                self.numbers.append(self._pool.take())
            n = min(PAGE - at, len(keys) - done)
            page = self.numbers[-1]
            self._pool.keys[page, at : at + n, 0] = keys[done : done + n]
            self._pool.values[page, at : at + n, 0] = values[done : done + n]
            done += n
            self.n_rows += n

    def release(self) -> None:
        """Give every page back."""
        while self.numbers:
            self._pool.give(self.numbers.pop())
        self.n_rows = 0


def table_of(requests: list[Pages]) -> tuple[Ints, Ints]:
    """The page table and the lengths of *requests*, as `Attend` takes them."""
    lengths = np.array([pages.n_rows for pages in requests], np.int32)
    table = np.zeros((len(requests), max(1, *(len(pages.numbers) for pages in requests))), np.int32)
    for row, pages in zip(table, requests, strict=True):
        row[: len(pages.numbers)] = pages.numbers
    return table, lengths
