"""Trials → blocks: both starts of the last attempt at each, and how many are behind us; pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from vindicate.record.experiment import ArmName, Cell, Trial

__all__ = ["Pair", "cell_of", "finished_blocks", "pairs_of", "value_of"]


@dataclass(frozen=True, slots=True)
class Pair:
    """Both trials of one block, of the same attempt."""

    block: int
    first: ArmName
    a: Trial
    b: Trial


def pairs_of(trials: Sequence[Trial]) -> list[Pair]:
    """The blocks that have both their starts, failed ones included."""
    found: dict[tuple[int, int], dict[ArmName, Trial]] = {}
    for trial in trials:
        if trial.block > 0 and trial.outcome != "interrupted":
            found.setdefault((trial.block, trial.attempt), {})[trial.arm] = trial
    last = {block: attempt for (block, attempt), arms in sorted(found.items()) if len(arms) == 2}
    pairs = []
    for block, attempt in sorted(last.items()):
        arms = found[block, attempt]
        pairs.append(Pair(block, "a" if arms["a"].position == 1 else "b", arms["a"], arms["b"]))
    return pairs


def finished_blocks(trials: Sequence[Trial]) -> int:
    """How many blocks, counted from the first on, have both their starts behind them, failed ones included."""
    blocks = {pair.block for pair in pairs_of(trials)}
    return next(block for block in range(len(blocks) + 1) if block + 1 not in blocks)


def cell_of(trial: Trial, level: int) -> Cell | None:
    """What *trial* measured at *level*."""
    return next((cell for cell in trial.cells if cell.level == level), None)


def value_of(trial: Trial, level: int) -> float | None:
    """The metric of *trial* at *level*."""
    cell = cell_of(trial, level)
    return cell.value if cell else None
