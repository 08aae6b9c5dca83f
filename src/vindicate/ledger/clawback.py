"""A book and the live values → the reverts in force, where each stands, what it costs, and the next step; pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from vindicate.ledger.claim_rules import displaces, how_to_count, subject_knob, t_star_of, t_star_text
from vindicate.ledger.scope import Scoped
from vindicate.ledger.standing import FALLEN, Standing, StandingName, standing_of, with_originals
from vindicate.ledger.state import Book, ChangeRecord
from vindicate.ledger.worth import Worth, effective, worth_of
from vindicate.record.ledger import Incident
from vindicate.stack.process import LiveValue
from vindicate.units import shown

__all__ = ["Because", "Candidate", "LiveValue", "Next", "candidates", "document"]

Next = Literal["restore", "restore_with_waiver", "experiment", "refute_first", "leave"]
_ACTIONABLE = ("restore", "restore_with_waiver", "refute_first", "experiment")


_UNSEEN = LiveValue(value=None, known=False, note="no live process was read")


@dataclass(frozen=True, slots=True, kw_only=True)
class Because:
    """One claim that a change rests on.

    Attributes:
        out_of_scope: Why it, or what it repeats, no longer speaks of this system; empty while it does.
        not_told: What such a scope asks and nobody knows here.
        repeats: The claim whose words it only repeats, and with which it falls; and its status.
    """

    claim: str
    status: str
    text: str
    recorded: str
    out_of_scope: tuple[str, ...] = ()
    not_told: tuple[str, ...] = ()
    repeats: str | None = None
    repeats_status: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A revert that is in force (or that live processes contradict), and what to do about it.

    Attributes:
        follows: The first revert that was made for the reason which this one only repeats, and in which words it does.
        copies: The reverts that repeat this one's reason, whether or not they are still in force.
        together: Which services must hold one value, where they do not, and what must restart together; a line, or nothing.
    """

    change: str
    knob: str
    services: tuple[str, ...]
    from_value: str | None
    to_value: str | None
    reverted_at: str
    recorded: Literal["at_the_time", "retroactive"]
    because: tuple[Because, ...]
    standing: StandingName
    in_force: bool
    live: LiveValue
    worth: tuple[Worth, ...]
    weaknesses: tuple[str, ...]
    next: Next
    plan: str
    command: str
    follows: tuple[str, str] | None = None
    copies: tuple[str, ...] = ()
    together: str = ""

    @property
    def rank(self) -> tuple[bool, float, float]:
        """Sorts the most promising first: actionable, then by the usable lower bound, then by the estimate; never by the estimate first."""
        bounds = [item.lower_bound_pct for item in self.worth if item.usable and item.lower_bound_pct is not None]
        estimates = [item.benefit_pct for item in self.worth]
        return (
            self.next not in _ACTIONABLE,
            -max(bounds, default=float("-inf")),
            -max(estimates, default=float("-inf")),
        )


def candidates(
    book: Book,
    *,
    now: str,
    live: Mapping[str, LiveValue] | None = None,
    defaults: Mapping[str, str | None] | None = None,
    together: Mapping[str, str] | None = None,
) -> tuple[Candidate, ...]:
    """Every revert that is the last word on its knob, the most promising first.

    Args:
        now: The moment that the age of evidence is counted to.
        live: What live processes hold, by knob; a knob that is missing was not read.
        defaults: The engine's own value by knob, for a knob that is unset.
        together: By knob, the line of `Candidate.together`.
    """
    follows = _followed(book)
    copies: dict[str, list[str]] = {}
    for copy, (first, _) in follows.items():
        copies.setdefault(first, []).append(copy)
    found = [
        _candidate(
            record,
            book,
            (live or {}).get(record.change.knob, _UNSEEN),
            (defaults or {}).get(record.change.knob),
            now,
            follows=follows.get(record.change.id),
            copies=tuple(copies.get(record.change.id, ())),
            together=(together or {}).get(record.change.knob, ""),
        )
        for record in book.changes.values()
        if record.change.kind == "revert" and record.in_effect and book.later_than(record) is None
    ]
    return tuple(sorted(found, key=lambda candidate: (candidate.rank, candidate.reverted_at, candidate.change)))


def _candidate(
    record: ChangeRecord,
    book: Book,
    live: LiveValue,
    default: str | None,
    now: str,
    *,
    follows: tuple[str, str] | None,
    copies: tuple[str, ...],
    together: str,
) -> Candidate:
    change = record.change
    standing = standing_of(record, book)
    worth = worth_of(book, change.knob, change.from_value, change.to_value, default, now=now)
    in_force = not live.known or effective(live.value, default) == effective(change.to_value, default)
    incident = _incident(record, book)
    step = _next(standing.name, worth, incident) if in_force else "leave"
    because = _because(record, book)
    weaknesses = _weaknesses(standing, book, worth, change.services)
    return Candidate(
        change=change.id,
        knob=change.knob,
        services=change.services,
        from_value=change.from_value,
        to_value=change.to_value,
        reverted_at=record.at,
        recorded=standing.recorded if standing.grounds else change.recorded,
        because=because,
        standing=standing.name,
        in_force=in_force,
        live=live,
        worth=worth,
        weaknesses=weaknesses,
        next=step,
        plan=_plan(step, record, standing, incident, worth) + _by_scope(standing, book)
        if in_force
        else _drifted(record, live),
        command=_command(step, record, incident),
        follows=follows,
        copies=copies,
        together=together,
    )


def _incident(record: ChangeRecord, book: Book) -> Incident | None:
    """The incident that the change's claims belong to: one that was counted, where there is one."""
    named = [book.claims[claim].claim.incident or "" for claim in record.because if claim in book.claims]
    found = [book.incidents[name].incident for name in named if name in book.incidents]
    return next((incident for incident in found if t_star_of(incident) is not None), found[0] if found else None)


def _followed(book: Book) -> dict[str, tuple[str, str]]:
    """The reverts that were made for the reason of an earlier one, found again in their words, with those words.

    Both are of one knob and to one value; reverts of one moment were one act, and none is the copy of another.
    """
    reverts = [it for it in book.changes.values() if it.change.kind == "revert"]
    late = [it for it in reverts if any(ground.recorded == "retroactive" for ground in it.grounds)]
    if not late and not book.copies:
        return {}
    first: dict[tuple[str, str, str | None], ChangeRecord] = {}
    for record in sorted(reverts, key=lambda it: it.when):
        for claim in record.because:
            first.setdefault((claim, record.change.knob, record.change.to_value), record)
    found: dict[str, tuple[str, str]] = {}
    for record in reverts if book.copies else late:
        for ground in record.grounds:
            for claim in ground.claims:
                original = book.copies.get(claim, claim if ground.recorded == "retroactive" else "")
                earlier = first.get((original, record.change.knob, record.change.to_value))
                if earlier is not None and earlier.at < record.at:
                    words = ground.quote or (book.claims[claim].claim.text if claim in book.claims else "")
                    found.setdefault(record.change.id, (earlier.change.id, words))
    return found


def _because(record: ChangeRecord, book: Book) -> tuple[Because, ...]:
    return tuple(
        Because(
            claim=claim,
            status=book.claims[claim].status if claim in book.claims else "withdrawn",
            text=book.claims[claim].claim.text if claim in book.claims else "not in this ledger",
            recorded=ground.recorded,
            out_of_scope=tuple(text for scope in _scopes(claim, book) for text in scope.outside),
            not_told=tuple(text for scope in _scopes(claim, book) for text in scope.unknown),
            repeats=(original := book.copies.get(claim)),
            repeats_status=book.claims[original].status if original else None,
        )
        for ground in record.grounds
        for claim in ground.claims
    )


def _scopes(claim: str, book: Book) -> list[Scoped]:
    return [book.scopes[name] for name in with_originals(claim, book) if name in book.scopes]


def _next(standing: StandingName, worth: tuple[Worth, ...], incident: Incident | None) -> Next:
    if standing in ("justified", "still_justified_by_other"):
        return "leave"
    if standing == "weakened":
        return "refute_first"
    usable = [item for item in worth if item.usable]
    if standing == "orphaned" and usable:
        if any((item.lower_bound_pct or 0) > 0 for item in usable):
            return "restore"
        return "experiment" if any((item.upper_bound_pct or 0) > 0 for item in usable) else "leave"
    if standing == "orphaned" and worth and t_star_of(incident) is not None:
        return "restore_with_waiver"
    return "experiment"


def _weaknesses(standing: Standing, book: Book, worth: tuple[Worth, ...], services: tuple[str, ...]) -> tuple[str, ...]:
    """What somebody who restores on this ground has to accept, each in one clause.

    Where some figures are good enough, poorer ones beside them weaken nothing; nor does a claim whose ground has fallen.
    """
    found = [
        f"claim {claim} is {book.claims[claim].status}, not refuted"
        for ground in standing.grounds
        if ground.strength != "fallen"
        for claim in ground.justification.claims
    ]
    found += [
        f"only the watch will speak against claim {name}: a hazard takes two kinds of evidence (vindicate diagnose --save)"
        for name in dict.fromkeys(
            claim for ground in standing.grounds if ground.strength == "weak" for claim in ground.justification.claims
        )
        if book.claims[name].claim.hazard and not _spoken_against(book, name, services)
    ]
    judged = [item for item in worth if item.usable] or worth
    for source in dict.fromkeys(item.source for item in judged):
        items = [item for item in judged if item.source == source]
        grades = {item.grade for item in items} & {"C", "D"}
        for grade in sorted(grades):
            what = (
                "one start per arm or anecdote"
                if grade == "D"
                else "several starts per arm, but one arm after the other"
            )
            found.append(f"evidence {source} is of grade {grade}: {what}")
        if any(item.lo90_pct is None for item in items):
            found.append(f"evidence {source} gives no interval")
        found.extend(
            f"evidence {source} is stale: {reason}" for reason in dict.fromkeys(r for i in items for r in i.stale)
        )
    return tuple(dict.fromkeys(found)) or (() if worth else ("no measurement of what it is worth is on record",))


def _spoken_against(book: Book, name: str, services: tuple[str, ...]) -> bool:
    """Whether anything on record displaces the claim; a reason alone does not."""
    claim = book.claims[name].claim
    knob = subject_knob(claim)
    in_place = book.in_place(knob[0]) if knob else {}
    return any(displaces(item, claim, services=services, in_place=in_place) for item in book.about(name))


def _by_scope(standing: Standing, book: Book) -> str:
    """That nobody refuted what no longer applies, where that is why a ground fell."""
    out = {
        name: "; ".join(book.scopes[name].outside)
        for ground in standing.grounds
        for claim in ground.justification.claims
        for name in with_originals(claim, book)
        if name in book.scopes and book.scopes[name].outside and book.claims[name].status not in FALLEN
    }
    told = "; ".join(f"{name} is out of scope, which is no refutation: {why}" for name, why in out.items())
    return f" ({told})" if told and standing.name == "orphaned" else ""


def _plan(
    step: Next, record: ChangeRecord, standing: Standing, incident: Incident | None, worth: tuple[Worth, ...]
) -> str:
    knob, back, now = record.change.knob, shown(record.change.from_value), shown(record.change.to_value)
    if step == "restore":
        return f"put {knob} back from {now} to {back}: its ground is gone and the gain is measured{_losses(worth)}"
    if step == "restore_with_waiver":
        return (
            f"put {knob} back to {back} on a waiver, since the figures are weak, and watch it for "
            f"T* = {t_star_text(incident)} without the symptom"
        )
    if step == "refute_first":
        needed = t_star_text(incident)
        if t_star_of(incident) is None:
            needed += f"; count it with: {how_to_count(record.because[0], incident)}"
        return (
            f"another cause was found, and nobody has tried {knob}={back} without it: put it back, watched, as the test "
            f"that refutes the claim; T* = {needed}"
        )
    if step == "experiment" and standing.name == "never_justified" and any(item.usable for item in worth):
        return (
            f"{knob} was reverted for no reason on record, so none can have fallen: measure {now} against {back} afresh; what "
            "is on record is shown"
        )
    if step == "experiment":
        return f"measure {knob} {now} against {back} afresh: " + (
            "no figure on record settles which is better" if worth else "no figure is on record"
        )
    if standing.name in ("orphaned", "weakened"):
        return "the value given up was measured, and is worse"
    firm = [claim for ground in standing.grounds if ground.strength == "firm" for claim in ground.justification.claims]
    hindsight = all(g.justification.recorded == "retroactive" for g in standing.grounds if g.strength == "firm")
    return f"{', '.join(dict.fromkeys(firm))} still holds" + (" (linked in hindsight)" if hindsight else "")


def _losses(worth: tuple[Worth, ...]) -> str:
    worse = [item for item in worth if item.usable and item.upper_bound_pct is not None and item.upper_bound_pct < 0]
    return "; but it is worse at " + ", ".join(f"{item.level} ({item.metric})" for item in worse) if worse else ""


def _drifted(record: ChangeRecord, live: LiveValue) -> str:
    return (
        f"live processes hold {shown(live.value)}, not {shown(record.change.to_value)}: somebody changed "
        f"{record.change.knob} outside the ledger"
    )


def _command(step: Next, record: ChangeRecord, incident: Incident | None) -> str:
    change = record.change
    if step == "restore":
        return f"vindicate restore {change.id} --watch 10m"
    if step in ("restore_with_waiver", "refute_first"):
        return f'vindicate restore {change.id} --accept "REASON"{_watch(incident)}'
    if step == "experiment" and change.from_value and change.to_value:
        return f"vindicate ab {change.knob}={change.to_value}..{change.from_value} --plan"
    if step == "leave" and record.because:
        return f"vindicate claim show {record.because[0]}"
    return f"vindicate knob show {change.knob}"


def _watch(incident: Incident | None) -> str:
    """Nothing where T* is known, for a restore is then watched for T* by itself; else a time."""
    return " --watch 10m" if t_star_of(incident) is None else ""


def document(found: tuple[Candidate, ...], as_of: str) -> dict[str, Any]:
    """The published `vindicate.clawback/1` document."""
    return {"schema": "vindicate.clawback/1", "as_of": as_of, "candidates": [_entry(item) for item in found]}


def _entry(item: Candidate) -> dict[str, Any]:
    return {
        "change": item.change,
        "knob": item.knob,
        "services": item.services,
        "from": item.from_value,
        "to": item.to_value,
        "reverted_at": item.reverted_at,
        "recorded": item.recorded,
        "because": item.because,
        "standing": item.standing,
        "in_force": item.in_force,
        "live_value": item.live.value,
        "live_known": item.live.known,
        "live_note": item.live.note,
        "worth": item.worth,
        "weaknesses": item.weaknesses,
        "next": item.next,
        "plan": item.plan,
        "command": item.command,
        "follows": None if item.follows is None else {"change": item.follows[0], "quote": item.follows[1]},
        "copies": item.copies,
        "together": item.together or None,
    }
