"""What an experiment records: the design as it was registered, one `Trial` a start, and what was concluded.

`Experiment` and `LevelEffect` carry the names of the published `vindicate.experiment/1` document.
"""

from dataclasses import dataclass, field
from typing import Literal

__all__ = [
    "ArmName",
    "Cell",
    "ClientError",
    "Design",
    "Earlier",
    "Experiment",
    "LevelEffect",
    "Outcome",
    "Price",
    "Start",
    "Trial",
]

ArmName = Literal["a", "b"]
Outcome = Literal["ok", "failed_start", "failed_load", "interrupted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientError:
    """How wrong the client's clocks were at one level, in the mean, against a mock that stamped with its own."""

    level: int
    requests: int
    ttft_ms: float
    itl_ms: float
    e2e_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelEffect:
    """B over A at one level.

    Attributes:
        p_holm: Counts all levels as one family; a named primary level is judged by *p*.
        client_error_pct: The client's own error as per cent of what it measured here; ``None`` where it was not calibrated.
    """

    level: int
    metric: str
    gain_pct: float | None
    lo_pct: float | None
    hi_pct: float | None
    confidence_pct: float
    p: float | None
    p_holm: float | None
    verdict: Literal["better", "worse", "equivalent", "unresolved", "invalid"]
    reason: str | None
    mde_pct: float | None
    more_blocks: int | None
    grade: Literal["A", "B", "C", "D"]
    blocks: int = 0
    lo90_pct: float | None = None
    hi90_pct: float | None = None
    value_a: float | None = None
    value_b: float | None = None
    sd_block_pct: float | None = None
    df: int | None = None
    p_equivalence: float | None = None
    p_sign_flip: float | None = None
    hodges_lehmann_pct: float | None = None
    block_gains_pct: tuple[float, ...] = ()
    client_error_pct: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier:
    """What an earlier experiment on the same stack said of the same knob.

    Attributes:
        workload: Everything that decides how much work a request is, by name.
        identity: What its services said of themselves, as in `Start`.
    """

    id: str
    measured_at: str
    a: str | None
    b: str | None
    workload: dict[str, str]
    identity: dict[str, str]
    effects: tuple[LevelEffect, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """Everything a verdict depends on, fixed before the first start.

    Attributes:
        a, b: Values of the knob; ``None`` is unset, ``""`` empty. Equal when an arm is compared with itself.
        order: One of ``ab`` and ``ba`` a block; balanced between two looks wherever the number of blocks there is even.
        order_adjusted: Whether the estimate takes the order of the arms out; only when it is balanced.
        alpha: What each look may spend.
        primary: A level named beforehand and judged by itself; ``None``: all levels, by Holm.
        margin: Share of A inside which a difference does not matter.
        rounds, max_tokens: Of each session, and of each answer, which *ignore_eos* makes go on to that length; *model*: ``None`` takes the first that the server names.
        rules: What may take a trial out, in words.
        client_error: The client's own error at each level, measured before the first start; no verdict smaller than it is given.
        earlier: Earlier experiments on this knob that the verdict is held against.
    """

    id: str
    question: str
    knob: str
    a: str | None
    b: str | None
    services: tuple[str, ...]
    restarted: tuple[str, ...]
    url: str
    levels: tuple[int, ...]
    primary: int | None
    metric: str
    margin: float
    blocks: int
    looks: tuple[int, ...]
    alpha: tuple[float, ...]
    seed: int
    order: tuple[str, ...]
    order_adjusted: bool
    requests_per_level: int
    rounds: int
    max_tokens: int
    model: str | None
    rules: tuple[str, ...]
    registered_at: str
    ignore_eos: bool = False
    client_error: tuple[ClientError, ...] = ()
    earlier: tuple[Earlier, ...] = ()

    @property
    def workload(self) -> dict[str, str]:
        """Everything that decides how much work a request is."""
        return {
            "url": self.url,
            "model": self.model or "the first",
            "rounds": str(self.rounds),
            "max_tokens": str(self.max_tokens),
            "ignore_eos": str(self.ignore_eos),
            "requests_per_level": str(self.requests_per_level),
        }

    def value(self, arm: ArmName) -> str | None:
        """What the knob is set to in *arm*."""
        return self.a if arm == "a" else self.b


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """One fresh start.

    Attributes:
        read_back: What every live process says it holds, by ``service/pid``.
        identity: What the services say of themselves, such as ``decode version``.
        covariates: Figures of this start that should be alike in both arms, such as ``decode max_total_num_tokens``.
        warm_up: Tokens a second in each round of the discarded warm-up.
    """

    took_s: float
    read_back: dict[str, str | None]
    identity: dict[str, str] = field(default_factory=dict)
    covariates: dict[str, float] = field(default_factory=dict)
    warm_up: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One level of one trial.

    Attributes:
        value: The metric; ``None`` when nothing completed.
        seed: From which the prompts were made; equal for both arms of a block, different in every block.
        tokens: Generated by all its requests.
        halves: The metric, or the mean of its kind, in the first and in the second half; ``None`` where either holds few requests.
        e2e_ms, ttft_ms: Means of the level, that the client's error is held against.
        cache_hit_share: Share of the prompt tokens that a prefix cache answered, as the server says it.
        client_cpu_share: Of one core.
        sm_clock_mhz, gpu_celsius: Means over the cards of this host while it ran.
        asked_sha256, answers_sha256: As in `LevelSummary`.
    """

    level: int
    value: float | None
    seed: int
    requests: int
    completed: int
    failed: int
    stalled: int
    truncated: int
    recall_asked: int
    recall_failed: int
    achieved_concurrency: float
    duration_s: float
    tokens: int | None = None
    halves: tuple[float, float] | None = None
    ttft_ms: float | None = None
    itl_ms: float | None = None
    e2e_ms: float | None = None
    cache_hit_share: float | None = None
    client_cpu_share: float | None = None
    client_lag_ms: float | None = None
    sm_clock_mhz: float | None = None
    gpu_celsius: float | None = None
    asked_sha256: str | None = None
    answers_sha256: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One start of one arm and what was measured on it.

    Attributes:
        block: From 1; 0 is the discarded priming start.
        attempt: A block that was interrupted is run again as a whole, as its next attempt.
        position: 1 or 2: which start of its block it was.
        problem: Why it is not ``ok``.
    """

    block: int
    attempt: int
    position: int
    arm: ArmName
    value: str | None
    outcome: Outcome
    started_at: str
    ended_at: str
    problem: str | None = None
    start: Start | None = None
    cells: tuple[Cell, ...] = ()
    client_cpu_s: float = 0.0
    simulated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """What an experiment says at its last look.

    Attributes:
        exclusions: Every trial or level that does not count, with its rule.
        would_change: What would change the verdict, in words.
        complete: Whether it ran to a look that stops it; otherwise it can be resumed.
    """

    schema: str
    id: str
    knob: str
    arms: dict[str, str | None]
    design: dict[str, object]
    blocks_done: int
    stopped_at_look: int | None
    effects: tuple[LevelEffect, ...]
    complete: bool = True
    simulated: bool = False
    aa: bool = False
    exclusions: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    would_change: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """What an experiment costs and what it can find, before anything is touched.

    Attributes:
        starts: Of the restart set, priming and the last one that puts everything back included.
        start_s: One start; *start_known* says whether it was measured on this stack or assumed.
        load_s: All load together; ``None`` when nothing was ever measured here.
        requests_are: The sum that *requests* is, for a person.
        sd_block_pct: Standard deviation of one block's ratio that was planned with; *sd_known* likewise.
        detectable_pct: Gain found with 80 % chance, by look, at a level judged by itself; *detectable_holm_pct*: at the
            strictest step of Holm over all levels.
    """

    starts: int
    restarts: int
    start_s: float
    start_known: bool
    load_s: float | None
    requests: int
    sd_block_pct: float
    sd_known: bool
    noise: str
    detectable_pct: tuple[float, ...]
    detectable_holm_pct: tuple[float, ...]
    alternatives: tuple[str, ...] = field(default=())
    requests_are: str = ""

    @property
    def minutes(self) -> float | None:
        """How long the stack serves nothing but this experiment, at most; ``None`` while the load's share is unknown."""
        return None if self.load_s is None else (self.starts * self.start_s + self.load_s) / 60
