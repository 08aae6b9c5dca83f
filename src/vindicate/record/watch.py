"""What `vindicate watch` saw at one moment: how each service of the chain stood, who waited for whom, and what went wrong."""

from dataclasses import dataclass, field
from typing import Literal

__all__ = ["Owed", "Pins", "ServiceMoment", "State", "WatchSample"]

State = Literal["up", "silent", "down", "unseen"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pins:
    """How many of the requests that a service held all through the last *over_s* were the same ones.

    Attributes:
        verdict: ``pinned``: at least one, surely; ``rotating``: others took the places of all, or of most;
            ``stuck``: nothing moved at all; ``unknown``.
        least, most: Between so many were pinned, by Little's law (three standard deviations).
        held: The fewest that were held at any look, and *stages* where.
        ended: Requests that ended meanwhile; ``None``: it does not say.
    """

    verdict: Literal["pinned", "rotating", "stuck", "unknown"]
    least: int
    most: int
    held: int
    over_s: float
    ended: int | None
    stages: dict[str, int]
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Owed:
    """A request on a connection from *caller* to *callee* that has got no byte of an answer for *age_s*."""

    caller: str
    callee: str
    age_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceMoment:
    """One service at one moment; ``None`` is what it does not say.

    Attributes:
        state: ``up``: it answers or listens; ``silent``: it listens and does not answer; ``down``: nobody listens;
            ``unseen``: on another host, and asked for nothing.
        handover: Requests between prefill and decode: bootstrap, inflight, prealloc, transfer and retracted ones.
        streams: Answers that flow from it, by its sockets.
        open_silent: Callers' connections on which nothing moves; idle ones look the same.
        answer_bytes_per_s: Answer bytes that left it, by its sockets.
        errors: What its sockets show that should not be.
    """

    name: str
    role: str
    state: State
    pids: tuple[int, ...] = ()
    running: float | None = None
    waiting: float | None = None
    handover: float | None = None
    stages: dict[str, float] = field(default_factory=dict)
    tokens_per_s: float | None = None
    ended_per_s: float | None = None
    streams: int = 0
    open_silent: int = 0
    answer_bytes_per_s: float | None = None
    owed: int = 0
    oldest_owed_s: float | None = None
    pins: Pins | None = None
    restarted: bool = False
    errors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchSample:
    """`vindicate.watch/1`: one line of `vindicate watch --json`, and of the file that `--keep` appends to.

    Attributes:
        t_s: Since the watch began.
        owed: The oldest first, at most 20.
        verdict: Of the last passive diagnosis: ``fault``, ``healthy``, ``undetermined``; ``None`` before the first.
        lasting: That fault was found at least twice running.
        news: What changed since the sample before.
    """

    schema: str
    at: str
    t_s: float
    services: tuple[ServiceMoment, ...]
    owed: tuple[Owed, ...] = ()
    verdict: str | None = None
    guilty: str | None = None
    mechanism: str | None = None
    summary: str = ""
    lasting: bool = False
    news: tuple[str, ...] = ()
    cpu_s: float | None = None
