"""What a load run records: one `RequestRecord` a request, one `LevelSummary` a level. Names are those of `vindicate.load/1`."""

from dataclasses import dataclass, field
from typing import Literal

__all__ = ["SLO_NAMES", "LevelSummary", "LoadSummary", "Outcome", "Quantiles", "RequestRecord"]

SLO_NAMES = ("ttft", "itl", "tpot", "e2e")
Outcome = Literal["completed", "failed", "stalled", "truncated", "cancelled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """One request as the client saw it.

    Attributes:
        started_at: Wall clock, ISO 8601 UTC.
        start_s: Since the run began, monotonic: when the client meant to send it. With a schedule that is the scheduled time,
            so that a late client or a full server cannot hide a wait (coordinated omission).
        sent_after_s: From *start_s* until it was written: lateness of the schedule, and connecting.
        ttft_s: From *start_s* to the first token's bytes at the socket; stamped at the read, before anything is parsed.
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
    sent_after_s: float | None = None
    ttft_s: float | None = None
    gaps_s: tuple[float, ...] = ()
    n_prompt_tokens: int | None = None
    n_cached_tokens: int | None = None
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
    """One concurrency level of a run, or the whole of an open loop; docs/load.md defines each figure.

    Attributes:
        level: Streams at a time; 0 when a schedule decides.
        steady_s: Length of the steady interval; rates are over it.
        slo_met, slo_pct, goodput_req_per_s: Requests that kept every bound of `--slo`; a request without the figure, or broken, did not.
        tokens, server_tokens: Tokens of all its requests as the client counts them; what the server's own counter grew by.
        client_lag_ms: How late the client's event loop was in the mean.
        client_error_ms: Mean error of its TTFT against a mock of known timing, where it was calibrated.
        warnings: Why these figures may be the client's rather than the server's.
        cache_hit_share: Share of the prompt tokens that the server says it had computed before; ``None`` where it says nothing.
        halves: Figures of the first and of the second half of the steady interval, by name; empty where either holds few requests.
        asked_sha256, answers_sha256: Hashes over the ids of the completed planted questions, and over their answers: of two runs
            with equal first hashes, the second are equal when every answer is.
    """

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
    steady_s: float | None = None
    requests_per_s: float | None = None
    slo_met: int | None = None
    slo_pct: float | None = None
    goodput_req_per_s: float | None = None
    sent_after_ms: Quantiles | None = None
    server_tokens: int | None = None
    tokens: int = 0
    client_cpu_s: float | None = None
    client_lag_ms: float | None = None
    client_error_ms: float | None = None
    warnings: tuple[str, ...] = ()
    cache_hit_share: float | None = None
    halves: dict[str, tuple[float, float]] = field(default_factory=dict)
    asked_sha256: str | None = None
    answers_sha256: str | None = None


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
