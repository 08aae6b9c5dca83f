"""Text, arguments or environments in → the same without secrets out; called before anything is stored, shown or logged."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["REDACTED", "is_secret_name", "redact_argv", "redact_json", "redact_text"]

REDACTED = "[redacted]"

_SECRET_NAME = re.compile(
    r"(?:^|[^a-z0-9])(?:api[_-]?keys?|keys?|secrets?|tokens?|passwords?|passwd|pwd|credentials?|auth|authorization|bearer|cookie|private)(?:$|[^a-z0-9])|apikey",
    re.IGNORECASE,
)
# Names that hold one of the words above and are no secrets: token *counts*, tokenizer paths, key-value caches.
_PLAIN_NAME = re.compile(
    r"tokens?_(?:usage|ratio|capacity|per)|(?:max|min|num|new|total|prompt|output|input|chunk(?:ed)?|reserved|decode|prefill|batch)[\w-]*tokens?$|tokenizer|key_?value|kv_",
    re.IGNORECASE,
)
_IN_TEXT = (
    re.compile(r"(?i)(\bauthorization\s*[:=]\s*(?:bearer|basic)?\s*)[^\s\"',;]+"),
    re.compile(r"(?i)(\bbearer\s+)[A-Za-z0-9._~+/=-]{6,}"),
    re.compile(
        r"(?i)(\b[\w-]*(?:api[_-]?key|secret|password|passwd|access[_-]?token|auth[_-]?token|hf[_-]?token)[\w-]*[\"']?\s*[:= ]\s*[\"']?)[^\s\"',;&}]+"
    ),
    re.compile(r"(?i)(://[^/\s:@]+:)[^@\s/]+(?=@)"),
    re.compile(r"()\b(?:sk|hf|ghp|gho|xoxb|xoxp|glpat|nvapi)[-_][A-Za-z0-9_-]{8,}"),
    re.compile(r"()\bAKIA[0-9A-Z]{16}\b"),
    re.compile(r"()\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+"),
)


def is_secret_name(name: str) -> bool:
    """Whether a variable, option or field of this name may hold a secret; errs on the side of yes.

    Example:
        >>> is_secret_name("HF_TOKEN"), is_secret_name("max_total_num_tokens")
        (True, False)
    """
    return _SECRET_NAME.search(name) is not None and _PLAIN_NAME.search(name) is None


def redact_text(text: str) -> str:
    """Blank out what looks like a secret in free text: bearer headers, ``key=value`` pairs, URL passwords, known prefixes."""
    for pattern in _IN_TEXT:
        text = pattern.sub(lambda match: match[1] + REDACTED, text)
    return text


def redact_argv(argv: Sequence[str]) -> list[str]:
    """Blank out the values of options whose name says secret, in both ``--key value`` and ``--key=value`` form."""
    out: list[str] = []
    hide_next = False
    for word in argv:
        if hide_next and not word.startswith("--"):
            out.append(REDACTED)
            hide_next = False
            continue
        hide_next = False
        name, equals, _ = word.partition("=")
        if is_secret_name(name.lstrip("-")) and (equals or word.startswith("-")):
            out.append(f"{name}={REDACTED}" if equals else word)
            hide_next = not equals
        else:
            out.append(redact_text(word))
    return out


def redact_json(value: Any) -> Any:
    """Copy a JSON-like value with secrets blanked out, by field name and by content, at any depth."""
    if isinstance(value, Mapping):
        return {
            key: REDACTED
            if isinstance(key, str) and is_secret_name(key) and inner not in (None, "", False, True)
            else redact_json(inner)
            for key, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [redact_json(inner) for inner in value]
    return redact_text(value) if isinstance(value, str) else value
