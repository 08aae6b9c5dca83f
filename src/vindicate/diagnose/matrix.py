"""Several prefills and decodes, each pair probed → the one directed pair that does not pass KV while both ends do with others."""

from collections.abc import Iterator

from vindicate.diagnose.ladder import fault_class
from vindicate.diagnose.pages import pages_of
from vindicate.diagnose.pool import FAILURES
from vindicate.diagnose.rule import Against, Clue, Scene, count, oldest

__all__ = ["bad_cells"]


def bad_cells(scene: Scene) -> Iterator[Clue]:
    """Clues to a prefill that sends nothing to one decode."""
    cells = {p.covers[:2]: p for p in scene.ladder.good if p.shape == "pd_pair" and len(p.covers) == 2}
    bad = {p.covers[:2]: p for p in scene.ladder.bad if p.shape == "pd_pair" and len(p.covers) == 2}
    if len(bad) != 1:
        return
    (decode, prefill), probe = next(iter(bad.items()))
    if (decode, prefill) in cells or fault_class(probe) not in ("silent", "errors", "stalled"):
        return
    with_decode = [p for d, p in cells if d == decode]
    with_prefill = [d for d, p in cells if p == prefill]
    if not with_decode or not with_prefill:
        return  # one end alone may be at fault
    mechanism = "kv.session_blacklist"
    against = Against(prefill, mechanism, layer="transfer")
    yield against(
        "probe",
        0.7,
        f"a small request as the pair {prefill} and {decode} failed; {prefill} with {', '.join(with_prefill)} and {decode} with {', '.join(with_decode)} were complete",
        pairs_well=len(cells),
        pairs_bad=1,
        error=probe.error,
    )
    failed = sum(pages_of(scene.capture, prefill).total(counter) or 0 for counter in FAILURES)
    if failed:
        yield against("counter", 0.4, f"{prefill} counts {failed:g} failed KV transfers", failed=failed)
    waits = scene.progress[decode].gauges.get("transfer")
    if waits is not None and waits.last >= 1:
        yield against("queue", 0.4, f"{waits.last:g} requests at {decode} wait for KV", waiting_for_kv=waits.last)
    owed = tuple(link for link in scene.account.nodes[prefill].owed if link.is_open and link.waited_s >= 3.0)
    if owed:
        yield against(
            "wait-for",
            0.4,
            f"{prefill} owes {count(len(owed), 'request')}, the oldest for {oldest(owed):.0f} s",
            owed=len(owed),
            oldest_s=oldest(owed),
        )
