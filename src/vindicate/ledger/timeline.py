"""An incident, the ledger and the stack → what changed before it began, newest first: leads, never causes."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from vindicate.clock import iso
from vindicate.errors import MisuseError
from vindicate.ledger.history import commits
from vindicate.ledger.places import documents_beside
from vindicate.ledger.state import Book, IncidentRecord
from vindicate.stack.model import Stack
from vindicate.stack.process import service_pids, started_at
from vindicate.units import shown

__all__ = ["Lead", "leads_before"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lead:
    """Something that changed at *at*: *kind* is change, commit, script, process or document."""

    at: str
    kind: str
    what: str
    where: str
    by: str = ""


def leads_before(
    record: IncidentRecord, book: Book, stack: Stack | None, *, days: float, blind: list[str]
) -> tuple[Lead, ...]:
    """What changed in the *days* before the incident began, newest first.

    A file's time is that of its last write only, and a process's that of its last start: what came before is not seen there.

    Args:
        blind: Takes what could not be looked at.
    """
    began = record.began_at
    since = iso(datetime.fromisoformat(began) - timedelta(days=days))
    found = [*_ledger(book), *(_stack(stack, blind) if stack else ())]
    near = {lead for lead in found if since <= lead.at <= began}
    return tuple(sorted(near, key=lambda lead: (lead.at, lead.kind, lead.where), reverse=True))


def _ledger(book: Book) -> list[Lead]:
    return [
        Lead(
            at=record.at,
            kind="change",
            what=f"{record.change.id} {record.change.kind}: {record.change.knob} "
            f"{shown(record.change.from_value)} → {shown(record.change.to_value)} ({record.state})",
            where=", ".join(record.change.services),
        )
        for record in book.changes.values()
    ]


def _stack(stack: Stack, blind: list[str]) -> list[Lead]:
    found = []
    for name, service in stack.services.items():
        if service.launcher.file and service.launcher.file.is_file():
            file = service.launcher.file
            found.append(Lead(at=_written(file.stat().st_mtime), kind="script", what="last written", where=str(file)))
            found += [
                Lead(at=at, kind="commit", what=subject, where=str(file), by=by)
                for at, by, subject in commits(file, blind)
            ]
        try:
            starts = [(pid, started_at(pid)) for pid in service_pids(service)]
        except MisuseError as error:
            blind.append(error.problem)
            continue
        if not starts:
            blind.append(f"{name}: no live process was found, so its start is not known")
        found += [Lead(at=at, kind="process", what=f"{name} started", where=f"pid {pid}") for pid, at in starts if at]
    for document in documents_beside(stack.file.parent) if stack.file else ():
        found.append(
            Lead(at=_written(document.stat().st_mtime), kind="document", what="last written", where=str(document))
        )
    return found


def _written(mtime: float) -> str:
    return iso(datetime.fromtimestamp(mtime, UTC))
