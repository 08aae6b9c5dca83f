"""One level's blocks and its verdict → the verdict that may be given, and what a reader should know beside it; pure.

The t test answers whether the arms differ. It does not know whether they differed by the knob, in the steady state, by more
than the client's own error, and on a base that is what it was: that is asked here. Nothing here ever makes a verdict stronger.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from vindicate.experiment.design import MOVED
from vindicate.experiment.metric import clock_of
from vindicate.experiment.pairs import Pair, cell_of, value_of
from vindicate.record.experiment import Cell, Design, Earlier
from vindicate.stats.paired import Estimate, gain_pct, order_effect, paired_estimate, trend
from vindicate.stats.regimes import two_regimes
from vindicate.stats.verdict import LevelVerdict
from vindicate.units import shown

__all__ = ["Doubted", "client_floor_pct", "doubt"]

_SURE = 0.01  # for remarks and for taking a verdict back: well beyond what one look spends
_WORTH_SAYING = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubted:
    """A verdict after every doubt, with remarks."""

    verdict: LevelVerdict
    notes: tuple[str, ...] = ()


def doubt(design: Design, pairs: Sequence[Pair], verdict: LevelVerdict, *, identity: Mapping[str, str]) -> Doubted:
    """Hold *verdict* against everything known of the blocks that it rests on.

    Args:
        pairs: Those blocks, and no other.
        identity: What the services said of themselves in this experiment.
    """
    level, estimate = verdict.level, verdict.estimate
    if estimate is None:
        return Doubted(verdict=verdict)
    notes = [*_order(pairs, level), *_drift(pairs, level, design.margin)]
    if (reason := _still_warming(pairs, level, estimate, design.margin)) is not None:
        return Doubted(verdict=replace(verdict, verdict="invalid", reason=reason, more_blocks=None), notes=tuple(notes))
    for why in (
        _within_client_error(design, pairs, verdict),
        _base_moved(design, pairs, level, identity),
        _no_repetition(design, verdict),
    ):
        if why is None:
            continue
        reason, unsays = why
        if verdict.verdict == "unresolved" or verdict.verdict in unsays:
            said = verdict.verdict == "unresolved" and verdict.reason
            reason = f"{verdict.reason}; {reason}" if said else reason
            more = verdict.more_blocks if said else None
            verdict = replace(verdict, verdict="unresolved", reason=reason, more_blocks=more)
        else:
            notes.append(f"level {level}: {reason}")
    for note in _regimes(pairs, level):
        notes.append(f"level {level}: {note}")
        if verdict.verdict == "unresolved":
            verdict = replace(verdict, reason=f"{verdict.reason}; {note}")
    return Doubted(verdict=verdict, notes=tuple(notes))


Why = tuple[str, tuple[str, ...]]  # a reason, and the verdicts that it takes back besides keeping unresolved ones


def _cells(pairs: Sequence[Pair], level: int) -> Iterator[tuple[Pair, Cell, Cell]]:
    for pair in pairs:
        a, b = cell_of(pair.a, level), cell_of(pair.b, level)
        if a is not None and b is not None:
            yield pair, a, b


def _still_warming(pairs: Sequence[Pair], level: int, estimate: Estimate, margin: float) -> str | None:
    """A gain that is there only for a part of the time is no gain of the steady state."""
    halves = [(a.halves, b.halves) for _, a, b in _cells(pairs, level) if a.halves and b.halves]
    if len(halves) < 3:
        return None
    early = [math.log(b[0] / a[0]) for a, b in halves]
    late = [math.log(b[1] / a[1]) for a, b in halves]
    change = paired_estimate([two - one for one, two in zip(early, late, strict=True)])
    if change.p >= _SURE or abs(change.log_gain) <= max(math.log1p(margin), abs(estimate.log_gain) / 2):
        return None
    first, second = (gain_pct(math.fsum(part) / len(part)) for part in (early, late))
    return (
        f"an arm was still warming up: b over a is {first:+.1f} % in the first half of the level and {second:+.1f} % in the second, "
        f"in {len(halves)} blocks; warm up longer, or compare cold starts and say so"
    )


def client_floor_pct(design: Design, pairs: Sequence[Pair], level: int) -> float | None:
    """The client's own error as per cent of what was measured at *level*; ``None`` where it was not calibrated."""
    clock = clock_of(design.metric)
    known = {item.level: item for item in design.client_error}
    seen = [value for _, a, b in _cells(pairs, level) for cell in (a, b) if (value := getattr(cell, f"{clock}_ms"))]
    if level not in known or not seen:
        return None
    error: float = getattr(known[level], f"{clock}_ms")
    return 100 * abs(error) * len(seen) / math.fsum(seen)


def _within_client_error(design: Design, pairs: Sequence[Pair], verdict: LevelVerdict) -> Why | None:
    floor = client_floor_pct(design, pairs, verdict.level)
    assert verdict.estimate is not None
    if floor is None:
        return None
    said = f"the client's own {clock_of(design.metric).upper()} error is {floor:.2g} % of what it measured"
    if abs(gain_pct(verdict.estimate.log_gain)) < floor and verdict.verdict in ("better", "worse"):
        return f"{said}, and the difference is smaller", ("better", "worse")
    if design.margin * 100 < floor and verdict.verdict == "equivalent":
        return f"{said}, and the margin is smaller", ("equivalent",)
    return None


def _base_moved(design: Design, pairs: Sequence[Pair], level: int, identity: Mapping[str, str]) -> Why | None:
    """An innocent value: both arms are away from what was measured before, so the cause is in neither."""
    for earlier in reversed(design.earlier):
        shifts = [
            (now / then, arm)
            for arm, now in (("a", _middle(pairs, level, "a")), ("b", _middle(pairs, level, "b")))
            if now and (then := _earlier_value(earlier, design.value("a" if arm == "a" else "b"), level, design))
        ]
        if not shifts or min(abs(ratio - 1) for ratio, _ in shifts) < MOVED:
            continue
        ratio, arm = shifts[0]
        others = [
            f"{name} was {earlier.identity[name]} and is {identity[name]}"
            for name in sorted(earlier.identity.keys() & identity.keys())
            if earlier.identity[name] != identity[name]
        ]
        known = (
            "; known to differ: " + ", ".join(others)
            if others
            else "; nothing that the services tell of themselves differs"
        )
        return (
            f"{earlier.id} measured {design.knob} at {shown(design.value('a' if arm == 'a' else 'b'))} on {earlier.measured_at[:10]}, "
            f"and the same value now gives {100 * (ratio - 1):+.0f} % against that{known}. What moved both arms is none of the two values: "
            "compare them on the old base too, and bisect what changed between the two bases"
        ), ("equivalent",)
    return None


def _middle(pairs: Sequence[Pair], level: int, arm: str) -> float | None:
    values = [value for pair in pairs if (value := value_of(pair.a if arm == "a" else pair.b, level))]
    return math.exp(math.fsum(map(math.log, values)) / len(values)) if values else None


def _earlier_value(earlier: Earlier, value: str | None, level: int, design: Design) -> float | None:
    """What *earlier* measured with the same value, work and metric."""
    if earlier.workload != design.workload:
        return None
    for item in earlier.effects:
        if item.level == level and item.metric == design.metric and item.verdict != "invalid":
            if earlier.a == value:
                return item.value_a
            if earlier.b == value:
                return item.value_b
    return None


def _no_repetition(design: Design, verdict: LevelVerdict) -> Why | None:
    """What was found under other work is not withdrawn by not finding it under this one."""
    for earlier in reversed(design.earlier):
        if {earlier.a, earlier.b} != {design.a, design.b}:
            continue
        other = [
            f"{name} {theirs} there and {design.workload.get(name)} here"
            for name, theirs in earlier.workload.items()
            if theirs != design.workload.get(name)
        ]
        item = next(
            (item for item in earlier.effects if item.level == verdict.level and item.metric == design.metric), None
        )
        if not other or item is None:
            continue
        found = _found(item.verdict, item.gain_pct, item.reason)
        if found is not None and verdict.verdict in ("equivalent", "unresolved"):
            return (
                f"this is no repetition of {earlier.id}, which found {found}: {', '.join(other)}. What it found stands until the "
                "same requests are sent again"
            ), ("equivalent",)
    return None


def _found(name: str, gain: float | None, reason: str | None) -> str | None:
    if name in ("better", "worse") and gain is not None:
        return f"{gain:+.1f} %"
    if name == "invalid" and reason and reason.startswith("arm "):
        return f"that {reason}"
    return None


# ---- remarks -----------------------------------------------------------------------------------------------------


def _log_ratios(pairs: Sequence[Pair], level: int, first: str) -> list[float]:
    return [
        math.log(b.value / a.value)
        for pair, a, b in _cells(pairs, level)
        if pair.first == first and a.value and b.value
    ]


def _order(pairs: Sequence[Pair], level: int) -> Iterator[str]:
    ab, ba = _log_ratios(pairs, level, "a"), _log_ratios(pairs, level, "b")
    if not ab or not ba or len(ab) + len(ba) < 4:
        return
    effect = order_effect(ab, ba)
    if effect.p < _SURE and abs(effect.log_gain) > _WORTH_SAYING:
        yield (
            f"level {level}: whatever runs second in its block measures {gain_pct(effect.log_gain):+.1f} %, whichever arm it is: "
            "a cache that outlives a start, a card that heats up, or the like; the balanced order takes it out of the gain"
        )


def _drift(pairs: Sequence[Pair], level: int, margin: float) -> Iterator[str]:
    both = [(math.log(a.value) + math.log(b.value)) / 2 for _, a, b in _cells(pairs, level) if a.value and b.value]
    if len(both) < 4:
        return
    slope = trend(both)
    total = slope.log_gain * (len(both) - 1)
    if slope.p < _SURE and abs(total) > margin:
        clocks = [
            clock for _, a, b in _cells(pairs, level) for clock in (a.sm_clock_mhz, b.sm_clock_mhz) if clock is not None
        ]
        seen = f"; the SM clock went from {clocks[0]:.0f} to {clocks[-1]:.0f} MHz" if clocks else ""
        yield (
            f"level {level}: both arms moved by {gain_pct(total):+.1f} % from the first block to the last: the host or the card drifts"
            f"{seen}; ratios inside a block do not see it, single figures do"
        )


def _regimes(pairs: Sequence[Pair], level: int) -> Iterator[str]:
    """Each start may draw one of two modes; then a pair of single starts picks a winner by chance."""
    centred: list[float] = []
    per_arm = {arm: [math.log(v) for pair in pairs if (v := value_of(getattr(pair, arm), level))] for arm in ("a", "b")}
    for arm, values in per_arm.items():
        if (found := two_regimes(values)) is not None:
            yield (
                f"the starts of arm {arm} fall into two groups, {gain_pct(found[0] - found[1]):+.0f} % apart, and each start draws one: "
                "only more starts can tell the arms apart"
            )
            return
        centred += values
    if (found := two_regimes(centred)) is not None and _both_in_both(per_arm, found):
        yield (
            f"the starts of both arms fall into two groups, {gain_pct(found[0] - found[1]):+.0f} % apart, and each start draws one: "
            "only more starts can tell the arms apart"
        )


def _both_in_both(per_arm: Mapping[str, Sequence[float]], means: tuple[float, float]) -> bool:
    """Whether each group holds starts of each arm; otherwise the groups are the arms."""
    middle = sum(means) / 2
    return all(min(values) < middle < max(values) for values in per_arm.values() if values)
