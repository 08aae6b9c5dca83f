"""Split-K decode attention on this CPU → its read rate over the machine's own, and what more pieces gain, beside the wave law.

    python benchmarks/split_k.py             about a minute; best of many, but a busy machine still shows

First table: bytes of keys and values over time, on contexts of four times the last-level cache or more, beside a loop that only adds
numbers up; both on all processors, in turns, best of REPEATS. The bar is 0.60 (one query head for each head of keys). With 16 query heads
for one head of keys, as in the constructed model, there is 16 times the arithmetic for each byte, and memory is no longer what it waits for.

Second table: R requests of 8192 keys and GROUP query heads, so that arithmetic is shared out and not memory, on W workers, S pieces each.
Pieces are dealt in turn, so the law says

    gain over one piece = ⌈R / W⌉ · S / ⌈R · S / W⌉

which is a gain where W does not divide R, and none where it does. Wall time counts whoever else uses the machine; the other clock is the
processor time of the busiest worker.
"""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from math import ceil
from pathlib import Path

import numpy as np
from numba import njit

from vindicate.reference.attention import PAGE, Floats, Ints
from vindicate.reference.split_k import SplitK, combine, empty_partials, n_workers, split

REPEATS = 60
WIDTH = 128
BAR = 0.60
GROUP = 16

Inputs = tuple[Floats, Floats, Floats, Ints, Ints]


def llc_bytes() -> int:
    """The largest cache of processor 0."""
    sizes = Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    return max((int(size.read_text().strip().removesuffix("K")) * 1024 for size in sizes), default=32 << 20)


def contexts(n_requests: int, n_keys: int, group: int) -> Inputs:
    """Random queries and contexts; the pages of a context lie in order."""
    chance = np.random.default_rng(0)
    per_request = ceil(n_keys / PAGE)
    shape = (n_requests * per_request, PAGE, 1, WIDTH)
    table = np.arange(shape[0], dtype=np.int32).reshape(n_requests, per_request)
    queries = chance.standard_normal((n_requests, 1, group, WIDTH), np.float32) / np.float32(WIDTH**0.5)
    keys, values = (chance.standard_normal(shape, np.float32) for _ in range(2))
    return queries, keys, values, table, np.full(n_requests, n_keys, np.int32)


@njit(nogil=True, fastmath=True)  # type: ignore[untyped-decorator]
def added_up(numbers: Floats) -> float:
    """Read everything, and do as little with it as can be: from four places at once, which was the fastest of seven ways tried."""
    a = b = c = d = np.float32(0)
    quarter = len(numbers) // 4
    for at in range(quarter):
        a += numbers[at]
        b += numbers[quarter + at]
        c += numbers[2 * quarter + at]
        d += numbers[3 * quarter + at]
    return float(a + b + c + d)


def seconds(work: Callable[[], object]) -> float:
    """How long *work* takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def read_rate() -> None:
    """Print the first table."""
    n_bytes = 4 * llc_bytes()
    n_requests = 8
    n_keys = ceil(n_bytes / (n_requests * 2 * WIDTH * 4) / PAGE) * PAGE
    print(f"{n_requests} contexts of {n_keys} keys, {n_requests * n_keys * 2 * WIDTH * 4 / 1e6:.0f} MB of float32")
    for workers in sorted({1, n_workers()}):
        for group in (1, 4, 16):
            inputs = contexts(n_requests, n_keys, group)
            moved = inputs[1].nbytes + inputs[2].nbytes
            flat = np.concatenate([inputs[1].ravel(), inputs[2].ravel()])
            parts = np.array_split(flat, workers)
            kernel = SplitK(workers, workers=workers)
            with ThreadPoolExecutor(workers) as pool:
                read = lambda pool=pool, parts=parts: list(pool.map(added_up, parts))  # noqa: E731
                attend = lambda kernel=kernel, inputs=inputs: kernel(*inputs)  # noqa: E731
                read()
                attend()
                both = [(seconds(read), seconds(attend)) for _ in range(REPEATS)]
            reading, attending = (moved / min(times) / 1e9 for times in zip(*both, strict=True))
            bar = "" if group > 1 else f"   bar {BAR:.2f} {'met' if attending / reading >= BAR else 'MISSED'}"
            print(
                f"{workers} workers, {group:>2} query heads a key head: reading {reading:5.1f} GB/s, "
                f"attention {attending:5.1f} GB/s, ratio {attending / reading:.2f}{bar}"
            )


def once(inputs: Inputs, n_splits: int, workers: int, pool: ThreadPoolExecutor) -> tuple[float, float]:
    """Seconds of wall time, and of processor time of the busiest worker; the merge is in both."""
    partials = empty_partials(inputs[0], n_splits)

    def share(first: int) -> float:
        began = time.thread_time()
        split(*inputs, *partials, first, workers)
        return time.thread_time() - began

    started = time.perf_counter()
    busiest = max(pool.map(share, range(workers)))
    merging = time.perf_counter()
    combine(*partials, np.empty_like(inputs[0]))
    ended = time.perf_counter()
    return ended - started, busiest + ended - merging


def wave_law() -> None:
    """Print the second table."""
    workers = n_workers()
    pieces = (1, 2, 3, 4, 8, 64)
    print(f"\n{workers} workers; gain over one piece: the law | wall | processor time")
    print("requests " + "".join(f"{f'S={count}':>20}" for count in pieces[1:]))
    with ThreadPoolExecutor(workers) as pool:
        for n_requests in (1, 2, 3, 5, 7):
            inputs = contexts(n_requests, 8192, GROUP)
            best = dict.fromkeys(pieces, (np.inf, np.inf))
            for _ in range(REPEATS):
                for count in pieces:
                    now = once(inputs, count, workers, pool)
                    best[count] = (min(best[count][0], now[0]), min(best[count][1], now[1]))
            cells = []
            for count in pieces[1:]:
                law = ceil(n_requests / workers) * count / ceil(n_requests * count / workers)
                wall, processor = (best[1][clock] / best[count][clock] for clock in (0, 1))
                cells.append(f"{law:.2f} | {wall:.2f} | {processor:.2f}")
            print(f"{n_requests:>8} " + "".join(f"{cell:>20}" for cell in cells))


if __name__ == "__main__":
    read_rate()
    wave_law()
