"""A stream is alive by its tokens: heartbeats and empty deltas are bytes and no progress."""

import pytest

from vindicate.diagnose.ladder import fault_class
from vindicate.record.observation import ProbeResult


def cut(**fields):
    """A probe cut by its deadline of 8 s, whose bytes came once a second until then."""
    return ProbeResult(
        target="engine", shape="chat", covers=("engine",), t_s=0.0, error="stalled", first_byte_s=0.5, total_s=8.0, gaps_s=(1.0,) * 7, **fields
    )  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"n_comments": 8, "token_times_s": ()}, "silent"),  # nothing but `: ping`
        ({"n_comments": 8, "token_times_s": (), "n_events": 1, "n_empty": 1}, "stalled"),  # a role, then pings
        ({"n_comments": 6, "token_times_s": (0.5, 1.5), "n_events": 2}, "stalled"),  # two tokens, then pings
        ({"n_comments": 2, "token_times_s": (1.0, 4.0, 7.0), "n_events": 3}, "slow"),  # a slow model that pings between
        (
            {"token_times_s": (), "n_events": 7, "n_empty": 7},
            "slow",
        ),  # text that we do not know, or none: it says nothing
        ({}, "slow"),  # a capture of before: bytes are all there is
    ],
)
def test_is_alive_by_its_tokens(fields, kind):
    assert fault_class(cut(**fields)) == kind


@pytest.mark.parametrize("error", ["tls", "tls_timeout"])
def test_a_handshake_that_failed_says_nothing_of_an_engine(error):
    assert fault_class(ProbeResult(target="engine", shape="chat", covers=("engine",), t_s=0.0, error=error)) == "shape"
