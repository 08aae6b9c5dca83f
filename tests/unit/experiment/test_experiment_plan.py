"""Questions, designs and prices: what is fixed before the first start, and what is refused."""

import math
import re
from dataclasses import replace

import pytest

from fakes.bench import design_of
from vindicate.errors import MisuseError
from vindicate.experiment.design import balanced_order, check_plan, default_looks, is_flat, level_order, level_seed
from vindicate.experiment.metric import METRICS, higher_is_better, metric_value, require_metric
from vindicate.experiment.price import Noise, Pace, price
from vindicate.experiment.question import parse_numbers, parse_question, parse_share
from vindicate.record.load import LevelSummary, Quantiles
from vindicate.view.experiment import price_text


@pytest.mark.parametrize(
    ("text", "flags", "expected"),
    [
        ("K=256..512", {}, ("256", "512")),
        ("K=..512", {}, ("", "512")),
        ("K=..512", {"unset_a": True}, (None, "512")),
        ("K=256..", {"unset_b": True}, ("256", None)),
        ("K=1.5..2.5", {}, ("1.5", "2.5")),
        ("K=a=b..c", {}, ("a=b", "c")),
        ("K=..", {"unset_a": True}, (None, "")),
    ],
)
def test_reads_a_knob_with_two_values_unset_and_empty_being_two_things(text, flags, expected):
    question = parse_question(text, **flags)
    assert (question.a, question.b) == expected


@pytest.mark.parametrize(
    ("text", "flags", "part"),
    [
        ("K", {}, "no question"),
        ("K=256", {}, "no question"),
        ("=1..2", {}, "no question"),
        ("K=1..2..3", {}, "no question"),
        ("K=1...3", {}, "no question"),
        ("K=5..5", {}, "--aa K"),
        ("K=1..2", {"unset_a": True}, "--unset-a"),
    ],
)
def test_refuses_another_form_and_says_how_to_write_it(text, flags, part):
    with pytest.raises(MisuseError) as caught:
        parse_question(text, **flags)
    assert part in caught.value.problem + caught.value.remedy
    assert text in caught.value.problem


@pytest.mark.parametrize("seed", range(20))
def test_order_is_balanced_at_every_look_and_comes_from_the_seed(seed):
    order, balanced = balanced_order(12, (6, 12), seed)
    assert balanced
    assert [order[:6].count("ab"), order[6:].count("ab")] == [3, 3]
    assert balanced_order(12, (6, 12), seed) == (order, True)


def test_orders_of_different_seeds_differ_and_an_odd_block_falls_to_chance():
    assert len({balanced_order(12, (6, 12), seed)[0] for seed in range(20)}) > 10
    order, balanced = balanced_order(5, (5,), 3)
    assert not balanced
    assert sorted([order.count("ab"), order.count("ba")]) == [2, 3]


def test_default_looks_are_half_way_and_the_end_from_eight_blocks_on():
    assert [default_looks(blocks) for blocks in (3, 6, 8, 10, 12)] == [(3,), (6,), (4, 8), (4, 10), (6, 12)]


@pytest.mark.parametrize(
    ("blocks", "looks", "levels", "primary", "part"),
    [
        (2, (2,), (8,), None, "2 blocks"),
        (12, (6,), (8,), None, "looks 6"),
        (12, (3, 6, 9, 12), (8,), None, "looks 3,6,9,12"),
        (12, (2, 12), (8,), None, "after 2 blocks"),
        (6, (6,), (8, 8), None, "levels 8,8"),
        (6, (6,), (0, 8), None, "levels 0,8"),
        (6, (6,), (8, 16), 64, "level 64"),
    ],
)
def test_refuses_a_plan_that_cannot_be_judged(blocks, looks, levels, primary, part):
    with pytest.raises(MisuseError, match=part):
        check_plan(blocks, looks, levels, primary)


def test_prompts_differ_between_blocks_and_levels_and_are_the_same_again_for_the_same_ones():
    seeds = {level_seed(7, block, level) for block in range(12) for level in (48, 64, 80, 96)}
    assert len(seeds) == 48
    assert level_seed(7, 3, 64) == level_seed(7, 3, 64) != level_seed(8, 3, 64)


def test_levels_are_shuffled_in_every_block_and_hold_each_once():
    levels = (48, 64, 80, 96)
    orders = [level_order(levels, 7, block) for block in range(12)]
    assert all(sorted(order) == list(levels) for order in orders)
    assert len(set(orders)) > 5
    assert level_order(levels, 7, 3) == orders[3]


@pytest.mark.parametrize(
    ("rates", "flat"),
    [
        ((), True),
        ((9.0,), False),
        ((90.0, 100.0), False),
        ((98.0, 100.0), True),
        ((100.0, 80.0), True),
        ((50, 80, 83), True),
    ],
)
def test_a_warm_up_is_flat_when_no_round_is_faster_than_those_before(rates, flat):
    assert is_flat(rates) is flat


def test_numbers_and_margins_are_read_or_refused_with_the_value_seen():
    assert parse_numbers("48,64", "--levels") == (48, 64)
    assert parse_share("3%") == parse_share("3") == 0.03
    for text in ("", "48,", "a", "-1", "4 8"):
        with pytest.raises(MisuseError, match="--levels is"):
            parse_numbers(text, "--levels")
    for text in ("0%", "x", "99%", "-3%"):
        with pytest.raises(MisuseError, match="--margin is"):
            parse_share(text)


def test_price_counts_priming_measured_starts_and_the_last_one():
    cost = price(design_of(blocks=12))
    assert cost.starts == 2 + 24 + 1
    assert cost.restarts == 2 * cost.starts
    assert cost.requests == 24 * (2 * 100 + 2 * 64) + 2 * 2 * 64
    assert cost.minutes is None


def test_price_says_what_was_assumed_and_what_was_measured():
    design = replace(design_of(blocks=12, levels=(64,)), order_adjusted=False, alpha=(0.05, 0.05))
    assumed = price(design)
    assert assumed.detectable_pct == pytest.approx((4.17, 2.57), abs=0.02)
    text = price_text(design, assumed)
    assert text.count("assumed") == 2
    known = price(design, noise=Noise(sd=0.01, df=10, experiments=2), pace=Pace(start_s=12.0, request_s=0.1))
    assert known.sd_block_pct == pytest.approx(1.28, abs=0.02)
    assert known.minutes == pytest.approx((27 * 12 + 26 * (100 + 2 * 64) * 0.1) / 60)
    assert "assumed" not in price_text(design, known)


def test_price_shows_the_sum_of_requests_and_takes_a_change_s_restart_where_no_trial_was_timed():
    design = design_of(blocks=12)
    cost = price(design, restart_s=41.5)
    assert (cost.start_s, cost.start_known, cost.minutes) == (41.5, True, None)
    assert price(design, restart_s=41.5, pace=Pace(start_s=12.0, request_s=0.1)).start_s == 12.0
    text = price_text(design, cost)
    assert "41.5 s each, measured here" in text
    total, _, terms = (
        next(line for line in text.splitlines() if "requests  " in line).split(None, 1)[1].partition(" = ")
    )
    products = [re.findall(r"\d+", re.sub(r"\(.*\)", "", term)) for term in terms.split(" + ")]
    assert sum(math.prod(map(int, product)) for product in products) == int(total)


def test_every_metric_is_found_in_a_summary_and_only_throughput_is_better_when_higher():
    numbers = Quantiles(n=9, mean=1.0, p50=2.0, p90=3.0, p95=4.0, p99=5.0)
    summary = LevelSummary(
        level=8, duration_s=1, requests=9, completed=9, failed=0, stalled=0, truncated=0, cancelled=0, recall_asked=0,
        recall_failed=0, output_tok_per_s=7.0, ttft_ms=numbers, itl_ms=numbers, tpot_ms=numbers, e2e_ms=numbers,
        achieved_concurrency=8, peak_concurrency=8,
    )  # fmt: skip
    values = {name: metric_value(summary, name) for name in METRICS}
    assert values["output_tok_per_s"] == 7.0
    assert (values["ttft_mean_ms"], values["e2e_p99_ms"]) == (1.0, 5.0)
    assert [name for name in METRICS if higher_is_better(name)] == ["output_tok_per_s"]
    with pytest.raises(MisuseError, match="no metric 'speed'"):
        require_metric("speed")
