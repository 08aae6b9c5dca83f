"""A file people already have → evidence ready to record, and what was understood of it, line by line."""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from vindicate.clock import iso, parse_time
from vindicate.errors import MisuseError
from vindicate.ledger.markdown import tables
from vindicate.ledger.table import Comparison, Reading, Skipped, understand
from vindicate.record.diagnosis import Status
from vindicate.record.ledger import KNOB_HELD, Evidence
from vindicate.units import format_bytes

__all__ = [
    "MAX_BYTES",
    "Imported",
    "already_recorded",
    "diagnosis_evidence",
    "read_evidence",
    "read_text",
    "stored_name",
]

MAX_BYTES = 5_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """*items* have no id yet; *said* tells a person what was understood and guessed; *passed_over* what was not taken, and why."""

    items: tuple[Evidence, ...]
    said: tuple[str, ...]
    passed_over: tuple[str, ...] = ()


def read_text(path: Path) -> str:
    """The text of a document of the user's.

    Raises:
        MisuseError: It cannot be read, is no UTF-8 text, or is too large to be one.
    """
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise MisuseError(
                f"{path} has {format_bytes(size)}, and up to {format_bytes(MAX_BYTES)} are read",
                remedy="cut out the part that holds the tables",
            )
        with path.open(encoding="utf-8", newline="") as file:
            return file.read()
    except OSError as error:
        raise MisuseError(
            f"{path}: cannot be read: {error.strerror}", remedy="check the path and its permissions"
        ) from error
    except UnicodeDecodeError as error:
        raise MisuseError(f"{path}: no UTF-8 text at byte {error.start}", remedy="save it as UTF-8") from error


def read_evidence(
    path: Path, *, known: Collection[str] = (), said: Comparison | None = None, home: Path | None = None
) -> Imported:
    """Read one file: a Markdown document, a saved diagnosis, or the summary of a load run.

    Args:
        known: Names that are knobs for certain.
        said: Knob and values, where the document does not name them.
        home: Folder that stored file names are relative to, where they lie in it.

    Raises:
        MisuseError: It cannot be read, or is of no kind known here.
    """
    text = read_text(path)
    sha256 = hashlib.sha256(text.encode()).hexdigest()
    name = stored_name(path, home)
    if path.suffix.lower() == ".json" or (
        path.suffix.lower() not in (".md", ".markdown") and text.lstrip().startswith("{")
    ):
        return _from_json(path, name, text, sha256)
    readings = [understand(grid, known=known, said=said) for grid in tables(text)]
    return _from_tables(readings, path, name, sha256)


def stored_name(path: Path, home: Path | None) -> str:
    """How a file is named in the ledger: relative to *home* where it lies in it, else in full."""
    full = path.resolve()
    return (
        str(full.relative_to(home.resolve())) if home is not None and full.is_relative_to(home.resolve()) else str(full)
    )


def already_recorded(item: Evidence, recorded: Collection[Evidence]) -> Evidence | None:
    """The evidence that *item* repeats: the same place of the same file with the same figures."""
    return next(
        (
            old
            for old in recorded
            if old.source == item.source and (old.sha256 == item.sha256 or _same_figures(old, item))
        ),
        None,
    )


def _same_figures(old: Evidence, new: Evidence) -> bool:
    return bool(new.effects) and old.effects == new.effects


# ---- Markdown --------------------------------------------------------------------------------------------------------


def _from_tables(readings: Sequence[Reading | Skipped], path: Path, name: str, sha256: str) -> Imported:
    items, told, passed = [], [], []
    for reading in readings:
        where = f"{name}:{reading.line}"
        if isinstance(reading, Skipped):
            passed.append(f"{where}: table not taken: {reading.why}")
            continue
        item, lines = _evidence(reading, path, where, sha256)
        items.append(item)
        told += [f"{where}: {item.text}", *lines]
    return Imported(items=tuple(items), said=tuple(told), passed_over=tuple(passed))


def _evidence(reading: Reading, path: Path, where: str, sha256: str) -> tuple[Evidence, list[str]]:
    notes = list(reading.notes)
    measured_at = _date(reading.measured_on)
    if measured_at is None:
        measured_at = iso(datetime.fromtimestamp(path.stat().st_mtime, UTC))
        notes.append(
            f"guessed: measured by {measured_at[:10]}, when the file was last written; no date stands near the table"
        )
    grade = reading.effects[0].grade
    item = Evidence(
        id="",
        kind="document",
        text=f"{reading.knob} {reading.a} → {reading.b} at {len(reading.effects)} {'figure' if len(reading.effects) == 1 else 'figures'}",
        source=where,
        group=f"document:{where.rpartition(':')[0]}",
        sha256=sha256,
        measured_at=measured_at,
        effects=reading.effects,
        measured={"notes": "; ".join(notes)} if notes else {},
    )
    lines = [
        f"  level {effect.level}: {effect.gain_pct:+.1f} % {effect.metric}, {reading.b} over {reading.a}"
        + (
            f" ({effect.value_a:g} → {effect.value_b:g})"
            if effect.value_a is not None and effect.value_b is not None
            else ""
        )
        + ("" if effect.lo90_pct is None else f", 90 % interval {effect.lo90_pct:+.1f} … {effect.hi90_pct:+.1f} %")
        for effect in reading.effects
    ]
    return item, [*lines, f"  grade {grade}: {reading.grade_because}", *(f"  {note}" for note in notes)]


def _date(text: str | None) -> str | None:
    try:
        return parse_time(text) if text else None
    except MisuseError:
        return None


# ---- JSON ------------------------------------------------------------------------------------------------------------


def _from_json(path: Path, name: str, text: str, sha256: str) -> Imported:
    try:
        data: Any = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise MisuseError(
            f"{path}: no valid JSON: {error}", remedy="give a file that vindicate wrote with --json"
        ) from error
    schema = data.get("schema") if isinstance(data, dict) else None
    if schema == "vindicate.diagnosis/1":
        item = diagnosis_evidence(data, source=name)
    elif schema == "vindicate.load/1":
        item = _load_evidence(data, name)
    else:
        raise MisuseError(
            f"{path}: schema is {schema!r}",
            remedy="known: vindicate.diagnosis/1, vindicate.load/1, and Markdown documents",
        )
    return Imported(items=(replace(item, sha256=sha256),), said=(f"{name}: {item.kind}: {item.text}",))


class _Clearance(msgspec.Struct):
    service: str
    knobs: list[str] = []
    of: str = ""
    because: str = ""


class _Diagnosis(msgspec.Struct):
    """What the ledger reads of a `vindicate.diagnosis/1` document."""

    status: Status
    summary: str
    service: str | None = None
    mechanism: str | None = None
    cleared: list[_Clearance] = []
    started_at: str = ""


class _Level(msgspec.Struct):
    requests: int = 0
    completed: int = 0
    stalled: int = 0
    truncated: int = 0
    failed: int = 0


class _Load(msgspec.Struct):
    """What the ledger reads of a `vindicate.load/1` document."""

    levels: list[_Level]
    started_at: str = ""
    complete: bool = True


_T = TypeVar("_T")


def _as(kind: type[_T], data: object, source: str, remedy: str) -> _T:
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        raise MisuseError(f"{source}: {error}", remedy=remedy) from error


def diagnosis_evidence(data: dict[str, Any], *, source: str, held: Mapping[str, str | None] | None = None) -> Evidence:
    """A saved `vindicate.diagnosis/1` document as evidence, without an id.

    Args:
        held: The value of each knob in the live processes while it was taken, where that is known.

    Raises:
        MisuseError: A field that the ledger reads is missing or of the wrong type; says which.
    """
    read = _as(_Diagnosis, data, source, "save it again: vindicate diagnose --json")
    return Evidence(
        id="",
        kind="diagnosis",
        text=read.summary,
        source=source,
        group="diagnosis",
        measured_at=_date(read.started_at),
        diagnosis=data,
        fingerprint={f"{KNOB_HELD}{knob}": value for knob, value in (held or {}).items()},
    )


def _load_evidence(data: dict[str, Any], source: str) -> Evidence:
    read = _as(_Load, data, source, "give the summary.json that vindicate load wrote")
    total = {key: sum(getattr(level, key) for level in read.levels) for key in _Level.__struct_fields__}
    return Evidence(
        id="",
        kind="observation",
        text=f"load run: {total['completed']} of {total['requests']} requests completed, {total['stalled']} stalled, "
        f"{total['truncated']} truncated, {total['failed']} failed",
        source=source,
        group="load",
        measured_at=_date(read.started_at),
        measured={**total, "complete": read.complete},
    )
