"""Lines of an engine's request log → the ids of requests that came and have not ended; pure.

SGLang with `--log-requests` writes a line when a request comes and one when it ends: as JSON with the event `request.received` or
`request.finished`, or as text, `Receive: obj=…Input(rid='…'` and `Finish: obj=…Input(rid='…'`. The reference stack writes the JSON form.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

__all__ = ["RequestLog", "read_request_log"]

_JSON = re.compile(rb'"request\.(received|finished)')
_TEXT = re.compile(rb"\b(Receive|Finish)(?:d|ed)?: obj=\w+\(.{0,400}?\brid='([^']{1,200})'")
_STAMP = re.compile(rb"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:[.,]\d+)?")
_OF_A_HEALTH_CHECK = "HEALTH_CHECK"


@dataclass(slots=True)
class RequestLog:
    """What the lines add up to.

    Attributes:
        alive: Full id → when it came, in Unix time; ``None`` where its line has no time.
        n_lines: Lines that spoke of a request: 0 means that it logs none.
    """

    alive: dict[str, float | None] = field(default_factory=dict)
    n_lines: int = 0


def read_request_log(lines: Iterable[bytes], *, since: float | None = None) -> RequestLog:
    """Follow requests through *lines*.

    Args:
        since: When the engine's process began, in Unix time: what an earlier one left open is gone.
    """
    log = RequestLog()
    for line in lines:
        event = _json_event(line) if _JSON.search(line) else _text_event(line)
        if event is None:
            continue
        has_come, rids, at = event
        if since is not None and at is not None and at < since:
            continue
        log.n_lines += 1
        for rid in rids:
            if not has_come:
                log.alive.pop(rid, None)
            elif not rid.startswith(_OF_A_HEALTH_CHECK):
                log.alive.setdefault(rid, at)
    return log


_Event = tuple[bool, list[str], float | None]


def _json_event(line: bytes) -> _Event | None:
    try:
        event = json.loads(line[line.index(b"{") :])
    except (ValueError, RecursionError):
        return None
    if not isinstance(event, dict):
        return None
    inner = [event, *(event[name] for name in ("obj", "data", "request") if isinstance(event.get(name), dict))]
    rid: Any = next((each["rid"] for each in inner if each.get("rid")), None)
    rids = [one for one in (rid if isinstance(rid, list) else [rid]) if isinstance(one, str)]
    name = event.get("event")
    if not rids or not isinstance(name, str):
        return None
    return name.startswith("request.received"), rids, _time(event.get("timestamp"))


def _text_event(line: bytes) -> _Event | None:
    match = _TEXT.search(line)
    if match is None:
        return None
    stamp = _STAMP.search(line[: match.start()])
    return match[1] == b"Receive", [match[2].decode(errors="replace")], _time(stamp[1].decode()) if stamp else None


def _time(stamp: Any) -> float | None:
    """Unix time; a text without an offset is local time."""
    if isinstance(stamp, int | float) and not isinstance(stamp, bool):
        return float(stamp)
    try:
        return datetime.fromisoformat(stamp).astimezone().timestamp()
    except (TypeError, ValueError, OverflowError):
        return None
