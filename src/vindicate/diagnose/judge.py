"""A capture → a diagnosis: clues from every rule, weighed; one conviction at most; who is cleared; what is still open.

Clues of one kind are taken as one, the strongest, and so are clues that are read from one observation (`Clue.basis`); kinds
as independent of each other. So the confidence in a service is 1 - product over kinds of (1 - strength). A conviction needs
0.8 and two kinds.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from vindicate.diagnose.account import account_of
from vindicate.diagnose.awake import ends_withheld
from vindicate.diagnose.broken_off import broken_off
from vindicate.diagnose.caller import callers
from vindicate.diagnose.catalogue import mechanism_named, remedy_for
from vindicate.diagnose.chain import chain_of
from vindicate.diagnose.clearance import clearances
from vindicate.diagnose.cut import cuts
from vindicate.diagnose.delay import delays
from vindicate.diagnose.dispatch import dispatches
from vindicate.diagnose.figures import lying_figures
from vindicate.diagnose.framing import misframings
from vindicate.diagnose.front import front_end_faults
from vindicate.diagnose.health import Health, health_of
from vindicate.diagnose.hearsay import hearsay
from vindicate.diagnose.hold import holds
from vindicate.diagnose.holes import without_holes
from vindicate.diagnose.host import host_limits
from vindicate.diagnose.impatient import impatient
from vindicate.diagnose.ladder import ladder_of
from vindicate.diagnose.legs import refused_legs
from vindicate.diagnose.matrix import bad_cells
from vindicate.diagnose.naming import more_exactly
from vindicate.diagnose.occupied import occupied_links
from vindicate.diagnose.outage import outages
from vindicate.diagnose.overtaken import overtaken
from vindicate.diagnose.path import paths
from vindicate.diagnose.pool import pool_faults
from vindicate.diagnose.progress import awaited_of, progress_of
from vindicate.diagnose.refusal import refusals
from vindicate.diagnose.relay import spoilers
from vindicate.diagnose.request import requests
from vindicate.diagnose.retry import retries
from vindicate.diagnose.reuse import reuses
from vindicate.diagnose.rule import Clue, Scene
from vindicate.diagnose.sane import sane
from vindicate.diagnose.stall import stalls
from vindicate.diagnose.threads import stood_still
from vindicate.diagnose.unseen import blind_spots, what_would_settle
from vindicate.record.diagnosis import Aggravator, Diagnosis, Finding, Layer, Suspect
from vindicate.record.observation import Capture

__all__ = ["CONVICTS_AT", "judge", "scene_of"]

CONVICTS_AT = 0.8
CAP = 0.98
CAP_WITHOUT_PROBES = 0.88
CAP_UNSEEN = 0.85
SUSPECT_AT = 0.3
DEAD = ("service.down", "service.not_listening")
RULES = (
    outages,
    holds,
    delays,
    spoilers,
    stalls,
    refused_legs,
    hearsay,
    broken_off,
    callers,
    paths,
    retries,
    requests,
    reuses,
    dispatches,
    lying_figures,
    pool_faults,
    front_end_faults,
    bad_cells,
    cuts,
    misframings,
    ends_withheld,
    refusals,
    occupied_links,
    overtaken,
    impatient,
    host_limits,
    stood_still,
)


@dataclass(frozen=True, slots=True)
class Case:
    """All that speaks against one service for one mechanism."""

    service: str
    mechanism: str
    score: float
    kinds: frozenset[str]
    root: bool
    layer: Layer | None = None

    @property
    def convicts(self) -> bool:
        """Whether it is enough."""
        return self.score >= CONVICTS_AT and len(self.kinds) >= 2


def scene_of(capture: Capture) -> Scene:
    """Compute all that the rules work with."""
    capture = sane(capture)
    chain = chain_of(capture)
    return Scene(
        capture=capture,
        chain=chain,
        account=account_of(capture, chain),
        progress=progress_of(capture, chain),
        ladder=ladder_of(capture),
        awaited=awaited_of(capture, chain),
    )


def judge(capture: Capture) -> Diagnosis:
    """Say who stalls the chain in *capture*, or that nobody does, or what is missing to say it. Pure."""
    scene = scene_of(capture)
    clues = more_exactly(scene, without_holes(scene, [clue for rule in RULES for clue in rule(scene)]))
    cases = sorted(_cases(scene, clues), key=lambda case: -case.score)
    convicted = [case for case in cases if case.convicts]
    guilty = _guilty(scene, [case for case in convicted if case.layer != "metrics"])
    health = health_of(scene, (case.score for case in cases if case.layer != "metrics"))
    if guilty is None and health.status == "healthy":  # lying figures are the verdict only where nobody is held up
        guilty = _guilty(scene, convicted)
    if guilty is not None:
        return _fault(scene, guilty, cases, clues)
    return _no_conviction(scene, health, cases, clues)


def _cases(scene: Scene, clues: Iterable[Clue]) -> list[Case]:
    """The best case against each service, and the best against its figures."""
    against: dict[tuple[str, bool], list[Clue]] = {}
    for clue in clues:
        if clue.direction == "implicates" and clue.strength > 0:
            against.setdefault((clue.service, clue.layer == "metrics"), []).append(clue)
    found = []
    for (service, _), its in against.items():
        mechanisms = list(dict.fromkeys(clue.mechanism for clue in its if clue.mechanism)) or ["unknown"]
        cases = [_case(scene, service, name, [c for c in its if c.mechanism in (name, None)]) for name in mechanisms]
        found.append(max(cases, key=lambda case: case.score))
    return found


def _case(scene: Scene, service: str, mechanism: str, clues: list[Clue]) -> Case:
    strongest: dict[str, float] = {}
    bases: set[str] = set()
    for clue in sorted(clues, key=lambda clue: -clue.strength):
        if clue.kind not in strongest and (clue.basis is None or clue.basis not in bases):
            strongest[clue.kind] = clue.strength
            bases |= {clue.basis} if clue.basis is not None else set()
    doubt = 1.0
    for strength in strongest.values():
        doubt *= 1.0 - strength
    root = any(clue.root for clue in clues)
    return Case(
        service=service,
        mechanism=mechanism,
        score=min(1.0 - doubt, _cap(scene, service, root=root, figures=any(clue.layer == "metrics" for clue in clues))),
        kinds=frozenset(kind for kind, strength in strongest.items() if strength >= 0.2),
        root=root,
        layer=next((clue.layer for clue in clues if clue.layer is not None), None),
    )


def _cap(scene: Scene, service: str, *, root: bool, figures: bool) -> float:
    """How sure one can be at all with what could be seen."""
    if root or figures:
        return CAP
    if not scene.ladder.ran or scene.ladder.proven(service):
        return CAP_WITHOUT_PROBES
    if service not in scene.chain.services:
        return CAP
    node = scene.account.nodes[service]
    seen = node.visible and all(link.counted for link in (*node.down, *node.up))
    return CAP if seen or not scene.chain.is_relay(service) else CAP_UNSEEN


def _guilty(scene: Scene, convicted: list[Case]) -> Case | None:
    """Of several, the outage, and then the one furthest down whose case is about as strong: it explains those above it."""
    if not convicted:
        return None
    dead_entry = next(
        (case for case in convicted if case.service == scene.chain.entry and case.mechanism in DEAD), None
    )
    if dead_entry is not None:  # whatever else is dead, no request comes so far
        return dead_entry
    roots = [case for case in convicted if case.root] or convicted
    best = max(case.score for case in roots)
    near = [case for case in roots if case.score >= best - 0.12]
    return max(near, key=lambda case: _depth(scene, case.service))


def _depth(scene: Scene, service: str) -> int:
    """How far down the chain it stands; those who call the entry stand above it."""
    return scene.chain.order.index(service) if service in scene.chain.order else -1


def _fault(scene: Scene, guilty: Case, cases: list[Case], clues: list[Clue]) -> Diagnosis:
    others = [case for case in cases if case is not guilty]
    rivals = [
        case
        for case in others
        if not case.convicts and case.score >= 0.5 and not guilty.root and "metrics" not in (case.layer, guilty.layer)
    ]
    confidence = guilty.score - 0.1 * max((case.score for case in rivals), default=0.0)
    if confidence < CONVICTS_AT:
        return _undetermined(scene, cases, clues, f"{guilty.service} is suspected, but so is {rivals[0].service}")
    if _may_pass_on(scene, guilty):
        why = f"{guilty.service} is where it is seen to stop, and what it calls in its turn was not found"
        return _undetermined(scene, cases, clues, why)
    entry = mechanism_named(guilty.mechanism)
    role = _known_role(scene, guilty.service)
    dead = [case.service for case in others if case.convicts and case.mechanism in DEAD and guilty.mechanism in DEAD]
    too = f"; {', '.join(dead)} {'is' if len(dead) == 1 else 'are'} dead too" if dead else ""
    return _diagnosis(
        scene,
        clues,
        status="fault",
        layer=guilty.layer or _layer(role),
        service=guilty.service,
        mechanism=guilty.mechanism,
        confidence=round(confidence, 3),
        summary=_headline(guilty, role, entry.headline) + too + ("" if role else _UNKNOWN_ROLE),
        cleared=() if guilty.layer == "metrics" else tuple(clearances(scene, guilty.service, guilty.mechanism)),
        suspects=tuple(
            _suspect(case)
            for case in others
            if not case.convicts and case.score >= SUSPECT_AT and not guilty.root and case.layer != "metrics"
        ),
        aggravators=tuple(
            Aggravator(service=case.service, mechanism=case.mechanism)
            for case in others
            if case.convicts and case.layer != "metrics"
        )
        + _lying_beside(others),
        next=_next_step(scene, guilty, dead),
    )


def _may_pass_on(scene: Scene, guilty: Case) -> bool:
    """Whether *guilty* may only be waiting for somebody that was not discovered; what is dead or stopped itself waits for nobody."""
    service = scene.chain.services.get(guilty.service)
    return service is not None and service.opaque and guilty.mechanism not in (*DEAD, "service.stopped")


_UNKNOWN_ROLE = "; whether it is a proxy, a router or an engine is not known, as nothing answers there"


def _known_role(scene: Scene, name: str) -> str:
    """The role of the service, empty when it was discovered and never answered: then its role is a guess."""
    role = scene.chain.role(name)
    answered = any(s.service == name and s.status is not None for s in scene.capture.scrapes) or any(
        p.target == name and p.status is not None for p in scene.capture.probes
    )
    seen = scene.chain.services.get(name)
    unknown = seen is not None and (not seen.pids or seen.engine == "generic")
    guessed = ":" in name and role == "engine" and unknown and not answered
    return "" if guessed else role


def _next_step(scene: Scene, guilty: Case, dead: list[str]) -> tuple[str, ...]:
    """What to do about *guilty*, who may have died together with all others; a discovered chain has no stack to start."""
    discovered = ":" in guilty.service
    if dead and {guilty.service, *dead} == set(scene.chain.services):
        return (
            ("nothing of this chain runs: start it again, the engines first",)
            if discovered
            else ("nothing of this stack runs: vindicate stack up",)
        )
    return (remedy_for(guilty.mechanism, guilty.service, in_stack=not discovered),)


def _headline(guilty: Case, role: str, says: str) -> str:
    who = _titled(guilty.service, role)
    return f"the figures of {who} are not so: {says}" if guilty.layer == "metrics" else f"{who} is at fault: {says}"


def _lying_beside(cases: Iterable[Case]) -> tuple[Aggravator, ...]:
    """Figures that lie, to stand beside whatever the verdict is."""
    return tuple(
        Aggravator(service=case.service, mechanism=case.mechanism)
        for case in cases
        if case.layer == "metrics" and case.score >= SUSPECT_AT
    )


def _no_conviction(scene: Scene, health: Health, cases: list[Case], clues: list[Clue]) -> Diagnosis:
    if health.status == "healthy":
        return _diagnosis(
            scene,
            clues,
            status="healthy",
            layer="none",
            service=None,
            mechanism=None,
            confidence=health.confidence,
            summary=health.summary,
            aggravators=_lying_beside(cases),
        )
    return _undetermined(scene, cases, clues, health.summary)


def _undetermined(scene: Scene, cases: list[Case], clues: list[Clue], why: str) -> Diagnosis:
    suspects = tuple(_suspect(case) for case in cases if case.score >= SUSPECT_AT and case.layer != "metrics")
    best = min(max((suspect.confidence for suspect in suspects), default=0.0), CONVICTS_AT - 0.01)
    return _diagnosis(
        scene,
        clues,
        status="undetermined",
        layer="none",
        service=None,
        mechanism=None,
        confidence=round(best, 3),
        summary=f"not enough to name anybody: {why}",
        suspects=suspects,
        aggravators=_lying_beside(cases),
        next=tuple(what_would_settle(scene, [suspect.service for suspect in suspects])),
    )


def _suspect(case: Case) -> Suspect:
    return Suspect(
        service=case.service, mechanism=case.mechanism, confidence=round(min(case.score, CONVICTS_AT - 0.01), 3)
    )


def _titled(name: str, role: str) -> str:
    return name if not role or name == role or name.startswith(role) else f"{name} ({role})"


def _layer(role: str) -> Layer:
    known: dict[str, Layer] = {
        "": "none",
        "proxy": "proxy",
        "gateway": "gateway",
        "router": "router",
        "prefill": "prefill",
        "decode": "decode",
        "engine": "engine",
    }
    return known.get(role, "engine")


def _diagnosis(scene: Scene, clues: list[Clue], **verdict: Any) -> Diagnosis:
    findings = tuple(
        Finding(
            id=f"F{number}",
            service=clue.service,
            kind=clue.kind,
            direction=clue.direction,
            text=clue.text,
            measured=clue.measured,
        )
        for number, clue in enumerate([*clues, *_clearing(scene)], 1)
    )
    return Diagnosis(
        schema="vindicate.diagnosis/1",
        findings=findings,
        blind=tuple(blind_spots(scene)),
        started_at=scene.capture.started_at,
        window_s=scene.capture.window_s,
        **verdict,
    )


def _clearing(scene: Scene) -> Iterable[Clue]:
    """What speaks for services: probes that came back whole, engines whose work moves or is done."""
    for p in scene.ladder.good:
        yield Clue(
            service=p.target,
            kind="probe",
            direction="clears",
            text=f"a small request straight to {p.target} was complete in {p.total_s:.2f} s, end of stream included",
            measured={"total_s": round(p.total_s, 3), "tokens": p.n_tokens, "covers": ", ".join(p.covers)},
        )
    for name in scene.leaves:
        progress = scene.progress[name]
        if progress.work == "moving":
            yield Clue(
                service=name,
                kind="counter",
                direction="clears",
                text=f"the counters of {name} moved with users' requests",
                measured={"tokens": progress.live_delta, "ended": progress.ended_delta},
            )
        elif progress.work == "idle":
            yield Clue(
                service=name,
                kind="counter",
                direction="neutral",
                text=f"{name} had nothing running and nothing queued",
                measured={"in_work": progress.in_work_last, "http_active": progress.http_active},
            )
