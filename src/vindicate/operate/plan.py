"""What is to be changed → a plan: every file with its bytes before and after, what restarts together, what is checked and watched.

A plan is data: it is journalled whole before anything is done, so that another process can finish it or undo it.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import msgspec

from vindicate.errors import CannotError, MisuseError
from vindicate.operate.holder import holder_of
from vindicate.operate.launch import launch_of, require_startable
from vindicate.operate.services import is_there
from vindicate.operate.status import live_readings
from vindicate.redact import is_secret_name, redact_json, redact_text
from vindicate.stack.model import Knob, Stack

__all__ = [
    "Answered",
    "Baseline",
    "ChangePlan",
    "FileEdit",
    "KnobEdit",
    "WatchPlan",
    "diff_lines",
    "plan_edits",
    "script_value",
    "sha256",
    "with_ids",
]

Kind = Literal["apply", "revert", "restore"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEdit:
    """One file: *path* is the real one (links followed), *backup* the copy beside it, *knobs* what is set in it for *services*.

    A hash is empty where there is no file: one that the change makes, or takes away.
    """

    path: str
    backup: str
    knobs: tuple[str, ...]
    sha_before: str
    sha_after: str
    mode: int
    uid: int
    gid: int
    services: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobEdit:
    """One knob of the change; ``None`` is unset. *was_live* is what processes held before, also where it was not the script's."""

    change: str
    knob: str
    services: tuple[str, ...]
    before: str | None
    after: str | None
    was_live: tuple[str | None, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """What came to one fixed prompt. *steady* when it came twice the same, so that it may be compared exactly."""

    digest: str
    steady: bool
    recalled: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """Answers before the change, asked at *service*: the entry, or the first below it that answered at all."""

    service: str
    answers: tuple[Answered, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchPlan:
    """How the change is watched.

    Attributes:
        requests: Clean requests of generated load to reach; ``None`` when there is no number to reach.
        duration_s: Longest time; ``None`` until *requests*.
        streams: Streams at a time of the generated load; 0 watches the users' own traffic.
        needed: T* in *unit*; ``None`` when the incident was not counted.
        why: Where the length comes from, for a person.
        claims: Whose symptom it is that must not come back.
        waived: Somebody accepted the weakness of the ground: the watch alone may refute the claim.
    """

    requests: int | None
    duration_s: float | None
    streams: int
    needed: float | None
    unit: Literal["req", "h"]
    why: str
    incident: str | None
    claims: tuple[str, ...]
    waived: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangePlan:
    """A whole change, of one knob or of several that are changed together.

    Attributes:
        together: Services that restart, in start order.
        was_up: Those of them that ran before.
        told: What is to be known of how a service is stopped and started, by service.
        by_person: Those of *together* that a person is asked to restart.
    """

    kind: Kind
    edits: tuple[KnobEdit, ...]
    files: tuple[FileEdit, ...]
    together: tuple[str, ...]
    was_up: tuple[str, ...]
    baseline: Baseline | None = None
    watch: WatchPlan | None = None
    diffs: dict[str, list[str]] = field(default_factory=dict)
    told: dict[str, str] = field(default_factory=dict)
    by_person: tuple[str, ...] = ()

    @property
    def ids(self) -> tuple[str, ...]:
        """The changes that are made together."""
        return tuple(edit.change for edit in self.edits)


def plan_edits(stack: Stack, kind: Kind, wanted: Mapping[str, str | None], *, ids: Sequence[str]) -> ChangePlan:
    """Plan to set every knob of *wanted*; reads only.

    Args:
        ids: One for each knob.

    Raises:
        MisuseError: A knob or a script is not understood, or a value looks like a secret.
        CannotError: A launcher is not supported, or a folder cannot be written.
    """
    edits, contents, after, held = [], dict[Path, bytes | None](), dict[Path, bytes | None](), dict[Path, list[str]]()
    standing: dict[Path, list[str]] = {}
    for change, (name, value) in zip(ids, wanted.items(), strict=True):
        knob = stack.knob(name)
        name = knob.name  # noqa: PLW2901 a flag may be spelled otherwise
        _must_be_settable(knob, value)
        for service in knob.services:
            holder = holder_of(stack, stack.service(service), knob)
            path = holder.path
            if path is None:
                continue
            standing.setdefault(path, []).append(service)
            contents.setdefault(path, _read(path))
            after[path] = holder.edit(after.get(path, contents[path]), value)
            if name not in held.setdefault(path, []):
                held[path].append(name)
        live = {
            reading.value
            for service in knob.services
            for reading in live_readings(stack.service(service), knob)
            if not reading.problem
        }
        edits.append(
            KnobEdit(
                change=change, knob=name, services=knob.services, before=script_value(stack, knob), after=value,
                was_live=tuple(sorted(live, key=str)),
            )
        )  # fmt: skip
    together = stack.start_order(
        stack.restart_set(tuple(dict.fromkeys(service for edit in edits for service in edit.services)))
    )
    for service in together:
        require_startable(stack, stack.service(service), by_person=True)
    plan = ChangePlan(
        kind=kind,
        edits=tuple(edits),
        files=tuple(
            replace(
                _file_edit(path, contents[path], after[path], (ids[0], *held[path])),
                services=tuple(dict.fromkeys(standing[path])),
            )
            for path in after if after[path] != contents[path]
        ),
        together=together,
        was_up=tuple(name for name in together if is_there(stack.service(name))),
        diffs={
            str(path): diff_lines(contents[path] or b"", after[path] or b"") for path in after if after[path] != contents[path]
        },
        by_person=tuple(name for name in together if stack.service(name).launcher.kind == "none"),
        told={name: text for name in together if (text := launch_of(stack, stack.service(name)).told())},
    )  # fmt: skip
    data = msgspec.json.decode(msgspec.json.encode(replace(plan, diffs={})))
    if redact_json(data) != data:
        raise MisuseError(
            "a path or a value of this change looks like a secret, and the journal keeps no secrets",
            remedy="set that variable by hand",
        )
    return plan


def with_ids(plan: ChangePlan, ids: Sequence[str]) -> ChangePlan:
    """The same plan under other ids, and with backups named after them."""
    files = tuple(replace(file, backup=str(_backup_path(Path(file.path), ids[0]))) for file in plan.files)
    edits = tuple(replace(edit, change=change) for edit, change in zip(plan.edits, ids, strict=True))
    return replace(plan, edits=edits, files=files)


def script_value(stack: Stack, knob: Knob) -> str | None:
    """What *knob* is set to where it stands for its first service: in its script, say.

    Raises:
        MisuseError: It cannot be read off.
    """
    return holder_of(stack, stack.service(knob.services[0]), knob).read().value


def sha256(content: bytes) -> str:
    """Hex digest."""
    return hashlib.sha256(content).hexdigest()


def _must_be_settable(knob: Knob, value: str | None) -> None:
    if is_secret_name(knob.name) or (value is not None and redact_text(value) != value):
        raise MisuseError(
            f"{knob.name} looks like a secret, and the ledger keeps no secrets", remedy="set that variable by hand"
        )


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise MisuseError(
            f"{path}: cannot be read: {error.strerror}", remedy="check the path and its permissions"
        ) from error


def _file_edit(path: Path, before: bytes | None, after: bytes | None, named: tuple[str, ...]) -> FileEdit:
    import os

    folder = next(
        folder for folder in path.parents if folder.exists()
    )  # that of a file to be made may be to be made too
    if not os.access(folder, os.W_OK):
        raise CannotError(
            f"{folder}: cannot be written, and {path.name} and its backup stand there",
            remedy="run as the owner of that folder, or make it writable",
        )
    status = path.stat() if before is not None else None
    return FileEdit(
        path=str(path),
        backup=str(_backup_path(path, named[0])),
        knobs=named[1:],
        sha_before="" if before is None else sha256(before),
        sha_after="" if after is None else sha256(after),
        mode=status.st_mode & 0o7777 if status else 0o644,
        uid=status.st_uid if status else os.geteuid(),
        gid=status.st_gid if status else os.getegid(),
    )


def _backup_path(path: Path, change: str) -> Path:
    """``serve.sh.vindicate-C7.bak``; with a number when an earlier ledger left one of that name."""
    first = path.with_name(f"{path.name}.vindicate-{change}.bak")
    tries = [first, *(path.with_name(f"{path.name}.vindicate-{change}-{n}.bak") for n in range(2, 100))]
    return next((name for name in tries if not name.exists()), first)


def diff_lines(before: bytes, after: bytes) -> list[str]:
    """The changed lines only, redacted: other lines of a start script are nobody's business."""
    import difflib

    old, new = (content.decode(errors="replace").splitlines() for content in (before, after))
    return [redact_text(line) for line in difflib.unified_diff(old, new, n=0, lineterm="")][2:]
