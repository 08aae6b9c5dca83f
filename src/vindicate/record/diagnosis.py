"""What a diagnosis says: findings with a direction, one verdict, what is cleared of what, and what stayed unseen.

Field names are those of the published `vindicate.diagnosis/1` document.
"""

from dataclasses import dataclass, field
from typing import Literal

__all__ = [
    "FAILS_AT_ONCE",
    "REFUSALS",
    "Aggravator",
    "Clearance",
    "Diagnosis",
    "Direction",
    "Finding",
    "FindingKind",
    "Layer",
    "Status",
    "Suspect",
]

# Kinds of mechanisms by which a service fails at once, for all to see: no hang; and what others are cleared of then.
FAILS_AT_ONCE = (
    "answers_errors",
    "not_ready",
    "down",
    "stopped",
    "not_listening",
    "not_accepting",
    "crash_loop",
    "certificate_expired",
    "out_of_memory",
    "disk_full",
)
REFUSALS = "refusing or failing requests"

Status = Literal["fault", "healthy", "undetermined"]
Layer = Literal[
    "client",
    "network",
    "proxy",
    "gateway",
    "router",
    "prefill",
    "decode",
    "engine",
    "transfer",
    "host",
    "request",
    "metrics",
    "none",
]
FindingKind = Literal["conservation", "wait-for", "probe", "counter", "queue", "socket", "process", "log", "host"]
Direction = Literal["implicates", "clears", "neutral"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing seen, with its numbers in *measured*; *service* is the node it speaks of."""

    id: str
    service: str
    kind: FindingKind
    direction: Direction
    text: str
    measured: dict[str, str | float | int | bool | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Clearance:
    """*service*, and with it *knobs*, is cleared of one named hazard, for a reason; never of everything."""

    service: str
    knobs: tuple[str, ...]
    of: str
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """A service that may be at fault; never a conviction."""

    service: str
    mechanism: str
    confidence: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggravator:
    """A second fault that makes the first one worse, and is not the root."""

    service: str
    mechanism: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The verdict over one capture. Without a fault *layer* is ``none`` and *service*, *mechanism* are ``None``."""

    schema: str
    status: Status
    layer: Layer
    service: str | None
    mechanism: str | None
    confidence: float
    summary: str
    cleared: tuple[Clearance, ...] = ()
    suspects: tuple[Suspect, ...] = ()
    aggravators: tuple[Aggravator, ...] = ()
    findings: tuple[Finding, ...] = ()
    next: tuple[str, ...] = ()
    blind: tuple[str, ...] = ()
    started_at: str = ""
    window_s: float = 0.0
    took_s: float = 0.0
