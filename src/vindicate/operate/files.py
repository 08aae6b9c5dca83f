"""A planned edit of a file → its backup, the new bytes in its place, or the old ones again; whole or not at all."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from vindicate.errors import CannotError
from vindicate.operate.holder import Holder, holder_of
from vindicate.operate.plan import FileEdit, KnobEdit, diff_lines, sha256
from vindicate.stack.model import Stack
from vindicate.units import shown

__all__ = ["back_up", "current", "difference", "edited_since", "put_back", "swap", "write_edit"]


def back_up(file: FileEdit) -> None:
    """Copy the file beside itself, with its mode and owner, and read the copy's hash again; one that is yet to be made has no copy.

    Raises:
        CannotError: It cannot be written, or the script is not what it was when the change was planned.
    """
    path, backup = Path(file.path), Path(file.backup)
    if file.sha_before and backup.exists() and sha256(_bytes(backup)) == file.sha_before:
        return
    if current(file) != file.sha_before:
        raise CannotError(f"{path} was changed after this was planned", remedy="run the command again")
    if not file.sha_before:
        return
    content = _bytes(path)
    swap(backup, content, mode=file.mode, uid=file.uid, gid=file.gid)
    if sha256(_bytes(backup)) != file.sha_before:
        raise CannotError(
            f"{backup} does not read back as it was written", remedy="look at the disk; nothing was changed"
        )


def write_edit(file: FileEdit, edits: tuple[KnobEdit, ...], stack: Stack) -> None:
    """Put the new bytes in the file's place, make it, or take it away; done already is no error.

    Raises:
        CannotError: The script is neither as planned nor as it is to become, or cannot be written.
    """
    path, now = Path(file.path), current(file)
    if now == file.sha_after:
        return
    if now != file.sha_before:
        raise CannotError(
            f"{path} was changed by somebody else meanwhile", remedy="look at it, and run the command again"
        )
    content = _bytes(path) if now else None
    for edit, holder in _held(file, edits, stack):
        content = holder.edit(content, edit.after)
    if ("" if content is None else sha256(content)) != file.sha_after:
        raise CannotError(f"{path}: the edit does not come out as planned", remedy="run the command again")
    if content is None:
        _remove(path)
        return
    with _translated(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    swap(path, content, mode=file.mode, uid=file.uid, gid=file.gid)


def put_back(file: FileEdit) -> bool:
    """Put the backup in the file's place again, or take away what was made; whether anything had to be done.

    Raises:
        CannotError: Somebody edited the script since (both are shown, theirs is left alone), or the backup is gone or damaged.
    """
    path, backup = Path(file.path), Path(file.backup)
    now, again = current(file), f"vindicate stack restart {' '.join(file.services) or 'SERVICE'}"
    if now == file.sha_before:
        return False
    if now != file.sha_after:
        raise CannotError(
            f"{path} was edited by somebody else since, and is left alone: it has sha256 {now[:12] or 'none, it is gone'}, "
            f"the change wrote {file.sha_after[:12] or 'nothing, it took it away'}",
            remedy=f"compare: diff {backup} {path}; put back what is right, then restart: {again}",
        )
    if not file.sha_before:
        _remove(path)
        with contextlib.suppress(OSError):  # somebody else's files are in it, or it was there before
            path.parent.rmdir()
        return True
    content = _bytes(backup)
    if sha256(content) != file.sha_before:
        raise CannotError(
            f"{backup} is not the backup that was made (its hash differs)",
            remedy=f"mend {path} by hand, then restart: {again}",
        )
    swap(path, content, mode=file.mode, uid=file.uid, gid=file.gid)
    return True


def edited_since(file: FileEdit, edits: tuple[KnobEdit, ...], stack: Stack) -> str | None:
    """What to say of a file that somebody else edited after it was written, and which still sets what was written.

    Raises:
        CannotError: It no longer does; the next start would not have the value.
        MisuseError: What it sets cannot be told any more.
    """
    path = Path(file.path)
    if current(file) == file.sha_after:
        return None
    for edit, holder in _held(file, edits, stack):
        value = holder.read().value
        if value != edit.after:
            raise CannotError(
                f"{path} was edited by somebody else during the change: {edit.knob} is {shown(value)}, "
                f"the change wrote {shown(edit.after)}",
                remedy=f"look at it: diff {file.backup} {path}",
            )
    return f"{path} was edited by somebody else during the change, and left alone; it still sets what was written"


def current(file: FileEdit) -> str:
    """The hash of the file as it is now; empty when there is none."""
    path = Path(file.path)
    return sha256(_bytes(path)) if path.exists() else ""


def _held(file: FileEdit, edits: tuple[KnobEdit, ...], stack: Stack) -> list[tuple[KnobEdit, Holder]]:
    """The edits that stand in *file*, each with what reads and edits its knob there."""
    return [
        (edit, holder_of(stack, stack.service(name), stack.knob(edit.knob)))
        for edit in edits
        if edit.knob in file.knobs
        for name in edit.services
        if name in (file.services or edits[0].services[:1])
    ]


def difference(file: FileEdit) -> list[str]:
    """Lines in which the script as it is now differs from its backup, redacted; empty when either is gone."""
    path, backup = Path(file.path), Path(file.backup)
    if not (path.exists() and backup.exists()):
        return []
    return [f"--- {backup}", f"+++ {path} (now)", *diff_lines(_bytes(backup), _bytes(path))]


def swap(path: Path, content: bytes, *, mode: int, uid: int, gid: int) -> None:
    """Replace *path* by *content* in one step that survives a power cut: temporary file, fsync, rename, fsync of the folder.

    Raises:
        CannotError: It cannot be written; the old file is as it was.
    """
    name = None
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".vindicate", dir=path.parent)
        with os.fdopen(descriptor, "wb") as sink:
            sink.write(content)
            os.fchmod(sink.fileno(), mode)
            if (uid, gid) != (os.geteuid(), os.getegid()):
                os.fchown(sink.fileno(), uid, gid)
            os.fchmod(sink.fileno(), mode)  # a change of owner clears set-id bits
            sink.flush()
            os.fsync(sink.fileno())
        Path(name).replace(path)
        name = None
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise CannotError(
            f"{path}: cannot be written: {error.strerror}",
            remedy="check the folder's permissions, owner and free space",
        ) from error
    finally:
        if name is not None:
            with contextlib.suppress(OSError):
                Path(name).unlink()


def _remove(path: Path) -> None:
    with _translated(path):
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def _translated(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CannotError(
            f"{path}: cannot be written: {error.strerror}",
            remedy="check the folder's permissions, owner and free space",
        ) from error


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CannotError(
            f"{path}: cannot be read: {error.strerror}", remedy="check the path and its permissions"
        ) from error
