"""Incidents, claims, evidence, knobs, past changes and candidates → lines for a terminal; decides nothing."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol

from vindicate.ledger.claim_rules import Ruling, t_star_text
from vindicate.ledger.clawback import Candidate
from vindicate.ledger.discover import Proposal
from vindicate.ledger.fingerprint import identity
from vindicate.ledger.scope import Scoped
from vindicate.ledger.state import ChangeRecord, ClaimRecord, IncidentRecord
from vindicate.ledger.timeline import Lead
from vindicate.ledger.worth import Worth, lower_is_better
from vindicate.record.ledger import KNOB_HELD, Change, Evidence
from vindicate.units import shown

__all__ = [
    "claim_lines",
    "clawback_lines",
    "evidence_lines",
    "incident_lines",
    "knob_lines",
    "knob_table",
    "lead_lines",
    "proposal_lines",
    "scope_lines",
    "worth_lines",
]

_STANDING = {
    "orphaned": "its ground is gone",
    "weakened": "another cause was found; its ground is not refuted",
    "still_justified_by_other": "one ground fell, another holds",
    "never_justified": "no ground was ever recorded",
    "justified": "its ground holds",
}


class _KnobState(Protocol):
    """What a knob's state has to show."""

    @property
    def knob(self) -> str: ...
    @property
    def services(self) -> tuple[str, ...]: ...
    @property
    def default(self) -> str | None: ...
    @property
    def in_ledger(self) -> bool: ...
    @property
    def ledger(self) -> str | None: ...
    @property
    def scripts(self) -> dict[str, str | None]: ...
    @property
    def script_lines(self) -> dict[str, str]: ...
    @property
    def live(self) -> dict[str, dict[str, str | None]]: ...
    @property
    def drift(self) -> tuple[str, ...]: ...
    @property
    def unseen(self) -> tuple[str, ...]: ...
    @property
    def together(self) -> str: ...
    @property
    def read_from(self) -> dict[str, str]: ...


# ---- claw-back -------------------------------------------------------------------------------------------------------


def clawback_lines(
    rows: Sequence[Candidate], *, what_if: Mapping[str, str], discovered: bool, empty: bool, recorded_later: int = 0
) -> list[str]:
    """The answer to "is there anything we may have back?", the most promising first.

    Args:
        recorded_later: How many changes the ledger holds by now that it did not know at the moment asked about.
    """
    lines = [f"were {', '.join(f'{claim} {status}' for claim, status in what_if.items())}:"] if what_if else []
    if not rows:
        lines.append("no revert is in force: nothing to claw back")
        if recorded_later:
            lines.append(f"the ledger holds {recorded_later} changes that were recorded later")
        elif empty and not discovered:
            lines.append("the ledger holds no change; look for past ones with: vindicate clawback --discover")
        return lines
    for row in rows:
        lines += [*_candidate(row), ""]
    return lines[:-1]


def _candidate(row: Candidate) -> list[str]:
    services = f" on {', '.join(row.services)}" if row.services else ""
    found = " (found in hindsight)" if row.recorded == "retroactive" else ""
    lines = [
        f"{row.change}  {row.knob}: {shown(row.from_value)} → {shown(row.to_value)}{services}, reverted {row.reverted_at[:10]}{found}",
        f"    {row.standing}: {_STANDING[row.standing]}",
    ]
    for item in row.because:
        hindsight = ", linked in hindsight" if item.recorded == "retroactive" else ""
        repeats = f", repeats {item.repeats}, which is {item.repeats_status}" if item.repeats else ""
        lines.append(f"    because {item.claim} ({item.status}{hindsight}{repeats}): {item.text}")
        lines += scope_lines(item.out_of_scope, item.not_told, "      ")
    if row.follows:
        lines.append(f"    follows from {row.follows[0]}, linked in hindsight: {row.follows[1]}")
    if row.copies:
        lines.append(f"    copied by {', '.join(row.copies)}: same knob, value and reason")
    live = f"live value {shown(row.live.value)}" if row.live.known else f"live value unknown: {row.live.note}"
    lines.append(f"    {'in force' if row.in_force else 'not in force'}, {live}")
    lines += [f"    {row.together}"] if row.together else []
    if row.worth:
        lines.append(f"    what {shown(row.from_value)} is worth over {shown(row.to_value)}:")
        lines += [f"      {line}" for line in worth_lines(row.worth)]
    if row.next != "leave":
        lines += [f"    weak: {weakness}" for weakness in row.weaknesses]
    return [*lines, f"    {row.next}: {row.plan}", f"    $ {row.command}"]


def scope_lines(outside: Sequence[str], unknown: Sequence[str], indent: str) -> list[str]:
    """Why a claim is out of its scope, and what its scope asks that nobody knows here, with the command that says it."""
    lines = [f"{indent}out of scope: {'; '.join(outside)}"] if outside else []
    for text in unknown:
        field, known, _ = text.partition(" is not known here")
        how = f'; say it with: vindicate evidence add "WHAT IS SO" --fingerprint {field}=VALUE' if known else ""
        lines.append(f"{indent}in scope as far as is known: {text}{how}")
    return lines


def worth_lines(worth: Iterable[Worth]) -> list[str]:
    """One line a level: the gain, its interval or that there is none, grade, source, and why it is stale."""
    return [
        f"{item.level:>4} {item.metric:<18} {item.gain_pct:+6.1f} %  {_interval(item):<20} grade {item.grade}"
        f"{', less is better' if lower_is_better(item.metric) else ''}"
        f"{', simulated' if item.simulated else ''}  {item.source}, {item.measured_at[:10]}"
        + (f"  stale: {'; '.join(item.stale)}" if item.stale else "")
        for item in worth
    ]


def _interval(item: Worth) -> str:
    if item.lo90_pct is None or item.hi90_pct is None:
        return "no interval given"
    return f"90 %: {item.lo90_pct:+.1f} to {item.hi90_pct:+.1f}"


def proposal_lines(proposals: Sequence[Proposal], new: Collection[Proposal], tables: Sequence[Evidence]) -> list[str]:
    """What was found in scripts, history, backups and documents, each with its traces."""
    if not proposals and not tables:
        return ["found no past change of a knob in scripts, backups, git history or documents"]
    lines = []
    for item in proposals:
        state = (
            ""
            if item in new
            else ", recorded already"
            if item.from_known
            else ", a lead only: it is not said from which value"
        )
        undoes = f", takes back {item.undoes}" if item.undoes else ""
        from_value = shown(item.from_value) if item.from_known else "?"
        lines.append(
            f"{item.id}  {item.happened_at[:10]} {item.kind} {item.knob}: {from_value} → {shown(item.to_value)}{undoes}{state}"
        )
        if item.reason:
            lines.append(f"      reason in the words found: {item.reason}")
        lines += [
            f"      {quote.file}:{quote.line} ({quote.by}, {quote.date[:10]}) {quote.text}" for quote in item.quotes
        ]
    return [*lines, *(f"table  {item.source}: {item.text}" for item in tables)]


# ---- incidents, claims, evidence -------------------------------------------------------------------------------------


def incident_lines(records: Sequence[IncidentRecord]) -> list[str]:
    """One incident a line, with its count and T*."""
    if not records:
        return ["no incident is on record"]
    return [
        f"{record.incident.id:7} {record.began_at[:16]}  {record.incident.text}"
        + (
            f"  ({record.incident.count} in {record.incident.exposure:g} {record.incident.exposure_unit}; T* {t_star_text(record.incident)})"
            if record.incident.count and record.incident.exposure
            else "  (not counted)"
        )
        for record in records
    ]


def lead_lines(record: IncidentRecord, leads: Sequence[Lead], days: float) -> list[str]:
    """What changed before an incident, newest first."""
    lines = [f"{record.incident.id} began {record.began_at}: {record.incident.text}"]
    if not leads:
        return [*lines, f"nothing that was seen changed in the {days:g} days before"]
    lines.append(f"changed in the {days:g} days before (leads, never causes):")
    return lines + [
        f"  {lead.at[:19]}  {lead.kind:8} {lead.what}  {lead.where}{f'  ({lead.by})' if lead.by else ''}"
        for lead in leads
    ]


def claim_lines(
    record: ClaimRecord,
    items: Sequence[Evidence],
    rests: Sequence[tuple[Change, str, str]],
    ruling: Ruling,
    t_star: str,
    *,
    scope: Scoped,
    repeats: str | None,
    repeated: Sequence[str],
) -> list[str]:
    """A claim with its history, its evidence, what rests on it, and what would settle it."""
    claim = record.claim
    lines = [f"{claim.id} is {record.status}: {claim.text}"]
    lines += [f"  about {claim.about}"] if claim.about else []
    lines += [f"  scope {claim.scope}"] if claim.scope else []
    lines += scope_lines(scope.outside, scope.unknown, "    ")
    lines += [f"  repeats {repeats}, and falls with it"] if repeats else []
    lines += [f"  repeated by {', '.join(repeated)}: no ground of its own"] if repeated else []
    lines += [f"  incident {claim.incident}"] if claim.incident else []
    lines += [
        f"  {at[:16]} {event.status}: {event.reason}" + (f" [{', '.join(event.evidence)}]" if event.evidence else "")
        for at, event in record.events
    ]
    lines += [f"  evidence {item.id} ({item.kind}, {item.direction.replace('_', ' ')}): {item.text}" for item in items]
    lines += [
        f"  {change.id} rests on it: {change.kind} {change.knob} {shown(change.from_value)} → {shown(change.to_value)}, {now}"
        + (f"; {then} if it is refuted" if then != now else "")
        for change, now, then in rests
    ]
    if not rests:
        lines.append("  nothing rests on it")
    if record.status == "refuted":
        return lines
    if ruling.allowed:
        return [*lines, f"  what is on record refutes it: vindicate claim refute {claim.id}"]
    return [*lines, *(f"  to settle it: {missing}" for missing in ruling.missing), f"  T*: {t_star}"]


def evidence_lines(item: Evidence) -> list[str]:
    """One piece of evidence with its figures and its source."""
    lines = [f"{item.id} {item.kind}: {item.text}"]
    lines += [f"  {item.direction.replace('_', ' ')} {item.claim}"] if item.claim else []
    lines += [f"  source {item.source}"] if item.source else []
    lines += [f"  measured {item.measured_at}"] if item.measured_at else []
    lines += [
        f"  {name.removeprefix(KNOB_HELD)} was {shown(value)} in the live processes"
        for name, value in item.fingerprint.items()
        if name.startswith(KNOB_HELD)
    ]
    lines += [f"  taken with {field} {value}" for field, value in identity(item).items()]
    lines += [
        f"  {effect.level:>4} {effect.metric}: {effect.gain_pct:+.1f} %, {effect.knob} {shown(effect.b)} over {shown(effect.a)}, grade {effect.grade}"
        + (", less is better" if lower_is_better(effect.metric) else "")
        + ("" if effect.lo90_pct is None else f", 90 %: {effect.lo90_pct:+.1f} to {effect.hi90_pct:+.1f}")
        for effect in item.effects
    ]
    return lines + [f"  {key}: {value}" for key, value in item.measured.items()]


# ---- knobs -----------------------------------------------------------------------------------------------------------


def knob_table(states: Sequence[_KnobState]) -> list[str]:
    """One knob a line: ledger, script, live; below it what drifted and what could not be seen."""
    if not states:
        return ["no knob is declared in the stack file, and the ledger speaks of none"]
    lines = []
    for state in states:
        live = dict.fromkeys(shown(value) for of in state.live.values() for value in of.values())
        scripts = dict.fromkeys(shown(value) for value in state.scripts.values())
        lines.append(
            f"{state.knob}  ledger {shown(state.ledger) if state.in_ledger else '-'}  script {', '.join(scripts) or '-'}  "
            f"live {', '.join(live) or '-'}{'  DRIFT' if state.drift else ''}"
        )
        lines += [f"    {line}" for line in (*state.drift, *(f"not seen: {line}" for line in state.unseen))]
    return lines


def _why(history: Sequence[tuple[ChangeRecord, str]], claims: Mapping[str, str]) -> list[str]:
    """The change that gave the knob its value, the last one that took hold, and what that rests on."""
    record, standing = next(((record, now) for record, now in reversed(history) if record.in_effect), (None, ""))
    if record is None:
        return []
    undone = next((now for other, now in history if other.change.id == record.change.undoes), None)
    if record.because:
        ground = "because of " + ", ".join(f"{name} ({claims.get(name, 'not on record')})" for name in record.because)
    elif record.change.undoes:
        ground = f"in place of {record.change.undoes}" + (f", which is {undone}: {_STANDING[undone]}" if undone else "")
    else:
        ground = "for no reason on record"
    held = f"; {standing}" if record.because or record.change.kind != "apply" else ""
    return [f"  why: {record.change.id} ({record.change.kind}, {record.at[:10]}), {ground}{held}"]


def knob_lines(
    state: _KnobState,
    worth: Mapping[tuple[str | None, str | None], Sequence[Worth]],
    history: Sequence[tuple[ChangeRecord, str]],
    claims: Mapping[str, str],
) -> list[str]:
    """A knob's values, why it has them, what others are worth, and how it came here."""
    lines = [
        state.knob
        + (f" on {', '.join(state.services)}" if state.services else "")
        + (f", default {state.default}" if state.default else "")
    ]
    lines.append(f"  by the ledger  {shown(state.ledger) if state.in_ledger else 'no change is on record'}")
    lines += [
        f"  in the script  {shown(value)}  ({state.script_lines.get(service, service)})"
        for service, value in state.scripts.items()
    ]
    lines += [
        f"  live           {shown(value)}  ({service}, pid {pid}{f', by {by}' if (by := state.read_from.get(pid)) else ''})"
        for service, of in state.live.items()
        for pid, value in of.items()
    ]
    lines += [f"  not seen       {line}" for line in state.unseen]
    lines += [f"  {state.together}"] if state.together else []
    lines += ["  DRIFT", *(f"    {line}" for line in state.drift)] if state.drift else []
    lines += _why(history, claims)
    for (value, over), items in worth.items():
        lines += [f"  {shown(value)} over {shown(over)}:", *(f"    {line}" for line in worth_lines(items))]
    if history:
        lines.append("  history:")
        lines += [
            f"    {record.at[:16]} {record.change.id} {record.change.kind} {shown(record.change.from_value)} → {shown(record.change.to_value)}, "
            f"{record.state}" + (f", {standing}" if record.because or record.change.kind != "apply" else "")
            for record, standing in history
        ]
    return lines
