"""Queries, pages of keys and values → what each query takes from its context: decode attention's interface, and its oracle.

`Attend` is the seam: the float64 oracle here, the split-K kernel in `split_k`, later one for a GPU. The shapes:

    queries (B, H, G, D)         G query heads share each of the H heads of keys and values
    keys, values (P, PAGE, H, D) a pool of pages; which of them are whose, and in what order, says
    table (B, T)                 the page numbers of each request, left to right
    lengths (B,)                 how many rows of its pages are a request's own; none at all give zeros
    → (B, H, G, D)               Σ softmax(query · key) value; a scale, if any, is in the queries already
"""

from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["PAGE", "Attend", "Floats", "Ints", "exact_attention"]

PAGE: Final = 64

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]


class Attend(Protocol):
    """One decode attention over paged keys and values; the module's docstring has the shapes."""

    def __call__(self, queries: Floats, keys: Floats, values: Floats, table: Ints, lengths: Ints, /) -> Floats:
        """What each query takes from its request's rows."""


def exact_attention(queries: Floats, keys: Floats, values: Floats, table: Ints, lengths: Ints) -> Floats:
    """The oracle: in float64, in one piece, rounded once at the end. A query whose keys are all masked by -∞ takes nothing."""
    taken = np.zeros(queries.shape, np.float32)
    for query, row, length, out in zip(queries, table, lengths, taken, strict=True):
        if length:
            pages = row[: -(-length // PAGE)]
            own_keys, own_values = (pool[pages].reshape(-1, *pool.shape[2:])[:length] for pool in (keys, values))
            logits = np.einsum("hgd,nhd->hgn", query.astype(np.float64), own_keys.astype(np.float64))
            top = logits.max(axis=-1, keepdims=True)
            weights = np.exp(logits - np.where(top == -np.inf, 0, top))
            weights /= np.where(top == -np.inf, 1, weights.sum(axis=-1, keepdims=True))
            out[...] = np.einsum("hgn,nhd->hgd", weights, own_values.astype(np.float64))
    return taken
