import random
from itertools import islice, pairwise

import pytest

from vindicate.errors import MisuseError
from vindicate.load.schedule import TraceLine, arrival_times, read_trace


def times(n, rate, **more):
    return list(islice(arrival_times(rate, random.Random(1), **more), n))


def test_constant_arrivals_are_evenly_spaced():
    assert times(4, 10.0, arrivals="constant") == pytest.approx([0.0, 0.1, 0.2, 0.3])


def test_bursts_come_at_once_and_keep_the_rate():
    assert times(6, 10.0, arrivals="burst", burst=3) == pytest.approx([0, 0, 0, 0.3, 0.3, 0.3])


def test_poisson_arrivals_have_the_mean_and_the_spread_of_an_exponential():
    gaps = [later - sooner for sooner, later in pairwise(times(20_001, 50.0))]
    mean = sum(gaps) / len(gaps)
    spread = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5
    assert mean == pytest.approx(0.02, rel=0.03)
    assert spread == pytest.approx(0.02, rel=0.05)


@pytest.mark.parametrize("arrivals", ["constant", "poisson"])
def test_a_ramp_sends_half_as_many_while_it_lasts_and_then_the_rate(arrivals):
    found = times(60_000, 1000.0, arrivals=arrivals, ramp_s=10.0)
    assert sum(at < 10 for at in found) == pytest.approx(5000, rel=0.05)
    assert sum(at < 5 for at in found) == pytest.approx(1250, rel=0.1)
    assert sum(10 <= at < 20 for at in found) == pytest.approx(10_000, rel=0.05)


def test_a_seed_repeats_the_arrivals():
    assert times(50, 5.0) == times(50, 5.0)


def test_a_trace_is_in_the_order_of_time_and_begins_at_once(tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_text(
        '{"timestamp": 3000, "input_length": 700, "hash_ids": [1, 2], "output_length": 9}\n\n{"at_s": 2.5, "prompt": "hi"}\n'
    )
    first, second = read_trace(path)
    assert (first.due_s, first.text(1, 0)) == (0.0, "hi")
    assert (second.due_s, len(second.text(1, 1).split()), second.output_length) == (0.5, 700, 9)


def test_equal_blocks_are_equal_text():
    one = TraceLine(at_s=0, input_length=1024, hash_ids=(7, 8)).text(1, 0).split()
    two = TraceLine(at_s=0, input_length=1024, hash_ids=(7, 9)).text(1, 1).split()
    assert one[:512] == two[:512]
    assert one[512:] != two[512:]


@pytest.mark.parametrize(
    ("text", "says"),
    [("", "no request"), ("{}\n", ":1 has no time"), ('{"at_s": 1}\n', "neither prompt"), ("[]\n", ":1: "), ('{"at_s": 1, "prompt": "a", "output_length": 0}', "output_length is 0")],
)  # fmt: skip
def test_a_trace_that_cannot_be_is_refused_with_its_line(text, says, tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_text(text)
    with pytest.raises(MisuseError, match=says):
        read_trace(path)
