"""What people leave behind → dated sightings of a knob's value: backups beside a script, sentences of a document."""

import re
from collections.abc import Collection, Iterator
from itertools import pairwise
from pathlib import Path

from vindicate.clock import parse_time
from vindicate.errors import MisuseError
from vindicate.ledger.history import is_override, last_written
from vindicate.ledger.importing import read_text
from vindicate.ledger.prose import knob_near, sentences
from vindicate.ledger.sighting import Quote, Sighting, modified_at, owner_of, settings_in
from vindicate.ledger.told import revert_in
from vindicate.redact import redact_text

__all__ = ["backups_of", "from_backups", "from_document"]

_BACKUP = re.compile(r"(?:\.(?:bak|orig|old|save|backup|prev|before)[\w.-]*|~|\.\d{6,}[\w-]*)$", re.IGNORECASE)


# ---- backups beside a script -----------------------------------------------------------------------------------------


def backups_of(script: Path) -> list[Path]:
    """Files beside *script* that are named as its backups, oldest first."""
    try:
        siblings = [
            other
            for other in script.parent.iterdir()
            if other.is_file() and other.name.startswith(script.name) and _BACKUP.match(other.name[len(script.name) :])
        ]
    except OSError:
        return []
    return sorted(siblings, key=lambda other: (other.stat().st_mtime, other.name))


def from_backups(script: Path, knobs: Collection[str], blind: list[str]) -> Iterator[Sighting]:
    """What changed from each backup to the next, and from the last one to the script as it is.

    A backup is mostly written when the change is made, so its own time dates the change; a copy that kept its older time dates it too early.
    """
    if not script.is_file() and is_override(script):
        return  # a commit took it away; the history tells of that
    versions = [
        (path, found) for path in [*backups_of(script), script] if (found := settings_in(path, blind)) is not None
    ]
    for (before, old), (after, new) in pairwise(versions):
        for name in dict.fromkeys([*old, *new]):
            was, now = old.get(name), new.get(name)
            if (was and was[0]) == (now and now[0]) or (knobs and name not in knobs):
                continue
            at = modified_at(before)
            text = f"{name}={was[0] if was else '(not set)'} in {before.name}, {name}={now[0] if now else '(not set)'} in {after.name}"
            yield Sighting(
                knob=name,
                from_value=was[0] if was else None,
                to_value=now[0] if now else None,
                at=at,
                quote=Quote(file=str(before), line=was[1] if was else 1, date=at, by=owner_of(before), text=text),
            )


# ---- documents -------------------------------------------------------------------------------------------------------


def from_document(path: Path, knobs: Collection[str], blind: list[str]) -> Iterator[Sighting]:
    """The sentences of a document that say a knob was set back or disabled, with the reason in its own words."""
    try:
        text = read_text(path)
    except MisuseError as error:
        blind.append(error.problem)
        return
    for sentence in sentences(text):
        told = revert_in(sentence.text)
        knob = knob_near(sentence, knobs) if told else None
        if told is None or knob is None or (told.disabled and (knob not in sentence.text or not told.reason)):
            continue
        date, author = last_written(path, sentence.line)
        dated = re.search(r"\b20\d\d-[01]\d-[0-3]\d\b", sentence.text)
        quote = Quote(file=str(path), line=sentence.line, date=date, by=author, text=redact_text(sentence.text)[:300])
        yield Sighting(
            knob=knob,
            from_value=told.from_value,
            from_known=told.from_value is not None,
            to_value=told.to_value,
            at=parse_time(dated[0]) if dated and _is_date(dated[0]) else date,
            quote=quote,
            reason=told.reason,
            says_revert=True,
        )


def _is_date(text: str) -> bool:
    try:
        parse_time(text)
    except MisuseError:
        return False
    return True
