"""A request is known again by its size: in several rounds, by the same difference."""

import pytest

from vindicate.stack.passed_on import _ENOUGH, _alike


@pytest.mark.parametrize(
    ("seen", "same"),
    [
        ([(1, 120), (2, 121), (3, 119)], 3),  # a relay that adds its headers
        ([(1, 120), (1, 121), (1, 119)], 1),  # three connections of one round
        ([(1, 400), (2, 1900), (3, 77)], 1),  # a stranger that sends the same size each time, or any
        ([(1, 120), (2, 700), (3, 121), (5, 119), (6, 3)], 3),  # two upstreams that take turns
    ],
)
def test_the_same_bytes_are_added_in_every_round(seen, same):
    assert _alike(seen) == same
    assert (same >= _ENOUGH) == (same == 3)
