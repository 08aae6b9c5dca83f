"""A document and a book → the sentences that no longer hold, and the document with those struck through; pure."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from vindicate.errors import MisuseError
from vindicate.ledger.claim_rules import subject_knob
from vindicate.ledger.prose import Sentence, knob_near, knobs_in, sentences
from vindicate.ledger.state import Book, ClaimRecord
from vindicate.ledger.worth import worth_of
from vindicate.units import shown

__all__ = [
    "Contradiction",
    "Current",
    "contradictions",
    "corrected",
    "known_knobs",
    "ledger_value",
    "ledger_values",
    "refreshed",
]

_V = r"[`*\"']*(?P<value>\d[\w]*(?:\.\w+)*|on|off|true|false|unset)\b"
_SET_BACK = re.compile(
    rf"\b(?:revert\w*|rolled|rolling|roll|went|go|set|put|moved|changed|switched|turned|dropped|lowered)\b(?:\s+\S+){{0,4}}?\s+"
    rf"(?:back\s+)?(?:to|at)\s+(?:[A-Z][A-Z0-9_]*\s*=\s*)?{_V}",
    re.IGNORECASE,
)
_BACK = re.compile(r"\b(?:revert\w*|roll\w*\s+back|back\s+(?:to|at)|lowered|dropped)\b", re.IGNORECASE)
_NOW = re.compile(
    rf"\b(?:is|are|stays?|remains?|now|currently|keep|kept|leave|left|use|runs?)\s+(?:[`*]*[A-Z][A-Z0-9_]+[`*]*\s+)?(?:now\s+|currently\s+|set\s+|at\s+|to\s+|with\s+|on\s+|=\s*)*{_V}",
    re.IGNORECASE,
)
_BECAUSE = re.compile(
    r"\b(?:because|due\s+to|since|caus\w+|culprit|to\s+blame|after\s+the|hang\w*|hung|freez\w*|froze|deadlock\w*|stall\w*|corrupt\w*|unsafe)\b",
    re.IGNORECASE,
)
_TAKEN_BACK = re.compile(
    r"\b(?:refuted|displaced|innocent|cleared|exonerated|not\s+(?:the\s+)?(?:cause|culprit|to\s+blame)|wrong(?:ly)?|disproved|withdrawn|no\s+longer)\b",
    re.IGNORECASE,
)
_BEGIN = re.compile(r"<!--\s*vindicate:begin\s+knob=(?P<knob>[^\s>]+)\s*-->")
_END = re.compile(r"<!--\s*vindicate:end\s*-->")


@dataclass(frozen=True, slots=True, kw_only=True)
class Current:
    """The value that a knob has now, and how that is known: ``read from pid 4211``, ``by the ledger, since C3``."""

    value: str | None
    how: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Contradiction:
    """A sentence that says what the ledger, or a live process, says otherwise; *why* is one sentence."""

    sentence: Sentence
    knob: str
    claim: str | None
    why: str


def known_knobs(book: Book) -> tuple[str, ...]:
    """Every knob that the ledger speaks of."""
    subjects = [subject_knob(record.claim) for record in book.claims.values()]
    return tuple(
        dict.fromkeys(
            [
                *(record.change.knob for record in book.changes.values()),
                *(subject[0] for subject in subjects if subject),
                *book.effects,
            ]
        )
    )


def ledger_value(book: Book, knob: str) -> Current | None:
    """The value that the last change in effect gave *knob*; ``None`` when no change is on record."""
    done = book.in_effect.get(knob)
    return Current(value=done[-1].change.to_value, how=f"by the ledger, since {done[-1].change.id}") if done else None


def ledger_values(book: Book, knob: str) -> tuple[Current, ...]:
    """The value that the ledger gives *knob*, newest first; one, unless services were last changed to different ones."""
    found: dict[str | None, Current] = {}
    for record in reversed(book.in_effect.get(knob, ())):
        if book.later_than(record) is None:
            where = f" on {', '.join(record.change.services)}" if record.change.services else ""
            how = f"by the ledger, since {record.change.id}{where}"
            found.setdefault(record.change.to_value, Current(value=record.change.to_value, how=how))
    whole = ledger_value(book, knob)
    return tuple(found.values()) if len(found) > 1 else (whole,) if whole else ()


def contradictions(
    text: str, book: Book, current: Mapping[str, Current], *, known: Collection[str]
) -> list[Contradiction]:
    """The sentences of *text* that no longer hold.

    Two kinds: a sentence that says which value a knob was set back to, or has now, and it has another; and a sentence
    that gives as a reason what a refuted claim says (a displaced one may still be true). A sentence that takes it back itself is left alone.

    Args:
        current: The value that each knob has now; a knob that is missing is not judged by its value.
    """
    found = []
    for sentence in sentences(text):
        knob = knob_near(sentence, known)
        if knob is None or knob not in known or _TAKEN_BACK.search(sentence.text):
            continue
        named = bool(knobs_in(sentence.text, [knob]))
        wrong_value = _wrong_value(sentence, knob, current.get(knob), named=named)
        # A sentence that neither names the knob nor tells of its revert may report what was truly seen.
        fallen = _fallen_reason(sentence, knob, book) if named or _BACK.search(sentence.text) else None
        reasons = [reason for reason in (wrong_value, fallen and _fall(fallen)) if reason]
        if reasons:
            claim = fallen.claim.id if fallen else None
            found.append(Contradiction(sentence=sentence, knob=knob, claim=claim, why="; ".join(reasons)))
    return found


def _wrong_value(sentence: Sentence, knob: str, current: Current | None, *, named: bool) -> str | None:
    if current is None:
        return None
    match = _SET_BACK.search(sentence.text) if _BACK.search(sentence.text) else None
    if match is None and named:
        match = _NOW.search(sentence.text)
    if match is None:
        return None
    said = None if match["value"].lower() == "unset" else match["value"]
    if said == current.value:
        return None
    return f"{knob} is {shown(current.value)} now ({current.how})"


def _fallen_reason(sentence: Sentence, knob: str, book: Book) -> ClaimRecord | None:
    """The refuted claim about *knob* that the sentence gives as a reason; ``None`` while another one about it still stands."""
    if not _BECAUSE.search(sentence.text):
        return None
    about = [record for record in book.claims.values() if (subject_knob(record.claim) or ("",))[0] == knob]
    if any(record.status in ("open", "supported") for record in about):
        return None
    return next((record for record in reversed(about) if record.status == "refuted"), None)


def _fall(record: ClaimRecord) -> str:
    at, event = record.events[-1]
    return f"{record.claim.id} was {record.status} on {at[:10]}: {event.reason.rstrip('.')}"


def corrected(text: str, found: Sequence[Contradiction], *, date: str) -> str:
    """*text* with each of these sentences struck through, dated and answered; every other character stays."""
    for item in sorted(found, key=lambda entry: -entry.sentence.start):
        start, stop = item.sentence.start, item.sentence.stop
        old = text[start:stop]
        if "~~" not in old:
            text = f"{text[:start]}~~{old}~~ *({date}: {item.why})*{text[stop:]}"
    return text


def refreshed(text: str, book: Book, current: Mapping[str, Current], *, now: str, name: str) -> str:
    """*text* with its marked sections ``<!-- vindicate:begin knob=NAME -->`` … ``<!-- vindicate:end -->`` written anew.

    Raises:
        MisuseError: A section does not end, or names a knob that the ledger does not know.
    """
    out, position = [], 0
    while begin := _BEGIN.search(text, position):
        line = text.count("\n", 0, begin.start()) + 1
        end = _END.search(text, begin.end())
        inner = _BEGIN.search(text, begin.end())
        if end is None or (inner is not None and inner.start() < end.start()):
            raise MisuseError(
                f"{name}:{line}: this section does not end", remedy="close it with <!-- vindicate:end -->"
            )
        knob = begin["knob"]
        if knob not in current and knob not in known_knobs(book):
            raise MisuseError(
                f"{name}:{line}: the ledger knows no knob {knob!r}",
                remedy=f"known: {', '.join(known_knobs(book)) or 'none yet'}",
            )
        out += [
            text[position : begin.end()],
            "\n",
            section(book, knob, current.get(knob), now=now),
            text[end.start() : end.end()],
        ]
        position = end.end()
    return "".join([*out, text[position:]])


def section(book: Book, knob: str, current: Current | None, *, now: str) -> str:
    """What a marked section says: the value, why it is so, and what each other value on record is worth over it."""
    held = current.value if current else None
    lines = [f"`{knob}` is **{shown(held)}** ({current.how})." if current else f"The value of `{knob}` is not known."]
    for record in book.in_effect.get(knob, ()):
        change = record.change
        because = ", ".join(f"{name} ({book.claims[name].status})" for name in record.because if name in book.claims)
        lines.append(
            f"- {record.at[:10]} {change.id} {change.kind}: {shown(change.from_value)} → {shown(change.to_value)}"
            + (f", because of {because}" if because else "")
        )
    values = dict.fromkeys(value for _, effect in book.effects.get(knob, ()) for value in (effect.a, effect.b))
    rows = [
        f"| {item.level} | {item.metric} | {shown(value)} over {shown(held)} | {item.gain_pct:+.1f} % | "
        + (
            f"{item.lo90_pct:+.1f} to {item.hi90_pct:+.1f} %"
            if item.lo90_pct is not None and item.hi90_pct is not None
            else "not given"
        )
        + f" | {item.grade}{', simulated' if item.simulated else ''} | {item.source} |"
        for value in values
        if current and value != held
        for item in worth_of(book, knob, value, held, now=now)
    ]
    if rows:
        lines += [
            "",
            "| level | metric | what | gain | 90 % interval | grade | source |",
            "|--:|---|---|--:|---|---|---|",
            *rows,
        ]
    return "\n".join(lines) + "\n"
