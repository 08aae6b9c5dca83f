"""Facts → what they add up to at one moment: incidents, claims with their status, evidence, changes with their state."""

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Self, TypeVar

from vindicate.errors import MisuseError
from vindicate.ledger.bulk import uncollected
from vindicate.ledger.copies import Grounds, about_knobs, borrowed, copied_claims
from vindicate.ledger.fingerprint import newest
from vindicate.ledger.scope import Known, Scoped, scoped
from vindicate.record.ledger import (
    Change,
    ChangeState,
    ChangeStep,
    Claim,
    ClaimEvent,
    ClaimStatus,
    DocMark,
    Effect,
    Evidence,
    Fact,
    Incident,
    Justification,
    Waiver,
)

__all__ = ["Book", "ChangeRecord", "ClaimRecord", "IncidentRecord"]

_T = TypeVar("_T")
_IN_EFFECT = ("watching", "done")


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentRecord:
    """An incident and when it began."""

    incident: Incident
    began_at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRecord:
    """A claim, the status that its latest event gave it, and how it came there, oldest first."""

    claim: Claim
    status: ClaimStatus = "open"
    events: tuple[tuple[str, ClaimEvent], ...] = ()
    raised_at: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeRecord:
    """A change, the state of its latest step, the grounds it rests on, and what was waived for it."""

    change: Change
    seq: int
    at: str
    state: ChangeState = "planned"
    steps: tuple[tuple[str, ChangeStep], ...] = ()
    grounds: tuple[Justification, ...] = ()
    waivers: tuple[Waiver, ...] = ()

    @property
    def in_effect(self) -> bool:
        """Whether the change took hold, as far as its own steps say."""
        return self.state in _IN_EFFECT

    @property
    def when(self) -> tuple[str, int]:
        """When it happened, and of several at one moment in which order they were recorded."""
        return self.at, self.seq

    @property
    def because(self) -> tuple[str, ...]:
        """The claims of all its grounds, each once."""
        return tuple(dict.fromkeys(claim for ground in self.grounds for claim in ground.claims))


@dataclass(frozen=True, slots=True, kw_only=True)
class Book:
    """The ledger as it reads at one moment; every mapping is in the order of first record.

    Attributes:
        in_effect: The changes that took hold, by knob, oldest first.
        effects: What was measured of each knob, with the evidence it is part of.
        rests_on: The changes that name a claim among their grounds, by claim.
        present: What each field of the system's identity is, as far as it is known.
        scopes: Where each claim that has a scope stands in it.
        repeats: The claims whose words only repeat another, and which one.
        copies: Of these the ones of which nobody has said anything else: whoever reopens one makes it a copy again.
    """

    incidents: Mapping[str, IncidentRecord] = field(default_factory=dict)
    claims: Mapping[str, ClaimRecord] = field(default_factory=dict)
    evidence: Mapping[str, Evidence] = field(default_factory=dict)
    evidence_at: Mapping[str, str] = field(default_factory=dict)
    changes: Mapping[str, ChangeRecord] = field(default_factory=dict)
    doc_marks: tuple[DocMark, ...] = ()
    in_effect: Mapping[str, tuple[ChangeRecord, ...]] = field(default_factory=dict)
    effects: Mapping[str, tuple[tuple[Evidence, Effect], ...]] = field(default_factory=dict)
    rests_on: Mapping[str, tuple[ChangeRecord, ...]] = field(default_factory=dict)
    present: Mapping[str, Known] = field(default_factory=dict)
    scopes: Mapping[str, Scoped] = field(default_factory=dict)
    repeats: Mapping[str, str] = field(default_factory=dict)
    copies: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_facts(cls, facts: Iterable[Fact], as_of: str | None = None) -> Self:
        """Add up *facts*, in whatever order they come.

        Args:
            as_of: Only what was *recorded* by then counts: what the ledger knew at that moment, in the form of `clock.iso`.
        """
        with uncollected():
            return cls._added_up(
                sorted(
                    (fact for fact in facts if as_of is None or fact.recorded_at <= as_of), key=lambda fact: fact.seq
                )
            )

    @classmethod
    def _added_up(cls, known: list[Fact]) -> Self:
        evidence = {fact.body.id: fact.body for fact in known if isinstance(fact.body, Evidence)}
        evidence_at = {fact.body.id: fact.happened_at for fact in known if isinstance(fact.body, Evidence)}
        claims = _claims(known)
        changes, repeats = _with_copies(claims, _changes(known), evidence)
        present = newest(evidence.values(), evidence_at)
        in_effect = sorted((record for record in changes.values() if record.in_effect), key=lambda record: record.when)
        return cls(
            incidents=_incidents(known),
            claims=claims,
            evidence=evidence,
            evidence_at=evidence_at,
            changes=changes,
            doc_marks=tuple(fact.body for fact in known if isinstance(fact.body, DocMark)),
            in_effect=_grouped((record.change.knob, record) for record in in_effect),
            effects=_grouped((effect.knob, (item, effect)) for item in evidence.values() for effect in item.effects),
            rests_on=_grouped((claim, record) for record in changes.values() for claim in record.because),
            present=present,
            scopes=_scopes(claims, present),
            repeats=repeats,
            copies=_undisputed(repeats, claims),
        )

    def with_present(self, live: Mapping[str, Known]) -> "Book":
        """The same book where *live* is so now, whatever was written down before; nothing is written."""
        present = {**self.present, **live}
        return replace(self, present=present, scopes=_scopes(self.claims, present))

    def with_status(self, statuses: Mapping[str, ClaimStatus]) -> "Book":
        """The same book, were these claims of these statuses; nothing is written.

        Raises:
            MisuseError: A claim is not in the ledger.
        """
        for claim in statuses:
            self.claim(claim)
        claims = {
            **self.claims, **{name: replace(self.claims[name], status=status) for name, status in statuses.items()}
        }  # fmt: skip
        return replace(self, claims=claims, copies=_undisputed(self.repeats, claims))

    def claim(self, name: str) -> ClaimRecord:
        """The claim of that id.

        Raises:
            MisuseError: There is none.
        """
        return _named("claim", name, self.claims, 'vindicate claim add "TEXT"')

    def incident(self, name: str) -> IncidentRecord:
        """The incident of that id.

        Raises:
            MisuseError: There is none.
        """
        return _named("incident", name, self.incidents, 'vindicate incident open "TEXT"')

    def change(self, name: str) -> ChangeRecord:
        """The change of that id.

        Raises:
            MisuseError: There is none.
        """
        return _named("change", name, self.changes, "vindicate change list")

    def item(self, name: str) -> Evidence:
        """The piece of evidence of that id.

        Raises:
            MisuseError: There is none.
        """
        return _named("evidence", name, self.evidence, "vindicate evidence import FILE")

    def incident_of(self, claim: str) -> Incident | None:
        """The incident that *claim* is to explain, where it names one that is on record."""
        record = self.incidents.get(self.claim(claim).claim.incident or "")
        return record.incident if record else None

    def resting_on(self, claim: str) -> tuple[ChangeRecord, ...]:
        """The changes that name *claim* among their grounds."""
        return self.rests_on.get(claim, ())

    def about(self, claim: str) -> tuple[Evidence, ...]:
        """The evidence that was recorded for or against *claim*, by itself or by an event of the claim."""
        named = (
            {name for _, event in self.claims[claim].events for name in event.evidence}
            if claim in self.claims
            else set()
        )
        return tuple(item for item in self.evidence.values() if item.claim == claim or item.id in named)

    def in_place(self, knob: str) -> dict[str, str | None]:
        """The value of *knob* while each piece of evidence was taken, where a change on record tells it."""
        records = self.in_effect.get(knob, ())
        if not records:
            return {}
        places = {name: bisect_right(records, at, key=_at) for name, at in self.evidence_at.items()}
        return {
            name: records[place - 1].change.to_value if place else records[0].change.from_value
            for name, place in places.items()
        }

    def later_than(self, record: ChangeRecord) -> ChangeRecord | None:
        """The first later change in effect of the same knob on one of the same services; ``None`` when *record* is the last word."""
        records = self.in_effect.get(record.change.knob, ())
        first = bisect_right(records, record.when, key=_when)
        later = (records[place] for place in range(first, len(records)))
        return next((it for it in later if _overlap(it.change.services, record.change.services)), None)


def _at(record: ChangeRecord) -> str:
    return record.at


def _when(record: ChangeRecord) -> tuple[str, int]:
    return record.when


def _grouped(pairs: Iterable[tuple[str, _T]]) -> dict[str, tuple[_T, ...]]:
    groups: dict[str, list[_T]] = {}
    for name, item in pairs:
        groups.setdefault(name, []).append(item)
    return {name: tuple(items) for name, items in groups.items()}


def _overlap(some: tuple[str, ...], others: tuple[str, ...]) -> bool:
    """Whether two sets of services meet; one that nobody wrote down may be any."""
    return not some or not others or bool(set(some) & set(others))


def _named(what: str, name: str, there: Mapping[str, _T], how: str) -> _T:
    try:
        return there[name]
    except KeyError:
        known = ", ".join(list(there)[-12:]) or "none yet"
        raise MisuseError(f"no {what} {name!r} in the ledger", remedy=f"known: {known}; see: {how}") from None


def _incidents(facts: list[Fact]) -> dict[str, IncidentRecord]:
    return {
        fact.body.id: IncidentRecord(incident=fact.body, began_at=fact.happened_at)
        for fact in facts
        if isinstance(fact.body, Incident)
    }


def _claims(facts: list[Fact]) -> dict[str, ClaimRecord]:
    raised: dict[str, tuple[Claim, str]] = {}
    events: dict[str, list[tuple[str, int, ClaimEvent]]] = {}
    for fact in facts:
        if isinstance(fact.body, Claim):
            _, first = raised.get(fact.body.id, (None, fact.happened_at))
            raised[fact.body.id] = fact.body, first
        elif isinstance(fact.body, ClaimEvent):
            events.setdefault(fact.body.claim, []).append((fact.happened_at, fact.seq, fact.body))
    found = {}
    for name, (claim, raised_at) in raised.items():
        told = sorted(events.get(name, ()), key=_told_at)
        found[name] = ClaimRecord(
            claim=claim,
            status=told[-1][2].status if told else "open",
            events=tuple((at, event) for at, _, event in told),
            raised_at=raised_at,
        )
    return found


def _scopes(claims: Mapping[str, ClaimRecord], present: Mapping[str, Known]) -> dict[str, Scoped]:
    return {name: scoped(record.claim.scope, present) for name, record in claims.items() if record.claim.scope}


def _undisputed(repeats: Mapping[str, str], claims: Mapping[str, ClaimRecord]) -> dict[str, str]:
    return {name: original for name, original in repeats.items() if claims[name].status == "open"}


def _with_copies(
    claims: Mapping[str, ClaimRecord], changes: Mapping[str, ChangeRecord], evidence: Mapping[str, Evidence]
) -> tuple[Mapping[str, ChangeRecord], dict[str, str]]:
    """The changes with the grounds that they borrow, and the claims that only repeat another."""
    bodies = [record.claim for record in claims.values()]

    @cache
    def grounds() -> Grounds:
        return _grouped(
            (claim, (record.change, ground))
            for record in changes.values()
            for ground in record.grounds
            for claim in ground.claims
        )

    own = {item.claim for item in evidence.values() if item.claim}
    bare = [it for it in changes.values() if it.change.kind == "revert" and it.change.reason and not it.grounds]
    about = about_knobs(bodies) if bare else {}
    lent = {
        record.change.id: replace(record, grounds=found)
        for record in bare
        if (found := borrowed(record.change, about.get(record.change.knob, ()), grounds))
    }
    return {**changes, **lent} if lent else changes, copied_claims(bodies, grounds, own)


def _told_at(event: tuple[str, int, ClaimEvent]) -> tuple[str, int]:
    return event[:2]


def _changes(facts: list[Fact]) -> dict[str, ChangeRecord]:
    made: dict[str, tuple[Change, int, str]] = {}
    steps: dict[str, list[tuple[str, ChangeStep]]] = {}
    grounds: dict[str, list[Justification]] = {}
    waivers: dict[str, list[Waiver]] = {}
    for fact in facts:
        match fact.body:
            case Change() as change:
                made[change.id] = change, fact.seq, fact.happened_at
            case ChangeStep() as step:
                steps.setdefault(step.change, []).append((fact.happened_at, step))
            case Justification() as ground:
                grounds.setdefault(ground.change, []).append(ground)
            case Waiver() as waiver:
                waivers.setdefault(waiver.change, []).append(waiver)
    return {
        name: ChangeRecord(
            change=change,
            seq=seq,
            at=at,
            state=steps[name][-1][1].state if name in steps else "planned",
            steps=tuple(steps.get(name, ())),
            grounds=tuple(grounds.get(name, ())),
            waivers=tuple(waivers.get(name, ())),
        )
        for name, (change, seq, at) in made.items()
    }
