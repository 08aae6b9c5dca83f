"""A stack file, folders, or nothing → the scripts, units, compose and values files, and the documents, that past changes are sought in."""

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from vindicate.ledger.history import gone_overrides
from vindicate.stack.model import Stack

__all__ = ["documents_beside", "documents_for", "scripts_for"]

_SCRIPT = re.compile(
    r".*\.(?:sh|bash|zsh|env|conf|service|ya?ml)|\.env[\w.-]*|(?:Dockerfile|Containerfile|compose)[\w.-]*"
)
_MAX_DOCUMENTS, _MAX_SCRIPTS, _DEEP = 100, 200, 4
_SKIPPED = {"node_modules", "venv", "__pycache__", "site-packages"}


def scripts_for(stack: Stack | None, git_dirs: Sequence[Path], scripts: Sequence[Path], blind: list[str]) -> list[Path]:
    """The files that set variables and options: those named, those of the stack, and those in the folders named.

    Without any of these, the folder one stands in. Beside a stack file, files that set one of its knobs count too.
    """
    found = [*scripts]
    if stack and not scripts:
        found += [service.launcher.file for service in stack.services.values() if service.launcher.file]
        if stack.file and not git_dirs:
            found += [path for path in _below(stack.file.parent, blind) if _speaks_of(path, tuple(stack.knobs))]
            found += gone_overrides(stack.file.parent)
    for folder in git_dirs or ([Path.cwd()] if not found and stack is None else []):
        found += [*_below(folder, blind), *gone_overrides(folder.absolute())] if folder.is_dir() else []
    return list(dict.fromkeys(path.absolute() for path in found))


def _below(folder: Path, blind: list[str]) -> list[Path]:
    found = sorted(_walk(folder, _DEEP))
    if len(found) > _MAX_SCRIPTS:
        blind.append(
            f"{folder}: {len(found)} scripts and values files, the first {_MAX_SCRIPTS} were read; name others with --script FILE"
        )
    return found[:_MAX_SCRIPTS]


def _walk(folder: Path, deep: int) -> Iterator[Path]:
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return
    for entry in entries:
        if entry.is_file() and _SCRIPT.fullmatch(entry.name):
            yield Path(entry.path)
        elif (
            deep
            and entry.is_dir(follow_symlinks=False)
            and not entry.name.startswith(".")
            and entry.name not in _SKIPPED
        ):
            yield from _walk(Path(entry.path), deep - 1)


def _speaks_of(path: Path, knobs: Sequence[str]) -> bool:
    try:
        with path.open("rb") as file:
            text = file.read(200_000)
    except OSError:
        return False
    return any(knob.encode() in text for knob in knobs)


def documents_for(stack: Stack | None, scripts: Sequence[Path], docs: Sequence[Path]) -> list[Path]:
    """The documents named; else those beside the stack file, or beside the scripts and at the root of their repository."""
    if docs:
        return [path for doc in docs for path in (documents_beside(doc) if doc.is_dir() else [doc])]
    folders = (
        [stack.file.parent]
        if stack and stack.file
        else list(dict.fromkeys(folder for script in scripts for folder in (script.parent, *_root_of(script))))
    )
    return list(dict.fromkeys(path.absolute() for folder in folders for path in documents_beside(folder)))


def _root_of(script: Path) -> list[Path]:
    return next(([folder] for folder in script.parents if (folder / ".git").exists()), [])


def documents_beside(folder: Path) -> list[Path]:
    """The Markdown documents in *folder* and one level below, hidden folders excepted; at most 100."""
    found = [*folder.glob("*.md"), *(path for path in folder.glob("*/*.md") if not path.parent.name.startswith("."))]
    return sorted(found)[:_MAX_DOCUMENTS]
