"""What a watch makes of its looks: states, who waits, rates, pins, and when something was bad."""

from dataclasses import replace

import pytest

from fakes.captures import PIDS, Scenery
from vindicate.diagnose.moment import Seen, Watching
from vindicate.record.observation import MetricValue, Scrape
from vindicate.view.watch import sample_line, summary_lines

ALL = ("proxy", "router", "prefill", "decode")


def page(service, t_s=0.0, *, status=200, error=None, **values):
    made = tuple(MetricValue(name=f"sglang:{name}", labels=(), value=value) for name, value in values.items())
    return Scrape(
        service=service, kind="metrics", url="http://x", t_s=t_s, took_s=0.0, status=status, error=error, values=made
    )


def seen(t_s, *scrapes, listening=ALL, pids=None):
    pids = {name: (PIDS[name],) for name in ALL} if pids is None else pids
    return Seen(
        at="2026-12-01T05:00:00.0Z",
        t_s=t_s,
        scrapes=scrapes,
        listening=frozenset(listening),
        local=frozenset(ALL),
        pids=pids,
    )


def service(sample, name):
    return next(one for one in sample.services if one.name == name)


def test_shows_who_waits_the_oldest_first():
    sample = Watching().add(seen(0.0), Scenery().waiting(3, "client", "proxy").capture())
    assert service(sample, "proxy").owed == 3
    assert {(one.caller, one.callee) for one in sample.owed} == {("harness", "proxy")}
    assert [one.age_s for one in sample.owed] == sorted((one.age_s for one in sample.owed), reverse=True)
    assert "oldest wait harness > proxy" in sample_line(sample)


def test_counts_a_fault_as_bad_when_two_diagnoses_running_find_it():
    scene = (
        Scenery()
        .idle_engines()
        .waiting(8, "client", "proxy")
        .probe("proxy", "no_headers")
        .probe("router")
        .probe("decode")
    )
    watching = Watching()
    first = watching.add(seen(10.0), scene.capture())
    assert (first.verdict, first.guilty, first.lasting, watching.bad) == ("fault", "proxy", False, {})
    watching.add(seen(11.0), scene.capture())
    assert watching.bad == {}  # not judged again within 5 s
    assert watching.add(seen(16.0), scene.capture()).lasting
    assert list(watching.bad.values()) == [16.0]


def test_does_not_judge_a_window_that_is_too_short():
    capture = replace(Scenery().waiting(8, "client", "proxy").capture(), window_s=3.0)
    assert Watching().add(seen(3.0), capture).verdict is None


def test_says_what_became_of_a_service():
    watching, capture = Watching(), Scenery().capture()
    watching.add(seen(0.0, page("decode", num_running_reqs=3)), capture)
    gone = watching.add(seen(1.0, page("decode", status=None, error="refused"), listening=ALL[:3]), capture)
    assert (service(gone, "decode").state, gone.news) == ("down", ("decode is down, was up",))
    assert service(gone, "decode").running is None  # an old figure is none
    pids = {name: (PIDS[name] + 5 * (name == "decode"),) for name in ALL}
    back = watching.add(seen(2.0, page("decode", num_running_reqs=0), pids=pids), capture)
    assert service(back, "decode").restarted
    assert "decode is up, was down" in back.news
    assert watching.bad == {"decode was down": 1.0}
    assert "from 1.0 s on: decode was down" in "\n".join(summary_lines(back, 3, watching.bad, 0))


@pytest.mark.parametrize(
    ("error", "state"), [("timeout (no_headers)", "silent"), ("too large", "up"), ("http 404", "up")]
)
def test_tells_silent_from_dead(error, state):
    status = None if error.startswith("timeout") else 200
    sample = Watching().add(seen(0.0, page("decode", status=status, error=error)), Scenery().capture())
    assert service(sample, "decode").state == state


def rates(*totals):
    watching, capture = Watching(), Scenery().capture()
    samples = [
        watching.add(
            seen(float(t_s), page("decode", num_running_reqs=2, generation_tokens_total=n, num_requests_total=n / 10)),
            capture,
        )
        for t_s, n in enumerate(totals)
    ]
    return service(samples[-1], "decode")


def test_gives_rates_from_counters():
    one = rates(0, 50, 100)
    assert (one.tokens_per_s, one.ended_per_s, one.running) == (50.0, 5.0, 2)


def test_takes_a_counter_that_fell_for_a_restart_and_not_for_a_negative_rate():
    assert rates(100, 150, 10).tokens_per_s is None
    assert rates(100, 150, 10, 30).tokens_per_s == 20.0


def test_sees_requests_pinned_in_prefill_while_others_pass():
    watching, capture = Watching(), Scenery().capture()
    for t_s in range(60):
        figures = {"num_prefill_inflight_queue_reqs": 2, "num_running_reqs": 1, "realtime_tokens_total": 100 * t_s}
        latency = {"e2e_request_latency_seconds_count": 2 * t_s, "e2e_request_latency_seconds_sum": t_s}
        sample = watching.add(seen(float(t_s), page("prefill", **figures, **latency)), capture)
    pins = service(sample, "prefill").pins
    assert (pins.verdict, pins.least, pins.most, pins.stages["inflight"]) == ("pinned", 1, 3, 2)
    assert "prefill held requests that are pinned" in watching.bad
    assert "1 to 3 pinned" in sample_line(sample)
