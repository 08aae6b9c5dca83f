"""A split pair of which one side fails its leg of a request at once while the other takes its own and waits: that one is accused, not who waits."""

from collections.abc import Iterator
from dataclasses import dataclass

from vindicate.diagnose.ladder import error_class
from vindicate.diagnose.rule import Against, Clue, Scene, count, oldest
from vindicate.record.observation import ProbeResult

__all__ = ["RefusedLeg", "refused_legs", "refusing_sides"]

_AT_ONCE_S = 2.0
_REFUSES = ("errors", "cut")
_WAITS = ("silent", "stalled")
_STAGES = {"prefill": ("bootstrap", "inflight"), "decode": ("prealloc", "transfer")}
# An error of one side that speaks of the way between both may be the other's doing.
_OF_THE_WAY = ("bootstrap", "transfer", "prefill", "decode", "disagg", "remote", "kv_", "kv cache", "peer")


@dataclass(frozen=True, slots=True)
class RefusedLeg:
    """One side, *refuses*, of a pair failed its leg with *error*, while *waits* had taken the other.

    *its_own*: at once, and with no word of the other side or the way between them, so that the failure is its own.
    """

    refuses: str
    waits: str
    error: str
    its_own: bool


def refusing_sides(scene: Scene) -> Iterator[RefusedLeg]:
    """Per pair at most one: the first such probe of it; where the pair has answered another, none."""
    seen: set[tuple[str, ...]] = set()
    for p in scene.ladder.bad:
        if p.shape != "pd_pair" or len(p.legs) != 2 or p.covers in seen or p.target in _answers(scene, p):
            continue
        classes = {name: error_class(error) if error else None for name, error in p.legs.items()}
        for refuses, waits in (tuple(p.legs), tuple(p.legs)[::-1]):
            quick = p.total_s <= _AT_ONCE_S if refuses == p.target else True
            told = refuses == p.target and any(word in p.detail.lower() for word in _OF_THE_WAY)
            if classes[refuses] in _REFUSES and classes[waits] in _WAITS:
                seen.add(p.covers)
                yield RefusedLeg(refuses, waits, p.legs[refuses] or "", quick and not told)


def _answers(scene: Scene, probe: ProbeResult) -> set[str]:
    return {name for good in scene.ladder.good if good.shape == "pd_pair" for name in good.covers if name in probe.legs}


def refused_legs(scene: Scene) -> Iterator[Clue]:
    """Clues to the side that refuses."""
    for leg in (one for one in refusing_sides(scene) if one.its_own):
        role = scene.chain.role(leg.refuses)
        kind = error_class(leg.error)
        against = Against(leg.refuses, f"{role}.cuts_streams" if kind == "cut" else "service.answers_errors")
        how = "cut off" if kind == "cut" else f"answered with {leg.error.removeprefix('http_')}"
        yield against(
            "probe",
            0.75,
            f"{leg.refuses}'s leg of a request of ours was {how} at once, while {leg.waits} took the other leg and waited",
            "our probe",
            refused=leg.error,
        )
        yield from _left_waiting(scene, leg, against)


def _left_waiting(scene: Scene, leg: RefusedLeg, against: Against) -> Iterator[Clue]:
    """Users' requests that stand at the other side, ready, of which the one that refuses has none."""
    there, here = scene.progress[leg.waits], scene.progress[leg.refuses]
    waiting = there.floor(*_STAGES.get(scene.chain.role(leg.waits), ()))
    if waiting is not None and waiting >= 1 and here.in_work_last is not None and here.in_work_last < 1:
        yield against(
            "counter",
            0.6,
            f"{leg.waits} held {waiting:g} requests for {leg.refuses} all the while, which had none of them in work",
            held=waiting,
            in_work=here.in_work_last,
        )
    owed, theirs = scene.account.nodes[leg.waits].owed, scene.account.nodes[leg.refuses]
    if owed and not theirs.down_in("owed", "moving"):
        yield against(
            "wait-for",
            0.5,
            f"{count(len(owed), 'request')} at {leg.waits} wait, the oldest for {oldest(owed):.1f} s, and {leg.refuses} has none that is open",
            owed_by_the_other=len(owed),
            oldest_s=oldest(owed),
        )
