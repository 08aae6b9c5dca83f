"""A start script and a flag of its service's command → what the script sets it to; and the script with only that flag changed."""

import re
from dataclasses import dataclass
from pathlib import Path

from vindicate.errors import MisuseError
from vindicate.operate.script import check_syntax
from vindicate.operate.shell_args import ELSEWHERE, ServiceCommand, Word
from vindicate.operate.shell_row import indent_of, with_words, without_words
from vindicate.operate.shell_run import line_stop, nodes_above
from vindicate.operate.shell_word import quoted, quoting, with_tail
from vindicate.stack.flag import (
    FlagSite,
    UnclearFlagError,
    find_flag,
    is_flag,
    may_become,
    may_follow,
    spelled,
    written,
)

__all__ = ["ArgValue", "edit_arg", "read_arg"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArgValue:
    """What a script sets a flag to; ``""`` is there without a value. *line* is counted from 1."""

    value: str
    line: int


def read_arg(path: Path, name: str, *, container: bool = False) -> ArgValue | None:
    """What the script at *path* sets the flag *name* of its service to; ``None`` when the flag is not there.

    Args:
        container: The service is what ``docker run`` starts, and its arguments stand behind the image.

    Raises:
        MisuseError: The file cannot be read, or the way in which it starts its service is not understood; says file and line.
    """
    try:
        source = path.read_bytes()
    except OSError as error:
        raise MisuseError(
            f"{path}: cannot be read: {error.strerror}", remedy="check the path and its permissions"
        ) from error
    return _Arguments(source, name, path, container=container).value()


def edit_arg(
    source: bytes, name: str, value: str | None, *, path: Path | None = None, container: bool = False
) -> bytes:
    """The script *source* with the flag *name* at *value*, without a value for ``""``, or not there for ``None``.

    Every other byte stays.

    Raises:
        MisuseError: The way in which the script starts its service is not understood, or *value* cannot be written there.
    """
    before = _Arguments(source, name, path, container=container)
    held = before.value()
    if (held.value if held else None) == value:
        return source
    if value is None:
        edited = _without(before)
    elif before.site is None:
        edited = _added(before, value)
    else:
        edited = _replaced(before, before.site, value)
    after = _Arguments(edited, name, path, container=container)
    now = after.value()
    if (now.value if now else None) != value or after.others() != before.others():
        raise before.refusal(
            f"would set {before.flag} to {now.value if now else None!r} after the change, not to {value!r}"
        )
    check_syntax(source, edited, before.command.refusal)
    return edited


class _Arguments:
    """The words of one script's service, asked about one flag."""

    def __init__(self, source: bytes, name: str, path: Path | None, *, container: bool) -> None:
        self.source, self.name, self.flag = source, name, spelled(name)
        self.command = ServiceCommand(source, self.flag, path, container=container)
        self.words = self.command.words
        self.since = self.command.program + 1
        if container:
            from vindicate.operate.docker_run import image_at

            self.since = image_at(self.command) + 1
            inner = self.words[self.since].text if self.since < len(self.words) else ""
            if inner.rsplit("/", 1)[-1].encode(errors="surrogateescape") in ELSEWHERE:
                raise self.command.refusal(
                    self.words[self.since].start, f"starts another shell in the container: {inner}"
                )
        self.site = self._site()

    def value(self) -> ArgValue | None:
        """What the flag is set to; ``None`` when it is not there."""
        site = self.site
        return ArgValue(value=site.value, line=self.command.line(self.words[site.at].start)) if site else None

    def own(self) -> list[Word]:
        """The flag, and its value where that is a word of its own."""
        site = self.site
        return [self.words[at] for at in dict.fromkeys((site.at, site.value_at)) if at is not None] if site else []

    def others(self) -> list[bytes]:
        """All words but the flag's own, as they are written."""
        own = self.own()
        return [self.source[word.start : word.stop] for word in self.words if word not in own]

    def refusal(self, problem: str) -> MisuseError:
        """The error for this flag."""
        return self.command.refusal(self.words[self.site.at].start if self.site else self.words[-1].stop, problem)

    def _site(self) -> FlagSite | None:
        texts = [self._text(at, word) for at, word in enumerate(self.words)]
        try:
            site = find_flag(texts, self.flag, since=self.since)
        except UnclearFlagError as error:
            raise self.command.refusal(self.words[error.at].start, error.problem) from error
        own = {at for at in (site.at, site.value_at) if at is not None} if site else set[int]()
        after = self.words[max(own) + 1] if own and max(own) + 1 < len(self.words) else None
        unsure = next((self.words[at] for at in own if self.words[at].maybe), None) or (
            after if site and site.value_at is None and after and after.maybe else None
        )
        if unsure is not None:
            raise self.command.refusal(unsure.start, f"sets {self.flag} only sometimes")
        self._require_no_other_mention([self.words[at] for at in own])
        return site

    def _text(self, at: int, word: Word) -> str | None:
        """The word as `find_flag` takes it: one that is not known is no flag, unless its beginning says so."""
        if word.known:
            return word.text
        if at >= self.since and may_become(word.text, self.flag):
            raise self.command.refusal(word.start, f"may set {self.flag} to what is only known when it runs")
        return word.text + "$" if is_flag(word.text) else None

    def _require_no_other_mention(self, own: list[Word]) -> None:
        """Refuse a script that names the flag anywhere else, since it may set it there; comments may."""
        pattern = _mention(self.flag)
        if pattern is None:
            return
        found = [match.start() for match in re.finditer(pattern, self.source)]
        for at in found:
            node = self.command.root.named_descendant_for_byte_range(at, at + 1)
            if node is not None and any(up.type == "comment" for up in nodes_above(node)):
                continue
            if not any(word.start <= at < word.stop for word in own):
                raise self.command.refusal(at, f"names {self.flag} elsewhere too: {self.command.line_text(at)}")
        if len(re.findall(pattern, self.source.replace(b"\\\n", b""))) != len(found):
            raise self.command.refusal(0, f"breaks {self.flag} over lines")


def _mention(flag: str) -> bytes | None:
    """Matches the flag's name with ``-`` or ``_``, and without its dashes when it is no plain word; ``None`` for ``-c`` and the like."""
    bare = flag.lstrip("-")
    if len(bare) < 2:
        return None
    dashes = rb"-{0,2}" if "-" in bare else rb"-{1,2}"
    return rb"(?<![\w-])" + dashes + rb"[-_]".join(re.escape(part).encode() for part in bare.split("-")) + rb"(?![\w-])"


def _replaced(args: _Arguments, site: FlagSite, value: str) -> bytes:
    source, word = args.source, args.words[site.at]
    if site.value_at == site.at:
        return source[: word.start] + _joined(args, word, value) + source[word.stop :]
    if site.value_at is None:
        joint = b" " if may_follow(args.flag, value) else b"="
        return source[: word.stop] + joint + quoted(value) + source[word.stop :]
    held = args.words[site.value_at]
    if held.array != word.array:
        raise args.refusal(f"has {args.flag} and its value in different places")
    if value == "":
        return source[: word.stop] + source[held.stop :]
    if is_flag(value):
        raise args.refusal(
            f"gives {args.flag} its value as a word of its own, which {value!r} cannot be; write {args.flag}=VALUE"
        )
    text = quoted(value, quoting(source[held.start : held.stop]))
    return source[: held.start] + text + source[held.stop :]


def _joined(args: _Arguments, word: Word, value: str) -> bytes:
    """``--flag=V`` with another value, in the quotes that it had."""
    raw, head = args.source[word.start : word.stop], word.text.partition("=")[0]
    bare = head.encode() if raw.startswith(head.encode()) else None
    text = with_tail(raw, f"{head}=", value) if value else bare
    if text is None:
        raise args.refusal(f"writes {args.flag} in quotes in which {value!r} cannot be written")
    return text


def _added(args: _Arguments, value: str) -> bytes:
    """Put the flag behind the last argument, in the file's style."""
    source = args.source
    flags = [word.text for word in args.words[args.since :] if word.known and is_flag(word.text)]
    joined = (len(flags) > 0 and 2 * sum("=" in flag for flag in flags) > len(flags)) or not may_follow(
        args.flag, value
    )
    text = written(args.name).encode()
    if value:
        text += (b"=" if joined else b" ") + quoted(value)
    last = args.command.own[-1]
    ending = [
        word for word in args.words if word.array is not None and source[last.start_byte : last.end_byte].count(b"[@]")
    ]
    if ending and ending[-1] == args.words[-1] and not ending[-1].maybe:
        return _added_to_array(args, ending[-1], text)
    return with_words(source, last.end_byte, indent_of(source, args.command.row(args.words[0])), text)


def _added_to_array(args: _Arguments, last: Word, text: bytes) -> bytes:
    source, row = args.source, args.command.row(last)
    assert last.array is not None
    indent = indent_of(source, [(last.array.start_byte, last.array.start_byte + 1), *row])
    line_end = line_stop(source, last.stop)
    if indent is None:
        return source[: last.stop] + b" " + text + source[last.stop :]
    if last.array.end_byte <= line_end:
        return source[: last.stop] + b"\n" + indent + text + source[last.stop :]
    return source[:line_end] + indent + text + b"\n" + source[line_end:]


def _without(args: _Arguments) -> bytes:
    """Take the flag and its value out, and their line when they are alone on it."""
    first, *more = args.own()
    last = more[-1] if more else first
    if last.array != first.array:
        raise args.refusal(f"has {args.flag} and its value in different places")
    return without_words(args.source, args.command.row(first), first, last)
