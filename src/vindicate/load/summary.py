"""RequestRecords of one level → a LevelSummary; pure arithmetic, nothing is counted that the sample cannot bear."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise

from vindicate.record.load import LevelSummary, Quantiles, RequestRecord

__all__ = ["busy_curve", "quantiles", "steady_spans", "summarise", "time_average"]

# The smallest sample with a distribution-free two-sided 95 % interval for the quantile: its order statistics
# [x(1), x(n)] cover the p-quantile with probability 1 - p^n - (1-p)^n.
_SMALLEST = {0.50: 6, 0.90: 36, 0.95: 72, 0.99: 368}
# Between two requests of one slot there is only our own work; a longer gap means that the slot was not driven.
_HANDOVER_S = 1.0
_STEADY_SHARE = 0.9

Span = tuple[float, float]


def quantiles(values_s: Iterable[float]) -> Quantiles:
    """Mean and quantiles, in ms, of values in seconds; linear between order statistics (type 7 of Hyndman and Fan)."""
    ordered = sorted(values_s)
    n = len(ordered)
    if n == 0:
        return Quantiles(n=0)

    def at(share: float) -> float | None:
        if n < _SMALLEST[share]:
            return None
        place = share * (n - 1)
        below = int(place)
        above = min(below + 1, n - 1)
        return round(1000 * (ordered[below] + (place - below) * (ordered[above] - ordered[below])), 3)

    return Quantiles(
        n=n, mean=round(1000 * sum(ordered) / n, 3), p50=at(0.50), p90=at(0.90), p95=at(0.95), p99=at(0.99)
    )


def busy_curve(spans: Iterable[Span]) -> list[tuple[float, int]]:
    """Sweep over *spans*: the times at which the number of open ones changes, and that number from there on.

    At one instant ends count before starts, so that a slot which hands over is one stream, not two.
    """
    steps: Counter[float] = Counter()
    for begin, end in spans:
        if end > begin:
            steps[begin] += 1
            steps[end] -= 1
    times = sorted(steps)
    return list(zip(times, accumulate(steps[time] for time in times), strict=True))


def steady_spans(records: Sequence[RequestRecord]) -> list[Span]:
    """The times at which at least nine tenths of the peak number of sessions were live: no ramp, no drain.

    A stalled stream is live until its last event, so that the wait for it is in nobody's denominator.
    """
    by_session: dict[int, list[Span]] = {}
    for record in sorted(records, key=lambda record: record.start_s):
        spans = by_session.setdefault(record.session, [])
        live = _live(record)
        if spans and live[0] - spans[-1][1] <= _HANDOVER_S:
            spans[-1] = (spans[-1][0], max(spans[-1][1], live[1]))
        else:
            spans.append(live)
    curve = busy_curve(span for spans in by_session.values() for span in spans)
    if not curve:
        return []
    floor = _STEADY_SHARE * max(count for _, count in curve)
    steady: list[Span] = []
    for (begin, count), (end, _) in pairwise(curve):
        if count >= floor:
            if steady and steady[-1][1] == begin:
                steady[-1] = (steady[-1][0], end)
            else:
                steady.append((begin, end))
    return steady


def time_average(curve: Sequence[tuple[float, int]], within: Sequence[Span]) -> float:
    """The mean of the curve over the time *within*."""
    total = sum(end - begin for begin, end in within)
    area = 0.0
    for (begin, count), (end, _) in pairwise(curve):
        area += count * sum(max(0.0, min(end, high) - max(begin, low)) for low, high in within)
    return area / total if total > 0 else 0.0


def summarise(level: int, duration_s: float, records: Sequence[RequestRecord]) -> LevelSummary:
    """Sum up one level. Latencies and tokens come from completed streams; a stream that the client left gives its tokens only."""
    outcomes = Counter(record.outcome for record in records)
    whole = [record for record in records if record.outcome == "completed"]
    steady = steady_spans(records)
    steady_s = sum(end - begin for begin, end in steady)
    tokens = _tokens_within([record for record in records if record.outcome in ("completed", "cancelled")], steady)
    full = busy_curve((record.start_s, record.start_s + record.e2e_s) for record in records)
    return LevelSummary(
        level=level,
        duration_s=round(duration_s, 3),
        requests=len(records),
        completed=outcomes["completed"],
        failed=outcomes["failed"],
        stalled=outcomes["stalled"],
        truncated=outcomes["truncated"],
        cancelled=outcomes["cancelled"],
        recall_asked=sum(record.recalled is not None for record in records),
        recall_failed=sum(record.recalled is False for record in records),
        output_tok_per_s=round(tokens / steady_s, 3) if whole and steady_s > 0 else None,
        ttft_ms=quantiles(record.ttft_s for record in whole if record.ttft_s is not None),
        itl_ms=quantiles(gap for record in whole for gap in record.gaps_s),
        tpot_ms=quantiles(
            sum(record.gaps_s) / (record.n_tokens - 1) for record in whole if record.gaps_s and record.n_tokens > 1
        ),
        e2e_ms=quantiles(record.e2e_s for record in whole),
        achieved_concurrency=round(time_average(busy_curve(map(_live, records)), steady), 3),
        peak_concurrency=max((count for _, count in full), default=0),
        errors=dict(sorted(Counter(record.error for record in records if record.error is not None).items())),
        stall_ages_s=tuple(
            record.stall_age_s for record in records if record.outcome == "stalled" and record.stall_age_s is not None
        ),
    )


def _live(record: RequestRecord) -> Span:
    silent = record.stall_age_s or 0.0
    return record.start_s, record.start_s + max(0.0, record.e2e_s - silent)


def _tokens_within(records: Iterable[RequestRecord], within: Sequence[Span]) -> float:
    """Tokens that arrived within; where a chunk held several, each chunk counts for its share."""
    total = 0.0
    for record in records:
        if record.ttft_s is None:
            continue
        arrivals = list(accumulate(record.gaps_s, initial=record.start_s + record.ttft_s))
        inside = sum(any(begin <= at <= end for begin, end in within) for at in arrivals)
        total += inside * record.n_tokens / len(arrivals)
    return total
