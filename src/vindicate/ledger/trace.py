"""What people leave behind → dated sightings of a knob's value: backups beside a script, git history, sentences of a document."""

import re
import subprocess
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

from vindicate.clock import iso, parse_time
from vindicate.errors import MisuseError
from vindicate.ledger.importing import read_text
from vindicate.ledger.prose import knob_near, sentences
from vindicate.redact import is_secret_name, redact_text

__all__ = [
    "Quote",
    "Sighting",
    "assignments",
    "backups_of",
    "commits",
    "from_backups",
    "from_document",
    "from_git",
    "reason_in",
]

_ASSIGN = re.compile(
    r"^\s*(?:export\s+|declare\s+-x\s+|-?\s*)?([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)\s*[=:]\s*(?:\"([^\"\n]*)\"|'([^'\n]*)'|([^\s;#\"'`\\]*))"
)
_UNSET = re.compile(r"^\s*unset\s+([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)\s*$")
_BACKUP = re.compile(r"(?:\.(?:bak|orig|old|save|backup|prev|before)[\w.-]*|~|\.\d{6,}[\w-]*)$", re.IGNORECASE)
_VALUE = r"(?:\d\w*(?:\.\w+)*|on|off|true|false)"
_REVERT = re.compile(
    rf"\b(?:revert\w*|roll\w*\s+back|(?:set|put|went|go|moved|changed|turned|switched)\s+(?:\S+\s+){{0,2}}?back|back)\b"
    rf"(?:\s+\S+){{0,5}}?\s+to\s+(?:[A-Z][A-Z0-9_]*\s*=\s*)?[`*\"']*(?P<to>{_VALUE})(?![\w%])",
    re.IGNORECASE,
)
_FROM = re.compile(rf"\bfrom\s+(?:[A-Z][A-Z0-9_]*\s*=\s*)?[`*\"']*({_VALUE})(?![\w%])", re.IGNORECASE)
_DISABLED = re.compile(r"\b(?:disabled|turned\s+off|switched\s+off|removed|unset|dropped)\b", re.IGNORECASE)
_REASONS = (  # a plain because first; a colon is the weakest sign of a reason
    re.compile(r"\b(?:because(?:\s+of)?|due\s+to|owing\s+to|since|as\s+it)\s+(.+)$", re.IGNORECASE | re.DOTALL),
    re.compile(r"\b(?:after|suspect\w*:?)\s+(.+)$", re.IGNORECASE | re.DOTALL),
    re.compile(r"(?<=\w):\s+(?!.*\bback\b)(?!.*\brevert)(.+)$", re.IGNORECASE | re.DOTALL),
)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Quote:
    """Where something was found, in the words found there; *by* is unknown where nobody signed."""

    file: str
    line: int
    date: str
    by: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """A knob went to *to_value*, no later than *at*.

    Attributes:
        from_value: Where it came from; *from_known* is false when the trace does not say.
        reason: Words that give a reason, or nothing.
        says_revert: The words themselves call it a revert.
    """

    knob: str
    from_value: str | None
    to_value: str | None
    at: str
    quote: Quote
    from_known: bool = True
    reason: str = ""
    says_revert: bool = False


def assignments(text: str) -> dict[str, tuple[str, int]]:
    """Variable → value and line, for the lines of a script that plainly set one; the last one counts."""
    found = {}
    for number, line in enumerate(text.splitlines(), start=1):
        match = _ASSIGN.match(line)
        if match and not is_secret_name(match[1]):
            found[match[1]] = (next((group for group in match.groups()[1:] if group is not None), ""), number)
        elif (gone := _UNSET.match(line)) is not None:
            found.pop(gone[1], None)
    return found


def reason_in(text: str) -> str:
    """The words after ``because``, ``due to`` … up to the end of the sentence; empty without any."""
    match = next((match for pattern in _REASONS if (match := pattern.search(text))), None)
    return re.sub(r"\s+", " ", re.split(r"(?<=[a-z)])\.(?:\s|$)", match[1])[0]).strip(" .*_`") if match else ""


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
    versions = [
        (path, found) for path in [*backups_of(script), script] if (found := _assigned(path, blind)) is not None
    ]
    for (before, old), (after, new) in pairwise(versions):
        for name in dict.fromkeys([*old, *new]):
            was, now = old.get(name), new.get(name)
            if (was and was[0]) == (now and now[0]) or (knobs and name not in knobs):
                continue
            at = _modified(before)
            text = f"{name}={was[0] if was else '(not set)'} in {before.name}, {name}={now[0] if now else '(not set)'} in {after.name}"
            yield Sighting(
                knob=name,
                from_value=was[0] if was else None,
                to_value=now[0] if now else None,
                at=at,
                quote=Quote(file=str(before), line=was[1] if was else 1, date=at, by=_owner(before), text=text),
            )


def _assigned(path: Path, blind: list[str]) -> dict[str, tuple[str, int]] | None:
    try:
        return assignments(read_text(path))
    except MisuseError as error:
        blind.append(error.problem)
        return None


def _modified(path: Path) -> str:
    return iso(datetime.fromtimestamp(path.stat().st_mtime, UTC))


def _owner(path: Path) -> str:
    try:
        return path.owner()
    except (KeyError, OSError):
        return "unknown"


# ---- git -------------------------------------------------------------------------------------------------------------


def from_git(script: Path, knobs: Collection[str], blind: list[str]) -> Iterator[Sighting]:
    """What each commit that touched *script* changed, oldest first, renames followed; then what is not committed yet."""
    if not script.parent.is_dir() or _git(script.parent, ["rev-parse", "--is-inside-work-tree"], None) is None:
        return
    form = "%x01%H%x02%aI%x02%an%x02%B%x03"
    options = [
        "log",
        f"--max-count={_COMMITS}",
        "--follow",
        "--no-ext-diff",
        "--no-textconv",
        "--no-color",
        "-p",
        "-U0",
    ]
    log = _git(script.parent, [*options, f"--format={form}", "--", script.name], blind)
    for entry in reversed((log or "").split("\x01")[1:]):  # git's own --reverse forgets to follow renames
        head, _, patch = entry.partition("\x03")
        commit, date, author, message = (*head.split("\x02", 3), "", "", "")[:4]
        subject = " ".join(message.split())
        says = bool(re.search(r"revert|roll\s?back|back to|restore default|disable|undo", message, re.IGNORECASE))
        for name, was, now, line in _patched(patch):
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
    committed = _git(script.parent, ["show", f"HEAD:./{script.name}"], None)
    here = _assigned(script, []) if script.is_file() else None
    for name, was, now, line in _differences(assignments(committed or ""), here or {}) if committed and here else ():
        if not knobs or name in knobs:
            at = _modified(script)
            quote = Quote(
                file=str(script),
                line=line,
                date=at,
                by=_owner(script),
                text=f"not committed: {name}={now}, committed: {was}",
            )
            yield Sighting(knob=name, from_value=was, to_value=now, at=at, quote=quote)


def commits(path: Path, blind: list[str]) -> Iterator[tuple[str, str, str]]:
    """Date, author and subject of the commits that touched *path*, newest first; none outside a git repository."""
    if not path.parent.is_dir() or _git(path.parent, ["rev-parse", "--is-inside-work-tree"], None) is None:
        return
    log = _git(path.parent, ["log", f"--max-count={_COMMITS}", "--format=%aI%x02%an%x02%s", "--", path.name], blind)
    for line in (log or "").splitlines():
        date, author, subject = (*line.split("\x02", 2), "", "")[:3]
        yield parse_time(date), author, redact_text(subject)


def _message_reason(subject: str) -> str:
    """The reason in a commit's message: after because or due to; or after a colon that follows the act itself."""
    return reason_in(re.sub(r"^\w+(?:\([^)]*\))?!?:\s", "", subject))


def _differences(
    old: dict[str, tuple[str, int]], new: dict[str, tuple[str, int]]
) -> Iterator[tuple[str, str | None, str | None, int]]:
    for name in dict.fromkeys([*old, *new]):
        was, now = old.get(name), new.get(name)
        if (was and was[0]) != (now and now[0]):
            yield name, was[0] if was else None, now[0] if now else None, (now or was or ("", 1))[1]


def _patched(patch: str) -> Iterator[tuple[str, str | None, str | None, int]]:
    """Knob, old value, new value and line of what a patch sets differently; moved or reformatted lines set nothing differently."""
    old, new, at = dict[str, tuple[str, int]](), dict[str, tuple[str, int]](), 0
    created = "\nnew file mode" in patch
    for line in patch.splitlines():
        if line.startswith("@@"):
            hunk = re.match(r"@@ -\d+(?:,\d+)? \+(\d+)", line)
            at = int(hunk[1]) if hunk else 0
        elif line.startswith(("+", "-")) and not line.startswith(("+++", "---")):
            side = new if line[0] == "+" else old
            side.update({name: (value, max(at, 1)) for name, (value, _) in assignments(line[1:]).items()})
            at += line[0] == "+"
    if not created:
        yield from _differences(old, new)


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


# ---- documents -------------------------------------------------------------------------------------------------------


def from_document(path: Path, knobs: Collection[str], blind: list[str]) -> Iterator[Sighting]:
    """The sentences of a document that say a knob was set back or disabled, with the reason in its own words."""
    try:
        text = read_text(path)
    except MisuseError as error:
        blind.append(error.problem)
        return
    for sentence in sentences(text):
        back = _REVERT.search(sentence.text)
        off = _DISABLED.search(sentence.text) if back is None else None
        if back is None and off is None:
            continue
        knob = knob_near(sentence, knobs)
        if knob is None or (off is not None and (knob not in sentence.text or not reason_in(sentence.text))):
            continue
        came = _FROM.search(sentence.text)
        date, author = _blamed(path, sentence.line)
        dated = re.search(r"\b20\d\d-[01]\d-[0-3]\d\b", sentence.text)
        quote = Quote(file=str(path), line=sentence.line, date=date, by=author, text=redact_text(sentence.text)[:300])
        yield Sighting(
            knob=knob,
            from_value=came[1] if came else None,
            from_known=came is not None,
            to_value=back["to"] if back else None,
            at=parse_time(dated[0]) if dated and _is_date(dated[0]) else date,
            quote=quote,
            reason=reason_in(sentence.text),
            says_revert=True,
        )


def _is_date(text: str) -> bool:
    try:
        parse_time(text)
    except MisuseError:
        return False
    return True


def _blamed(path: Path, line: int) -> tuple[str, str]:
    """When and by whom a line was last written: by git, or by the file's own time and owner."""
    blame = _git(path.parent, ["blame", "--porcelain", "-L", f"{line},{line}", "--", path.name], None)
    fields = dict(
        entry.split(" ", 1) for entry in (blame or "").splitlines()[1:] if " " in entry and not entry.startswith("\t")
    )
    if "author-time" in fields and fields.get("author", "").strip() != "Not Committed Yet":
        return iso(datetime.fromtimestamp(int(fields["author-time"]), UTC)), fields.get("author", "unknown")
    return _modified(path), _owner(path)
