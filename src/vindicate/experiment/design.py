"""A question about a knob → a design that fixes, before the first start, everything a verdict depends on."""

import hashlib
import random
from collections.abc import Sequence

from vindicate.errors import MisuseError
from vindicate.stats.planning import alpha_split
from vindicate.stats.verdict import FEWEST_BLOCKS

__all__ = ["ERROR_LIMIT", "RULES", "alphas", "balanced_order", "check_plan", "default_looks", "level_seed"]

MOST_LOOKS = 3
ERROR_LIMIT = 0.01  # share of requests, and of answers, beyond which a level does not count
RULES = (
    "a start that fails, or whose processes do not all hold the arm's value: both arms of its block are out",
    "a level where more than 1 % of the requests failed, stalled or were cut short: that level of the block is out",
    "a level where more than 1 % of the answers lost what the context held: that level of the block is out",
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
