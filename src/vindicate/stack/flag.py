"""The words of a command line, and a flag → where the flag stands among them and what it is set to; or why that cannot be told.

The reading is that of argparse, which SGLang and vLLM use: ``--flag V`` and ``--flag=V``, ``-`` and ``_`` alike, a word that
begins with a dash is no value unless it is a number, and a flag may be shortened.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = [
    "FlagSite",
    "Splice",
    "UnclearFlagError",
    "find_flag",
    "is_flag",
    "may_become",
    "may_follow",
    "same_flag",
    "spelled",
    "splice_for",
    "written",
]

_NUMBER = re.compile(r"-\d+|-\d*\.\d+", re.ASCII)
# Flags of this kind take no value; what follows one is an argument of its own, unless it is one of these words.
_SWITCH = re.compile(r"--?(?:no|enable|disable|enforce|trust|skip)-")
_SWITCHED = re.compile(r"(?i)true|false|yes|no|on|off|auto|-?\d+")
# Whole names of well-known flags, which are therefore no short form of a longer one.
_WHOLE = frozenset("--model --tokenizer --quantization --chat-template --config --host --port --tp --dp".split())
_LONGER = frozenset("--model-path --tokenizer-path --tp-size --dp-size".split())  # SGLang has these two ways


@dataclass(frozen=True, slots=True)
class FlagSite:
    """Where a flag stands.

    Attributes:
        at: Which of the words it is.
        value: ``""`` when it stands there without a value.
        value_at: Which of the words holds its value: *at* for ``--flag=V``, ``None`` when there is none.
    """

    at: int
    value: str
    value_at: int | None


@dataclass(frozen=True, slots=True)
class Splice:
    """An edit of a list of words: *removed* of them from *at* on give way to *words*."""

    at: int
    removed: int
    words: tuple[str, ...]

    def done(self, words: Sequence[str | None]) -> list[str | None]:
        """The list after the edit."""
        return [*words[: self.at], *self.words, *words[self.at + self.removed :]]


class UnclearFlagError(Exception):
    """What the words say of the flag cannot be told; *at* is the word that is to blame."""

    def __init__(self, at: int, problem: str) -> None:
        super().__init__(problem)
        self.at, self.problem = at, problem


def spelled(name: str) -> str:
    """*name*, with or without its dashes, as the flag is compared: ``max_running_requests`` → ``--max-running-requests``."""
    dashes = name[: len(name) - len(name.lstrip("-"))] or "--"
    return dashes + name.lstrip("-").replace("_", "-")


def written(name: str) -> str:
    """*name* as it is written where it is new."""
    return name if name.startswith("-") else f"--{name}"


def same_flag(one: str, other: str) -> bool:
    """Whether two names are of one flag, whatever their dashes: ``max_running_requests`` and ``--max-running-requests``."""
    return one.lstrip("-").replace("_", "-") == other.lstrip("-").replace("_", "-")


def is_flag(word: str) -> bool:
    """Whether a word is a flag rather than a value."""
    return len(word) > 1 and word.startswith("-") and not _NUMBER.fullmatch(word)


def may_become(prefix: str, flag: str) -> bool:
    """Whether a word of which only the beginning is known may be *flag*, with or without its value."""
    if not prefix.startswith("-"):
        return False
    head, equals, _ = prefix.partition("=")
    return spelled(head) == flag if equals else flag.startswith(head.replace("_", "-")) or spelled(head) == flag


def find_flag(words: Sequence[str | None], flag: str, *, since: int = 0) -> FlagSite | None:
    """Find *flag* (as `spelled` gives it) among the words of a command; ``None`` when it is not there.

    Args:
        words: ``None`` is a word that is no flag and whose text is not known.
        since: The first word that may be the flag; those before it are another program's.

    Raises:
        UnclearFlagError: It is there twice, its value is not known, or what stands there may mean something else.
    """
    sites = []
    for at, word in enumerate(words):
        if at < since or word is None or not is_flag(word):
            continue
        if word == "--":
            raise UnclearFlagError(at, "ends its flags with --, behind which a flag is none")
        head, equals, value = word.partition("=")
        if spelled(head) == flag:
            sites.append(FlagSite(at, value, at) if equals else _with_next(words, at, flag))
        elif flag in (_negated(head), spelled(head).replace("--no-", "--", 1)):
            raise UnclearFlagError(at, f"has {head}, which is the other side of {flag}")
        elif _may_be_short_for(head, flag):
            raise UnclearFlagError(at, f"has {head}, which may be short for {flag}")
    if len(sites) > 1:
        raise UnclearFlagError(sites[1].at, f"has {flag} more than once")
    return sites[0] if sites else None


def _with_next(words: Sequence[str | None], at: int, flag: str) -> FlagSite:
    """The site of a flag whose value, if it has one, is the next word."""
    following = words[at + 1 : at + 3]
    if not following:
        return FlagSite(at, "", None)
    value = following[0]
    if value is not None and is_flag(value):
        return FlagSite(at, "", None)
    if _SWITCH.match(flag) and (value is None or not _SWITCHED.fullmatch(value)):
        return FlagSite(at, "", None)
    if value is None:
        raise UnclearFlagError(at, f"sets {flag} to what is only known when it runs")
    if len(following) > 1 and (following[1] is None or not is_flag(following[1])):
        raise UnclearFlagError(
            at, f"has more than one word behind {flag}, and which of them are its value cannot be told"
        )
    return FlagSite(at, value, at + 1)


def _negated(head: str) -> str:
    """``--x`` → ``--no-x``, which vLLM takes for the same setting."""
    return spelled(head).replace("--", "--no-", 1) if head.startswith("--") else ""


def _may_be_short_for(head: str, flag: str) -> bool:
    """Whether argparse may take *head* for *flag*: any beginning of a long flag will do, and ``-n5`` is ``-n 5``."""
    name = spelled(head)
    if flag.startswith("--"):
        whole = name in _WHOLE and flag not in _LONGER
        return name.startswith("--") and len(name) > 2 and flag.startswith(name) and not whole
    return len(flag) == 2 and name.startswith(flag) and bool(re.fullmatch(r"\d+", name[2:]))


def may_follow(flag: str, value: str) -> bool:
    """Whether the value may stand behind the flag as a word of its own."""
    site = None if is_flag(value) else _with_next([flag, value], 0, flag)
    return site is not None and site.value_at == 1


def splice_for(words: Sequence[str | None], name: str, value: str | None, *, since: int = 1) -> Splice:
    """The edit that sets the flag *name* to *value*: without a value for ``""``, taken out for ``None``; new ones come last.

    Raises:
        UnclearFlagError: What the words say of the flag now cannot be told, or it cannot be written among them.
    """
    flag = spelled(name)
    site = find_flag(words, flag, since=since)
    splice = _splice(words, name, value, site, since)
    after = splice.done(words)
    now = find_flag(after, flag, since=since)
    if (now.value if now else None) != value:
        raise UnclearFlagError(
            splice.at - 1, f"would set {flag} to {now.value if now else None!r} after the change, not to {value!r}"
        )
    return splice


def _splice(words: Sequence[str | None], name: str, value: str | None, site: FlagSite | None, since: int) -> Splice:
    if (site.value if site else None) == value:
        return Splice(len(words), 0, ())
    if site is None:
        flags = [word for word in words[since:] if word is not None and is_flag(word)]
        joined = 2 * sum("=" in word for word in flags) > len(flags)
        return Splice(len(words), 0, _together(written(name), value or "", joined=joined))
    head = (words[site.at] or "").partition("=")[0]
    apart = site.value_at not in (None, site.at)
    if value is None:
        return Splice(site.at, 2 if apart else 1, ())
    if apart and may_follow(spelled(name), value) and value:
        return Splice(site.at + 1, 1, (value,))
    together = _together(head, value, joined=site.value_at == site.at)
    if site.value_at is None and len(together) == 2:
        return Splice(site.at + 1, 0, together[1:])
    return Splice(site.at, 2 if apart else 1, together)


def _together(head: str, value: str, *, joined: bool) -> tuple[str, ...]:
    """The flag and its value, in one word or in two; without a value the flag alone."""
    if not value:
        return (head,)
    return (f"{head}={value}",) if joined or not may_follow(spelled(head), value) else (head, value)
