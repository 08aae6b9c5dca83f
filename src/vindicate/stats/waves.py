"""A kernel's thread-block target, a card and a batch → how many waves its thread blocks take, and what a step gains from another target; pure.

A split-K decode kernel cuts every head block of every request into S pieces, so that B·H·S thread blocks (CTAs) run. A card runs
SMs times CTAs per SM of them at a time: one wave. The last wave is rarely full, and a step pays for it whole. How S follows from the
target differs between kernels; the mappings below are the ones that were tried against the figures of the story.

    n = B·H·S        waves = ⌈n / slots⌉        T = waves · ⌈blocks / S⌉        r = T(target b) / T(target a)
    gain of the whole step = 1 / (1 - s + s·r) - 1,        s = the kernel's share of the step

It is a model of equal thread blocks that start together; real tails are softer, and unequal context lengths blur it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from types import MappingProxyType
from typing import Literal

__all__ = [
    "CARDS",
    "HEAD_BLOCKS",
    "KV_BLOCKS",
    "RULES",
    "Card",
    "SplitMapping",
    "ctas",
    "efficiency",
    "predicted_gain_pct",
    "relative_time",
    "splits",
    "step_factor",
    "waves",
]

Rule = Literal["floor", "ceil", "pow2-floor", "doubling"]
RULES: tuple[Rule, ...] = ("floor", "ceil", "pow2-floor", "doubling")
HEAD_BLOCKS = (1, 2, 4, 8)
# Blocks of keys in a context. Only its rounding shows (⌈1024 / 3⌉ · 3 ≠ 1024), so any large number gives the same picture.
KV_BLOCKS = 1024


@dataclass(frozen=True, slots=True)
class Card:
    """A GPU, as far as waves go: its name and how many streaming multiprocessors it has."""

    name: str
    sms: int


CARDS: Mapping[str, Card] = MappingProxyType(
    {
        card.name: card
        for card in (Card("rtx-pro-6000", 188), Card("rtx-5090", 170), Card("h200", 132), Card("b200", 148))
    }
)


@dataclass(frozen=True, slots=True)
class SplitMapping:
    """How a kernel turns the target into splits.

    Attributes:
        rule: ``floor`` and ``ceil`` round target / (B·H); ``pow2-floor`` takes the largest power of two not above it;
            ``doubling`` doubles the splits until B·H·S reaches the target.
        head_blocks: H, thread blocks that one request needs before any split.
        ctas_per_sm: How many thread blocks fit on a multiprocessor at once.
    """

    rule: Rule
    head_blocks: int
    ctas_per_sm: int = 1

    @property
    def name(self) -> str:
        """As a person says it: ``ceil, 2 head blocks, 1 CTA per SM``."""
        heads = "head block" if self.head_blocks == 1 else "head blocks"
        blocks = "CTA" if self.ctas_per_sm == 1 else "CTAs"
        return f"{self.rule}, {self.head_blocks} {heads}, {self.ctas_per_sm} {blocks} per SM"


def splits(batch: int, target: int, mapping: SplitMapping) -> int:
    """S, the pieces that each head block is cut into; at least 1.

    Example:
        >>> splits(96, 256, SplitMapping("ceil", 2)), splits(96, 512, SplitMapping("ceil", 2))
        (2, 3)
    """
    uncut = batch * mapping.head_blocks
    if mapping.rule == "floor":
        return max(1, target // uncut)
    if mapping.rule == "ceil":
        return max(1, -(-target // uncut))
    if mapping.rule == "pow2-floor":
        return 1 << (max(1, target // uncut).bit_length() - 1)
    return 1 << max(0, (-(-target // uncut) - 1).bit_length())


def ctas(batch: int, target: int, mapping: SplitMapping) -> int:
    """Thread blocks that run: B·H·S."""
    return batch * mapping.head_blocks * splits(batch, target, mapping)


def waves(batch: int, target: int, mapping: SplitMapping, sms: int) -> float:
    """Thread blocks over slots, not rounded: 1.36 waves take the time of two."""
    return ctas(batch, target, mapping) / (sms * mapping.ctas_per_sm)


def efficiency(batch: int, target: int, mapping: SplitMapping, sms: int) -> float:
    """Share of the slots of all waves that hold a thread block, in (0, 1]."""
    taken = waves(batch, target, mapping, sms)
    return taken / ceil(taken)


def relative_time(batch: int, target: int, mapping: SplitMapping, sms: int, kv_blocks: int = KV_BLOCKS) -> float:
    """Kernel time in units of one uncut head block's time: full waves times the share of the context that one piece reads."""
    piece = ceil(kv_blocks / splits(batch, target, mapping)) / kv_blocks
    return ceil(waves(batch, target, mapping, sms)) * piece


def step_factor(
    batch: int, target: int, mapping: SplitMapping, sms: int, *, against: int, kernel_share: float
) -> float:
    """A step's time with *target*, over its time with *against*; *kernel_share* is the kernel's part of the latter."""
    ratio = relative_time(batch, target, mapping, sms) / relative_time(batch, against, mapping, sms)
    return 1 - kernel_share + kernel_share * ratio


def predicted_gain_pct(  # noqa: PLR0917 the two targets read as "from a to b"
    batch: int, a: int, b: int, mapping: SplitMapping, sms: int, kernel_share: float
) -> float:
    """What throughput at this batch gains, in per cent, when the target goes from *a* to *b*.

    Example:
        >>> round(predicted_gain_pct(64, 256, 512, SplitMapping("ceil", 2), 188, 0.46), 1)
        13.0
    """
    return 100 / step_factor(batch, b, mapping, sms, against=a, kernel_share=kernel_share) - 100
