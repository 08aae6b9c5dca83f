"""A discovered service whose own upstream was not found may only be waiting for it: it is suspected and never convicted."""

from dataclasses import replace

from fakes.captures import PLAIN, Scenery
from vindicate.diagnose.judge import judge


def capture(*, opaque):
    made = (
        Scenery(PLAIN)
        .silent(3, "client", "proxy")
        .silent(3, "proxy", "engine")
        .probe("proxy", "stalled")
        .probe("engine", "stalled")
        .capture()
    )
    return replace(made, services=tuple(replace(one, opaque=opaque and one.name == "engine") for one in made.services))


def test_convicts_where_all_below_was_found_and_not_where_it_may_pass_on():
    assert judge(capture(opaque=False)).service == "engine"
    abstained = judge(capture(opaque=True))
    assert (abstained.status, abstained.service) == ("undetermined", None)
    assert "what it calls in its turn was not found" in abstained.summary
    assert any("declare what engine calls" in text for text in abstained.next)
