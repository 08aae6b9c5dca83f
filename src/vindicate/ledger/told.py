"""A sentence → the revert that it tells of: from which value, to which one, and why; nothing for what was only thought of; pure."""

import re
from dataclasses import dataclass

__all__ = ["Told", "reason_in", "revert_in"]

_NAME = r"[`*]*(?:[A-Z][A-Z0-9_]*`?\s*=\s*)?[`*\"'(]*"
_VALUE = r"(?:\d\w*(?:\.\w+)*|on|off|true|false)"
_ACT = r"\b(?:revert\w*|roll\w*\s+(?:\S+\s+)?back|(?:set|put|went|go|moved|changed|turned|switched)\s+(?:\S+\s+){0,2}?back|back)\b"
_REVERTS = (
    re.compile(rf"{_ACT}(?:\s+\S+){{0,5}}?\s+to\s+{_NAME}(?P<to>{_VALUE})(?![\w%])", re.IGNORECASE),
    re.compile(
        rf"{_ACT}[^.;→>]{{0,40}}?(?<![\w.])(?P<was>{_VALUE})[`*]*\s*(?:→|->|=>)\s*{_NAME}(?P<to>{_VALUE})(?![\w%])",
        re.IGNORECASE,
    ),
    re.compile(rf"\bback\s+at\s+{_NAME}(?P<to>{_VALUE})(?![\w%])", re.IGNORECASE),
    re.compile(rf"\b(?:set|put)\s+(?:\S+\s+){{0,3}}?{_NAME}(?P<to>{_VALUE})[`*]*\s+again\b", re.IGNORECASE),
)
_LONGEST = 2000  # characters of a sentence; what goes on longer is none
_DISABLED = re.compile(r"\b(?:disabled|turned\s+off|switched\s+off|removed|unset|dropped)\b", re.IGNORECASE)
_FROM = re.compile(rf"\bfrom\s+{_NAME}({_VALUE})(?![\w%])", re.IGNORECASE)
_ONLY_THOUGHT = re.compile(  # in the words of the same clause, right before the act
    r"\b(?:not|never|nobody|no\s+one|might|may|could|should|would|must|shall|can|cannot|will|whether|(?:going|want\w*|plan\w*|need\w*|try|tried|have)\s+to"
    r"|consider\w*|suggest\w*|propos\w*)\b|n't\b|(?<!had )\bto\s+$",
    re.IGNORECASE,
)
_CONDITION = re.compile(r"\W*(?:if|unless|should|in\s+case)\b|.*\btodo\b", re.IGNORECASE)
_REASONS = (  # a plain because first; a colon is the weakest sign of a reason
    re.compile(r"\b(?:because(?:\s+of)?|due\s+to|owing\s+to|since|as\s+it)\s+(.+)$", re.IGNORECASE | re.DOTALL),
    re.compile(r"\b(?:after|suspect\w*:?(?:\s+of)?)\s+(.+)$", re.IGNORECASE | re.DOTALL),
    re.compile(r"(?<=\w):\s+(?!.*\bback\b)(?!.*\brevert)(.+)$", re.IGNORECASE | re.DOTALL),
    re.compile(r"\(([^()]*\b(?:hang|hung|freez|froze|stall|dead|crash|oom|corrupt)[^()]*)\)", re.IGNORECASE),
    re.compile(r"\b((?:same(?:\s+reason)?\s+as|copied\s+from|taken\s+from)\s+.+)$", re.IGNORECASE | re.DOTALL),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """*from_value* and *to_value* as far as the words give them; *to_value* is ``None`` for what was disabled."""

    from_value: str | None
    to_value: str | None
    reason: str
    disabled: bool = False


def revert_in(text: str) -> Told | None:
    """The revert that the sentence tells of; ``None`` for one that was not made: denied, asked, planned, or under a condition."""
    if len(text) > _LONGEST:
        return None
    match = next((match for pattern in _REVERTS if (match := pattern.search(text))), None)
    act = match or _DISABLED.search(text)
    if act is None or text.rstrip("*_` ").endswith("?") or _CONDITION.match(text[: act.start()] + " "):
        return None
    clause = re.split(r"[,;:.]\s", text[: act.start()])[-1]
    if _ONLY_THOUGHT.search(clause) or (match is None and _CONDITION.match(text)):
        return None
    came = _FROM.search(text)
    was = match["was"] if match and "was" in match.re.groupindex else came[1] if came else None
    return Told(from_value=was, to_value=match["to"] if match else None, reason=reason_in(text), disabled=match is None)


def reason_in(text: str) -> str:
    """The words after ``because``, ``due to`` … up to the end of the sentence; empty without any."""
    match = next((match for pattern in _REASONS if (match := pattern.search(text[:_LONGEST]))), None)
    return re.sub(r"\s+", " ", re.split(r"(?<=[a-z)])\.(?:\s|$)", match[1])[0]).strip(" .*_`") if match else ""
