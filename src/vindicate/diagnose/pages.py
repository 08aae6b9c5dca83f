"""A service's metric pages over the window → gauges, growth of counters and means of histograms, per label set."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from vindicate.diagnose.progress import Reading
from vindicate.record.observation import Capture, MetricValue

__all__ = ["Pages", "pages_of"]

RANKS = ("tp_rank", "pp_rank", "moe_ep_rank")
Labels = tuple[tuple[str, str], ...]
Choice = Callable[[Mapping[str, str]], bool]


@dataclass(frozen=True, slots=True)
class Pages:
    """Pages in time order: time of reading, and the samples by name without the engine's prefix."""

    looks: tuple[tuple[float, Mapping[str, tuple[MetricValue, ...]]], ...]

    def gauge(self, name: str, where: Choice | None = None) -> Reading | None:
        """The gauge over time, summed over label sets; ranks that repeat one another count once. ``None``: never seen."""
        values = []
        for t, page in self.looks:
            its = _per_set(page.get(name, ()), where)
            if its:
                values.append((t, sum(its.values())))
        return Reading(tuple(values)) if values else None

    def growth(self, *names: str) -> float | None:
        """Growth of the first of *names* that is there, from first to last page; ``None``: not there on both, or it fell."""
        for name in names:
            seen = [_per_set(page[name], None) for _, page in self.looks if name in page]
            if len(seen) > 1:
                grown = [after - seen[0][labels] for labels, after in seen[-1].items() if labels in seen[0]]
                return sum(grown) if grown and min(grown) >= 0 else None
        return None

    def total(self, *names: str) -> float | None:
        """The newest value of the first of *names* that is there."""
        return next((r.last for r in map(self.gauge, names) if r is not None), None)

    def mean(self, histogram: str) -> tuple[float | None, float | None]:
        """Mean of *histogram* before the window and within it; ``None`` with fewer than 5 observations."""
        sums, counts = self.gauge(f"{histogram}_sum"), self.gauge(f"{histogram}_count")
        if sums is None or counts is None or len(counts.values) < 2 or len(sums.values) != len(counts.values):
            return None, None
        n_before, n_within = counts.values[0][1], counts.last - counts.values[0][1]
        before = sums.values[0][1] / n_before if n_before >= 5 else None
        within = (sums.last - sums.values[0][1]) / n_within if n_within >= 5 else None
        return before, within

    def quartile(self, histogram: str) -> float | None:
        """The bucket bound below which a quarter of all observations before the window lay; ``None`` without buckets."""
        if not self.looks:
            return None
        counts: dict[float, float] = {}
        for one in self.looks[0][1].get(f"{histogram}_bucket", ()):
            try:
                bound = float(dict(one.labels).get("le", ""))
            except ValueError:
                continue
            counts[bound] = counts.get(bound, 0.0) + one.value
        total = counts.get(float("inf"), 0.0)
        if total < 20:
            return None
        return next((bound for bound in sorted(counts) if counts[bound] >= total / 4 and bound < float("inf")), None)

    def ranks(self, name: str) -> Iterator[dict[Labels, list[float]]]:
        """For each label set without its rank labels: rank → its values over time, where at least two ranks show it."""
        found: dict[Labels, dict[Labels, list[float]]] = {}
        for _, page in self.looks:
            for one in page.get(name, ()):
                rank = tuple(pair for pair in one.labels if pair[0] in RANKS)
                rest = tuple(pair for pair in one.labels if pair[0] not in RANKS)
                found.setdefault(rest, {}).setdefault(rank, []).append(one.value)
        yield from (by_rank for by_rank in found.values() if len(by_rank) > 1)


def _per_set(samples: tuple[MetricValue, ...], where: Choice | None) -> dict[Labels, float]:
    found: dict[Labels, float] = {}
    for one in samples:
        if where is None or where(dict(one.labels)):
            key = tuple(pair for pair in one.labels if pair[0] not in RANKS)
            found[key] = max(one.value, found.get(key, one.value))
    return found


def pages_of(capture: Capture, service: str) -> Pages:
    """The metric pages of *service*."""
    looks = []
    for scrape in sorted(capture.scrapes, key=lambda s: s.t_s):
        if scrape.service == service and scrape.kind == "metrics" and scrape.values:
            page: dict[str, list[MetricValue]] = {}
            for one in scrape.values:
                page.setdefault(one.name.rpartition(":")[2], []).append(one)
            looks.append((scrape.t_s, {name: tuple(its) for name, its in page.items()}))
    return Pages(tuple(looks))
