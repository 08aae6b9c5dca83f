"""The gate of decode attention: within 1e-5 of float64, the edge table, the same bits again; and planted faults do not pass it."""

import numpy as np
import pytest

from vindicate.reference.attention import PAGE, exact_attention
from vindicate.reference.split_k import SplitK, _exponentials, combine, empty_partials, split
from vindicate.stats.waves import RULES

GATE = 1e-5
LENGTHS = {
    "one row": [1],
    "one page and none": [PAGE, 0],
    "nothing at all": [0, 0],
    "sizes that do not divide": [63, 65, 1000, 4099],
    "pieces without keys": [5 * PAGE, 9 * PAGE + 1, 3],
}


def case(lengths, *, heads=2, group=3, width=64, spread=1.0, seed=0):
    """Queries, scattered pages of random rows, and what does not belong to anybody is NaN."""
    chance = np.random.default_rng(seed)
    lengths = np.array(lengths, np.int32)
    per_request = max(1, -(-int(lengths.max()) // PAGE))
    table = chance.permutation(len(lengths) * per_request).astype(np.int32).reshape(len(lengths), per_request)
    keys, values = chance.standard_normal((2, table.size, PAGE, heads, width), np.float32)
    for row, length in zip(table, lengths, strict=True):
        for at, page in enumerate(row):
            keys[page, max(0, length - at * PAGE) :] = values[page, max(0, length - at * PAGE) :] = np.nan
    queries = chance.standard_normal((len(lengths), heads, group, width), np.float32) * np.float32(spread / width**0.5)
    return queries, keys, values, table, lengths


def masked(lengths):
    """Every key of the first request is masked, and of the others the first page and every second key."""
    queries, keys, values, table, lengths = case(lengths)
    queries[..., 0] = abs(queries[..., 0]) + 1
    for hidden in (table[0], table[:, 0]):
        keys[hidden, :, :, 0] = -np.inf
    keys[table[1:], ::2, :, 0] = -np.inf
    return queries, keys, values, table, lengths


def error(attend, inputs):
    """The largest difference to float64, over the largest value; infinite when a NaN comes out."""
    right, got = exact_attention(*inputs), attend(*inputs)
    off = abs(got.astype(np.float64) - right).max() / max(abs(right).max(), 1e-30)
    return np.inf if np.isnan(off) else off


def passes(make) -> bool:
    """Whether what ``make(target)`` makes is within the gate, on all cases of ordinary size."""
    inputs = [case(lengths) for lengths in LENGTHS.values()]
    inputs += [case([4099, 700], spread=8), masked([200, 300, 64])]
    return all(error(make(target), each) <= GATE for each in inputs for target in (1, 7, 16, 64))


def test_passes_the_gate_whatever_the_number_of_pieces():
    assert passes(SplitK)


@pytest.mark.parametrize("spread", [1, 8])
def test_stays_within_1e_5_of_float64_up_to_131072_keys(spread):
    inputs = case([131_072], heads=1, group=2, spread=spread)
    assert [target for target in (1, 2, 7, 64) if error(SplitK(target), inputs) > GATE] == []


def test_gives_the_same_bits_again_whoever_computes_them():
    inputs = case([4099, 63, 1000], spread=4)
    for target in (1, 8, 40):
        first = SplitK(target, workers=1)(*inputs)
        for workers in (1, 2, 3):
            assert (SplitK(target, workers=workers)(*inputs) == first).all()


@pytest.mark.parametrize("rule", RULES)
def test_pieces_follow_from_the_target_by_the_rule_and_never_outnumber_pages(rule):
    wanted = {"floor": (1, 5), "ceil": (2, 6), "pow2-floor": (1, 4), "doubling": (2, 8)}[rule]
    kernel = SplitK(256, rule=rule)
    assert (kernel.n_splits(96, 2, 100_000), kernel.n_splits(48, 1, 100_000)) == wanted
    assert (kernel.n_splits(48, 1, 2 * PAGE), kernel.n_splits(1, 1, 0)) == (min(2, wanted[1]), 1)


def test_exponentials_are_within_two_roundings_and_end_in_zero():
    x = np.linspace(-90, 0, 64 * 1000, dtype=np.float32).reshape(-1, 64)
    got = x + 5
    exponents = np.zeros(64, np.int32)
    for row in got:
        _exponentials(row, np.float32(5), exponents, exponents.view(np.float32))
    x = (x + np.float32(5)) - np.float32(5)
    right = np.exp(x.astype(np.float64))
    assert abs(got / right - 1)[x > -87].max() < 1.2e-7
    assert not got[x <= -87].any()


def test_a_nan_in_a_context_comes_out_as_one():
    for which in (1, 2):
        inputs = case([300], heads=1)
        inputs[which][inputs[3][0, 2], 17, 0, 5] = np.nan
        assert np.isnan(SplitK(3)(*inputs)).any()


# ---- faults that the gate has to catch


class Faulty(SplitK):
    """The kernel, with a hand in the partial results or another merge."""

    def __call__(self, queries, keys, values, table, lengths):
        partials = empty_partials(queries, self.n_splits(*queries.shape[:2], int(lengths.max(initial=0))))
        self.prepare(partials)
        split(queries, keys, values, table, lengths, *partials, 0, 1)
        with np.errstate(all="ignore"):
            return self.merge(*partials)

    def prepare(self, partials):
        for each in partials:
            each[:] = np.nan

    def merge(self, tops, masses, sums):
        out = np.empty((*tops.shape[:2], *sums.shape[3:]), np.float32)
        combine(tops, masses, sums, out)
        return out


class Unguarded(Faulty):
    def merge(self, tops, masses, sums):
        weights = np.exp(tops - tops.max(axis=2, keepdims=True))
        return (weights[..., None] * sums).sum(axis=2) / (weights * masses).sum(axis=2)[..., None]


class LogsInBfloat16(Faulty):
    def merge(self, tops, masses, sums):
        logs = np.where(masses > 0, tops + np.log(masses), -np.inf).astype(np.float32)
        bits = logs.view(np.uint32)
        logs = ((bits + 0x7FFF + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)).view(np.float32)
        full = np.where(masses > 0, masses, 1)
        return super().merge(logs, np.where(masses > 0, 1, 0).astype(np.float32), sums / full[..., None])


class LeavesPiecesAsTheyWere(Faulty):
    """Empty pieces are not written; what *left* is in them."""

    left = np.float32(0)

    def merge(self, tops, masses, sums):
        empty = masses == 0
        tops[empty] = masses[empty] = self.left
        sums[empty] = self.left
        return super().merge(tops, masses, sums)


class LeavesNaN(LeavesPiecesAsTheyWere):
    left = np.float32(np.nan)


class LeavesWhatWasThere(LeavesPiecesAsTheyWere):
    left = np.float32(0.5)


def test_the_gate_passes_the_hand_driven_kernel_when_nothing_is_wrong_with_it():
    assert passes(Faulty)


@pytest.mark.parametrize("fault", [Unguarded, LogsInBfloat16, LeavesNaN, LeavesWhatWasThere])
def test_the_gate_catches(fault):
    assert not passes(fault)


# ---- the merge alone


def merge(pieces):
    tops, masses, sums = (np.array([part], np.float32)[:, None, :, None] for part in zip(*pieces, strict=True))
    out = np.full((1, 1, 1, 1), 99, np.float32)
    combine(tops, masses, sums[..., None], out)
    return float(out[0, 0, 0, 0])


FULL = (1.0, 2.0, 6.0)  # a mean of 3


@pytest.mark.parametrize(
    ("pieces", "mean"),
    [
        ([FULL], 3.0),
        ([FULL, (1.0, 2.0, 2.0)], 2.0),
        ([FULL, (-np.inf, 0.0, 0.0)], 3.0),
        ([(-np.inf, 0.0, np.nan), FULL], 3.0),
        ([(np.inf, 0.0, np.nan), FULL], 3.0),
        ([(-1e30, 0.0, 0.0), FULL], 3.0),
        ([(-np.inf, 0.0, np.nan)] * 3, 0.0),
        ([(np.inf, 0.0, 0.0)] * 3, 0.0),
        ([(-1e30, 0.0, 0.0)] * 3, 0.0),
        ([FULL, (201.0, 2.0, 10.0)], 5.0),
        ([(3e38, 1.0, 7.0), FULL], 7.0),
        ([(-3e38, 1.0, 7.0)], 7.0),
    ],
)
def test_merges_as_the_edge_table_says(pieces, mean):
    assert merge(pieces) == pytest.approx(mean, rel=1e-6)


def test_a_nan_in_a_piece_with_keys_is_never_hidden():
    assert np.isnan(merge([FULL, (1.0, 2.0, np.nan)]))
    assert np.isnan(merge([FULL, (np.nan, 2.0, 1.0)]))
    assert np.isnan(merge([(np.nan, 2.0, 1.0), FULL]))
