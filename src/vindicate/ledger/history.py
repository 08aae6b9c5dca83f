"""The git history of a file, read-only and bounded → what each commit set differently, who made it and in which words."""

import re
import subprocess
from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from vindicate.clock import iso, parse_time
from vindicate.ledger.settings import assignments, differences, every_assignment
from vindicate.ledger.sighting import Quote, Sighting, modified_at, owner_of, settings_in
from vindicate.ledger.told import reason_in
from vindicate.redact import redact_text

__all__ = ["commits", "from_git", "gone_overrides", "is_override", "last_written"]

_GIT = (
    "git",
    "-c",
    "core.fsmonitor=false",
    "-c",
    "core.pager=cat",
    "-c",
    "log.showSignature=false",
    "--no-optional-locks",
)
_GIT_LIMIT_S = 20
_COMMITS = 400


def from_git(script: Path, knobs: Collection[str], blind: list[str]) -> Iterator[Sighting]:
    """What each commit that touched *script* changed, oldest first, renames followed; then what is not committed yet."""
    folder = next((parent for parent in script.parents if parent.is_dir()), script.parent)
    name_there = script.relative_to(folder).as_posix()
    if _git(folder, ["rev-parse", "--is-inside-work-tree"], None) is None:
        return
    form = "%x01%H%x02%aI%x02%an%x02%P%x02%B%x03"
    options = [
        "log",
        f"--max-count={_COMMITS}",
        "--follow",
        "--no-ext-diff",
        "--no-textconv",
        "--no-color",
        "-p",
        "-U3",
    ]
    log = _git(folder, [*options, f"--format={form}", "--", name_there], blind)
    for entry in reversed((log or "").split("\x01")[1:]):  # git's own --reverse forgets to follow renames
        head, _, patch = entry.partition("\x03")
        commit, date, author, parents, message = (*head.split("\x02", 4), "", "", "", "")[:5]
        subject = " ".join(message.split())
        says = bool(re.search(r"revert|roll\s?back|back to|restore default|disable|undo", message, re.IGNORECASE))
        for name, was, now, line in _patched(patch, is_override=is_override(script) and bool(parents)):
            if knobs and name not in knobs:
                continue
            at = parse_time(date)
            words = redact_text(f"{commit[:10]} {subject}")[:300]
            quote = Quote(file=str(script), line=line, date=at, by=author, text=words)
            yield Sighting(
                knob=name,
                from_value=was,
                to_value=now,
                at=at,
                quote=quote,
                reason=_message_reason(subject),
                says_revert=says,
            )
    committed = _git(folder, ["show", f"HEAD:./{name_there}"], None)
    here = settings_in(script, []) if script.is_file() else None
    for name, was, now, line in differences(assignments(committed or ""), here or {}) if committed and here else ():
        if not knobs or name in knobs:
            at = modified_at(script)
            quote = Quote(
                file=str(script),
                line=line,
                date=at,
                by=owner_of(script),
                text=f"not committed: {name}={now}, committed: {was}",
            )
            yield Sighting(knob=name, from_value=was, to_value=now, at=at, quote=quote)


def gone_overrides(folder: Path) -> list[Path]:
    """The drop-ins below *folder* that a commit took away: to delete one is to unset what it held."""
    log = _git(folder, ["log", f"--max-count={_COMMITS}", "--diff-filter=D", "--no-renames", "--relative", "--format=", "--name-only", "--", "*.conf"], None)  # fmt: skip
    paths = dict.fromkeys(folder / line for line in (log or "").splitlines() if line)
    return [path for path in paths if is_override(path) and not path.exists()]


def commits(path: Path, blind: list[str]) -> Iterator[tuple[str, str, str]]:
    """Date, author and subject of the commits that touched *path*, newest first; none outside a git repository."""
    if not path.parent.is_dir() or _git(path.parent, ["rev-parse", "--is-inside-work-tree"], None) is None:
        return
    log = _git(path.parent, ["log", f"--max-count={_COMMITS}", "--format=%aI%x02%an%x02%s", "--", path.name], blind)
    for line in (log or "").splitlines():
        date, author, subject = (*line.split("\x02", 2), "", "")[:3]
        yield parse_time(date), author, redact_text(subject)


def is_override(file: Path) -> bool:
    """Whether *file* is a drop-in of a unit, which holds nothing but what differs from the unit."""
    return file.suffix == ".conf" and file.parent.name.endswith(".d")


def _message_reason(subject: str) -> str:
    """The reason in a commit's message: after because or due to; or after a colon that follows the act itself."""
    return reason_in(re.sub(r"^\w+(?:\([^)]*\))?!?:\s", "", subject))


def _patched(patch: str, *, is_override: bool) -> Iterator[tuple[str, str | None, str | None, int]]:
    """Knob, old value, new value and line of what a patch sets differently; moved or reformatted lines set nothing differently.

    Args:
        is_override: The file holds nothing but overrides, so that to make it sets what it holds, and to delete it unsets that.
    """
    if not is_override and ("\nnew file mode" in patch or "\ndeleted file mode" in patch):
        return
    sides = {"-": list[tuple[str, str | None, int]](), "+": list[tuple[str, str | None, int]]()}
    for hunk in re.split(r"^(?=@@ )", patch, flags=re.MULTILINE)[1:]:
        lines = [line for line in hunk.splitlines()[1:] if line[:1] in {" ", "+", "-"}]
        start = re.match(r"@@ -\d+(?:,\d+)? \+(\d+)", hunk)
        first = int(start[1]) if start else 1
        for mark, side in sides.items():
            text = "\n".join(line[1:] for line in lines if line[0] in {" ", mark})
            side += [(name, value, max(first + line - 1, 1)) for name, value, line in every_assignment(text)]
    for name in dict.fromkeys(name for side in sides.values() for name, _, _ in side):
        old, new = ([(value, line) for other, value, line in side if other == name] for side in sides.values())
        paired = (
            zip(old, new, strict=True)
            if len(old) == len(new)
            else [((old or [(None, 1)])[-1], (new or [(None, 1)])[-1])]
        )
        yield from ((name, was, now, line if new else at) for (was, at), (now, line) in paired if was != now)


def _git(folder: Path, arguments: Sequence[str], blind: list[str] | None) -> str | None:
    """What git prints, read-only and bounded; ``None`` when it fails, which is told to *blind*."""
    try:
        done = subprocess.run(
            [*_GIT, *arguments],
            cwd=folder,
            capture_output=True,
            timeout=_GIT_LIMIT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        if blind is not None:
            blind.append(f"git history of {folder}: {type(error).__name__}")
        return None
    if done.returncode != 0:
        if blind is not None:
            blind.append(f"git history of {folder}: {done.stderr.decode(errors='replace').strip().splitlines()[:1]}")
        return None
    return done.stdout.decode(errors="replace")


def last_written(path: Path, line: int) -> tuple[str, str]:
    """When and by whom a line was last written: by git, or by the file's own time and owner."""
    blame = _git(path.parent, ["blame", "--porcelain", "-L", f"{line},{line}", "--", path.name], None)
    fields = dict(
        entry.split(" ", 1) for entry in (blame or "").splitlines()[1:] if " " in entry and not entry.startswith("\t")
    )
    if "author-time" in fields and fields.get("author", "").strip() != "Not Committed Yet":
        return iso(datetime.fromtimestamp(int(fields["author-time"]), UTC)), fields.get("author", "unknown")
    return modified_at(path), owner_of(path)
