"""A bench with a virtual clock and a chosen truth, so that a whole campaign runs in milliseconds."""

import math
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

from vindicate.errors import EngineError
from vindicate.experiment.design import RULES, alphas, balanced_order, default_looks
from vindicate.experiment.journal import Before
from vindicate.experiment.run import Drive
from vindicate.record.experiment import Design, Start
from vindicate.record.load import LevelSummary, Quantiles


class JumpingClock:
    """Time passes only when somebody sleeps."""

    def __init__(self):
        self.passed = 0.0

    def monotonic(self):
        return self.passed

    def now(self):
        return datetime(2026, 5, 1, tzinfo=UTC) + timedelta(seconds=self.passed)

    def sleep(self, seconds):
        self.passed += seconds


class FakeBench:
    """Starts differ by *restart_sd*; arm values in *gains* are faster by that share, at every level or by level."""

    def __init__(self, gains, *, seed=1, restart_sd=0.02, running=("prefill", "decode")):
        self.gains = gains
        self.draw = random.Random(seed)
        self.restart_sd = restart_sd
        self.clock = JumpingClock()
        self.value, self.running = "256", running
        self.starts, self.driven, self.put_back_from = [], [], []
        self.fail_start = self.interrupt_drive = self.edit_cell = None

    def look(self):
        return Before(files=(), running=self.running, value=self.value)

    def start(self, before, value):
        self.clock.sleep(30)
        self.starts.append(value)
        self.value = value
        self.shift = self.draw.gauss(0, self.restart_sd)
        if self.fail_start and self.fail_start(len(self.starts), value):
            raise EngineError("decode: ended with exit code 1 before it was healthy", remedy="read its log")
        return Start(took_s=30.0, read_back={f"decode/{100 + len(self.starts)}": value})

    def warm_up(self, level, seed):
        self.clock.sleep(5)
        return 100.0

    def drive(self, level, seed, out: Path):
        self.clock.sleep(60)
        if self.interrupt_drive and self.interrupt_drive(len(self.driven) + 1):
            self.interrupt_drive = None
            raise KeyboardInterrupt
        self.driven.append((self.value, level, seed))
        gain = self.gains.get(self.value, 0.0)
        gain = gain.get(level, 0.0) if isinstance(gain, dict) else gain
        rate = 10 * level * (1 + gain) * math.exp(self.shift + self.draw.gauss(0, 0.003))
        cell = {"completed": 100, "failed": 0, "recall_failed": 0}
        if self.edit_cell:
            cell |= self.edit_cell(self.value, level) or {}
        return Drive(summary=_summary(level, rate, **cell), client_cpu_s=0.5, simulated=True)

    def put_back(self, before):
        self.put_back_from.append(self.value)
        self.value = before.value


def _summary(level, rate, *, completed, failed, recall_failed):
    empty = Quantiles(n=0)
    return LevelSummary(
        level=level,
        duration_s=60.0,
        requests=completed + failed,
        completed=completed,
        failed=failed,
        stalled=0,
        truncated=0,
        cancelled=0,
        recall_asked=75,
        recall_failed=recall_failed,
        output_tok_per_s=rate,
        ttft_ms=empty,
        itl_ms=empty,
        tpot_ms=empty,
        e2e_ms=empty,
        achieved_concurrency=float(level),
        peak_concurrency=level,
    )


def design_of(*, a="256", b="512", levels=(48, 64), blocks=6, looks=None, primary=None, seed=7, margin=0.03):
    looks = looks or default_looks(blocks)
    order, balanced = balanced_order(blocks, looks, seed)
    return Design(
        id="X1",
        question="does it help?",
        knob="TARGET_CTAS",
        a=a,
        b=b,
        services=("decode",),
        restarted=("prefill", "decode"),
        url="http://127.0.0.1:1",
        levels=levels,
        primary=primary,
        metric="output_tok_per_s",
        margin=margin,
        blocks=blocks,
        looks=looks,
        alpha=alphas(looks),
        seed=seed,
        order=order,
        order_adjusted=balanced,
        requests_per_level=100,
        rounds=4,
        max_tokens=16,
        model=None,
        rules=RULES,
        registered_at="2026-05-01T00:00:00.000000Z",
    )
