"""Pinned or rotating: by Little's law, on queues whose true number of pins is known."""

import random

import pytest

from vindicate.diagnose.pins import Look, pins_of


def queue(
    seed, *, pinned=0, busy=8.0, stay_s=5.0, span_s=120.0, every_s=1.0, closed=False, spread="exponential", ramp=False
):
    """Looks at a queue in which *busy* requests rotate, on average or (*closed*) always, and *pinned* never leave."""
    source = random.Random(seed)
    stays = {
        "exponential": lambda: source.expovariate(1 / stay_s),
        "even": lambda: source.uniform(0.5, 1.5) * stay_s,
        "long": lambda: source.lognormvariate(0, 1) * stay_s / 1.6487,
    }[spread]
    begin = 0.0 if ramp else -20 * stay_s
    visits = []
    if closed:
        for _ in range(int(busy)):
            t = begin + source.random() * stay_s
            while t < span_s:
                visits.append((t, t + stays()))
                t = visits[-1][1]
    else:
        t = begin
        while t < span_s:
            t += source.expovariate(busy / stay_s)
            visits.append((t, t + stays()))
    looks = []
    for n in range(int(span_s / every_s) + 1):
        now = n * every_s
        over = [end - start for start, end in visits if end <= now]
        held = sum(start <= now < end for start, end in visits) + pinned
        looks.append(Look(t_s=now, stages={"running": held}, ended=len(over), stay_s=sum(over), moved=now))
    return looks


@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize("spread", ["exponential", "even", "long"])
@pytest.mark.parametrize("pinned", [0, 2, 6])
def test_holds_the_true_number_between_its_bounds(closed, spread, pinned):
    found = [pins_of(queue(seed, pinned=pinned, closed=closed, spread=spread)) for seed in range(12)]
    found = [one for one in found if one is not None]
    assert all(one.least <= pinned for one in found)
    assert sum(pinned <= one.most for one in found) >= len(found) - (spread == "long")
    if pinned == 6:
        assert all(one.verdict == "pinned" for one in found)


def test_calls_a_full_and_busy_batch_rotating():
    found = [pins_of(queue(seed, busy=64, closed=True, span_s=85)) for seed in range(6)]
    assert {one.verdict for one in found} == {"rotating"}
    assert all(one.held == 64 for one in found)


def test_takes_a_load_that_grows_for_no_pins():
    found = [pins_of(queue(seed, busy=40, stay_s=20, ramp=True)[20:]) for seed in range(8)]
    assert not [one for one in found if one and one.verdict == "pinned"]


def test_says_nothing_of_an_engine_that_is_empty_again_and_again():
    looks = [Look(t_s=float(n), stages={"running": n % 2}, ended=n, stay_s=n, moved=n) for n in range(30)]
    assert pins_of(looks) is None


def test_sees_that_nothing_moves_any_more_after_minutes_of_work():
    busy = queue(1, busy=30, closed=True)
    last = busy[-1]
    still = [
        Look(t_s=last.t_s + n, stages={"running": 30}, ended=last.ended, stay_s=last.stay_s, moved=last.moved)
        for n in range(1, 15)
    ]
    assert (pins_of([*busy, *still]).verdict, pins_of(busy).verdict) == ("stuck", "rotating")


def still(**more):
    return pins_of([Look(t_s=float(n), stages={"inflight": 3, "running": 0}, **more) for n in range(30)])


def test_calls_an_engine_stuck_in_which_nothing_moves():
    found = still(ended=7, stay_s=9, moved=100)
    assert (found.verdict, found.least, found.most, found.stages) == ("stuck", 3, 3, {"inflight": 3})


@pytest.mark.parametrize("known", [{}, {"ended": 7, "stay_s": 9}])
def test_leaves_open_what_an_engine_does_not_say(known):
    found = still(**known)
    assert (found.verdict, found.least, found.most) == ("unknown", 0, 3)


def test_leaves_open_whether_long_answers_are_pinned():
    looks = [Look(t_s=float(n), stages={"running": 3}, ended=7, stay_s=9, moved=n) for n in range(30)]
    assert pins_of(looks).verdict == "unknown"


def test_does_not_take_aborted_requests_for_pins():
    looks = [Look(t_s=float(n), stages={"running": 4}, ended=n, stay_s=2.0 * n, aborted=n, moved=n) for n in range(90)]
    assert pins_of(looks).verdict != "pinned"
