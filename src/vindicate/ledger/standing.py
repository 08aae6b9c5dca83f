"""A book → for every change, whether the grounds it was made on still hold; computed afresh each time, never stored."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from vindicate.ledger.state import Book, ChangeRecord
from vindicate.record.ledger import ClaimStatus, Justification

__all__ = ["FALLEN", "Ground", "Standing", "StandingName", "standing_of", "standings", "with_originals"]

StandingName = Literal["orphaned", "weakened", "still_justified_by_other", "never_justified", "justified"]
Strength = Literal["firm", "weak", "fallen"]

FALLEN: tuple[ClaimStatus, ...] = ("refuted", "withdrawn", "superseded")
_FIRM: dict[str, tuple[ClaimStatus, ...]] = {
    "not_refuted": ("open", "supported"),
    "live": ("open", "supported"),
    "supported": ("supported",),
}
_OF_RESTORE: dict[StandingName, StandingName] = {
    "orphaned": "justified",
    "never_justified": "justified",
    "weakened": "weakened",
    "still_justified_by_other": "orphaned",
    "justified": "orphaned",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """One justification and whether it still carries: ``weak`` means only through claims that another cause explains away."""

    justification: Justification
    strength: Strength


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where a change stands, and every ground it has; those made in hindsight are kept beside those made at the time."""

    name: StandingName
    grounds: tuple[Ground, ...]

    @property
    def recorded(self) -> Literal["at_the_time", "retroactive"]:
        """``retroactive`` when every ground was recorded in hindsight."""
        at_the_time = any(ground.justification.recorded == "at_the_time" for ground in self.grounds)
        return "at_the_time" if at_the_time else "retroactive"


def standings(book: Book, *, what_if: Mapping[str, ClaimStatus] | None = None) -> dict[str, Standing]:
    """The standing of every change, were *what_if* so; nothing is written."""
    seen = book.with_status(what_if) if what_if else book
    return {name: standing_of(record, seen) for name, record in seen.changes.items()}


def standing_of(record: ChangeRecord, book: Book) -> Standing:
    """The standing of one change.

    All claims of a ground must carry it together, each in its scope; several grounds are alternatives. No ground: never justified. All
    firm: justified. Some firm: still justified by the others. None firm, but one that rests on displaced claims only:
    weakened. Otherwise orphaned. A restore without grounds of its own stands by the fall of what it undoes; restores that
    only undo each other hold none of them up.
    """
    undone, passed = record, set[str]()
    while not undone.grounds and undone.change.kind == "restore" and (undone.change.undoes or "") in book.changes:
        if undone.change.id in passed:
            return Standing(name="never_justified", grounds=())
        passed.add(undone.change.id)
        undone = book.changes[undone.change.undoes or ""]
    if passed:
        name = standing_of(undone, book).name
        for _ in passed:
            name = _OF_RESTORE[name]
        return Standing(name=name, grounds=())
    grounds = tuple(Ground(justification=item, strength=_strength(item, book)) for item in record.grounds)
    strengths = {ground.strength for ground in grounds}
    if not grounds:
        name = "never_justified"
    elif strengths == {"firm"}:
        name = "justified"
    elif "firm" in strengths:
        name = "still_justified_by_other"
    else:
        name = "weakened" if "weak" in strengths else "orphaned"
    return Standing(name=name, grounds=grounds)


def _strength(ground: Justification, book: Book) -> Strength:
    claims = [name for claim in ground.claims for name in with_originals(claim, book)] if book.copies else ground.claims
    if not claims or any(_has_fallen(claim, book) for claim in claims):
        return "fallen"
    return "firm" if all(book.claims[claim].status in _FIRM[ground.need] for claim in claims) else "weak"


def with_originals(claim: str, book: Book) -> Iterator[str]:
    """*claim*, and what it repeats: the copy of a reason holds no longer than the reason does."""
    yield claim
    while claim in book.copies:
        claim = book.copies[claim]
        yield claim


def _has_fallen(claim: str, book: Book) -> bool:
    """Whether it carries nothing any more: fallen, not on record, or no longer about a system like this one."""
    if claim not in book.claims or book.claims[claim].status in FALLEN:
        return True
    return claim in book.scopes and bool(book.scopes[claim].outside)
