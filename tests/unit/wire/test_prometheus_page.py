"""Metrics pages, good, bad and hostile."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vindicate.wire.prometheus import read_page

PAGE = b"""# HELP sglang:num_running_reqs running
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{tp_rank="0",model_name="a b\\"c"} 7.0
sglang:num_running_reqs{model_name="m",tp_rank="1"} 3 1700000000000
sglang:inter_token_latency_seconds_bucket{le="0.5"} 12
sglang:e2e_request_latency_seconds_bucket{le="0.5"} 12
sglang:e2e_request_latency_seconds_count 12
sglang:num_requests_created 1.7e9
vllm:num_requests_waiting 0
smg_http_inflight_request_age_count{gt="30",le="60"} 2
python_gc_objects_total{generation="0"} 401
process_start_time_seconds 1.7e9
sglang:token_usage NaN
sglang:broken{ 1
"""


def test_keeps_families_that_matter_with_sorted_labels():
    page = read_page(PAGE)
    kept = [(one.name, one.labels, one.value) for one in page.values]
    assert kept == [
        ("sglang:num_running_reqs", (("model_name", 'a b"c'), ("tp_rank", "0")), 7.0),
        ("sglang:num_running_reqs", (("model_name", "m"), ("tp_rank", "1")), 3.0),
        ("sglang:inter_token_latency_seconds_bucket", (("le", "0.5"),), 12.0),
        ("sglang:e2e_request_latency_seconds_count", (), 12.0),
        ("vllm:num_requests_waiting", (), 0.0),
        ("smg_http_inflight_request_age_count", (("gt", "30"), ("le", "60")), 2.0),
        ("process_start_time_seconds", (), 1.7e9),
    ]


def test_counts_bad_lines_and_skips_them():
    assert read_page(PAGE).n_bad == 2  # NaN cannot be kept, and the broken line


def test_a_page_of_others_is_still_a_metrics_page():
    page = read_page(b'go_goroutines 12\nhttp_requests_total{code="200"} 3\n')
    assert page.values == ()
    assert page.n_samples == 2


@pytest.mark.parametrize(
    "body",
    [b"", b"<html><body>404 not found</body></html>", b'{"error": 5}', b"\x00\xff\xfe" * 100, b"not found 1 2 3"],
)
def test_what_is_no_metrics_page_has_no_sample(body):
    assert read_page(body).n_samples == 0


def test_stops_keeping_at_the_limit_and_says_so():
    body = b"".join(b'vllm:x{n="%d"} 1\n' % n for n in range(50))
    page = read_page(body, limit=10)
    assert len(page.values) == 10
    assert page.cut
    assert page.n_samples == 50


def test_a_line_of_a_megabyte_is_skipped_quickly():
    assert read_page(b'sglang:x{a="' + b"y" * 1_000_000 + b'"} 1\n').n_bad == 1


@given(st.binary(max_size=400))
@settings(max_examples=200, deadline=None)
def test_noise_never_crashes(noise):
    for value in read_page(b"sglang:x" + noise + b"\nvllm:y{" + noise + b"} 4\n").values:
        assert math.isfinite(value.value)
