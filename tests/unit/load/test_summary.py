from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vindicate.load.summary import busy_curve, doubts, quantiles, steady_spans, summarise, time_average
from vindicate.record.load import RequestRecord


def record(start, e2e, *, outcome="completed", session=0, silent=None, ttft=0.1, n_tokens=11, gaps=None, recalled=None):
    spread = [(e2e - ttft) / (n_tokens - 1)] * (n_tokens - 1) if gaps is None else gaps
    return RequestRecord(
        id="x",
        level=1,
        session=session,
        round=1,
        started_at="",
        start_s=start,
        outcome=outcome,
        e2e_s=e2e,
        ttft_s=ttft,
        gaps_s=tuple(spread),
        n_tokens=n_tokens,
        stall_age_s=silent,
        recalled=recalled,
        error=outcome if outcome not in ("completed", "cancelled") else None,
    )


@pytest.mark.parametrize(("name", "smallest"), [("p50", 6), ("p90", 36), ("p95", 72), ("p99", 368)])
def test_a_quantile_is_null_until_the_sample_can_bound_it(name, smallest):
    assert getattr(quantiles([0.001] * (smallest - 1)), name) is None
    assert getattr(quantiles([0.001] * smallest), name) == 1.0


def test_quantiles_of_known_values_in_ms():
    found = quantiles([index / 1000 for index in range(1001)])
    assert (found.n, found.mean, found.p50, found.p90, found.p99) == (1001, 500.0, 500.0, 900.0, 990.0)


def test_no_value_gives_no_figure():
    assert quantiles([]).mean is None


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), max_size=30))
def test_the_sweep_counts_what_a_plain_count_counts(raw):
    spans = [(float(start), float(start + length)) for start, length in raw]
    for time, count in busy_curve(spans):
        assert count == sum(begin <= time < end for begin, end in spans)


def test_a_hand_over_at_one_instant_is_one_stream_not_two():
    assert max(count for _, count in busy_curve([(0.0, 1.0), (1.0, 2.0)])) == 1


def test_time_average_of_a_known_curve():
    curve = busy_curve([(0.0, 4.0), (1.0, 3.0)])
    assert time_average(curve, [(0.0, 4.0)]) == pytest.approx(1.5)
    assert time_average(curve, [(1.0, 3.0)]) == pytest.approx(2.0)
    assert time_average(curve, []) == 0.0


def test_the_wait_for_a_stalled_stream_is_in_no_denominator():
    stalled = record(0, 31.0, outcome="stalled", session=1, silent=30.0, n_tokens=11)
    records = [record(0, 1.0), record(1.0, 1.0), stalled]
    assert steady_spans(records) == [(0, 1.0)]
    assert summarise(2, 31.0, records).output_tok_per_s == pytest.approx(11.0)


def test_the_drain_of_a_level_is_not_steady():
    records = [record(0, 1.0, session=number) for number in range(9)] + [record(0, 10.0, session=9)]
    assert steady_spans(records) == [(0, 1.0)]


def test_rounds_of_one_session_count_as_one_live_span():
    records = [record(0, 1.0), record(1.01, 1.0)]
    assert steady_spans(records) == [(0, 2.01)]


def test_broken_streams_improve_no_figure():
    whole = [record(0, 1.0, session=number) for number in range(4)]
    broken = [record(0, 0.2, outcome="truncated", session=9), record(0, 0.1, outcome="failed", session=8)]
    assert summarise(4, 1.0, whole + broken).e2e_ms == summarise(4, 1.0, whole).e2e_ms
    found = summarise(4, 1.0, whole + broken)
    assert (found.completed, found.truncated, found.failed, found.errors) == (4, 1, 1, {"failed": 1, "truncated": 1})


def test_tpot_leaves_the_first_token_out_and_uses_the_servers_count():
    found = summarise(1, 1.0, [record(0, 1.0, ttft=0.4, n_tokens=13, gaps=[0.3, 0.3])])
    assert found.tpot_ms.mean == pytest.approx(50.0)
    assert found.itl_ms.mean == pytest.approx(300.0)


def test_recall_is_counted_only_where_it_was_asked():
    found = summarise(1, 3.0, [record(0, 1, recalled=True), record(1, 1, recalled=False), record(2, 1)])
    assert (found.recall_asked, found.recall_failed) == (2, 1)


def test_a_level_with_nothing_in_it_has_no_figures():
    found = summarise(8, 0.0, [])
    assert (found.output_tok_per_s, found.peak_concurrency, found.achieved_concurrency) == (None, 0, 0.0)


def test_stall_ages_are_kept():
    found = summarise(1, 2.0, [record(0, 2.0, outcome="stalled", silent=1.5)])
    assert found.stall_ages_s == (1.5,)


def test_a_request_that_lies_half_in_the_steady_interval_counts_half():
    level = summarise(0, 4.0, [record(at, 1.0, session=at) for at in range(4)], opens=True)
    assert (level.steady_s, level.requests_per_s) == (2.0, 1.0)


def test_a_stall_is_in_the_denominator_of_the_bounds_and_not_in_that_of_the_rate():
    good = [record(float(at), 1.0, session=1) for at in range(10)]
    stalled = record(9.0, 31.0, outcome="stalled", silent=30.5, session=2)
    slo = {"ttft": 0.2}
    level, clean = summarise(2, 40.0, [*good, stalled], slo_s=slo), summarise(1, 10.0, good, slo_s=slo)
    assert (level.slo_met, level.slo_pct, level.stalled) == (10, 90.91, 1)
    assert clean.requests_per_s == 1.0
    assert level.steady_s < 1.01  # while both were live; the half minute of silence is in no interval


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"client_cpu_s": 9.5}, "95 % of a core"),
        ({"client_lag_ms": 40.0}, "40.0 ms late"),
        ({"server_tokens": 130}, "server counted 130"),
        ({"server_tokens": 111, "client_cpu_s": 2.0, "client_lag_ms": 1.0}, None),
    ],
)
def test_says_when_the_figures_may_be_the_clients(fields, says):
    level = replace(summarise(1, 10.0, [record(at, 1.0) for at in range(10)]), **fields)
    found = list(doubts(level))
    assert [says in warning for warning in found] == ([True] if says else [])


def stream_of_records(rates, *, n=40):
    """One slot; *n* requests at each rate in turn, 11 tokens each."""
    start, made = 0.0, []
    for rate in rates:
        for _ in range(n):
            made.append(record(start, 10 / rate, ttft=0.0001, gaps=[(10 / rate - 0.0001) / 10] * 10))
            start += 10 / rate
    return made


def test_halves_tell_a_level_that_was_still_warming_up_from_one_that_was_not():
    flat = summarise(1, 80.0, stream_of_records([10, 10])).halves
    early, late = flat["output_tok_per_s"]
    assert early == pytest.approx(late, rel=0.05)
    cold = summarise(1, 80.0, stream_of_records([5, 10])).halves
    assert cold["output_tok_per_s"][0] < 0.8 * cold["output_tok_per_s"][1]
    assert cold["itl_mean_ms"][0] > 1.2 * cold["itl_mean_ms"][1]
    assert cold["e2e_mean_ms"][0] > 1.2 * cold["e2e_mean_ms"][1]


def test_halves_of_few_requests_say_nothing():
    assert summarise(1, 8.0, stream_of_records([10], n=30)).halves == {}
    assert summarise(1, 8.0, []).halves == {}


def test_cache_hits_are_a_share_of_all_prompt_tokens_and_unknown_where_the_server_is_silent():
    silent = record(0, 1)
    told = [replace(silent, n_prompt_tokens=100, n_cached_tokens=cached) for cached in (0, 50, 100, 90)]
    assert summarise(1, 4.0, told).cache_hit_share == 0.6
    assert summarise(1, 4.0, [silent, *told]).cache_hit_share == 0.6
    assert summarise(1, 4.0, [silent, replace(silent, n_prompt_tokens=100)]).cache_hit_share is None


def test_answers_have_one_hash_whatever_order_they_came_in_and_another_when_one_differs():
    answers = [replace(record(at, 1), id=f"r{at}", asked="V", answered=f"V{at}") for at in range(4)]
    one = summarise(1, 4.0, answers).answers_sha256
    assert one == summarise(1, 4.0, answers[::-1]).answers_sha256
    other = summarise(1, 4.0, [*answers[:3], replace(answers[3], answered="other")])
    assert one != other.answers_sha256
    assert other.asked_sha256 == summarise(1, 4.0, answers).asked_sha256 != summarise(1, 4.0, answers[:3]).asked_sha256
    assert summarise(1, 4.0, [record(0, 1)]).answers_sha256 is None


def test_an_open_loop_of_few_arrivals_was_never_steady_and_gives_no_rate():
    few = summarise(1, 1.0, [record(0.0, 0.4), record(0.45, 0.4)], opens=True)
    assert (few.output_tok_per_s, few.requests_per_s, few.steady_s) == (None, None, 0.0)
    assert few.achieved_concurrency == pytest.approx(0.8 / 0.85, abs=0.001)
    many = summarise(1, 9.0, [record(0.1 * n, 0.4) for n in range(80)], opens=True)
    assert many.output_tok_per_s == pytest.approx(110, rel=0.1)
