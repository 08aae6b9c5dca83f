"""Looks at one engine's figures over minutes → how many of its requests are pinned, and how many only seem to be, as others take their places.

A gauge says how many are held, never which. Little's law does: while n requests ended that had stayed S seconds in all,
rotating ones took up S / T places on average over T seconds. What is held beyond that did not rotate.
J. D. C. Little, A Proof for the Queuing Formula L = λW, Operations Research 9 (1961), 383-387.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from vindicate.record.watch import Pins

__all__ = ["Look", "pins_of"]

MIN_SPAN_S = 10.0
STAYS = 3.0  # so many mean stays must fit into the span, else those that began or end outside it weigh too much
_SURE = 3.0  # standard deviations: this is judged at every look


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """An engine's own figures at one moment; ``None`` is what it does not say.

    Attributes:
        stages: Requests held, by stage; their sum is *held*.
        ended, stay_s: Requests that ended since it began, and the seconds that they had stayed in all (a latency histogram's count and sum).
        aborted: Requests that were aborted since it began; they are in neither of those.
        moved: A count that grows while requests are worked on.
    """

    t_s: float
    stages: Mapping[str, float]
    ended: float | None = None
    stay_s: float | None = None
    aborted: float | None = None
    moved: float | None = None
    held: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "held", sum(self.stages.values()))


def pins_of(all_looks: Sequence[Look]) -> Pins | None:
    """Judge the looks of one engine, in order of time and without a restart in between; ``None`` where it holds nothing."""
    looks = _last(all_looks, lambda look: look.held >= 1)
    if len(looks) < 2:
        return None
    still = _last(looks, lambda look: (look.ended, look.moved) == (looks[-1].ended, looks[-1].moved))
    if still[-1].t_s - still[0].t_s >= MIN_SPAN_S and None not in (still[0].ended, still[0].moved):
        looks = still  # what rotated before does not excuse it
    span_s = looks[-1].t_s - looks[0].t_s
    held = int(min(look.held for look in looks))
    ended = _grown(looks[0].ended, looks[-1].ended)
    verdict, least, most, because = _judge(looks, span_s, held)
    names = dict.fromkeys(name for look in looks for name in look.stages)
    floors = {name: int(min(look.stages.get(name, 0) for look in looks)) for name in names}
    return Pins(
        verdict=verdict,
        least=least,
        most=most,
        held=held,
        over_s=round(span_s, 1),
        ended=None if ended is None else int(ended),
        stages={name: floor for name, floor in floors.items() if floor >= 1},
        because=because,
    )


def _last(looks: Sequence[Look], holds: Callable[[Look], bool]) -> Sequence[Look]:
    """The last of the looks, as far back as it holds for all of them."""
    begin = len(looks)
    while begin and holds(looks[begin - 1]):
        begin -= 1
    return list(looks)[begin:]


_Verdict = tuple[Literal["pinned", "rotating", "stuck", "unknown"], int, int, str]


def _judge(looks: Sequence[Look], span_s: float, held: int) -> _Verdict:
    first, last = looks[0], looks[-1]
    ended, stay_s = _grown(first.ended, last.ended), _grown(first.stay_s, last.stay_s)
    moved = _grown(first.moved, last.moved)
    if span_s < MIN_SPAN_S:
        return "unknown", 0, held, f"looked at for {span_s:.0f} s only"
    if ended is None:
        return "unknown", 0, held, "it does not count the requests that end"
    if ended == 0:
        if moved == 0:
            return (
                "stuck",
                held,
                held,
                f"none ended and no token moved in {span_s:.0f} s; where nobody waits for them, its gauge is stale",
            )
        why = "tokens moved" if moved else "whether tokens moved is not known"
        return "unknown", 0, held, f"none ended in {span_s:.0f} s, though {why}: long answers look the same"
    if stay_s is None:
        return "unknown", 0, held, "it does not say how long the requests that ended had stayed"
    mean_stay_s = stay_s / ended
    if span_s < STAYS * mean_stay_s:
        return "unknown", 0, held, f"a request stays {mean_stay_s:.1f} s: {span_s:.0f} s are too short to tell"
    return _by_littles_law(looks, span_s, held, ended, mean_stay_s)


def _by_littles_law(looks: Sequence[Look], span_s: float, held: int, ended: float, mean_stay_s: float) -> _Verdict:
    """Compare the places that were taken with those that rotation explains.

    On any path the two differ, pins apart, by the ages of those that are still there less the ages at the first look of those
    that were there then: over n places, a standard deviation of 2 E √n where stays are spread as exponential ones are, and a drift where more
    (or fewer) are held at the end than at the beginning. Looks that are further apart than a stay miss what is between them.
    Aborted requests took places too and are in no histogram: each may have stayed twice the mean.
    """
    mean_held = _mean_held(looks)
    rotating = ended * mean_stay_s / span_s
    places = max(1.0, rotating)
    between_looks_s = span_s / (len(looks) - 1)
    at_the_ends = 2 * mean_stay_s * math.sqrt(places) / span_s
    between = math.sqrt(places / len(looks) * min(1.0, between_looks_s / max(mean_stay_s, 1e-6)))
    error = _SURE * math.hypot(at_the_ends, between)
    drift = (looks[-1].held - looks[0].held) * mean_stay_s / span_s
    aborted = 2 * (_grown(looks[0].aborted, looks[-1].aborted) or 0.0) * mean_stay_s / span_s
    extra = mean_held - rotating
    least = math.floor(extra - error - max(2 * drift, drift / 2) - aborted + 1e-9)
    most = math.ceil(extra + error - min(2 * drift, drift / 2) - 1e-9)
    least, most = max(0, min(least, held)), max(0, min(most, held))
    because = f"{ended:.0f} ended that stayed {mean_stay_s:.1f} s, which takes {rotating:.1f} places; {mean_held:.1f} were taken"
    if least >= 1:
        return "pinned", least, most, because
    return ("rotating" if most < 1 or 2 * most <= mean_held else "unknown"), least, most, because


def _mean_held(looks: Sequence[Look]) -> float:
    """The mean over time, of what is seen at looks that need not be evenly spaced."""
    area = sum((after.t_s - before.t_s) * (before.held + after.held) / 2 for before, after in pairwise(looks))
    return area / (looks[-1].t_s - looks[0].t_s)


def _grown(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else max(0.0, after - before)
