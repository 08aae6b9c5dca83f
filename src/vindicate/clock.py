"""The one place that reads clocks: wall time for records, monotonic time for durations."""

import time
from datetime import UTC, datetime
from typing import Protocol

from vindicate.errors import MisuseError

__all__ = ["Clock", "SystemClock", "iso", "parse_time", "utc_now"]


class Clock(Protocol):
    """What a room needs of time; tests pass one that jumps."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary start; never goes back."""
        ...

    def now(self) -> datetime:
        """The wall clock, in UTC."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait."""
        ...


class SystemClock:
    """The machine's own clock."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary start; never goes back."""
        return time.monotonic()

    def now(self) -> datetime:
        """The wall clock, in UTC."""
        return datetime.now(UTC)

    def sleep(self, seconds: float) -> None:
        """Block this thread."""
        time.sleep(seconds)


def utc_now() -> str:
    """The wall clock as ISO 8601 in UTC with microseconds, for example ``2026-11-30T21:14:03.000417Z``."""
    return iso(datetime.now(UTC))


def iso(moment: datetime) -> str:
    """Write *moment* as ISO 8601 in UTC with microseconds and a ``Z``; sorts as text."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def parse_time(text: str) -> str:
    """Read an ISO 8601 time and give it in the form of :func:`iso`; without an offset it is local time.

    Raises:
        MisuseError: *text* is not ISO 8601.
    """
    try:
        return iso(datetime.fromisoformat(text).astimezone())
    except (ValueError, OverflowError) as error:
        raise MisuseError(f"{text!r} is no time", remedy="try: ISO 8601, for example 2026-11-30T21:14:00Z") from error
