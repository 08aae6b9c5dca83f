"""Scripts, their history and backups, and documents → proposals of past changes, paired and with their reasons; recorded on consent."""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Literal

from vindicate.errors import MisuseError
from vindicate.ledger.history import from_git
from vindicate.ledger.importing import read_text
from vindicate.ledger.markdown import tables
from vindicate.ledger.places import documents_for, scripts_for
from vindicate.ledger.sighting import Quote, Sighting
from vindicate.ledger.state import Book, ChangeRecord
from vindicate.ledger.store import Ledger
from vindicate.ledger.table import Reading, understand
from vindicate.ledger.trace import backups_of, from_backups, from_document
from vindicate.record.ledger import Body, Change, ChangeStep, Claim, Justification
from vindicate.stack.model import Stack

__all__ = ["Proposal", "discover_changes", "documents_to_read", "record_proposals", "unrecorded"]

_SAME_CHANGE_S = 600
_HISTORY_S = 60
_OFF = ("", "0", "false", "off", "no", "none")


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A past change as it was found; nothing is recorded by finding it.

    Attributes:
        id: ``P1`` …, in the order of time; unique in one list.
        from_known: False when no trace says where the value came from; then it is a lead, and cannot be recorded.
        undoes: The proposal that it takes back.
        reason: The words that were given for it; they become the text of a claim.
        quotes: Every trace of it, the surest first.
    """

    id: str
    kind: Literal["apply", "revert", "restore"]
    knob: str
    services: tuple[str, ...]
    from_value: str | None
    to_value: str | None
    happened_at: str
    quotes: tuple[Quote, ...]
    reason: str = ""
    undoes: str | None = None
    from_known: bool = True


@dataclass(slots=True)
class _Event:
    """Sightings of what seems to be one change, the surest first."""

    first: Sighting
    others: list[Sighting]

    @property
    def all(self) -> list[Sighting]:
        return [self.first, *self.others]


def discover_changes(
    stack: Stack | None,
    *,
    git_dirs: Sequence[Path] = (),
    scripts: Sequence[Path] = (),
    docs: Sequence[Path] = (),
    blind: list[str] | None = None,
) -> list[Proposal]:
    """Find past changes of knobs, oldest first; only reads.

    Args:
        stack: Its launchers' scripts, and the documents beside its file, are looked at when *scripts* or *docs* name none.
        git_dirs: Folders whose scripts are looked at as well.
        docs: Markdown documents, or folders of them.
        blind: Takes what could not be looked at, a sentence each.
    """
    unseen = blind if blind is not None else []
    files = scripts_for(stack, git_dirs, scripts, unseen)
    texts = documents_for(stack, [*files, *(folder / "x" for folder in git_dirs)], docs)
    declared = tuple(stack.knobs) if stack else ()
    hard = list(_traces(files, unseen))
    seen_knobs = tuple(dict.fromkeys([*declared, *(sighting.knob for sighting in hard)]))
    soft = [sighting for text in texts for sighting in from_document(text, seen_knobs, unseen)]
    compared = _compared(texts, seen_knobs) if any(not sighting.from_known for sighting in soft) else {}
    proposals = _paired(_events(hard, [_completed(sighting, compared) for sighting in soft]), stack)
    return [item for item in proposals if not declared or item.knob in declared or item.kind != "apply"]


def documents_to_read(stack: Stack | None, docs: Sequence[Path], proposals: Sequence[Proposal]) -> list[Path]:
    """The documents that `discover_changes` looks at, for what else they hold."""
    scripts = [Path(quote.file) for item in proposals for quote in item.quotes]
    return [path for path in documents_for(stack, scripts, docs) if path.suffix.lower() == ".md" or path in docs]


def _compared(texts: Sequence[Path], knobs: Sequence[str]) -> dict[str, tuple[str, str]]:
    """The two values of each knob that some table compares."""
    found: dict[str, tuple[str, str]] = {}
    for path in texts:
        try:
            readings = [understand(grid, known=knobs) for grid in tables(read_text(path))]
        except MisuseError:
            continue
        found.update({reading.knob: (reading.a, reading.b) for reading in readings if isinstance(reading, Reading)})
    return found


def _completed(sighting: Sighting, compared: dict[str, tuple[str, str]]) -> Sighting:
    """A sentence that does not say from where, completed from a table that compares the value with one other."""
    pair = compared.get(sighting.knob)
    if sighting.from_known or pair is None or sighting.to_value not in pair:
        return sighting
    return replace(sighting, from_value=pair[1] if sighting.to_value == pair[0] else pair[0], from_known=True)


def _traces(files: Sequence[Path], unseen: list[str]) -> Iterator[Sighting]:
    began = time.monotonic()
    for number, file in enumerate(files):
        if time.monotonic() - began > _HISTORY_S:
            unseen.append(
                f"{len(files) - number} of {len(files)} files, after {_HISTORY_S} s; name those that matter with --script FILE"
            )
            return
        yield from (*from_git(file, (), unseen), *from_backups(file, (), unseen))


# ---- which sightings are one change ----------------------------------------------------------------------------------


def _events(hard: Iterable[Sighting], soft: Iterable[Sighting]) -> list[_Event]:
    events: list[_Event] = []
    for sighting in hard:  # git comes before backups of the same file, and is the surer of the two
        twin = _nearest([e for e in events if _same(e, sighting) and _is_twin(e, sighting)], sighting)
        if twin is not None:
            twin.others.append(sighting)
        elif not _spans(events, sighting):
            events.append(_Event(first=sighting, others=[]))
    for sighting in soft:
        near = [e for e in events if e.first.knob == sighting.knob and _goes_to(e.first, sighting)]
        told = _nearest(
            [e for e in near if not sighting.from_known or e.first.from_value == sighting.from_value], sighting
        )
        if told is None:
            events.append(_Event(first=sighting, others=[]))
        else:
            told.others.append(sighting)
    return sorted(events, key=lambda event: event.first.at)  # of one moment: in the order of the history


def _goes_to(first: Sighting, told: Sighting) -> bool:
    """Whether the value that a change went to is the one that a sentence tells of; ``disabled`` is any way of being off."""
    return first.to_value == told.to_value or (told.to_value is None and (first.to_value or "").lower() in _OFF)


def _spans(events: Sequence[_Event], sighting: Sighting) -> bool:
    """Whether a backup and the script only differ by several steps that the history tells one by one."""
    script = _script_of(sighting.quote.file)
    known = [event.first for event in events if event.first.knob == sighting.knob and event.first.quote.file == script]
    values = {value for first in known for value in (first.from_value, first.to_value)}
    return script != sighting.quote.file and {sighting.from_value, sighting.to_value} <= values


def _same(event: _Event, sighting: Sighting) -> bool:
    first = event.first
    return (first.knob, first.from_value, first.to_value) == (sighting.knob, sighting.from_value, sighting.to_value)


def _is_twin(event: _Event, sighting: Sighting) -> bool:
    """One change seen in two ways: in two scripts at one time, or in a script's history and in its backup."""
    files = {_script_of(other.quote.file) for other in event.all}
    if _script_of(sighting.quote.file) in files:
        return sighting.quote.file not in {other.quote.file for other in event.all}
    return _apart_s(event.first, sighting) < _SAME_CHANGE_S


def _script_of(file: str) -> str:
    path = Path(file)
    return next((str(script) for script in _prefixes(path) if path in backups_of(script)), file)


def _prefixes(path: Path) -> list[Path]:
    parts = path.name.split(".")
    return [path.with_name(".".join(parts[:count])) for count in range(1, len(parts))] + [
        path.with_name(path.name.rstrip("~"))
    ]


def _nearest(events: list[_Event], sighting: Sighting) -> _Event | None:
    return min(events, key=lambda event: _apart_s(event.first, sighting), default=None)


def _apart_s(one: Sighting, other: Sighting) -> float:
    return abs((datetime.fromisoformat(one.at) - datetime.fromisoformat(other.at)).total_seconds())


# ---- which change took which one back --------------------------------------------------------------------------------


def _paired(events: Sequence[_Event], stack: Stack | None) -> list[Proposal]:
    found: list[Proposal] = []
    undone: set[str] = set()
    for number, event in enumerate(events, start=1):
        first, services = event.first, _services(event, stack)
        earlier = next(
            (
                item
                for item in reversed(found)
                if item.knob == first.knob
                and item.id not in undone
                and (not services or not item.services or set(services) & set(item.services))
                and first.from_known
                and (item.from_value, item.to_value) == (first.to_value, first.from_value)
            ),
            None,
        )
        if earlier:
            undone.add(earlier.id)
        kind: Literal["apply", "revert", "restore"] = "apply"
        if earlier and earlier.kind == "revert":
            kind = "restore"
        elif earlier or _called_revert(event, stack):
            kind = "revert"
        quotes = tuple(dict.fromkeys(sighting.quote for sighting in event.all))
        reasons = [sighting.reason for sighting in event.all if sighting.reason] if kind == "revert" else []
        found.append(
            Proposal(
                id=f"P{number}",
                kind=kind,
                knob=first.knob,
                services=services,
                from_value=first.from_value,
                to_value=first.to_value,
                happened_at=first.at,
                quotes=quotes,
                reason=max(reasons, key=len, default=""),
                undoes=earlier.id if earlier else None,
                from_known=first.from_known,
            )
        )
    return found


def _called_revert(event: _Event, stack: Stack | None) -> bool:
    """Whether words call it a revert, or it goes back to the engine's own default."""
    knob = stack.knobs.get(event.first.knob) if stack else None
    to_default = (
        knob is not None and event.first.to_value in (None, knob.default) and event.first.from_value is not None
    )
    return to_default or any(sighting.says_revert for sighting in event.all)


def _services(event: _Event, stack: Stack | None) -> tuple[str, ...]:
    """The services whose scripts show the change; all that hold the knob, where no script of theirs does."""
    if stack is None:
        return ()
    files = {_script_of(sighting.quote.file) for sighting in event.all}
    started_by = tuple(name for name, service in stack.services.items() if str(service.launcher.file) in files)
    knob = stack.knobs.get(event.first.knob)
    return started_by if knob is None else tuple(n for n in knob.services if n in started_by) or knob.services


# ---- recording -------------------------------------------------------------------------------------------------------


def unrecorded(book: Book, proposals: Sequence[Proposal]) -> tuple[list[Proposal], dict[str, str]]:
    """The proposals that the ledger does not hold yet and that can be recorded, and which change each of the others is.

    Traces of this program's own changes (the edited script, its backup) are recognised by what they changed.
    """
    ours = {str(value) for record in book.changes.values() for _, step in record.steps for value in step.data.values()}
    held: dict[str, str] = {}
    taken: set[str] = set()
    for proposal in proposals:
        twins = [
            record
            for record in book.changes.values()
            if record.change.id not in taken
            and (record.change.knob, record.change.from_value, record.change.to_value)
            == (proposal.knob, proposal.from_value, proposal.to_value)
        ]
        twin = min(twins, key=lambda record: _distance_s(record, proposal), default=None)
        if twin is not None:
            taken.add(twin.change.id)
            held[proposal.id] = twin.change.id
    new = [
        item
        for item in proposals
        if item.id not in held and item.from_known and not all(quote.file in ours for quote in item.quotes)
    ]
    return new, held


def _distance_s(record: ChangeRecord, proposal: Proposal) -> float:
    return abs((datetime.fromisoformat(record.at) - datetime.fromisoformat(proposal.happened_at)).total_seconds())


def record_proposals(ledger: Ledger, proposals: Sequence[Proposal]) -> list[str]:
    """Record what is not recorded yet: each change, marked retroactive, with the claim it rested on in the words found.

    Returns:
        Ids of the changes that are new, in the order of *proposals*.

    Raises:
        LedgerError: It cannot be written.
    """
    new, ids = unrecorded(Book.from_facts(ledger.facts()), proposals)
    for item in new:
        ids[item.id] = ledger.next_id("C")
        bodies: list[Body] = [
            Change(
                id=ids[item.id],
                kind=item.kind,
                knob=item.knob,
                services=item.services,
                from_value=item.from_value,
                to_value=item.to_value,
                undoes=ids.get(item.undoes or ""),
                reason=item.reason,
                recorded="retroactive",
                happened_at=item.happened_at,
                source=f"{item.quotes[0].file}:{item.quotes[0].line}",
            ),
            ChangeStep(
                change=ids[item.id], state="done", detail=f"found in {item.quotes[0].file}: {item.quotes[0].text}"
            ),
        ]
        if item.reason:
            claim, raised = _claim(ledger, item)
            bodies += [
                *raised,
                Justification(change=ids[item.id], claims=(claim,), recorded="retroactive", quote=_quoted(item)),
            ]
        ledger.append_all(bodies, happened_at=item.happened_at)
    return [ids[item.id] for item in new]


def _claim(ledger: Ledger, item: Proposal) -> tuple[str, list[Body]]:
    """The claim in the words found: one that is there already, or a new one."""
    about = f"knob:{item.knob}={item.from_value}" if item.from_value is not None else f"knob:{item.knob}"
    for record in Book.from_facts(ledger.facts()).claims.values():
        if record.claim.about == about and record.claim.text == item.reason:
            return record.claim.id, []
    claim = Claim(id=ledger.next_id("H"), text=item.reason, about=about)
    return claim.id, [claim]


def _quoted(item: Proposal) -> str:
    quote = next((quote for quote in item.quotes if item.reason[:40] in " ".join(quote.text.split())), item.quotes[0])
    return f"{quote.file}:{quote.line} ({quote.by}, {quote.date[:10]}): {quote.text}"
