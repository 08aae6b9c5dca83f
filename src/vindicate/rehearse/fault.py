"""The words of a command line or of a file → which fault a rehearsed proxy has, and when it begins."""

from dataclasses import dataclass
from pathlib import Path

from vindicate.errors import MisuseError

__all__ = ["FAULTS", "VARIANTS", "Fault", "read_fault"]

# Mechanism → what the proxy does. Names are those of the catalogue of `vindicate diagnose`.
FAULTS = {
    "none": "a correct proxy: unbuffered, disconnects propagated both ways, every wait bounded",
    "proxy.connector_starvation": "leaks a slot of its upstream pool when a stream is cancelled or fails; later requests wait for ever",
    "proxy.sse_buffering": "holds the stream back until 16 KiB have come or it has ended",
    "proxy.drop_stream": "stops passing a stream on in the middle, reads the rest, holds both sides open",
    "proxy.body_truncation": "reads at most 64 KiB of a request, then calls the JSON invalid (400)",
    "stream.missing_done_masked_by_heartbeat": "swallows [DONE] and the end of the body, and sends heartbeats",
    "gateway.total_timeout": "cuts every exchange at a constant age (--limit)",
    "gateway.idle_timeout_before_first_byte": "gives up, with a misleading 403, when no body byte came within --limit",
    "router.cancel_not_propagated": "goes on reading from upstream after its client has left",
}
VARIANTS = ("pinned", "permit")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault of a proxy.

    Attributes:
        variant: Of the starvation: ``pinned`` keeps the upstream socket open and unread, ``permit`` closes it and loses only the count.
        after: So many requests are treated correctly first.
        slots: Upstream exchanges at a time.
        limit_s: The constant of the time-out faults.
    """

    mechanism: str = "none"
    variant: str = "pinned"
    after: int = 0
    slots: int = 1024
    limit_s: float = 10.0

    def __post_init__(self) -> None:
        if self.mechanism not in FAULTS:
            raise MisuseError(
                f"no fault {self.mechanism!r}", remedy="one of: " + ", ".join(FAULTS) + "; see --list-faults"
            )
        if self.variant not in VARIANTS:
            raise MisuseError(f"no variant {self.variant!r}", remedy="one of: " + ", ".join(VARIANTS))
        if self.slots < 1:
            raise MisuseError(f"{self.slots} slots is no pool", remedy="try: --slots 4")

    def hits(self, mechanism: str, number: int) -> bool:
        """Whether request *number*, counted from 1, meets this *mechanism*."""
        return self.mechanism == mechanism and number > self.after


def read_fault(path: Path) -> tuple[str, str | None]:
    """Read a mechanism, and after it perhaps a variant, from a file, so that the command line does not tell.

    Raises:
        MisuseError: The file cannot be read or holds something else.
    """
    try:
        words = path.read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        raise MisuseError(f"{path}: cannot be read: {error}", remedy="write MECHANISM [VARIANT] into it") from error
    if not 1 <= len(words) <= 2:
        raise MisuseError(f"{path} holds {len(words)} words", remedy="write MECHANISM [VARIANT] into it")
    return words[0], words[1] if len(words) == 2 else None
