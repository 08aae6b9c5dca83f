"""Text, arguments or environments in → the same without secrets out; called before anything is stored, shown or logged."""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

__all__ = ["REDACTED", "is_secret_name", "redact_argv", "redact_json", "redact_text", "redact_value"]

REDACTED = "[redacted]"

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_ALWAYS = re.compile(r"passw|passphrase|secret|apikey|api_key|credential|bearer|cookie|authorization", re.IGNORECASE)
_NAME_OF_NAME = re.compile(r"api[_-]key[_-]env$")  # our own option and key: it holds the NAME of a variable
_SECRET_WORDS = frozenset({"key", "keys", "token", "pwd", "auth", "private", "pat"})
# Beside one of these words a key is no key to anything, and a token is one of a model's: counts, shapes, ids, caches.
_PLAIN_BESIDE = frozenset(
    "value values head heads dim routing cache num n max min total prompt output input chunk chunked reserved decode prefill batch "
    "used usage ratio capacity per id ids limit budget count position len length size step type bos eos pad stop unk special".split()
)
_OWNED = frozenset({"api", "access", "auth", "refresh", "hf", "admin", "user", "session", "bot"})

_VALUE = r"(?P<quote>[\"'])(?P<quoted>.*?)(?P=quote)|[^\s\"',;&}\])]+"
_ASSIGNED = re.compile(rf"(?P<head>(?<![\w-])-{{0,2}}(?P<name>[A-Za-z][\w.-]*)[\"']?\s*[:=]\s*)(?:{_VALUE})")
_OPTION = re.compile(rf"(?P<head>(?<![\w-])--(?P<name>[A-Za-z][\w-]*)\s+)(?!--)(?:{_VALUE})")
_HEADERS = (
    re.compile(r"(?i)(\bauthorization[\"']?\s*[:=]\s*[\"']?)(?:[A-Za-z]+\s+)?[^\s\"',;]+"),
    re.compile(r"(?i)(\b(?:set-)?cookie[\"']?\s*[:=]\s*)[^\r\n\"']+"),
    re.compile(r"(?i)(\bbearer\s+)[A-Za-z0-9._~+/=-]{6,}"),
    re.compile(r"(://)[^/\s@]+(?=@)"),
    re.compile(r"()\b(?:(?:sk|ghp|gho|ghs|github_pat|xoxb|xoxp|glpat|nvapi)[-_]|hf_)[A-Za-z0-9_-]{8,}"),
    re.compile(r"()\bAKIA[0-9A-Z]{16}\b"),
    re.compile(r"()\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+"),
)


def is_secret_name(name: str) -> bool:
    """Whether a variable, option or field of this name may hold a secret; errs on the side of yes.

    Example:
        >>> is_secret_name("HF_TOKEN"), is_secret_name("max_total_num_tokens")
        (True, False)
    """
    if _NAME_OF_NAME.search(name):
        return False
    if _ALWAYS.search(name):
        return True
    words = {word.lower() for word in _WORD.findall(name)}
    if "tokens" in words and words & _OWNED:
        return True
    return bool(words & _SECRET_WORDS) and not words & _PLAIN_BESIDE


def redact_text(text: str) -> str:
    """Blank out what looks like a secret in free text: headers, assignments and options by their name, URL logins, known prefixes."""
    for pattern in _HEADERS:
        text = pattern.sub(lambda match: match[1] + REDACTED, text)
    for named in (_ASSIGNED, _OPTION):
        text = _blank_named(named, text)
    return text


def _blank_named(named: re.Pattern[str], text: str) -> str:
    """Blank the values of secret names; a value that is none is looked into: ``http://h?token=t``, ``note: key=k``."""
    done, at = [], 0
    while match := named.search(text, at):
        shown = _blank(match)
        end = match.end("head") if shown == match[0] else match.end()
        done.append(text[at : match.start()] + (match["head"] if shown == match[0] else shown))
        at = end
    return "".join(done) + text[at:]


def _blank(match: re.Match[str]) -> str:
    if not is_secret_name(match["name"]) or REDACTED in match[0]:
        return match[0]
    return match["head"] + (match["quote"] or "") + REDACTED + (match["quote"] or "")


def redact_value(name: str, value: str | None) -> str | None:
    """Blank out the value of a variable or knob: all of it when the name says secret, else what looks like one."""
    if not value:
        return value
    return REDACTED if is_secret_name(name) else redact_text(value)


def redact_argv(argv: Sequence[str]) -> list[str]:
    """Blank out the values of options whose name says secret, in both ``--key value`` and ``--key=value`` form."""
    out: list[str] = []
    hide_next = False
    for word in argv:
        if hide_next and not word.startswith("--"):
            out.append(REDACTED)
            hide_next = False
            continue
        name, equals, _ = word.partition("=")
        secret = is_secret_name(name.lstrip("-")) and bool(equals or word.startswith("-")) and " " not in name
        hide_next = secret and not equals
        out.append(f"{name}={REDACTED}" if secret and equals else word if secret else redact_text(word))
    return out


def redact_json(value: Any) -> Any:
    """Copy a JSON-like value with secrets blanked out, by field name and by content, at any depth."""
    if isinstance(value, Mapping):
        return {
            key: REDACTED if isinstance(key, str) and inner and _hides(key, inner) else redact_json(inner)
            for key, inner in value.items()
        }
    if isinstance(value, list | tuple):
        if len(value) == 2 and all(isinstance(inner, str) for inner in value) and _ALWAYS.search(value[0]):
            return [value[0], REDACTED]  # a header, a label: name and value
        return [redact_json(inner) for inner in value]
    if not isinstance(value, str):
        return value
    return _redact_short(value) if len(value) < _SHORT else redact_text(value)


_SHORT = 200
_redact_short = lru_cache(maxsize=4096)(redact_text)  # names and labels come again thousands of times


def _hides(name: str, value: Any) -> bool:
    """Whether *value* under *name* is a secret: a text under any such name, whatever it is under an unmistakable one."""
    if isinstance(value, bool) or not is_secret_name(name):
        return False
    return isinstance(value, str | bytes) or _ALWAYS.search(name) is not None
