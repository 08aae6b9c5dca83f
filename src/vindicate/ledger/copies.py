"""Claims and reverts that only repeat another's reason → the claim that each of them really rests on; derived, never stored; pure.

A claim repeats an earlier one when it accuses the same in the same words, or when its words are nothing but a pointer to it
(``same as C1``, ``copied from serve.sh``, ``see vllm #5091``). One with evidence or an incident of its own is no copy, nor, in a
book, one with a verdict; different reasons are never taken for one.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from vindicate.record.ledger import Change, Claim, Justification

__all__ = ["Grounds", "about_knobs", "borrowed", "copied_claims"]

_POINTER = re.compile(
    r"(?:for )?(?:the )?(?:same(?: reason)? as|copied from|copy of|taken from|as in|as for|like|see|per|following)(?: in| for)? (?P<what>\S.{0,79})",
    re.IGNORECASE,
)
_FEWEST_WORDS = 3  # "it hangs" is everybody's word

Grounds = Mapping[str, Sequence[tuple[Change, Justification]]]
"""By claim, the changes that rest on it."""


def copied_claims(claims: Iterable[Claim], grounds: Callable[[], Grounds], own: Collection[str]) -> dict[str, str]:
    """The claims that only repeat another, each with the earlier one that it repeats.

    Args:
        claims: In the order in which they were first recorded.
        grounds: Makes the map when a pointer asks for it.
        own: Those that evidence of their own speaks for or against; they repeat none.
    """
    first: dict[tuple[str | None, str], Claim] = {}
    earlier: dict[str | None, list[Claim]] = {}
    found: dict[str, str] = {}
    for claim in claims:
        words = _words(claim.text)
        original: Claim | None = first.setdefault((claim.about, words), claim) if words else None
        if original is None or original is claim:
            original = _pointed_at(claim.text, earlier.get(_knob(claim), ()), grounds)
        if original and claim.id not in own and claim.incident in (None, original.incident):
            found[claim.id] = original.id
        earlier.setdefault(_knob(claim), []).append(claim)
    return found


def about_knobs(claims: Iterable[Claim]) -> dict[str, list[Claim]]:
    """The claims about each knob, in their order."""
    found: dict[str, list[Claim]] = {}
    for claim in claims:
        if knob := _knob(claim):
            found.setdefault(knob, []).append(claim)
    return found


def borrowed(change: Change, about: Sequence[Claim], grounds: Callable[[], Grounds]) -> tuple[Justification, ...]:
    """The ground of a revert that names none, and whose reason repeats one of the claims *about* the same knob."""
    words = _words(change.reason)
    original = next((claim for claim in about if words and _words(claim.text) == words), None)
    original = original or _pointed_at(change.reason, about, grounds)
    if original is None:
        return ()
    return (Justification(change=change.id, claims=(original.id,), recorded="retroactive", quote=change.reason),)


def _pointed_at(text: str, among: Sequence[Claim], grounds: Callable[[], Grounds]) -> Claim | None:
    """The one claim that *text* does nothing but point at; ``None`` when it is none, or several."""
    match = _pointer(text)
    if match is None:
        return None
    what = match["what"].strip(" .,;:()`")
    said = re.compile(rf"(?<![\w#-]){re.escape(what)}(?![\w-])", re.IGNORECASE)
    for told_by in (_names_of, _said_of):
        hits = [
            claim for claim in among if any(said.search(text) for text in told_by(claim, grounds().get(claim.id, ())))
        ]
        if hits:
            return hits[0] if len(hits) == 1 else None
    return None


def _names_of(claim: Claim, resting: Sequence[tuple[Change, Justification]]) -> Iterable[str]:
    return claim.id, *(change.id for change, _ in resting)


def _said_of(claim: Claim, resting: Sequence[tuple[Change, Justification]]) -> Iterable[str]:
    """What may be pointed at: not words that only point elsewhere themselves."""
    yield claim.text
    for change, ground in resting:
        yield from (change.source, ground.quote, *change.services)
        if _pointer(change.reason) is None:
            yield change.reason


def _pointer(text: str) -> re.Match[str] | None:
    return _POINTER.fullmatch(" ".join(text.split()).strip(" .,;:()"))


def _knob(claim: Claim) -> str | None:
    kind, _, subject = (claim.about or "").partition(":")
    return subject.partition("=")[0] if kind == "knob" else None


def _words(text: str) -> str:
    """The words alone, whatever their case and the marks between them; empty for words that are too few to tell."""
    if len(text.split()) < _FEWEST_WORDS:
        return ""
    return " ".join(re.findall(r"[\w.%+-]*\w", text.casefold()))
