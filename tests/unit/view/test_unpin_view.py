"""What is pinned, in words; an id from a log moves no cursor."""

import pytest

from vindicate.operate.unpin import Pin, UnpinPlan
from vindicate.view.unpin import outcome_lines


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ("pinned", "abort a?b, 6 m 40 s old, at prefill and decode"),
        ("gone", "gone: a?b"),
        ("held", "STILL HELD: a?b: why"),
        ("refused", "not aborted: a?b, 6 m 40 s old: why"),
    ],
)
def test_says_what_is_to_become_of_a_request_and_what_became_of_it(state, said):
    pin = Pin(rid="a\x1bb", age_s=400.0, engines=("prefill", "decode"), state=state, because="why")
    assert outcome_lines(UnpinPlan(pins=(pin,), engines=())) == [said]
