"""Bytes of a `text/event-stream` body, cut anywhere → its events; no input or output.

The grammar is that of the HTML standard, section 9.2.6: lines end with CRLF, LF or CR; a blank line ends an event;
a line that begins with a colon is a comment; a byte order mark at the very start is skipped.
"""

import re
from dataclasses import dataclass

from vindicate.errors import EngineError

__all__ = ["MAX_EVENT_BYTES", "SseEvent", "SseParser"]

MAX_EVENT_BYTES = 4 * 1024 * 1024
_LINE_END = re.compile(rb"\r\n|\n|\r")


@dataclass(frozen=True, slots=True)
class SseEvent:
    """One event; *data* is its data lines joined by a line feed."""

    data: str
    name: str = "message"


class SseParser:
    """Feed it the bytes as they come, get the events that they complete.

    Attributes:
        n_comments: Comment lines so far: heartbeats, which are no progress.
        n_strange: Lines so far whose field the standard does not know; it says to ignore them, yet nothing but them is garbage.
    """

    def __init__(self, *, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self.n_comments = 0
        self.n_strange = 0
        self._max_bytes = max_event_bytes
        self._rest = b""
        self._data: list[bytes] = []
        self._data_bytes = 0
        self._name = b""
        self._after_cr = False
        self._at_start = True

    def feed(self, data: bytes) -> list[SseEvent]:
        """Take *data* and give the events that end in it.

        Raises:
            EngineError: A line or an event grew past the limit: these bytes are no event stream.
        """
        if self._after_cr and data:
            # The CR at the end of the last read has ended its line already; its LF belongs to it.
            data = data.removeprefix(b"\n")
            self._after_cr = False
        if not data:
            return []
        whole = self._rest + data
        if self._at_start:
            if b"\xef\xbb\xbf".startswith(whole[:3]) and len(whole) < 3:
                self._rest = whole
                return []
            whole = whole.removeprefix(b"\xef\xbb\xbf")
            self._at_start = False
        self._after_cr = whole.endswith(b"\r")
        lines = _LINE_END.split(whole) if b"\r" in whole else whole.split(b"\n")
        self._rest = lines.pop()
        events = [event for line in lines if (event := self._line(line)) is not None]
        if len(self._rest) + self._data_bytes > self._max_bytes:
            raise EngineError(
                f"no event ended within {self._max_bytes} bytes: this is no event stream",
                remedy="check that the URL is that of an OpenAI-compatible server",
            )
        return events

    def plain(self, data: bytes) -> list[str] | None:
        """What :meth:`feed` gives, for the bytes that engines write nearly always: whole events of one data line; ``None`` for any others.

        Several times as quick; whoever reads ten thousand tokens a second asks here first.
        """
        if self._rest or self._data or self._name or self._after_cr or len(data) > self._max_bytes:
            return None
        if not (data.startswith(b"data: ") and data.endswith(b"\n\n")) or b"\r" in data:
            return None
        payloads = data[6:-2].decode(errors="replace").split("\n\ndata: ")
        if data.count(b"\n") != 2 * len(payloads):
            return None
        self._at_start = False
        return payloads

    @property
    def pending(self) -> bool:
        """Whether an event was begun and not ended; at the end of the body its bytes are lost, as the standard says."""
        return bool(self._rest or self._data)

    def _line(self, line: bytes) -> SseEvent | None:
        if not line:
            return self._dispatch()
        if line.startswith(b":"):
            self.n_comments += 1
            return None
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data.append(value)
            self._data_bytes += len(value)
        elif field == b"event":
            self._name = value
        elif field not in (b"id", b"retry"):
            self.n_strange += 1
        return None

    def _dispatch(self) -> SseEvent | None:
        data, name = self._data, self._name
        self._data, self._data_bytes, self._name = [], 0, b""
        if not data:
            return None
        return SseEvent(b"\n".join(data).decode(errors="replace"), name.decode(errors="replace") or "message")
