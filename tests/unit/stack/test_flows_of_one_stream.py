"""Bytes that come in and bytes that go out are known for those of one stream by their number and their times."""

import pytest

from vindicate.record.observation import Address
from vindicate.stack.flowing import alike, stopped_together
from vindicate.stack.sockets import RawSocket

STEADY = [100 * n for n in range(12)]


def seen(values, first=0):
    return dict(enumerate(values, first))


@pytest.mark.parametrize(
    ("came", "went", "same"),
    [
        (seen(STEADY), seen([10 + 101 * n for n in range(12)]), True),  # passed on with a little framing
        (seen(STEADY), seen([0, 0, *STEADY[1:11]]), True),  # a look later
        (seen(STEADY, 4), seen(STEADY, 0), True),  # a connection that came later
        (seen(STEADY), seen([0] * 11 + [1100]), False),  # as many, all at once: of another
        (seen(STEADY), seen([30 * n for n in range(12)]), False),  # fewer
        (seen([7 * n for n in range(12)]), seen([7 * n for n in range(12)]), False),  # heartbeats
        (seen([0, 300, 600]), seen([0, 300, 600]), False),  # too short to tell
        (seen(STEADY), seen(STEADY, 50), False),  # never there together
    ],
)
def test_bytes_of_one_stream(came, went, same):
    assert alike(came, went) is same


HERE, ENGINE, STORE = (Address("127.0.0.1", port) for port in (4000, 8000, 7000))


def one(local, remote, came, went):
    """A socket that received and sent so many bytes, the last of them so long ago."""
    (rx, rx_age), (tx, tx_age) = came, went
    return RawSocket("ESTABLISHED", local, remote, 1, 0, 1, 0, 0, rx, tx, rx_age, tx_age)


def up(remote, age, size=5000):
    return one(Address("127.0.0.1", 50000), remote, (size, age), (300, age + 2))


def down(age, size=5200):
    return one(HERE, Address("127.0.0.1", 60000), (300, age + 2), (size, age))


def test_answers_that_stopped_at_the_same_moments_are_those_of_one_upstream():
    ages = (3.0, 8.2, 15.7)
    assert stopped_together([up(ENGINE, age + 0.002) for age in ages], [down(age) for age in ages]) == {ENGINE}


@pytest.mark.parametrize(
    ("ups", "downs"),
    [
        ([up(STORE, age, 40) for age in (3.0, 8.2, 15.7)], (3.0, 8.2, 15.7)),  # it says OK at the end of each answer
        ([up(STORE, 3.0)], (3.0, 8.2, 15.7)),  # one moment may be chance
        ([up(STORE, 3.0), up(STORE, 3.01), up(STORE, 3.02)], (3.0, 3.01, 3.02)),  # one moment, thrice
        ([up(STORE, age) for age in (2.0, 7.2, 14.7)], (3.0, 8.2, 15.7)),
        ([up(STORE, 0.01)] * 3, (0.01, 0.02, 0.03)),  # all of them are busy
    ],
)
def test_and_what_stopped_at_others_or_carried_less_is_not(ups, downs):
    assert stopped_together(ups, [down(age) for age in downs]) == set()
