"""What a load run is to do: where, how much, for how long, and what it does about silence."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import msgspec

from vindicate.errors import MisuseError
from vindicate.load.dialect import Api
from vindicate.load.schedule import Arrivals, TraceLine
from vindicate.record.load import SLO_NAMES
from vindicate.redact import redact_text

__all__ = ["LoadPlan", "Turn", "read_sessions", "server_url"]


class Turn(msgspec.Struct, frozen=True):
    """One round of a session from a file: what the user says, and a text that a good answer holds."""

    say: str
    expect: str | None = None


class _Session(msgspec.Struct):
    rounds: list[Turn]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """A closed loop of multi-round sessions at each level in turn, or an open loop.

    Attributes:
        url: The server, without the API path.
        model: ``None`` takes the first of `/v1/models`.
        levels: Streams at a time.
        requests_per_level: Stop a level after so many; without it, and without *duration_s*, every slot plays one session.
        duration_s: Stop starting requests of a level after so long.
        stall_after_s: Silence after which a stream counts as stalled; heartbeat comments are silence.
        deadline_s: Age at which any stream is given up, however lively.
        cancel_share: Share of streams, 0 to 1, that the client abandons in the middle, as agents do.
        ignore_eos: Every answer goes on to *max_tokens*, so that all requests are equal work; SGLang and vLLM know it.
        seed: Decides keys, values and cancellations; two runs of one seed send the same prompts. ``None`` draws one.
        api_key_env: Name of the variable that holds the key.
        sessions: Played in turn instead of planted ones, where given.
        rate: Open loop instead of *levels*: so many sessions arrive a second, however many are still running; latencies count
            from the moment at which they were to arrive. *arrivals* and *burst* say in which manner.
        trace: Open loop by a file: each request at its own time.
        ramp_s: Until all slots play, or until the rate is reached.
        client_errors_ms: Mean error of this client's TTFT at a level, where it was calibrated.
        slo_s: Bounds on ``ttft``, ``itl``, ``tpot``, ``e2e`` in seconds; a good request keeps them all.
    """

    url: str
    model: str | None = None
    levels: tuple[int, ...] = (8,)
    requests_per_level: int | None = None
    duration_s: float | None = None
    rounds: int = 4
    max_tokens: int = 64
    ignore_eos: bool = False
    stall_after_s: float = 30.0
    deadline_s: float = 600.0
    cancel_share: float = 0.0
    seed: int | None = None
    api_key_env: str | None = None
    sessions: tuple[tuple[Turn, ...], ...] = ()
    rate: float | None = None
    arrivals: Arrivals = "poisson"
    burst: int = 8
    trace: tuple[TraceLine, ...] = ()
    ramp_s: float = 0.0
    client_errors_ms: Mapping[int, float] = field(default_factory=dict)
    api: Api = "chat"
    streaming: bool = True
    slo_s: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        server_url(self.url)
        for name, value, good in (
            ("levels", self.levels, bool(self.levels) and all(level >= 1 for level in self.levels)),
            ("requests", self.requests_per_level, self.requests_per_level is None or self.requests_per_level >= 1),
            ("duration", self.duration_s, self.duration_s is None or self.duration_s > 0),
            ("rounds", self.rounds, self.rounds >= 1),
            ("max-tokens", self.max_tokens, self.max_tokens >= 1),
            ("stall-after", self.stall_after_s, self.stall_after_s > 0),
            ("deadline", self.deadline_s, self.deadline_s > 0),
            ("rate", self.rate, self.rate is None or 0 < self.rate < float("inf")),
            ("burst", self.burst, self.burst >= 1),
            ("ramp", self.ramp_s, 0 <= self.ramp_s < float("inf")),
            ("slo", dict(self.slo_s), self.slo_s.keys() <= set(SLO_NAMES) and all(x > 0 for x in self.slo_s.values())),
            ("cancel-share", self.cancel_share, 0 <= self.cancel_share <= 1),
        ):
            if not good:
                raise MisuseError(f"--{name} is {value}", remedy="see: vindicate load --help")

        if self.rate is not None and self.requests_per_level is None and self.duration_s is None:
            raise MisuseError("--rate has no end", remedy="add --requests N or --duration S")

    @property
    def is_open(self) -> bool:
        """Whether requests are sent by a schedule, not when others end."""
        return self.rate is not None or bool(self.trace)

    def budget(self, level: int) -> int | None:
        """Requests to send at *level*; ``None`` when only time ends it."""
        if self.is_open or self.requests_per_level is not None or self.duration_s is not None:
            return self.requests_per_level
        rounds = max((len(session) for session in self.sessions), default=self.rounds)
        return level * rounds

    def api_key(self) -> str | None:
        """The key, read from its variable.

        Raises:
            MisuseError: The variable is named and not set.
        """
        if self.api_key_env is None:
            return None
        key = os.environ.get(self.api_key_env)
        if not key:
            raise MisuseError(f"${self.api_key_env} is not set", remedy=f"try: export {self.api_key_env}=…")
        return key


def server_url(text: str) -> str:
    """Check a server's URL and strip what belongs to the API: ``http://h:1/v1/chat/completions`` → ``http://h:1``.

    Raises:
        MisuseError: It is no http URL with a host.
    """
    try:
        parts = urlsplit(text)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        parts, good = urlsplit(""), False
    if not good:
        raise MisuseError(f"{redact_text(text)!r} is no URL", remedy="try: http://127.0.0.1:8000")
    path = parts.path.rstrip("/")
    for ending in ("/chat/completions", "/completions", "/generate", "/v1"):
        path = path.removesuffix(ending)
    return urlunsplit((parts.scheme, parts.netloc, path, "", ""))


def read_sessions(path: Path) -> tuple[tuple[Turn, ...], ...]:
    """Read sessions from a JSON Lines file: ``{"rounds": [{"say": "…", "expect": "…"}]}`` a line, *expect* optional.

    Raises:
        MisuseError: It cannot be read, or a line is something else.
    """
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise MisuseError(f"{path}: cannot be read: {error.strerror}", remedy="check the path") from error
    sessions = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                rounds = msgspec.json.decode(line, type=_Session).rounds
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise MisuseError(
                    f"{path}:{number}: {error}", remedy='a line is {"rounds": [{"say": "…", "expect": "…"}]}'
                ) from error
            sessions.append(tuple(rounds))
    if not any(sessions):
        raise MisuseError(f"{path} holds no session", remedy='a line is {"rounds": [{"say": "…", "expect": "…"}]}')
    return tuple(session for session in sessions if session)
