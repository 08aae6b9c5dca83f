"""The facts a ledger keeps. Facts are appended and never edited; standing, staleness and worth are computed from them.

Each class here is the body of one kind of fact; `KINDS` maps the kind's name to it. A fact about an entity that was
recorded before (a second `Claim` with the same id, say) corrects it; the older one stays.
"""

from dataclasses import dataclass, field
from typing import Literal

__all__ = [
    "KINDS",
    "KNOB_HELD",
    "Change",
    "ChangeState",
    "ChangeStep",
    "Claim",
    "ClaimEvent",
    "ClaimStatus",
    "DocMark",
    "Effect",
    "Evidence",
    "Fact",
    "Incident",
    "Justification",
    "Waiver",
]

ClaimStatus = Literal["open", "supported", "displaced", "refuted", "inconclusive", "withdrawn", "superseded"]
ChangeState = Literal[
    "planned", "backed_up", "written", "restarted", "read_back", "checked", "watching", "done", "rolled_back", "failed"
]
Grade = Literal["A", "B", "C", "D"]
Recorded = Literal["at_the_time", "retroactive"]
KNOB_HELD = "knob:"  # begins the names in a fingerprint under which the value of a knob in the live processes stands


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """A symptom seen *count* times in *exposure* (requests, or hours), on *services*; both ``None`` when nobody counted."""

    id: str
    text: str
    count: int | None = None
    exposure: float | None = None
    exposure_unit: Literal["req", "h"] = "req"
    services: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Something believed. *about* is ``knob:NAME=VALUE`` or ``service:NAME``; *hazard* claims (hang, corruption) are harder to refute."""

    id: str
    text: str
    incident: str | None = None
    about: str | None = None
    scope: str | None = None
    hazard: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimEvent:
    """The claim went to *status*, for *reason*, on *evidence*."""

    claim: str
    status: ClaimStatus
    reason: str
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What going from *a* to *b* of *knob* was worth at one level; `None` interval when the source gave none.

    Attributes:
        gain_pct: B over A, in per cent of A.
        lo90_pct, hi90_pct: 90 % interval.
        blocks: Blocks of fresh starts behind it; ``None`` when unknown.
        metric: ``output_tok_per_s``, ``ttft_p50_ms`` …
    """

    knob: str
    a: str | None
    b: str | None
    level: int
    metric: str
    gain_pct: float
    grade: Grade
    lo90_pct: float | None = None
    hi90_pct: float | None = None
    blocks: int | None = None
    value_a: float | None = None
    value_b: float | None = None
    simulated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Something seen or measured.

    Attributes:
        kind: experiment, intervention, observation, diagnosis, document, log, code, upstream, opinion.
        direction: For a claim, against it, or explaining its symptom away.
        group: Independence group; two items of one group count once.
        source: File and line, command, or URL; *sha256* of the file where there is one.
        fingerprint: What was so at the time and may differ next time; ``knob:NAME`` is the value that live processes held.
        diagnosis: A saved `vindicate.diagnosis/1` document.
    """

    id: str
    kind: str
    text: str
    claim: str | None = None
    direction: Literal["for", "against", "explains_away", "neutral"] = "neutral"
    group: str = ""
    source: str = ""
    sha256: str | None = None
    measured_at: str | None = None
    effects: tuple[Effect, ...] = ()
    fingerprint: dict[str, str | None] = field(default_factory=dict)
    diagnosis: dict[str, object] | None = None
    measured: dict[str, str | float | int | bool | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A knob went, or is to go, from one value to another; ``None`` is unset. Its state is that of its last `ChangeStep`."""

    id: str
    kind: Literal["apply", "revert", "restore"]
    knob: str
    services: tuple[str, ...]
    from_value: str | None
    to_value: str | None
    undoes: str | None = None
    reason: str = ""
    recorded: Recorded = "at_the_time"
    happened_at: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeStep:
    """The change reached *state*. *detail* is one line for a person; *data* what another process needs to go on or back."""

    change: str
    state: ChangeState
    detail: str = ""
    data: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Justification:
    """*change* rests on all of *claims* together; several justifications of one change are alternatives.

    Attributes:
        need: ``supported`` (only a supported claim carries it), else an open one does too. ``not_refuted``, of a revert, and
            ``live`` are read alike: a displaced claim carries neither, and weakens both.
        quote: The words it was taken from, where it was found later.
    """

    change: str
    claims: tuple[str, ...]
    need: Literal["not_refuted", "live", "supported"] = "live"
    recorded: Recorded = "at_the_time"
    quote: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiver:
    """Somebody accepted the named *weaknesses* of the ground that *change* stands on."""

    change: str
    reason: str
    weaknesses: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DocMark:
    """A document was corrected or checked: *text* at *line* of *file* asserts something about *claim* or *knob*.

    Attributes:
        before_sha256, sha256: Of the whole file, before and after this program wrote it; ``None`` when it did not.
    """

    file: str
    line: int
    text: str
    claim: str | None = None
    knob: str | None = None
    verdict: str = ""
    before_sha256: str | None = None
    sha256: str | None = None


Body = Incident | Claim | ClaimEvent | Evidence | Change | ChangeStep | Justification | Waiver | DocMark

KINDS: dict[str, type[Body]] = {
    "incident": Incident,
    "claim": Claim,
    "claim_event": ClaimEvent,
    "evidence": Evidence,
    "change": Change,
    "change_step": ChangeStep,
    "justification": Justification,
    "waiver": Waiver,
    "doc_mark": DocMark,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One row of the ledger: *body* happened at one time and was recorded, by somebody, at another."""

    seq: int
    kind: str
    happened_at: str
    recorded_at: str
    by: str
    body: Body
