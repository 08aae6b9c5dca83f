"""The words of a command line and a flag's name → its value; the ways in which argparse and clap let one be written.

``--max-running-requests 64``, ``--max-running-requests=64``, and the same with underscores (SGLang and vLLM take both).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["FlagAt", "find_flag", "is_flag", "same_flag", "spelled"]

_FLAG = re.compile(r"-{1,2}[A-Za-z][A-Za-z0-9_.-]*")
_NUMBER = re.compile(r"-[0-9.]")


@dataclass(frozen=True, slots=True)
class FlagAt:
    """A flag among words: *at* is the index of its word, *joined* when its value stands in the same word.

    Attributes:
        value: ``""`` for a flag without one.
        n_values: Words behind it that are no flags; more than one may be values of its own, or belong to nobody.
    """

    at: int
    value: str
    joined: bool
    n_values: int


def spelled(name: str) -> str:
    """How a knob's name is written on a command line: ``max_running_requests`` as ``--max-running-requests``; a name with dashes before it as it is."""
    return name if name.startswith("-") else "--" + name.replace("_", "-")


def same_flag(word: str, name: str) -> bool:
    """Whether the flag *word* is *name*; dash and underscore are one letter behind the first two."""
    return _plain(word) == _plain(spelled(name))


def is_flag(word: str) -> bool:
    """Whether a word is a flag, with or without a value in it; a negative number is none."""
    return bool(_FLAG.fullmatch(word.partition("=")[0])) and not _NUMBER.match(word)


def find_flag(words: Sequence[str], name: str) -> list[FlagAt]:
    """Every place where *words* hold the flag *name*; what stands behind a lone ``--`` is no flag."""
    stop = words.index("--") if "--" in words else len(words)
    found = []
    for at, word in enumerate(words[:stop]):
        flag, equals, value = word.partition("=")
        if not is_flag(word) or not same_flag(flag, name):
            continue
        following = 0
        while at + following + 1 < stop and not is_flag(words[at + following + 1]):
            following += 1
        if equals:
            found.append(FlagAt(at, value, joined=True, n_values=1))
        else:
            found.append(FlagAt(at, words[at + 1] if following else "", joined=False, n_values=following))
    return found


def _plain(flag: str) -> str:
    lead = "--" if flag.startswith("--") else flag[:1]
    return lead + flag[len(lead) :].replace("_", "-")
