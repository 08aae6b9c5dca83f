"""How often does the verdict's test claim a difference that is not there, and find one that is? Beside the habits it replaces.

    python benchmarks/experiment_statistics.py [--repetitions 8000] [--seed 1]

A window of a start is, as a log: a day's level, a drift over the session, what the second start of a block gains, the arm's
effect, the start's own level (sd 2 %), the window's noise (sd 1 %, 20 windows). The sds are assumed, not measured: they order the
methods, they do not say how many blocks your stack needs. Nothing here is random but by the seed.

Bars, for the shipped test (balanced order, order-adjusted t on block log ratios): at most .06 false claims at 5 % nominal, at 4, 6,
8 and 12 blocks, in every scenario; the power that `ab --plan` promises and that an independent simulation found, within .03; under .05 false claims in a family of four levels
with looks after 6 and 12 blocks and Holm's correction. The habits stand beside it, and fail. Exit code 1: a bar is missed.
"""

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from vindicate.experiment.design import balanced_order
from vindicate.stats.holm import holm
from vindicate.stats.paired import order_adjusted_estimate, paired_estimate
from vindicate.stats.planning import alpha_split
from vindicate.stats.planning import power as planned_power

Floats = NDArray[np.float64]
BLOCKS = (4, 6, 8, 12)
WINDOWS, RESTART_SD, WINDOW_SD, DAY_SD = 20, 0.02, 0.01, 0.015
ALPHA, MOST_FALSE = 0.05, 0.06
# by true log ratio, from an independent simulation with code of its own
POWER = {0.012: (0.08, 0.12, 0.18, 0.27), 0.057: (0.58, 0.95, 1.0, 1.0), 0.128: (0.98, 1.0, 1.0, 1.0)}
POWER_WITHIN = 0.03


@dataclass(frozen=True)
class Scenario:
    """What the stack does besides being measured.

    Attributes:
        drift, second: Over the whole session; of the second start of a block.
        rho: Autocorrelation of windows. *heavy*: restarts by Student's t with 3 degrees. *slow*: 15 % of starts are 6 % slower.
    """

    name: str
    drift: float = 0.0
    second: float = 0.0
    rho: float = 0.0
    heavy: bool = False
    slow: bool = False


SCENARIOS = (
    Scenario("clean"),
    Scenario("drift 4 %, second run +1 %", drift=0.04, second=0.01),
    Scenario("windows rho .7, restarts t3", rho=0.7, heavy=True),
    Scenario("two regimes", slow=True),
    Scenario("replay: second run +2 %", second=0.02),
)


def starts(rng: np.random.Generator, scenario: Scenario, shape: tuple[int, ...]) -> Floats:
    """Each start's own level."""
    own = RESTART_SD * (rng.standard_t(3, shape) / np.sqrt(3) if scenario.heavy else rng.standard_normal(shape))
    return own - 0.06 * (rng.random(shape) < 0.15) if scenario.slow else own


def windows(rng: np.random.Generator, scenario: Scenario, shape: tuple[int, ...]) -> Floats:
    """Noise of the windows of each start."""
    noise = WINDOW_SD * rng.standard_normal((*shape, WINDOWS))
    for at in range(1, WINDOWS) if scenario.rho else ():
        noise[..., at] = scenario.rho * noise[..., at - 1] + np.sqrt(1 - scenario.rho**2) * noise[..., at]
    return noise


def campaign(
    rng: np.random.Generator, scenario: Scenario, a_first: NDArray[np.bool_], effect: float
) -> tuple[Floats, Floats]:
    """Logs of arms A and B, by repetition, block and window; *a_first* by repetition and block."""
    shape = a_first.shape
    n = shape[1]
    day = DAY_SD * rng.standard_normal((*shape, 1))
    slots = np.arange(2 * n).reshape(n, 2) / max(1, 2 * n - 1) * scenario.drift
    arms = []
    for arm, first in ((0.0, a_first), (effect, ~a_first)):
        place = np.where(first, slots[:, 0], slots[:, 1] + scenario.second)[..., None]
        own = starts(rng, scenario, shape)[..., None]
        arms.append(day + place + arm + own + windows(rng, scenario, shape))
    return arms[0], arms[1]


# ---- analyses: logs of both arms, and who ran first → a p each ---------------------------------------------------


def adjusted_p(d: Floats, a_first: NDArray[np.bool_]) -> Floats:
    """The shipped test, for many repetitions at once; :func:`check` holds it against the shipped code."""
    n = d.shape[1]
    half = n // 2
    ab = d[a_first].reshape(-1, half)  # balanced: each repetition has as many of both
    ba = d[~a_first].reshape(-1, half)
    mean = (ab.mean(1) + ba.mean(1)) / 2
    squares = ((ab - ab.mean(1, keepdims=True)) ** 2).sum(1) + ((ba - ba.mean(1, keepdims=True)) ** 2).sum(1)
    se = np.sqrt(squares / (n - 2)) * np.sqrt(2 / half) / 2
    return np.asarray(2 * stats.t.sf(np.abs(mean / se), n - 2))


def paired_p(d: Floats) -> Floats:
    """The plain paired t."""
    return np.asarray(stats.ttest_1samp(d, 0.0, axis=1).pvalue)


def percentile_p(rng: np.random.Generator, d: Floats) -> Floats:
    """Percentile bootstrap over blocks, 1000 resamples; a p of 0 or 1: whether the 95 % interval leaves out 0."""
    drawn = rng.integers(0, d.shape[1], (1000, d.shape[1]))
    low, high = np.percentile(d[:, drawn].mean(2), [2.5, 97.5], axis=1)
    return np.where((low > 0) | (high < 0), 0.0, 1.0)


def mann_whitney_p(a: Floats, b: Floats) -> Floats:
    """On all windows: the habit of canary judges."""
    flat = a.reshape(len(a), -1), b.reshape(len(b), -1)
    return np.asarray(stats.mannwhitneyu(*flat, axis=1).pvalue)


def balanced(rng: np.random.Generator, repetitions: int, n: int, looks: tuple[int, ...]) -> NDArray[np.bool_]:
    """Orders as the shipped design draws them."""
    drawn = [balanced_order(n, looks, int(seed))[0] for seed in rng.integers(0, 2**31, repetitions)]
    return np.array([[pair == "ab" for pair in order] for order in drawn])


def claims(p: Floats, alpha: float = ALPHA) -> float:
    """Share of repetitions that claim a difference."""
    return float((p <= alpha).mean())


def false_claims(rng: np.random.Generator, scenario: Scenario, n: int, repetitions: int) -> dict[str, float]:
    """Of the shipped test and of the habits, where nothing differs but chance."""
    order = balanced(rng, repetitions, n, (n,))
    a, b = campaign(rng, scenario, order, 0.0)
    d = b.mean(2) - a.mean(2)
    always = np.ones_like(order)
    first_a, first_b = campaign(rng, scenario, always, 0.0)
    # A..A then B..B: the same starts, but all of A before all of B, on one day: the habit's best case.
    slots = np.arange(2 * n) / (2 * n - 1) * scenario.drift
    apart = [
        slots[part, None]
        + starts(rng, scenario, (repetitions, n))[..., None]
        + windows(rng, scenario, (repetitions, n))
        for part in (slice(0, n), slice(n, 2 * n))
    ]
    few = slice(0, min(repetitions, 2000))
    peeks = np.min([paired_p(d[:, :stop]) for stop in range(3, n + 1)], axis=0)
    one = [part[:, 0, :] for part in apart]
    return {
        "shipped: balanced, adjusted t": claims(adjusted_p(d, order)),
        "plain paired t": claims(paired_p(d)),
        "one start an arm, t on windows": claims(np.asarray(stats.ttest_ind(*one, axis=1).pvalue)),
        "A..A B..B, t on windows": claims(
            np.asarray(stats.ttest_ind(*[part.reshape(repetitions, -1) for part in apart], axis=1).pvalue)
        ),
        "A..A B..B, t on starts": claims(np.asarray(stats.ttest_ind(*[part.mean(2) for part in apart], axis=1).pvalue)),
        "always A first, paired t": claims(paired_p(first_b.mean(2) - first_a.mean(2))),
        "Mann-Whitney on windows": claims(mann_whitney_p(a[few], b[few])),
        "percentile bootstrap": claims(percentile_p(rng, d[few])),
        "paired t, a look at every block": claims(peeks),
    }


def check(rng: np.random.Generator) -> None:
    """The vectorised tests above say what the shipped code says."""
    for n in BLOCKS:
        order = balanced(rng, 50, n, (n,))
        a, b = campaign(rng, SCENARIOS[1], order, 0.03)
        d = b.mean(2) - a.mean(2)
        adjusted, plain = adjusted_p(d, order), paired_p(d)
        for row, first, one, two in zip(d, order, adjusted, plain, strict=True):
            assert abs(order_adjusted_estimate(list(row[first]), list(row[~first])).p - one) < 1e-9
            assert abs(paired_estimate(list(row)).p - two) < 1e-9


def power(rng: np.random.Generator, scenario: Scenario, effect: float, n: int, repetitions: int) -> float:
    """How often the shipped test finds a true log ratio."""
    order = balanced(rng, repetitions, n, (n,))
    a, b = campaign(rng, scenario, order, effect)
    return claims(adjusted_p(b.mean(2) - a.mean(2), order))


def family(
    rng: np.random.Generator, repetitions: int, correct: Callable[[list[float]], list[float]], levels: int = 4
) -> float:
    """Share of campaigns that claim anything at any of four levels, 80 % of whose start effect is shared, looked at after 6 and 12."""
    looks = (6, 12)
    order = balanced(rng, repetitions, 12, looks)
    sd = np.sqrt(2 * (RESTART_SD**2 + WINDOW_SD**2 / WINDOWS))
    shared = np.sqrt(0.8) * sd * rng.standard_normal((repetitions, 12))
    each = np.sqrt(0.2) * sd * rng.standard_normal((levels, repetitions, 12))
    wrong = np.zeros(repetitions, dtype=bool)
    for stop, alpha in zip(looks, alpha_split(2), strict=True):
        ps = np.array([adjusted_p((shared + own)[:, :stop], order[:, :stop]) for own in each])
        wrong |= np.array([min(correct(list(column))) <= alpha for column in ps.T])
    return float(wrong.mean())


def run(repetitions: int, seed: int) -> list[str]:
    """Print every table; the bars that were missed."""
    rng = np.random.default_rng(seed)
    check(rng)
    missed = []
    print(f"false claims at {ALPHA:g} nominal, {repetitions} repetitions, at {' / '.join(map(str, BLOCKS))} blocks")
    for scenario in SCENARIOS:
        print(f"\n{scenario.name}")
        seen = [false_claims(rng, scenario, n, repetitions) for n in BLOCKS]
        for name in seen[0]:
            rates = [column[name] for column in seen]
            print(f"  {name:34}{'  '.join(f'{rate:.3f}' for rate in rates)}")
            if name.startswith("shipped") and max(rates) > MOST_FALSE:
                missed.append(f"false claims under {scenario.name}")
    print(
        "\npower of the shipped test at a true log ratio; what the plan promises; what an independent simulation found"
    )
    sd = float(np.sqrt(2 * (RESTART_SD**2 + WINDOW_SD**2 / WINDOWS)))
    for effect, wanted in POWER.items():
        promised = [planned_power(effect, sd, n, ALPHA, df=n - 2) for n in BLOCKS]
        for scenario in SCENARIOS[:2]:
            found = [power(rng, scenario, effect, n, repetitions) for n in BLOCKS]
            columns = ("  ".join(f"{each:.2f}" for each in part) for part in (found, promised, wanted))
            print(f"  {effect:<6}{scenario.name:28}{'     '.join(columns)}")
            apart = [abs(one - two) for other in (promised, wanted) for one, two in zip(found, other, strict=True)]
            if max(apart) > POWER_WITHIN:
                missed.append(f"power at {effect} under {scenario.name}")
    print("\nfalse claims in a family of four levels, looks after 6 and 12 blocks")
    for name, correct in (("Holm", holm), ("no correction", list)):
        rate = family(rng, repetitions, correct)
        print(f"  {name:16}{rate:.3f}")
        if name == "Holm" and rate >= ALPHA:
            missed.append("family error")
    return missed


def main() -> int:
    """Simulate and judge."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repetitions", type=int, default=8000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    missed = run(options.repetitions, options.seed)
    print("\nmissed: " + ", ".join(missed) if missed else "\nevery bar is met")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
