"""Requests that a relay holds while later ones pass it, and queues in which nobody passes anybody."""

from dataclasses import replace

from fakes.captures import PIDS, PLAIN, Scenery
from vindicate.diagnose.judge import judge
from vindicate.record.observation import Address


def busy(*, later=True, held=True):
    """Two requests that wait in the proxy from the first second on, and five that pass it, each a second and a half after the one before."""
    scene = Scenery(PLAIN).figures("engine", tokens=50)
    if held:
        scene.links(2, "client", "proxy", {1.0: (500, 0)})
    for start in (2.5, 4.0, 5.5, 7.0, 8.5) if later else (0.0,):
        flow = {start: (500, 0), start + 0.5: (500, 600), start + 1.0: (500, 1200)}
        scene.link("client", "proxy", flow).link("proxy", "engine", flow)
    return scene.probe("proxy").probe("engine")


def with_stranger(capture, *, answered):
    """Two more connections of the proxy, to somebody else, asked when the held requests came."""
    model = next(c for c in capture.connections if c.remote.port == 4000 and c.samples[-1].rx == 0)
    more = [
        replace(
            model, id=f"x{n}", local=Address("127.0.0.1", 50_000 + n), remote=Address("127.0.0.1", 9999), pids=(PIDS["proxy"],),
            samples=tuple(replace(s, rx=900) for s in model.samples) if answered else model.samples,
        )
        for n in range(2)
    ]  # fmt: skip
    return replace(capture, connections=(*capture.connections, *more))


def test_names_the_relay_that_waits_for_somebody_outside_the_chain():
    diagnosis = judge(with_stranger(busy().capture(), answered=False))
    assert (diagnosis.status, diagnosis.service, diagnosis.mechanism) == ("fault", "proxy", "proxy.waits_for_another")
    assert any("127.0.0.1:9999" in finding.text for finding in diagnosis.findings)


def test_calls_nobody_healthy_or_guilty_where_it_may_wait_for_the_rest_of_a_request():
    for capture in (busy().capture(), with_stranger(busy().capture(), answered=True)):
        diagnosis = judge(capture)
        assert diagnosis.status == "undetermined"
        assert [suspect.service for suspect in diagnosis.suspects] == ["proxy"]


def test_a_queue_in_which_nobody_is_passed_by_is_none_of_it():
    assert all("came later" not in f.text for f in judge(busy(later=False).capture()).findings)
    assert judge(busy(held=False).capture()).status == "healthy"
