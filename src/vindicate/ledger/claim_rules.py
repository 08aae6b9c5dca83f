"""A claim, its evidence and its incident → whether it may be called displaced or refuted, and what is missing for that."""

import math
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from vindicate.record.diagnosis import FAILS_AT_ONCE, REFUSALS
from vindicate.record.ledger import KNOB_HELD, Claim, Evidence, Incident
from vindicate.units import format_duration, shown

__all__ = [
    "Ruling",
    "displaces",
    "how_to_count",
    "may_displace",
    "may_refute",
    "measured_watch",
    "subject_knob",
    "subject_service",
    "t_star",
    "t_star_of",
    "t_star_text",
]

_INTERVENES = ("intervention", "experiment")
_NOT_FOR = ("against", "explains_away")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling:
    """Whether it may be said; *missing* names what would have to be there, *on* the evidence it stands on."""

    allowed: bool
    missing: tuple[str, ...] = ()
    on: tuple[str, ...] = ()
    why: str = ""


def t_star(exposure: float, count: int) -> float:
    """How long a restored system must stay clean before silence says something, in the unit of *exposure*.

    A symptom was seen *count* times in *exposure* and then never in T. Given all *count* events, each falls into the
    first part with chance E/(E+T) when the rate did not change (the exact conditional test for two Poisson rates), so
    silence has the chance ``(E/(E+T))**count``; T* is where that reaches 5 %: ``E * (20**(1/count) - 1)``.
    Treating the old rate as known (3 E/m) is too short: silence comes by luck in 25, 13 and 10 % for 1, 3 and 5 events.

    Args:
        count: At least 1.

    Example:
        >>> round(t_star(40_000, 3))
        68577
    """
    return float(exposure * (20 ** (1 / count) - 1))


def t_star_of(incident: Incident | None) -> float | None:
    """T* of an incident in its own unit; ``None`` when nobody counted."""
    if incident is None or not incident.count or not incident.exposure:
        return None
    return t_star(incident.exposure, incident.count)


def how_to_count(claim: str, incident: Incident | None) -> str:
    """The command that gives *claim* an incident with a count and an exposure, so that it has a T*; its own as far as it has one."""
    given = f"{shlex.quote(incident.text)} --id {incident.id}" if incident else '"WHAT WAS SEEN"'
    return f"vindicate incident open {given} --claim {claim} --count M --exposure Nreq"


def t_star_text(incident: Incident | None) -> str:
    """T* the way a person says it: ``68 577 requests``, ``20 h 27 m``, or why there is none."""
    needed = t_star_of(incident)
    if incident is None:
        return "unknown: the claim names no incident"
    if needed is None:
        return "unknown: the incident has no count and exposure"
    if incident.exposure_unit == "h":
        return format_duration(needed * 3600)
    return f"{math.ceil(needed):,} requests".replace(",", " ")


def measured_watch(
    *, suspect: bool, symptoms: int, exposure: float, unit: str
) -> dict[str, str | float | int | bool | None]:
    """What an intervention saw, in the form that `may_refute` reads.

    Args:
        suspect: Whether the suspected value was in place.
        symptoms: How often the symptom of the claim came.
        exposure: Over how much: requests (*unit* ``req``) or hours (``h``).
    """
    return {
        "suspect": "present" if suspect else "absent",
        "symptoms": symptoms,
        "exposure": exposure,
        "exposure_unit": unit,
    }


def subject_knob(claim: Claim) -> tuple[str, str | None] | None:
    """Name and value of the knob that *claim* is about; ``None`` when it is about no knob."""
    if claim.about is None or not claim.about.startswith("knob:"):
        return None
    name, equals, value = claim.about.removeprefix("knob:").partition("=")
    return name, value if equals else None


def subject_service(claim: Claim) -> str | None:
    """The service that *claim* is about; ``None`` when it is about no service."""
    return claim.about.removeprefix("service:") if claim.about and claim.about.startswith("service:") else None


def displaces(
    item: Evidence, claim: Claim, *, services: Collection[str], in_place: Mapping[str, str | None] | None = None
) -> str | None:
    """Why *item* displaces *claim*, in one sentence; ``None`` when it does not.

    A saved diagnosis displaces a claim when it convicts a service other than the claim's subject, or clears that subject
    of a hazard. Requests that are refused or answered with an error are no hang and no corruption: who makes them, or is
    cleared of them, says nothing about a hazard. Other evidence does so by its direction, unless it is a mere opinion.

    Args:
        services: The services that hold the claim's knob, as far as they are known.
        in_place: The value of the claim's knob while each piece of evidence was taken, where a change on record tells it; what
            the evidence itself read from the live processes comes first.
    """
    if item.diagnosis is None:
        ours = item.claim in (None, claim.id)
        speaks = ours and item.direction in _NOT_FOR and item.kind != "opinion"
        return f"{item.id} ({item.kind}): {item.text}" if speaks else None
    knob, service = subject_knob(claim), subject_service(claim)
    holders = {*services, *([service] if service else [])}
    convicted = item.diagnosis.get("service") if item.diagnosis.get("status") == "fault" else None
    if claim.hazard and str(item.diagnosis.get("mechanism")).rpartition(".")[2] in FAILS_AT_ONCE:
        convicted = None
    caveats: list[str] = []
    for clearance in _dicts(item.diagnosis.get("cleared")):
        if claim.hazard and str(clearance.get("of")) == REFUSALS:
            continue
        knobs = clearance.get("knobs")
        knob_cleared = knob is not None and isinstance(knobs, list | tuple) and knob[0] in knobs
        if knob_cleared or (knob is None and service is not None and clearance.get("service") == service):
            said = (
                f"{item.id} clears {knob[0] if knob else service} of {clearance.get('of')}: {clearance.get('because')}"
            )
            if knob is None or knob[1] is None:
                return said
            tested = _tested(item, knob[0], knob[1], in_place or {})
            if tested.startswith("at"):
                return f"{said} ({tested})"
            caveats.append(f"{said} ({tested})")
    if convicted and holders and convicted not in holders:
        return "; ".join([f"{item.id} convicts {convicted}: {item.diagnosis.get('summary')}", *caveats])
    return None


def _tested(item: Evidence, knob: str, accused: str, in_place: Mapping[str, str | None]) -> str:
    """Which value was in place while *item* was taken: a clearance at another value says nothing of the accused one."""
    seen = f"{KNOB_HELD}{knob}"
    if seen in item.fingerprint:
        held, how = item.fingerprint[seen], "as the live processes said"
    elif item.id in in_place:
        held, how = in_place[item.id], "by the ledger"
    else:
        return f"at a value that is not on record; whether {accused} was in place, nobody wrote down"
    if held == accused:
        return f"at {accused}, {how}"
    return f"with {shown(held)} in place {how}; {accused} was not running, so this says nothing of it"


def may_displace(
    claim: Claim,
    items: Sequence[Evidence],
    *,
    reason: str,
    services: Collection[str],
    in_place: Mapping[str, str | None] | None = None,
) -> Ruling:
    """Whether *claim* may be called displaced: another cause explains the symptom, nobody has tried the suspect without it.

    Args:
        reason: Somebody's own words, enough by themselves; give none where evidence was named to stand on.
        in_place: As in `displaces`.
    """
    told = [(item.id, displaces(item, claim, services=services, in_place=in_place)) for item in items]
    grounds = [(name, why) for name, why in told if why]
    if grounds:
        return Ruling(allowed=True, on=tuple(name for name, _ in grounds), why="; ".join(why for _, why in grounds))
    if reason:
        return Ruling(allowed=True, why=reason)
    seen = ", ".join(item.id for item in items)
    return Ruling(
        allowed=False,
        missing=(
            (f"{seen} neither convicts another service nor clears what {claim.id} is about; " if seen else "")
            + "a saved diagnosis that does (vindicate diagnose --save)",
        ),
    )


def may_refute(
    claim: Claim,
    items: Sequence[Evidence],
    incident: Incident | None,
    *,
    services: Collection[str] = (),
    in_place: Mapping[str, str | None] | None = None,
    waived: bool = False,
) -> Ruling:
    """Whether *claim* may be called refuted.

    It takes an intervention: the symptom came back without the suspect, or stayed away with it for T*. For a hazard
    (hang, corruption) it takes evidence of two independence groups, of which the intervention is one. That another cause
    was found is no refutation.

    Args:
        items: Evidence about this claim.
        services: The services that hold the claim's knob, as far as they are known.
        in_place: As in `displaces`.
        waived: Somebody accepted, by name and beforehand, that one kind of evidence is all there will be.
    """
    acts = [item for item in items if item.kind in _INTERVENES and item.direction == "against"]
    verdicts = {item.id: _shortfall(item, incident) for item in acts}
    good = [item for item in acts if verdicts[item.id] is None]
    missing = [f"{name}: {short}" for name, short in verdicts.items() if short] if not good else []
    if not acts:
        missing.append(
            f"an intervention: the symptom seen without the suspect, or not seen with it for T* ({t_star_text(incident)})"
        )
    against = [
        item for item in items if item not in acts and displaces(item, claim, services=services, in_place=in_place)
    ]
    groups = {_group(item) for item in (*good, *against)}
    if claim.hazard and len(groups) < 2 and not (waived and good):
        missing.append(
            f"a second, independent kind of evidence: {claim.id} is about a hazard, and "
            + (f"only {', '.join(sorted(groups))} speaks against it" if groups else "none speaks against it")
        )
    return Ruling(
        allowed=not missing,
        missing=tuple(missing),
        on=tuple(item.id for item in (*good, *against)),
        why="; ".join(item.text for item in good),
    )


def _shortfall(item: Evidence, incident: Incident | None) -> str | None:
    """Why an intervention does not do, or ``None`` when it does."""
    suspect, symptoms, exposure = (item.measured.get(name) for name in ("suspect", "symptoms", "exposure"))
    if suspect == "absent":
        return None if isinstance(symptoms, int) and symptoms > 0 else "no symptom was seen without the suspect"
    if suspect != "present" or not isinstance(symptoms, int) or not isinstance(exposure, int | float):
        return "it does not say whether the suspect was in place, how often the symptom came, and over how much"
    if symptoms > 0:
        return f"the symptom came {symptoms} times with the suspect in place; that speaks for the claim"
    needed = t_star_of(incident)
    if needed is None or incident is None:
        return "T* is unknown: the incident has no count and exposure"
    if item.measured.get("exposure_unit") != incident.exposure_unit:
        return f"it counts {item.measured.get('exposure_unit')}, and the incident counts {incident.exposure_unit}"
    if exposure < needed:
        return f"{exposure:g} {incident.exposure_unit} clean, and T* is {t_star_text(incident)}"
    return None


def _group(item: Evidence) -> str:
    return item.group or item.source or item.id


def _dicts(value: object) -> list[dict[str, object]]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list | tuple) else []
