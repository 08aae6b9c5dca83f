"""Ledgers of 100 to 100,000 facts → how long standing and clawback take beside five raw reads of the same rows by SQLite.

Run it: python benchmarks/ledger_growth.py [--most N]. The bar: at 10,000 changes and 5,000 claims (the last two lines, over
1,000 knobs and all on one) a ratio below 1, and near-linear growth. *compute* is standing and clawback of facts that were
read; *with decoding* also reads them through our own code.
"""

import argparse
import gc
import math
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from vindicate.ledger.clawback import candidates
from vindicate.ledger.standing import standings
from vindicate.ledger.state import Book
from vindicate.ledger.store import Ledger, kind_of
from vindicate.record.ledger import Body, Change, ChangeStep, Claim, ClaimEvent, Effect, Evidence, Fact, Justification

NOW = "2026-12-01T00:00:00.000000Z"
STATUSES = ("open", "supported", "displaced", "refuted")


def bodies(changes: int, claims: int, knobs: int) -> Iterator[Body]:
    """A ledger in its own order: claims, then changes that rest on them, each knob set and set back again and again."""
    for number in range(claims):
        yield Claim(id=f"H{number}", text="it hangs", about=f"knob:KNOB_{number % knobs}=512")
    for number in range(changes):
        knob, back = f"KNOB_{number % knobs}", (number // knobs) % 2 == 1
        kind, pair = ("revert", ("512", "256")) if back else ("apply", ("256", "512"))
        name = f"C{number}"
        yield Change(id=name, kind=kind, knob=knob, services=("decode",), from_value=pair[0], to_value=pair[1])  # type: ignore[arg-type]
        yield Justification(change=name, claims=(f"H{number % claims}",))
        yield ChangeStep(change=name, state="done")
    for number in range(claims):
        yield ClaimEvent(claim=f"H{number}", status=STATUSES[number % 4], reason="seen")  # type: ignore[arg-type]
    for number in range(knobs):
        effect = Effect(
            knob=f"KNOB_{number}", a="256", b="512", level=64, metric="output_tok_per_s", gain_pct=5.0, grade="D"
        )
        yield Evidence(id=f"E{number}", kind="document", text="a table", effects=(effect,), measured_at=NOW)


def fill(path: Path, changes: int, claims: int, knobs: int) -> int:
    """Write such a ledger."""
    with Ledger.open(path) as ledger:
        return ledger.adopt(
            [
                Fact(
                    seq=seq,
                    kind=kind_of(body),
                    happened_at=f"2026-06-01T{seq // 3600 % 24:02d}:{seq // 60 % 60:02d}:{seq % 60:02d}.{seq:06d}Z",
                    recorded_at=NOW,
                    by="ann",
                    body=body,
                )
                for seq, body in enumerate(bodies(changes, claims, knobs), start=1)
            ]
        )


def seconds(what: Callable[[], object]) -> float:
    """The median of three runs."""
    took = []
    for _ in range(3):
        gc.collect()
        began = time.perf_counter()
        what()
        took.append(time.perf_counter() - began)
    return statistics.median(took)


def raw_reads(path: Path) -> None:
    """Five times every row, as SQLite gives it."""
    for _ in range(5):
        connection = sqlite3.connect(path)
        connection.execute("SELECT * FROM facts ORDER BY seq").fetchall()
        connection.close()


def compute(facts: list[Fact]) -> None:
    """Standing and clawback from facts that are read."""
    book = Book.from_facts(facts)
    standings(book)
    candidates(book, now=NOW)


def main() -> None:
    """Print a line a size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--most", type=int, default=100_000, help="facts of the largest ledger of the curve")
    most = parser.parse_args().most
    shapes = [(n // 5, n // 10, max(n // 50, 1)) for n in (100, 1000, 10_000, 100_000) if n <= most]
    print(
        f"{'facts':>8} {'changes':>8} {'claims':>7}  {'5 raw reads':>11}  {'compute':>8}  {'ratio':>5}  {'with decoding':>13}  growth"
    )
    before = None
    for changes, claims, knobs in [*shapes, (10_000, 5_000, 1_000), (10_000, 5_000, 1)]:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "ledger.db"
            count = fill(path, changes, claims, knobs)
            with Ledger.open(path, read_only=True) as ledger:
                decoding, facts = seconds(ledger.facts), ledger.facts()
            raw, took = seconds(lambda path=path: raw_reads(path)), seconds(lambda facts=facts: compute(facts))  # type: ignore[misc]
            curve = (changes, claims, knobs) in shapes
            power = (
                ""
                if before is None or not curve
                else f"n^{math.log(took / before[1]) / math.log(count / before[0]):.2f}"
            )
            print(f"{count:>8} {changes:>8} {claims:>7}  {raw * 1e3:>8.1f} ms  {took * 1e3:>5.0f} ms  {took / raw:>5.2f}  {(decoding + took) * 1e3:>10.0f} ms  {power}", flush=True)  # fmt: skip
            before = (count, took)


if __name__ == "__main__":
    main()
