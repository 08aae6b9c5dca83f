"""What a load run records: one `RequestRecord` a request, one `LevelSummary` a level. Names are those of `vindicate.load/1`."""

from dataclasses import dataclass, field
from typing import Literal

__all__ = ["LevelSummary", "LoadSummary", "Outcome", "Quantiles", "RequestRecord"]

Outcome = Literal["completed", "failed", "stalled", "truncated", "cancelled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """One request as the client saw it.

    Attributes:
        started_at: Wall clock, ISO 8601 UTC.
        start_s: Since the run began, monotonic.
        ttft_s: From just before the request was written to the first token's bytes at the socket.
        gaps_s: Between token arrivals.
        outcome: ``stalled``: no byte for the stall limit; ``truncated``: the body ended without its protocol's end;
            ``cancelled``: the client itself left, as agents do; never counted as completed.
        asked, answered: The planted value that this round asked for, and what came; ``None`` in a round that asks nothing.
        recalled: Whether the answer held the planted value; ``None`` when nothing was asked or nothing came.
        error: Its kind in one word: ``no_headers``, ``no_first_byte``, ``stalled``, ``no_end``, ``truncated``, ``reset``,
            ``refused``, ``http_503``, ``not_sse``, ``garbage``, ``error_event``, ``aborted``, ``over_length``, ``deadline``, ``interrupted`` …
        detail: What the server or the socket said, redacted.
        stall_age_s: Silence at the moment it was given up.
    """

    id: str
    level: int
    session: int
    round: int
    started_at: str
    start_s: float
    outcome: Outcome
    e2e_s: float
    ttft_s: float | None = None
    gaps_s: tuple[float, ...] = ()
    n_prompt_tokens: int | None = None
    n_tokens: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    status: int | None = None
    finish_reason: str | None = None
    error: str | None = None
    detail: str = ""
    stall_age_s: float | None = None
    asked: str | None = None
    answered: str | None = None
    recalled: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantiles:
    """Mean and quantiles of one quantity, in ms; a quantile is ``None`` where the sample cannot bound it."""

    n: int
    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelSummary:
    """One concurrency level of a run."""

    level: int
    duration_s: float
    requests: int
    completed: int
    failed: int
    stalled: int
    truncated: int
    cancelled: int
    recall_asked: int
    recall_failed: int
    output_tok_per_s: float | None
    ttft_ms: Quantiles
    itl_ms: Quantiles
    tpot_ms: Quantiles
    e2e_ms: Quantiles
    achieved_concurrency: float
    peak_concurrency: int
    errors: dict[str, int] = field(default_factory=dict)
    stall_ages_s: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSummary:
    """A whole run.

    Attributes:
        complete: It ran as planned: neither interrupted nor ended early.
        ended_early: Why it did not, in one sentence.
        out: The folder that holds its files.
    """

    schema: str
    url: str
    model: str
    started_at: str
    levels: tuple[LevelSummary, ...]
    client_cpu_s: float
    client_error_ms: float | None = None
    complete: bool = True
    simulated: bool = False
    seed: int | None = None
    ended_early: str | None = None
    out: str | None = None
