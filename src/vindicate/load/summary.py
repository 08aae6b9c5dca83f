"""RequestRecords of one level → a LevelSummary; pure arithmetic, nothing is counted that the sample cannot bear."""

import hashlib
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise

from vindicate.record.load import LevelSummary, Quantiles, RequestRecord

__all__ = ["busy_curve", "doubts", "quantiles", "steady_spans", "summarise", "time_average"]

# The smallest sample with a distribution-free two-sided 95 % interval for the quantile: its order statistics
# [x(1), x(n)] cover the p-quantile with probability 1 - p^n - (1-p)^n.
_SMALLEST = {0.50: 6, 0.90: 36, 0.95: 72, 0.99: 368}
# Between two requests of one slot there is only our own work; a longer gap means that the slot was not driven.
_HANDOVER_S = 1.0
_STEADY_SHARE = 0.9
_BUSY_SHARE = 0.9
_APART_SHARE = 0.02
_JUDGED_S = 1.0
_LAG_MS = 5.0
_LAG_SHARE = 0.05
_FEWEST_IN_HALF = 20  # below, one slow request moves a half's mean by several per cent

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
    if total <= 0 or not curve:
        return 0.0
    times = [time for time, _ in curve]
    areas = list(accumulate(((end - begin) * count for (begin, count), (end, _) in pairwise(curve)), initial=0.0))

    def area(until: float) -> float:
        at = bisect_right(times, until) - 1
        return areas[at] + (until - times[at]) * curve[at][1] if at >= 0 else 0.0

    return sum(area(end) - area(begin) for begin, end in within) / total


def summarise(
    level: int,
    duration_s: float,
    records: Sequence[RequestRecord],
    *,
    opens: bool = False,
    ramp_s: float = 0.0,
    slo_s: Mapping[str, float] | None = None,
) -> LevelSummary:
    """Sum up one level, or with *opens* an open loop. Latencies and tokens come from completed streams; a stream that the client left gives its tokens only."""
    outcomes = Counter(record.outcome for record in records)
    whole = [record for record in records if record.outcome == "completed"]
    steady = _arriving(records, ramp_s) if opens else steady_spans(records)
    steady_s = sum(end - begin for begin, end in steady)
    tokens = _tokens_within([record for record in records if record.outcome in ("completed", "cancelled")], steady)
    full = busy_curve((record.start_s, record.start_s + record.e2e_s) for record in records)
    good = [record for record in whole if _keeps(record, slo_s)] if slo_s else None
    asked = len(records) - outcomes["cancelled"]
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
        tpot_ms=quantiles(value for record in whole if (value := _tpot_s(record)) is not None),
        e2e_ms=quantiles(record.e2e_s for record in whole),
        achieved_concurrency=round(time_average(busy_curve(map(_live, records)), steady or _whole(records)), 3),
        peak_concurrency=max((count for _, count in full), default=0),
        errors=dict(sorted(Counter(record.error for record in records if record.error is not None).items())),
        tokens=sum(record.n_tokens for record in records),
        steady_s=round(steady_s, 3),
        requests_per_s=_rate(whole, steady),
        slo_met=len(good) if good is not None else None,
        slo_pct=round(100 * len(good) / asked, 2) if good is not None and asked else None,
        goodput_req_per_s=_rate(good, steady) if good is not None else None,
        sent_after_ms=quantiles(record.sent_after_s for record in records if record.sent_after_s is not None),
        stall_ages_s=tuple(
            record.stall_age_s for record in records if record.outcome == "stalled" and record.stall_age_s is not None
        ),
        cache_hit_share=_cache_hit_share(whole),
        halves=_halves(whole, steady),
        asked_sha256=_sha256(record.id for record in whole if record.answered is not None),
        answers_sha256=_sha256(f"{record.id} {record.answered}" for record in whole if record.answered is not None),
    )


def doubts(level: LevelSummary) -> Iterator[str]:
    """Why the figures of *level* may be the client's rather than the server's."""
    long_enough = level.duration_s >= _JUDGED_S
    if long_enough and level.client_cpu_s is not None and level.client_cpu_s > _BUSY_SHARE * level.duration_s:
        share = 100 * level.client_cpu_s / level.duration_s
        yield f"the client used {share:.0f} % of a core: it may have been the bottleneck; lower the load or share it out"
    ttft = level.ttft_ms.mean
    if level.client_lag_ms is not None and level.client_lag_ms > max(_LAG_MS, _LAG_SHARE * (ttft or 0.0)):
        yield f"the client's event loop was {level.client_lag_ms:.1f} ms late in the mean: latencies hold that much of its own"
    if level.server_tokens is not None and level.completed == level.requests:
        apart = abs(level.server_tokens - level.tokens)
        if apart > _APART_SHARE * max(level.tokens, level.server_tokens):
            yield f"the server counted {level.server_tokens} tokens and the client {level.tokens}: somebody else uses it, or one of the two counts wrong"


def _cache_hit_share(records: Sequence[RequestRecord]) -> float | None:
    told = [
        (record.n_prompt_tokens, record.n_cached_tokens)
        for record in records
        if record.n_prompt_tokens and record.n_cached_tokens is not None
    ]
    return round(sum(cached for _, cached in told) / sum(prompt for prompt, _ in told), 4) if told else None


def _halves(records: Sequence[RequestRecord], steady: Sequence[Span]) -> dict[str, tuple[float, float]]:
    """Rate and mean latencies before and after the middle of the steady interval; a request counts where it began."""
    if not steady:
        return {}
    middle = (steady[0][0] + steady[-1][1]) / 2
    before, after = _upto(steady, middle), _from(steady, middle)
    early = [record for record in records if record.start_s < middle]
    late = [record for record in records if record.start_s >= middle]
    if min(len(early), len(late)) < _FEWEST_IN_HALF:
        return {}
    rates = [
        _tokens_within(records, spans) / sum(end - begin for begin, end in spans) if spans else None
        for spans in (before, after)
    ]
    means = {
        f"{kind}_mean_ms": [
            quantiles(value for record in half if (value := of(record)) is not None).mean for half in (early, late)
        ]
        for kind, of in (
            ("ttft", lambda record: record.ttft_s),
            ("itl", lambda record: sum(record.gaps_s) / len(record.gaps_s) if record.gaps_s else None),
            ("tpot", _tpot_s),
            ("e2e", lambda record: record.e2e_s),
        )
    }
    return {
        name: (round(one, 3), round(two, 3))
        for name, (one, two) in {"output_tok_per_s": rates, **means}.items()
        if one and two
    }


def _upto(spans: Sequence[Span], time: float) -> list[Span]:
    return [(begin, min(end, time)) for begin, end in spans if begin < time]


def _from(spans: Sequence[Span], time: float) -> list[Span]:
    return [(max(begin, time), end) for begin, end in spans if end > time]


def _sha256(lines: Iterable[str]) -> str | None:
    ordered = sorted(lines)
    return hashlib.sha256(repr(ordered).encode()).hexdigest() if ordered else None


def _rate(records: Iterable[RequestRecord], within: Sequence[Span]) -> float | None:
    """Requests a second within; one that is there in part counts for its part, so that the borders decide nothing."""
    total = sum(end - begin for begin, end in within)
    if total <= 0:
        return None
    begins, ends = [begin for begin, _ in within], [end for _, end in within]
    count = 0.0
    for record in records:
        start, stop = _live(record)
        touched = within[bisect_left(ends, start) : bisect_right(begins, stop)]
        inside = sum(max(0.0, min(stop, end) - max(start, begin)) for begin, end in touched)
        count += inside / (stop - start) if stop > start else 0.0
    return round(count / total, 3)


def _keeps(record: RequestRecord, slo_s: Mapping[str, float] | None) -> bool:
    """Whether a completed request kept every bound; one without the figure did not."""
    found = {
        "ttft": record.ttft_s,
        "itl": max(record.gaps_s, default=None),
        "tpot": _tpot_s(record),
        "e2e": record.e2e_s,
    }
    return all((value := found[name]) is not None and value <= bound for name, bound in (slo_s or {}).items())


def _tpot_s(record: RequestRecord) -> float | None:
    return sum(record.gaps_s) / (record.n_tokens - 1) if record.gaps_s and record.n_tokens > 1 else None


def _arriving(records: Sequence[RequestRecord], ramp_s: float) -> list[Span]:
    """An open loop is steady from one median latency after its ramp until its last arrival; never, where that is less than half of one."""
    lengths = sorted(record.e2e_s for record in records if record.outcome == "completed")
    if not lengths:
        return []
    begin = min(record.start_s for record in records) + ramp_s + lengths[len(lengths) // 2]
    end = max(record.start_s for record in records)
    return [(begin, end)] if end - begin >= lengths[len(lengths) // 2] / 2 else []


def _whole(records: Sequence[RequestRecord]) -> list[Span]:
    """From the first start to the last end: what there is where nothing was steady."""
    spans = [_live(record) for record in records]
    return [(min(start for start, _ in spans), max(stop for _, stop in spans))] if spans else []


def _live(record: RequestRecord) -> Span:
    silent = record.stall_age_s or 0.0
    return record.start_s, record.start_s + max(0.0, record.e2e_s - silent)


def _tokens_within(records: Iterable[RequestRecord], within: Sequence[Span]) -> float:
    """Tokens that arrived within; where a chunk held several, each chunk counts for its share."""
    total = 0.0
    begins, ends = [begin for begin, _ in within], [end for _, end in within]
    for record in records:
        # An answer that was not streamed arrives at its end.
        first = record.e2e_s if record.ttft_s is None else record.ttft_s
        arrivals = list(accumulate(record.gaps_s, initial=record.start_s + first))
        touched = within[bisect_left(ends, arrivals[0]) : bisect_right(begins, arrivals[-1])]
        inside = sum(bisect_right(arrivals, end) - bisect_left(arrivals, begin) for begin, end in touched)
        total += inside * record.n_tokens / len(arrivals)
    return total
