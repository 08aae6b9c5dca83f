"""Nine ways in which benchmarks of serving stacks mislead, as records: each ends invalid or unresolved, and names what went wrong."""

import math
import random
from dataclasses import replace

import pytest

from fakes.bench import design_of
from vindicate.experiment.judge import judge_experiment
from vindicate.record.experiment import Cell, ClientError, Earlier, LevelEffect, Start, Trial

LEVEL = 64


def cell_of(value, *, seed=1, **more):
    figures = {"requests": 256, "completed": 256, "tokens": 256 * 64, "achieved_concurrency": 63.0, "duration_s": 60.0}
    figures |= {
        "ttft_ms": 400.0,
        "itl_ms": 60.0,
        "e2e_ms": 4000.0,
        "client_cpu_share": 0.2,
        "client_lag_ms": 0.4,
        "failed": 0,
    }
    return Cell(
        level=LEVEL, value=value, seed=seed, stalled=0, truncated=0, recall_asked=192, recall_failed=0,
        **figures | more,
    )  # fmt: skip


def campaign(design, figures, *, noise=0.01, seed=11, started=None, priming=True):
    """Trials of *design*; ``figures(block, arm, position)`` gives a value, or a value and fields of the cell."""
    draw = random.Random(seed)
    trials = [trial_of(design, 0, arm, 1 if arm == "a" else 2, ()) for arm in ("a", "b")] if priming else []
    for block, order in enumerate(design.order, 1):
        for position, arm in enumerate(order, 1):
            told = figures(block, arm, position)
            value, more = told if isinstance(told, tuple) else (told, {})
            value *= math.exp(draw.gauss(0, noise))
            cells = (cell_of(value, **{"seed": block} | more),)
            trials.append(
                trial_of(design, block, arm, position, cells, **(started or (lambda *_: {}))(block, arm, position))
            )
    return trials


def trial_of(design, block, arm, position, cells, **start):
    value = design.value(arm)
    began = Start(took_s=30.0, read_back={f"decode/{100 * block + position}": value}, **start)
    return Trial(
        block=block, attempt=1, position=position, arm=arm, value=value, outcome="ok", started_at=f"2026-05-01T{block:02}",
        ended_at=f"2026-05-01T{block:02}", start=began, cells=cells,
    )  # fmt: skip


def one_level(**plan):
    return design_of(**{"levels": (LEVEL,), "blocks": 6} | plan)


def judged(design, trials):
    result = judge_experiment(design, trials)
    (effect,) = result.effects
    return result, effect


def test_the_records_themselves_are_sound_so_that_a_plain_gain_is_better():
    design = one_level()
    _, effect = judged(design, campaign(design, lambda _b, arm, _p: 112 if arm == "b" else 100))
    assert (effect.verdict, effect.grade, effect.reason) == ("better", "A", None)


# ---- F04 the client is the bottleneck ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("metric", "field", "part"),
    [
        ("output_tok_per_s", {"client_cpu_share": 0.99}, "99 % of a core"),
        ("output_tok_per_s", {"client_lag_ms": 350.0}, "350 ms late"),
        ("ttft_p50_ms", {"client_lag_ms": 35.0}, "of 400 ms measured"),
        ("itl_mean_ms", {"client_lag_ms": 7.0}, "of 60 ms measured"),
    ],
)
def test_a_client_that_is_the_bottleneck_gives_no_verdict_on_the_server(metric, field, part):
    design = replace(one_level(), metric=metric)
    result, effect = judged(design, campaign(design, lambda _b, arm, _p: (112 if arm == "b" else 100, field)))
    assert effect.verdict == "invalid"
    assert "the client was the bottleneck" in effect.reason
    assert part in effect.reason
    assert len(result.exclusions) == 12


def test_a_client_that_is_late_by_little_is_no_bottleneck():
    design = one_level()
    _, effect = judged(
        design, campaign(design, lambda _b, arm, _p: (112 if arm == "b" else 100, {"client_lag_ms": 35.0}))
    )
    assert effect.verdict == "better", "35 ms of 4 s requests is under 5 %"


@pytest.mark.parametrize(("gain", "verdict"), [(0.004, "unresolved"), (0.05, "better")])
def test_no_verdict_is_smaller_than_the_client_s_own_error(gain, verdict):
    design = replace(
        one_level(margin=0.001),
        client_error=(ClientError(level=LEVEL, requests=192, ttft_ms=30.0, itl_ms=0.1, e2e_ms=80.0),),
    )
    trials = campaign(design, lambda _b, arm, _p: 100 * (1 + gain * (arm == "b")), noise=0.0002)
    _, effect = judged(design, trials)
    assert effect.client_error_pct == pytest.approx(2.0)
    assert effect.verdict == verdict
    if verdict == "unresolved":
        assert "client's own E2E error is 2 %" in effect.reason
        assert effect.more_blocks is None


def test_no_equivalence_within_a_margin_that_the_client_cannot_see():
    design = replace(
        one_level(margin=0.01),
        client_error=(ClientError(level=LEVEL, requests=192, ttft_ms=1.0, itl_ms=0.1, e2e_ms=80.0),),
    )
    _, effect = judged(design, campaign(design, lambda *_: 100, noise=0.0005))
    assert effect.verdict == "unresolved"
    assert "the margin is smaller" in effect.reason


# ---- F44 an innocent upgrade on a base that another change slowed down --------------------------------------------


def earlier(value, *, verdict="unresolved", gain=0.0, a="256", b="512", reason=None, identity=None, **workload):
    design = one_level()
    effect = LevelEffect(
        level=LEVEL, metric="output_tok_per_s", gain_pct=gain, lo_pct=-1, hi_pct=1, confidence_pct=95, p=0.5, p_holm=0.5,
        verdict=verdict, reason=reason, mde_pct=2, more_blocks=0, grade="A", value_a=value, value_b=value,
    )  # fmt: skip
    return Earlier(
        id="X1", measured_at="2026-04-12T00:00:00Z", a=a, b=b, workload=design.workload | workload,
        identity=identity or {"decode version": "0.5.9", "decode device": "one per GPU"}, effects=(effect,),
    )  # fmt: skip


def now(identity):
    return lambda *_: {"identity": identity}


def test_equal_arms_on_a_base_that_moved_do_not_acquit_the_knob_and_the_base_is_to_be_bisected():
    design = replace(one_level(), earlier=(earlier(360.0),))
    placement = {"decode version": "0.5.9", "decode device": "two on one GPU"}
    _, effect = judged(design, campaign(design, lambda *_: 100, started=now(placement), noise=0.004))
    assert effect.verdict == "unresolved"
    assert "X1 measured" in effect.reason
    assert "-72 %" in effect.reason
    assert "decode device was one per GPU and is two on one GPU" in effect.reason
    assert "bisect" in effect.reason


def test_a_difference_on_a_base_that_moved_is_kept_with_a_remark():
    design = replace(one_level(), earlier=(earlier(360.0),))
    result, effect = judged(design, campaign(design, lambda _b, arm, _p: 112 if arm == "b" else 100))
    assert effect.verdict == "better"
    assert any("X1 measured" in line for line in result.notes)


@pytest.mark.parametrize("other", [earlier(104.0), earlier(360.0, max_tokens="512"), earlier(360.0, a="7", b="8")])
def test_a_base_that_stood_still_or_cannot_be_compared_changes_nothing(other):
    design = replace(one_level(), earlier=(other,))
    _, effect = judged(design, campaign(design, lambda *_: 100, noise=0.004))
    assert effect.verdict == "equivalent"


# ---- F45 the prefix cache ----------------------------------------------------------------------------------------


def test_a_cache_that_answers_the_second_start_of_each_block_makes_it_invalid():
    design = one_level()

    def figures(_block, _arm, position):
        return (230, {"cache_hit_share": 0.93}) if position == 2 else (100, {"cache_hit_share": 0.04})

    result, effect = judged(design, campaign(design, figures))
    assert effect.verdict == "invalid"
    assert "prefix cache hits unequal: " in effect.reason
    assert "93 %" in effect.reason
    assert len(result.exclusions) == 6


def test_hits_that_follow_the_arm_in_both_orders_may_be_the_knob_s_doing_and_are_said():
    design = one_level()

    def figures(_block, arm, _position):
        return (130, {"cache_hit_share": 0.6}) if arm == "b" else (100, {"cache_hit_share": 0.1})

    result, effect = judged(design, campaign(design, figures))
    assert effect.verdict == "better"
    assert any("prefix cache hits: 10 % in a and 60 % in b" in line for line in result.notes)


def test_prompts_that_an_earlier_block_asked_already_do_not_count():
    design = one_level()
    result, effect = judged(design, campaign(design, lambda _b, arm, _p: (112 if arm == "b" else 100, {"seed": 7})))
    assert effect.verdict == "invalid"
    assert "prompts were those of block 1" in effect.reason
    assert len(result.exclusions) == 5


def test_arms_that_were_asked_different_prompts_do_not_count():
    design = one_level()
    _, effect = judged(design, campaign(design, lambda block, arm, _p: (100, {"seed": 2 * block + (arm == "b")})))
    assert effect.verdict == "invalid"
    assert "different prompts" in effect.reason


# ---- F46 warm-up -------------------------------------------------------------------------------------------------


def test_a_gain_that_is_only_in_the_first_half_is_a_warm_up():
    design = one_level()

    def figures(block, arm, _position):
        wobble = 1 + 0.004 * math.sin(block)
        return (116.8, {"halves": (100 * wobble, 100)}) if arm == "b" else (100, {"halves": (70, 100 * wobble)})

    _, effect = judged(design, campaign(design, figures))
    assert effect.verdict == "invalid"
    assert "still warming up" in effect.reason
    assert "in the first half" in effect.reason


def test_a_gain_that_is_in_both_halves_is_a_gain_although_both_arms_slow_down():
    design = one_level()

    def figures(block, arm, _position):
        wobble = 1 + 0.004 * math.sin(block)
        return (116.8, {"halves": (117 * wobble, 105)}) if arm == "b" else (100, {"halves": (100, 90 * wobble)})

    _, effect = judged(design, campaign(design, figures))
    assert effect.verdict == "better"


def test_without_a_discarded_first_start_it_is_said_and_carries_no_change():
    design = one_level()
    result, effect = judged(design, campaign(design, lambda _b, arm, _p: 112 if arm == "b" else 100, priming=False))
    assert effect.grade == "C"
    assert any("discarded first start" in line for line in result.notes)


def test_starts_that_were_still_getting_faster_are_said():
    design = one_level()
    slow = lambda *_: {"warm_up": (50.0, 60.0, 70.0, 80.0, 90.0, 100.0)}  # noqa: E731
    result, _ = judged(design, campaign(design, lambda *_: 100, started=slow))
    assert any("12 of 14 starts were still getting faster" in line for line in result.notes)


# ---- F47 order ---------------------------------------------------------------------------------------------------


def test_a_then_b_alone_cannot_tell_order_and_arm_apart_whatever_the_plan_says():
    for balanced in (True, False):
        design = replace(one_level(), order=("ab",) * 6, order_adjusted=balanced)
        _, effect = judged(
            design, campaign(design, lambda _b, _arm, position: 103 if position == 2 else 100, noise=0.001)
        )
        assert effect.verdict == "invalid"
        assert "order and arm cannot be told apart" in effect.reason


def test_an_order_effect_is_taken_out_and_said():
    design = one_level()
    result, effect = judged(
        design, campaign(design, lambda _b, _arm, position: 106 if position == 2 else 100, noise=0.002)
    )
    assert effect.verdict == "equivalent"
    assert abs(effect.gain_pct) < 0.5
    assert any("whatever runs second in its block measures +" in line for line in result.notes)


# ---- F48 clocks --------------------------------------------------------------------------------------------------


def test_clocks_that_differ_between_the_arms_of_blocks_take_them_out():
    design = one_level()

    def figures(_block, _arm, position):
        return (62, {"sm_clock_mhz": 1500.0}) if position == 2 else (100, {"sm_clock_mhz": 2400.0})

    _, effect = judged(design, campaign(design, figures))
    assert effect.verdict == "invalid"
    assert "SM clock unequal" in effect.reason
    assert "1500 MHz" in effect.reason


def test_a_card_that_sinks_through_the_whole_campaign_is_said_and_moves_no_ratio():
    design = one_level(blocks=6)

    def figures(block, arm, position):
        at = 2 * block + position
        return (112 if arm == "b" else 100) * (1 - 0.02 * at), {"sm_clock_mhz": 2400.0 - 20 * at}

    result, effect = judged(design, campaign(design, figures, noise=0.002))
    assert effect.verdict == "better"
    assert effect.lo_pct < 12 < effect.hi_pct
    assert any("drifts; the SM clock went from" in line for line in result.notes)


# ---- F49 survivorship --------------------------------------------------------------------------------------------


def test_the_slower_server_that_lost_half_its_clients_is_not_the_faster():
    design = replace(one_level(), metric="ttft_p50_ms")

    def figures(_block, arm, _position):
        return (80, {"completed": 120, "failed": 136}) if arm == "a" else 100

    _, effect = judged(design, campaign(design, figures))
    assert effect.verdict == "invalid"
    assert "arm a lost 6 of 6 blocks" in effect.reason
    assert "136 of 256 requests did not complete" in effect.reason


@pytest.mark.parametrize(
    ("field", "part"),
    [
        ({"tokens": 256 * 48}, "unequal work: 64.0 tokens a request in a, 48.0 in b"),
        ({"achieved_concurrency": 40.0}, "unequal load"),
    ],
)
def test_unequal_work_and_unequal_load_are_no_comparison(field, part):
    design = one_level()
    _, effect = judged(design, campaign(design, lambda _b, arm, _p: (112, field) if arm == "b" else 100))
    assert effect.verdict == "invalid"
    assert part in effect.reason


# ---- F50 each start draws a mode ---------------------------------------------------------------------------------


def test_one_start_an_arm_is_no_verdict():
    design = one_level()
    result, effect = judged(design, campaign(design, lambda _b, arm, _p: 33 if arm == "b" else 26)[:4])
    assert effect.verdict == "unresolved"
    assert not result.complete
    assert "nothing is claimed" in effect.reason


@pytest.mark.parametrize("seed", range(8))
def test_two_modes_a_start_are_unresolved_and_named(seed):
    design = one_level(blocks=12, looks=(12,))
    draw = random.Random(seed)
    result, effect = judged(design, campaign(design, lambda *_: 33 if draw.random() < 0.7 else 26, seed=seed))
    assert effect.verdict == "unresolved"
    assert "fall into two groups" in effect.reason
    assert any("each start draws one" in line for line in result.notes)


def test_a_gain_is_not_taken_for_two_modes():
    design = one_level(blocks=12, looks=(12,))
    result, effect = judged(design, campaign(design, lambda _b, arm, _p: 130 if arm == "b" else 100))
    assert effect.verdict == "better"
    assert not any("two groups" in line for line in result.notes)


# ---- F51 a reproduction that is none -----------------------------------------------------------------------------


def test_not_finding_it_with_less_work_withdraws_nothing():
    found = earlier(100.0, verdict="better", gain=12.8, max_tokens="4096")
    design = replace(one_level(), earlier=(found,))
    _, effect = judged(design, campaign(design, lambda *_: 100, noise=0.004))
    assert effect.verdict == "unresolved"
    assert "no repetition of X1, which found +12.8 %" in effect.reason
    assert "max_tokens 4096 there and 16 here" in effect.reason


def test_a_stall_that_smaller_requests_do_not_show_is_not_refuted():
    stalled = earlier(
        None, verdict="invalid", gain=None, reason="arm b does not survive its load: stalled", max_tokens="4096"
    )
    design = replace(one_level(), earlier=(stalled,))
    _, effect = judged(design, campaign(design, lambda *_: 100, noise=0.004))
    assert effect.verdict == "unresolved"
    assert "that arm b does not survive its load" in effect.reason


# ---- the arms themselves -----------------------------------------------------------------------------------------


def test_arms_that_differ_in_version_differ_in_more_than_the_knob():
    design = one_level()
    other = lambda _b, arm, _p: {"identity": {"decode version": "0.5.10" if arm == "b" else "0.5.9"}}  # noqa: E731
    _, effect = judged(design, campaign(design, lambda _b, arm, _p: 112 if arm == "b" else 100, started=other))
    assert effect.verdict == "invalid"
    assert "decode version is 0.5.9 in a and 0.5.10 in b" in effect.reason


def test_a_backend_that_the_knob_chooses_is_what_is_compared_and_is_said():
    design = one_level()
    result, effect = judged(
        design,
        campaign(
            design,
            lambda _b, arm, _p: 112 if arm == "b" else 100,
            started=lambda _b, arm, _p: {"identity": {"decode attention_backend": "fa3" if arm == "b" else "triton"}},
        ),
    )
    assert effect.verdict == "better"
    assert any("decode attention_backend was " in line for line in result.notes)


def test_a_first_boot_with_less_kv_memory_is_not_compared():
    design = one_level()

    def kv(block, _arm, position):
        return {"covariates": {"decode max_total_num_tokens": 95e3 if (block, position) == (1, 1) else 100e3}}

    result, effect = judged(design, campaign(design, lambda _b, arm, _p: 112 if arm == "b" else 100, started=kv))
    assert (effect.verdict, effect.blocks) == ("better", 5)
    assert any(line.startswith("block 1") and "max_total_num_tokens" in line for line in result.exclusions)


def test_a_process_that_holds_another_value_or_was_never_asked_does_not_count():
    design = one_level()
    trials = campaign(design, lambda _b, arm, _p: 112 if arm == "b" else 100)
    wrong = [replace(each, start=Start(took_s=1.0, read_back={"decode/7": "256"})) for each in trials]
    _, effect = judged(design, wrong)
    assert effect.verdict == "invalid"
    assert "decode/7 held 256, and the arm is 512" in effect.reason
    _, effect = judged(design, [replace(each, start=None) for each in trials])
    assert "no process was asked" in effect.reason


def test_answers_that_differ_between_the_arms_are_said():
    design = one_level()
    result, effect = judged(
        design,
        campaign(
            design,
            lambda block, arm, _p: (
                112 if arm == "b" else 100,
                {"asked_sha256": f"{block}" if block < 6 else arm, "answers_sha256": f"{block if arm == 'a' else 1}"},
            ),
        ),
    )
    assert effect.verdict == "better"
    assert any("not equal, word for word, in 4 of 5 blocks" in line for line in result.notes)


def test_hits_that_were_seen_in_one_order_only_cannot_be_told_from_the_arm():
    design = replace(one_level(), order=("ab",) * 6)
    result, effect = judged(
        design, campaign(design, lambda _b, _arm, position: (100, {"cache_hit_share": 0.9 if position == 2 else 0.1}))
    )
    assert effect.verdict == "invalid"
    assert len(result.exclusions) == 6


def test_a_gain_that_drifts_a_little_within_a_level_is_still_a_gain():
    design = one_level()

    def figures(block, arm, _position):
        wobble = 1 + 0.0005 * math.sin(block)
        return (112, {"halves": (113 * wobble, 111)}) if arm == "b" else (100, {"halves": (100, 100 * wobble)})

    _, effect = judged(design, campaign(design, figures))
    assert effect.verdict == "better"


def test_blocks_that_happen_to_be_alike_are_no_sample_when_many_were_not():
    design = one_level()
    _, effect = judged(
        design,
        campaign(
            design, lambda block, arm, _p: (112, {"tokens": 64 * 200} if block > 3 else {}) if arm == "b" else 100
        ),
    )
    assert effect.verdict == "invalid"
    assert "not alike in 3 of 6 blocks" in effect.reason


def test_an_experiment_ends_at_a_look_when_more_blocks_would_not_help():
    error = ClientError(level=LEVEL, requests=192, ttft_ms=30.0, itl_ms=0.1, e2e_ms=400.0)
    design = replace(one_level(blocks=12, looks=(6, 12)), client_error=(error,))
    trials = campaign(design, lambda _b, arm, _p: 104 if arm == "b" else 100, noise=0.001)
    result, effect = judged(design, trials[: 2 + 2 * 6])
    assert effect.verdict == "unresolved"
    assert (result.complete, result.stopped_at_look) == (True, 1)
