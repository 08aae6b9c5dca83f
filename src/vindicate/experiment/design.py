"""A question about a knob → a design that fixes, before the first start, everything a verdict depends on."""

import hashlib
import random
from collections.abc import Sequence

from vindicate.errors import MisuseError
from vindicate.stats.planning import alpha_split
from vindicate.stats.verdict import FEWEST_BLOCKS

__all__ = [
    "BUSY_SHARE",
    "COVARIATE_LIMIT",
    "ERROR_LIMIT",
    "FEWEST_WARM_UPS",
    "HIT_LIMIT",
    "LAG_SHARE",
    "LOST_SHARE",
    "MOST_WARM_UPS",
    "MOVED",
    "RULES",
    "WORK_LIMIT",
    "alphas",
    "balanced_order",
    "check_plan",
    "default_looks",
    "is_flat",
    "level_order",
    "level_seed",
]

MOST_LOOKS = 3
ERROR_LIMIT = 0.01  # share of requests, and of answers, beyond which a level does not count
WORK_LIMIT = 0.05  # of tokens a request, between the arms
HIT_LIMIT = 0.05  # of the prompt tokens answered by a prefix cache, between the arms
COVARIATE_LIMIT = 0.03  # of clocks, KV tokens and their like, between the arms
BUSY_SHARE, LAG_SHARE = 0.9, 0.05  # of a core, of the latency measured: beyond, the client is part of what is measured
LOST_SHARE = 1 / 3
FLAT = 0.05  # a warm-up round that is faster than every one before by more: not warm yet
FEWEST_WARM_UPS, MOST_WARM_UPS = 2, 6
MOVED = 0.2  # both arms away from what an earlier experiment measured at the same value: something else changed
RULES = (
    "a start that fails, or whose processes do not all hold the arm's value: both arms of its block are out",
    "a level where more than 1 % of the requests failed, stalled or were cut short: that level of the block is out",
    "a level where more than 1 % of the answers lost what the context held: that level of the block is out",
    (
        "a level where the client used more than 90 % of a core, or its event loop was late by more than 5 ms and 5 % of the "
        "latency measured: that level of the block is out"
    ),
    (
        "other prompts in one arm, prompts of an earlier block, another version or model in one arm, 5 % more tokens a request, "
        "15 % more requests in flight: that level of the block is out"
    ),
    (
        "prefix cache hits that differ by 5 points, clocks or KV tokens by 3 %: that level of the block is out, unless they differ "
        "the same way in every block and in both orders, so that the knob may have moved them"
    ),
    "more than a third of the blocks out because the arms were not alike: the level is invalid",
    (
        "a gain that differs between the first and the second half of the levels by more than the margin and half of itself, "
        "p < .01: the level is invalid, an arm was still warming up"
    ),
    "a difference smaller than the client's own error: unresolved",
    "both arms 20 % away from what an earlier experiment measured at the same value: no equivalence is claimed",
    "a block that was interrupted is run again as a whole; what it had measured is kept and not counted",
    "an arm that loses more than a third of its blocks at a level, and more than the other arm: the level is invalid",
    "an arm whose start or load failed three times, or the first two times: the experiment ends there",
)


def default_looks(blocks: int) -> tuple[int, ...]:
    """One look at the end, and from 8 blocks on one half-way, at an even number of blocks."""
    half = blocks // 4 * 2
    return (half, blocks) if blocks >= 8 else (blocks,)


def check_plan(blocks: int, looks: Sequence[int], levels: Sequence[int], primary: int | None) -> None:
    """Refuse what cannot be judged.

    Raises:
        MisuseError: Too few blocks, looks that do not end at the last block, no level, or a primary that is none of them.
    """
    if blocks < FEWEST_BLOCKS:
        raise MisuseError(
            f"{blocks} blocks cannot give a verdict",
            remedy=f"--blocks {FEWEST_BLOCKS} gives grade B, 6 or more grade A",
        )
    if not 1 <= len(looks) <= MOST_LOOKS or list(looks) != sorted(set(looks)) or looks[-1] != blocks:
        raise MisuseError(
            f"looks {','.join(map(str, looks))} do not fit {blocks} blocks",
            remedy=f"one to {MOST_LOOKS} rising numbers that end with {blocks}, for example --looks {blocks}",
        )
    if looks[0] < FEWEST_BLOCKS:
        raise MisuseError(
            f"a look after {looks[0]} blocks sees too little", remedy=f"begin at {FEWEST_BLOCKS} or later"
        )
    if not levels or min(levels) < 1 or len(set(levels)) != len(levels):
        raise MisuseError(
            f"levels {','.join(map(str, levels))} are no concurrency levels", remedy="try: --levels 48,64,80,96"
        )
    if primary is not None and primary not in levels:
        raise MisuseError(f"level {primary} is not measured", remedy=f"--primary one of: {', '.join(map(str, levels))}")


def alphas(looks: Sequence[int]) -> tuple[float, ...]:
    """What each of the looks may spend of 5 %."""
    return alpha_split(len(looks))


def balanced_order(blocks: int, looks: Sequence[int], seed: int) -> tuple[tuple[str, ...], bool]:
    """Which arm runs first in each block, and whether that is balanced at every look.

    Between two looks as many blocks run A first as B first, shuffled; an odd one out falls to chance.
    """
    draw = random.Random(f"order:{seed}")  # noqa: S311 a design that can be drawn again, no secret
    order: list[str] = []
    for start, stop in zip([0, *looks], looks, strict=False):
        pairs = (stop - start) // 2
        part = ["ab", "ba"] * pairs + [draw.choice(["ab", "ba"])] * ((stop - start) % 2)
        draw.shuffle(part)
        order += part
    return tuple(order[:blocks]), all(stop % 2 == 0 for stop in looks)


def level_seed(seed: int, block: int, level: int) -> int:
    """The seed of the prompts: equal for both arms of a block, fresh in every block and at every level."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{block}:{level}".encode()).digest()[:4], "big") & 0x7FFFFFFF


def is_flat(rates: Sequence[float]) -> bool:
    """Whether the last round of a warm-up was no more than 5 % faster than the best before it; true of none at all."""
    return len(rates) == 0 or (len(rates) >= FEWEST_WARM_UPS and rates[-1] <= (1 + FLAT) * max(rates[:-1]))


def level_order(levels: Sequence[int], seed: int, block: int) -> tuple[int, ...]:
    """The order of the levels within both starts of a block, shuffled, so that a drift within a start favours none of them."""
    order = list(levels)
    random.Random(f"levels:{seed}:{block}").shuffle(order)  # noqa: S311 a design that can be drawn again, no secret
    return tuple(order)
