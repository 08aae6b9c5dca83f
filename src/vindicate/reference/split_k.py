"""Decode attention in two phases, compiled for this machine's CPU: pieces of every context, then their merge (split-K, flash decoding).

Phase one, `split`: the keys of every head of every request are cut into S pieces of whole pages. A piece s of keys K_s gives

    m_s = max x,    l_s = Σ e^(x - m_s),    a_s = Σ e^(x - m_s) value        with x = query · key

and a piece without keys gives m = -∞, l = 0, a = 0. Pieces are dealt to the workers in turn, as a card deals thread blocks to its
multiprocessors. Phase two, `combine`:

    m = max m_s,    out = Σ e^(m_s - m) a_s / Σ e^(m_s - m) l_s

in the order of s, so that the same pieces give the same bits whichever worker was first. The pair (m, l) is kept rather than the
logarithm m + ln l, whose rounding error grows with its size. The merge is guarded: +∞ as the sign of no keys counts as -∞, a piece of
weight 0 is not multiplied in (its numbers may be anything), and a row without any key is 0.

Only an engine on ``--device cpu`` imports this module; numba is an extra.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from math import ceil, exp, inf, log
from typing import Any, Final, cast

import numpy as np
from numba import njit

from vindicate.reference.attention import PAGE, Floats, Ints
from vindicate.stats.waves import Rule, SplitMapping, splits

__all__ = ["DEFAULT_RULE", "SplitK", "combine", "empty_partials", "n_workers", "split"]

DEFAULT_RULE: Final[Rule] = "ceil"
# Sums may be reordered into vector lanes, and multiply-adds fused; infinities and NaN keep their meaning.
_FAST: Final = {"reassoc", "contract"}
_NOTHING: Final = np.float32(-inf)
_LOG2_E: Final = np.float32(1 / log(2))
_LN2_HIGH: Final = np.float32(355 / 512)
_LN2_LOW: Final = np.float32(log(2) - 355 / 512)
_LEAST: Final = np.float32(-87)  # below, e^x is less than the smallest normal float32, and counts as 0


def _compiled(python: Callable[..., None], fastmath: set[str] | bool) -> Callable[..., None]:
    try:
        compiled = njit(python, nogil=True, fastmath=fastmath, cache=True)
    except RuntimeError:  # there is no folder to keep it in; then every start compiles anew, in a second or two
        compiled = njit(python, nogil=True, fastmath=fastmath)
    return cast("Callable[..., None]", compiled)


def _exponentials_of(row: Any, top: Any, exponents: Any, powers: Any) -> None:
    """e^(x - top) for each x ≤ top of a row, in place: 2^k · e^t with |t| ≤ ln 2 / 2, by Taylor's polynomial of degree 7.

    Written out because the compiler can take it several numbers at a time, and a call of the C library's one at a time. 2^k is made of
    its bits: *powers* shows *exponents* as float32.
    """
    for r in range(len(row)):
        x = max(row[r] - top, _LEAST)
        k = np.floor(x * _LOG2_E + np.float32(0.5))
        t = x - k * _LN2_HIGH - k * _LN2_LOW
        p = np.float32(1 / 5040)
        p = p * t + np.float32(1 / 720)
        p = p * t + np.float32(1 / 120)
        p = p * t + np.float32(1 / 24)
        p = p * t + np.float32(1 / 6)
        p = p * t + np.float32(1 / 2)
        p = p * t + np.float32(1)
        row[r] = np.float32(0) if x <= _LEAST else p * t + np.float32(1)  # so that a NaN stays one
        exponents[r] = (np.int32(k) + np.int32(127)) << np.int32(23)
    for r in range(len(row)):
        row[r] *= powers[r]


# A compiled function, because `_split` calls it. No reordering here: t is exact only if ln 2 is taken off in two steps.
_exponentials: Final = _compiled(_exponentials_of, {"contract"})


def _split(  # noqa: PLR0917 compiled; it takes no keywords
    queries: Any,
    keys: Any,
    values: Any,
    table: Any,
    lengths: Any,
    tops: Any,
    masses: Any,
    sums: Any,
    first: int,
    stride: int,
) -> None:
    n_requests, n_heads, n_group, size = queries.shape
    n_splits = tops.shape[2]
    x = np.empty((n_group, PAGE), np.float32)
    of_page = np.empty(size, np.float32)
    exponents = np.zeros(PAGE, np.int32)
    powers = exponents.view(np.float32)
    x[:] = 0
    for item in range(first, n_requests * n_heads * n_splits, stride):
        request = item // (n_heads * n_splits)
        head = item // n_splits % n_heads
        s = item % n_splits
        m_s, l_s, a_s = tops[request, head, s], masses[request, head, s], sums[request, head, s]
        m_s[:] = _NOTHING
        l_s[:] = 0
        a_s[:] = 0
        n_rows = lengths[request]
        n_pages = (n_rows + PAGE - 1) // PAGE
        chunk = (n_pages + n_splits - 1) // n_splits
        for at in range(s * chunk, min((s + 1) * chunk, n_pages)):
            page = table[request, at]
            n = min(PAGE, n_rows - at * PAGE)
            for r in range(n):
                key = keys[page, r, head]
                for g in range(n_group):
                    query = queries[request, head, g]
                    dot = np.float32(0)
                    for d in range(size):
                        dot += query[d] * key[d]
                    x[g, r] = dot
            for g in range(n_group):
                top = m_s[g]
                for r in range(n):
                    top = max(top, x[g, r])
                if top == _NOTHING:  # every key so far is masked by -∞
                    continue
                scale = np.exp(m_s[g] - top)
                _exponentials(x[g], top, exponents, powers)
                total = np.float32(0)
                for r in range(n):
                    total += x[g, r]
                m_s[g] = top
                l_s[g] = l_s[g] * scale + total
                # A page is summed by itself first, so that rounding errors grow with pages, not with keys. Four rows at a
                # time: one pass over the sums for four over the values.
                of_page[:] = 0
                r = 0
                while r + 4 <= n:
                    p0, p1, p2, p3 = x[g, r], x[g, r + 1], x[g, r + 2], x[g, r + 3]
                    v0, v1 = values[page, r, head], values[page, r + 1, head]
                    v2, v3 = values[page, r + 2, head], values[page, r + 3, head]
                    for d in range(size):
                        of_page[d] += p0 * v0[d] + p1 * v1[d] + p2 * v2[d] + p3 * v3[d]
                    r += 4
                while r < n:
                    p0, v0 = x[g, r], values[page, r, head]
                    for d in range(size):
                        of_page[d] += p0 * v0[d]
                    r += 1
                into = a_s[g]
                for d in range(size):
                    into[d] = into[d] * scale + of_page[d]


def _combine(tops: Any, masses: Any, sums: Any, out: Any) -> None:
    n_requests, n_heads, n_splits, n_group, size = sums.shape
    for request in range(n_requests):
        for head in range(n_heads):
            for g in range(n_group):
                row = out[request, head, g]
                row[:] = 0
                top = -inf
                for s in range(n_splits):
                    m_s = tops[request, head, s, g]
                    if m_s != inf and not m_s <= top:  # not: a NaN must come out as one
                        top = m_s
                if top == -inf:
                    continue
                total = 0.0
                for s in range(n_splits):
                    m_s = tops[request, head, s, g]
                    weight = 0.0 if m_s == inf else exp(m_s - top)
                    if weight == 0 or masses[request, head, s, g] == 0:
                        continue
                    total += weight * masses[request, head, s, g]
                    for d in range(size):
                        row[d] += np.float32(weight) * sums[request, head, s, g, d]
                if total != 0:
                    for d in range(size):
                        row[d] /= total


split: Final = _compiled(_split, _FAST)
"""``split(queries, keys, values, table, lengths, tops, masses, sums, first, stride)`` writes the partial results of every *stride*-th piece."""
combine: Final = _compiled(_combine, False)
"""``combine(tops, masses, sums, out)`` merges the pieces, guarded, in their order."""


def empty_partials(queries: Floats, n_splits: int) -> tuple[Floats, Floats, Floats]:
    """Room for m, l and a (tops, masses and sums) of *n_splits* pieces; not initialised, because `split` writes every piece."""
    n_requests, n_heads, n_group, size = queries.shape
    shape = (n_requests, n_heads, n_splits, n_group)
    return np.empty(shape, np.float32), np.empty(shape, np.float32), np.empty((*shape, size), np.float32)


def n_workers() -> int:
    """As many as this process may use processors."""
    return len(os.sched_getaffinity(0))


class SplitK:
    """An `Attend` that aims for *target_ctas* pieces in all, by the mapping *rule*, on *workers* threads."""

    def __init__(self, target_ctas: int, *, rule: Rule = DEFAULT_RULE, workers: int | None = None) -> None:
        self.target_ctas = target_ctas
        self.rule = rule
        self.workers = workers or n_workers()
        self._others = ThreadPoolExecutor(self.workers, "split-k")

    def n_splits(self, n_requests: int, n_heads: int, longest: int) -> int:
        """Pieces for each head of each request; never more than the longest context has pages."""
        wanted = splits(n_requests, self.target_ctas, SplitMapping(self.rule, n_heads))
        return max(1, min(wanted, ceil(longest / PAGE)))

    def __call__(self, queries: Floats, keys: Floats, values: Floats, table: Ints, lengths: Ints, /) -> Floats:
        """See `Attend`."""
        n_requests, n_heads = queries.shape[:2]
        longest = int(lengths.max(initial=0))
        partials = empty_partials(queries, self.n_splits(n_requests, n_heads, longest))
        arguments = (queries, keys, values, table, lengths, *partials)
        others = [self._others.submit(split, *arguments, first, self.workers) for first in range(1, self.workers)]
        split(*arguments, 0, self.workers)
        for other in others:
            other.result()
        out = np.empty_like(queries)
        combine(*partials, out)
        return out

    def warm_up(self) -> None:
        """Compile both phases, or load what was compiled before, so that no request waits for it."""
        rows = np.zeros((1, PAGE, 1, 1), np.float32)
        self(np.zeros((1, 1, 1, 1), np.float32), rows, rows, np.zeros((1, 1), np.int32), np.ones(1, np.int32))
