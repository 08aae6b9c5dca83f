"""Effects on record → what one value of a knob is worth over another, per level, with grade, age and whether it may be used."""

from dataclasses import dataclass
from datetime import UTC, datetime

from vindicate.clock import parse_time
from vindicate.errors import MisuseError
from vindicate.ledger.fingerprint import changed_since
from vindicate.ledger.state import Book
from vindicate.record.ledger import Effect, Evidence

__all__ = ["STALE_AFTER_DAYS", "Worth", "effective", "inverted_pct", "lower_is_better", "worth_of"]

STALE_AFTER_DAYS = 180
_LATENCY = ("ttft", "tpot", "itl", "e2e", "latency")


@dataclass(frozen=True, slots=True, kw_only=True)
class Worth:
    """What the value given up gains over the one in force, at one level. An interval that the source does not give is ``None``."""

    level: int
    metric: str
    gain_pct: float
    lo90_pct: float | None
    hi90_pct: float | None
    blocks: int | None
    grade: str
    source: str
    measured_at: str
    stale: tuple[str, ...]
    usable: bool
    simulated: bool = False

    @property
    def lower_bound_pct(self) -> float | None:
        """The cautious end of the interval, counted so that more is better also for latencies; ``None`` without one."""
        if self.lo90_pct is None or self.hi90_pct is None:
            return None
        return -self.hi90_pct if lower_is_better(self.metric) else self.lo90_pct

    @property
    def upper_bound_pct(self) -> float | None:
        """The hopeful end of the interval, counted so that more is better also for latencies; ``None`` without one."""
        if self.lo90_pct is None or self.hi90_pct is None:
            return None
        return -self.lo90_pct if lower_is_better(self.metric) else self.hi90_pct

    @property
    def benefit_pct(self) -> float:
        """The estimate, counted so that more is better also for latencies."""
        return -self.gain_pct if lower_is_better(self.metric) else self.gain_pct


def lower_is_better(metric: str) -> bool:
    """Whether less of *metric* is good: a latency."""
    return metric.startswith(_LATENCY) or metric.endswith("_ms")


def inverted_pct(gain_pct: float) -> float:
    """A over B when B over A is *gain_pct*; ratios turn over, they do not change sign.

    Example:
        >>> round(inverted_pct(25.0), 6)
        -20.0
    """
    return (1 / (1 + gain_pct / 100) - 1) * 100


def worth_of(
    book: Book, knob: str, wanted: str | None, held: str | None, default: str | None = None, *, now: str
) -> tuple[Worth, ...]:
    """What *wanted* is worth over *held*, from every effect on record; never added up over levels.

    Args:
        default: The engine's own value of the knob, which an unset knob has too; ``None`` when it is not known.
        now: The moment that age is counted to, as `clock.iso` writes it.
    """
    found = [
        _worth(turned, item, book, now)
        for item, effect in book.effects.get(knob, ())
        if (turned := _turned(effect, wanted, held, default)) is not None
    ]
    return tuple(sorted(found, key=lambda worth: (worth.metric, worth.level, worth.grade, worth.source)))


def _turned(
    effect: Effect, wanted: str | None, held: str | None, default: str | None
) -> tuple[float, float | None, float | None, Effect] | None:
    a, b = (effective(value, default) for value in (effect.a, effect.b))
    pair = (effective(held, default), effective(wanted, default))
    if (a, b) == pair:
        return effect.gain_pct, effect.lo90_pct, effect.hi90_pct, effect
    if (b, a) == pair:
        low, high = (None if bound is None else inverted_pct(bound) for bound in (effect.hi90_pct, effect.lo90_pct))
        return inverted_pct(effect.gain_pct), low, high, effect
    return None


def effective(value: str | None, default: str | None) -> str | None:
    """What a process goes by: the value, or the engine's own *default* where it is unset; ``None`` when that is not known."""
    return default if value is None else value


def _worth(turned: tuple[float, float | None, float | None, Effect], item: Evidence, book: Book, now: str) -> Worth:
    gain, low, high, effect = turned
    measured_at = item.measured_at or book.evidence_at.get(item.id, "")
    stale = (*_staleness(measured_at, now), *changed_since(item, book.present))
    return Worth(
        level=effect.level,
        metric=effect.metric,
        gain_pct=round(gain, 2),
        lo90_pct=None if low is None else round(low, 2),
        hi90_pct=None if high is None else round(high, 2),
        blocks=effect.blocks,
        grade=effect.grade,
        source=item.id,
        measured_at=measured_at,
        stale=stale,
        usable=effect.grade in ("A", "B") and not stale and low is not None and high is not None,
        simulated=effect.simulated,
    )


def _staleness(measured_at: str, now: str) -> tuple[str, ...]:
    try:
        age = _moment(now) - _moment(measured_at)
    except MisuseError:
        return ("when it was measured is not known",)
    if age.days > STALE_AFTER_DAYS:
        return (f"age: {age.days} days, and {STALE_AFTER_DAYS} is the limit",)
    return ()


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(parse_time(text)).astimezone(UTC)
