"""Whole campaigns of `vindicate ab`, its own runner and judge, on the simulated RTX PRO 6000 in virtual time: is the truth inside the interval?

    python benchmarks/experiment_campaigns.py [--campaigns 200] [--seed 1]

The device's times come from the reference engine's own model, at a batch that is always full. Each figure is disturbed: every start
has its own speed (sd 2 %), every level of it too (sd .3 %), the host drifts by 4 % over a campaign, and the second start of a block
is 1 % faster. The truth is the device's own: the ratio of its step times. Simulated throughout; no figure here is one of a real card.

A second table plays a closed loop of prefill and decode through, step by step and without noise: there one or two of the level's
streams are always in prefill, and a batch of 62 cuts its work into other waves than one of 64 does. What clients of a whole chain
can gain is that, not the step's ratio; an experiment on them is right when it finds that.

Bars: at each level of 48, 64, 80 and 96, the interval (at the level of the look that stopped it) covers the truth in at least 93 % of the
campaigns; a knob that does nothing is called better or worse at any level in at most 6 % of as many. Exit code 1: a bar is missed.
"""

import argparse
import math
import random
import sys
import tempfile
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from vindicate.experiment.design import RULES, alphas, balanced_order, default_looks
from vindicate.experiment.journal import Before, Journal
from vindicate.experiment.run import Drive, run_experiment
from vindicate.record.experiment import Design, Experiment, Start
from vindicate.record.load import LevelSummary, Quantiles
from vindicate.reference.device import KNOB, SimulatedDevice
from vindicate.stats.waves import CARDS

CARD, LEVELS, BLOCKS = CARDS["rtx-pro-6000"], (48, 64, 80, 96), 12
RESTART_SD, LEVEL_SD, DRIFT, SECOND = 0.02, 0.003, 0.04, 0.01
LEAST_COVERED, MOST_FALSE = 0.93, 0.06
PROMPT_TOKENS, MAX_TOKENS, ROUNDS = 60, 64, 4


Rates = dict[tuple[int, str | None], float]


def true_gain_pct(level: int, a: int, b: int) -> float:
    """What the device gains at a full batch: the ratio of its step times."""
    slow, fast = (SimulatedDevice(CARD, target).step_s(level) for target in (a, b))
    return 100 * (slow / fast - 1)


def device_rates() -> Rates:
    """Tokens a second of the device alone, at a full batch."""
    return {
        (level, str(target)): level / SimulatedDevice(CARD, target).step_s(level)
        for level in LEVELS
        for target in (256, 512)
    }


def throughput(level: int, target: int) -> float:
    """Tokens a second of *level* clients in a closed loop: one prefill at a time, decode in steps of all that are ready."""
    device = SimulatedDevice(CARD, target)
    step, now, prefill_free = 0, 0.0, 0.0
    ready: list[float] = []  # when each prompt is computed
    left: list[int] = []  # tokens that each running stream still wants
    draw = random.Random(0)

    def send(at: float) -> None:
        nonlocal prefill_free
        prefill_free = max(prefill_free, at) + device.prefill_s(PROMPT_TOKENS * draw.randint(1, ROUNDS))
        ready.append(prefill_free)

    for _ in range(level):
        send(0.0)
    counted, began, steps = 0, 0.0, 8 * MAX_TOKENS
    while step < steps:
        joined = sum(at <= now for at in ready)
        left += [MAX_TOKENS] * joined
        ready = [at for at in ready if at > now]
        if not left:
            now = min(ready)
            continue
        now += device.step_s(len(left))
        step += 1
        if step == steps // 4:
            began, counted = now, 0
        counted += len(left)
        left = [each - 1 for each in left]
        for _ in range(left.count(0)):
            send(now)
        left = [each for each in left if each]
    return counted / (now - began)


class VirtualClock:
    """Time passes only when somebody sleeps."""

    passed = 0.0

    def monotonic(self) -> float:
        """Seconds."""
        return self.passed

    def now(self) -> datetime:
        """A day like any other."""
        return datetime(2026, 5, 1, tzinfo=UTC) + timedelta(seconds=self.passed)

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.passed += seconds


class VirtualBench:
    """A bench of the simulated device with everything that disturbs a real one."""

    def __init__(self, rates: Rates, seed: int) -> None:
        self.rates = rates
        self.draw = random.Random(seed)
        self.clock = VirtualClock()
        self.value: str | None = "256"
        self.n_starts = 0
        self.own = 0.0

    def look(self) -> Before:
        """Nothing has to be put back."""
        return Before(files=(), running=(), value="256")

    def start(self, _before: Before, value: str | None) -> Start:
        """A fresh start has its own speed."""
        self.clock.sleep(30)
        self.value, self.n_starts, self.own = value, self.n_starts + 1, self.draw.gauss(0, RESTART_SD)
        return Start(took_s=30.0, read_back={f"decode/{self.n_starts}": value})

    def warm_up(self, level: int, _seed: int) -> float:
        """One round."""
        self.clock.sleep(7)
        return self.rates[level, self.value]

    def drive(self, level: int, _seed: int, _out: Path) -> Drive:
        """One level; the second start of a block is the faster, and the host drifts."""
        self.clock.sleep(30)
        measured = max(0, self.n_starts - 3)  # two priming starts
        place = DRIFT * measured / (2 * BLOCKS - 1) + SECOND * (measured % 2)
        rate = self.rates[level, self.value] * math.exp(self.own + place + self.draw.gauss(0, LEVEL_SD))
        return Drive(summary=summary(level, rate), client_cpu_s=3.0, simulated=True)

    def put_back(self, before: Before) -> None:
        """As it was."""
        self.value = before.value


def summary(level: int, rate: float) -> LevelSummary:
    """A level in which everything went well."""
    requests = 4 * max(LEVELS)
    none = Quantiles(n=0)
    return LevelSummary(
        level=level,
        duration_s=requests * MAX_TOKENS / rate,
        requests=requests,
        completed=requests,
        failed=0,
        stalled=0,
        truncated=0,
        cancelled=0,
        recall_asked=requests,
        recall_failed=0,
        output_tok_per_s=rate,
        ttft_ms=none,
        itl_ms=none,
        tpot_ms=none,
        e2e_ms=replace(none, n=requests, mean=1000 * MAX_TOKENS * level / rate),
        achieved_concurrency=float(level),
        peak_concurrency=level,
        tokens=requests * MAX_TOKENS,
    )


def design(a: str, b: str, seed: int) -> Design:
    """As `vindicate ab` would plan it by default."""
    looks = default_looks(BLOCKS)
    order, adjusted = balanced_order(BLOCKS, looks, seed)
    return Design(
        id="X1",
        question=f"{KNOB}: {b} over {a}",
        knob=KNOB,
        a=a,
        b=b,
        services=("decode",),
        restarted=("decode",),
        url="http://simulated",
        levels=LEVELS,
        primary=None,
        metric="output_tok_per_s",
        margin=0.03,
        blocks=BLOCKS,
        looks=looks,
        alpha=alphas(looks),
        seed=seed,
        order=order,
        order_adjusted=adjusted,
        requests_per_level=4 * max(LEVELS),
        rounds=ROUNDS,
        max_tokens=MAX_TOKENS,
        model=None,
        rules=RULES,
        registered_at="2026-05-01T00:00:00Z",
    )


def campaign(a: str, b: str, rates: Rates, seed: int, folder: Path) -> Experiment:
    """One, from registration to its last look."""
    plan, bench = design(a, b, seed), VirtualBench(rates, seed)
    journal = Journal(folder / f"{a}-{b}-{seed}" / "X1")
    journal.register(plan)
    return run_experiment(plan, bench, journal, clock=bench.clock, say=lambda _line: None)


def run(campaigns: int, seed: int) -> list[str]:
    """Print what was found; the bars that were missed."""
    rates = device_rates()
    print(f"{'level':>6}  the device's own gain  gain of the closed loop  (simulated {CARD.name}, {KNOB} 256 to 512)")
    for level in LEVELS:
        loop = 100 * (throughput(level, 512) / throughput(level, 256) - 1)
        print(f"{level:>6}  {true_gain_pct(level, 256, 512):>20.2f} %  {loop:>21.2f} %")
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        seeds = range(1000 * seed, 1000 * seed + campaigns)
        real = [campaign("256", "512", rates, each, Path(folder)) for each in seeds]
        same = [campaign("256", "256", rates, each, Path(folder)) for each in seeds]
    missed = []
    print(f"\n{campaigns} campaigns each, {time.monotonic() - began:.0f} s")
    stops = [result.blocks_done for result in real]
    print(f"blocks until it stopped: {stops.count(6)} campaigns after 6, {stops.count(12)} after 12")
    for at, level in enumerate(LEVELS):
        truth = true_gain_pct(level, 256, 512)
        effects = [result.effects[at] for result in real]
        inside = sum(
            item.lo_pct is not None and item.hi_pct is not None and item.lo_pct <= truth <= item.hi_pct
            for item in effects
        )
        verdicts = {
            name: sum(item.verdict == name for item in effects) for name in sorted({i.verdict for i in effects})
        }
        print(
            f"level {level}: covers {truth:.2f} % in {inside} of {campaigns} ({100 * inside / campaigns:.1f} %); {verdicts}"
        )
        if inside < LEAST_COVERED * campaigns:
            missed.append(f"coverage at {level}")
    wrong = sum(any(item.verdict in ("better", "worse") for item in result.effects) for result in same)
    said = {item.verdict for result in same for item in result.effects}
    print(
        f"a knob that does nothing: something found in {wrong} of {campaigns} ({100 * wrong / campaigns:.1f} %); verdicts {sorted(said)}"
    )
    if wrong > MOST_FALSE * campaigns:
        missed.append("false findings of A/A")
    return missed


def main() -> int:
    """Simulate and judge."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--campaigns", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    missed = run(options.campaigns, options.seed)
    print("missed: " + ", ".join(missed) if missed else "every bar is met")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
