from dataclasses import replace

import pytest

from vindicate.ledger.claim_rules import displaces, may_displace, may_refute, measured_watch, t_star, t_star_text
from vindicate.record.ledger import Claim, Evidence, Incident

CLAIM = Claim(id="H1", text="512 hangs", incident="INC-1", about="knob:K_K=512")
INCIDENT = Incident(id="INC-1", text="hang", count=3, exposure=40_000)


def diagnosis(service="proxy", cleared=(), status="fault"):
    document = {
        "schema": "vindicate.diagnosis/1",
        "status": status,
        "service": service,
        "summary": "the proxy starves",
        "cleared": list(cleared),
    }
    return Evidence(id="E1", kind="diagnosis", text="the proxy starves", group="diagnosis", diagnosis=document)


def intervention(**measured):
    return Evidence(
        id="E2", kind="intervention", text="watched", claim="H1", direction="against", group="watch", measured=measured
    )


CLEARED = {"service": "decode", "knobs": ["K_K"], "of": "stalling", "because": "all it owed was delivered"}
EXPLAINED = Evidence(
    id="E3", kind="observation", text="the proxy it was", claim="H1", direction="explains_away", group="proxy"
)


@pytest.mark.parametrize(("count", "times"), [(1, 19), (2, 3.47), (3, 1.71), (5, 0.82), (10, 0.35)])
def test_t_star_is_what_the_exact_conditional_test_asks(count, times):
    assert t_star(1.0, count) == pytest.approx(times, abs=0.005)


def test_three_hangs_in_forty_thousand_requests_ask_for_68_600_clean_ones():
    assert round(t_star(40_000, 3), -2) == 68_600


@pytest.mark.parametrize(
    ("incident", "text"),
    [
        (INCIDENT, "68 577 requests"),
        (Incident(id="I", text="x", count=3, exposure=12.0, exposure_unit="h"), "20 h 34 m"),
        (Incident(id="I", text="x"), "no count"),
        (None, "unknown"),
    ],
)
def test_says_t_star_in_the_unit_of_the_incident(incident, text):
    assert text in t_star_text(incident)


# ---- displace --------------------------------------------------------------------------------------------------------


def test_a_diagnosis_that_convicts_another_service_displaces():
    assert "convicts proxy" in (displaces(diagnosis(), CLAIM, services=("decode",)) or "")


def test_a_diagnosis_that_clears_the_knob_displaces():
    found = displaces(diagnosis(cleared=[CLEARED]), CLAIM, services=())
    assert found is not None
    assert "clears K_K of stalling" in found


def test_refused_requests_say_nothing_about_a_hazard():
    refused = diagnosis(cleared=[{**CLEARED, "of": "refusing or failing requests"}])
    refused.diagnosis["mechanism"] = "engine.answers_errors"
    assert displaces(refused, CLAIM, services=("decode",)) is None
    plain = Claim(id="H1", text="it refuses", about="knob:K_K=512", hazard=False)
    assert displaces(refused, plain, services=("decode",)) is not None


def test_a_diagnosis_that_convicts_the_knobs_own_service_does_not_displace():
    assert displaces(diagnosis(service="decode"), CLAIM, services=("decode",)) is None


def test_a_conviction_says_nothing_where_nobody_knows_who_holds_the_knob():
    assert displaces(diagnosis(), CLAIM, services=()) is None


def test_a_healthy_diagnosis_convicts_nobody():
    assert displaces(diagnosis(status="healthy"), CLAIM, services=("decode",)) is None


def test_a_service_claim_is_displaced_by_another_conviction_and_not_by_its_own():
    claim = Claim(id="H2", text="decode stalls", about="service:decode")
    assert displaces(diagnosis(), claim, services=()) is not None
    assert displaces(diagnosis(service="decode"), claim, services=()) is None


def test_a_reason_alone_displaces():
    ruling = may_displace(CLAIM, [], reason="ann says so", services=())
    assert ruling.allowed
    assert ruling.on == ()


def test_displacing_with_evidence_that_does_not_displace_says_what_is_missing():
    ruling = may_displace(CLAIM, [diagnosis(service="decode")], reason="", services=("decode",))
    assert not ruling.allowed
    assert "E1 neither convicts another service nor clears" in ruling.missing[0]


def test_an_opinion_displaces_nothing():
    opinion = Evidence(id="E9", kind="opinion", text="never", claim="H1", direction="against")
    assert displaces(opinion, CLAIM, services=()) is None


# ---- refute ----------------------------------------------------------------------------------------------------------


def missing(*items, claim=CLAIM, incident=INCIDENT):
    return " / ".join(may_refute(claim, list(items), incident).missing)


def test_that_another_cause_was_found_refutes_nothing():
    assert "an intervention" in missing(EXPLAINED)
    assert "68 577 requests" in missing(EXPLAINED)


def test_a_clean_watch_of_t_star_and_another_kind_of_evidence_refute_a_hazard():
    watch = intervention(**measured_watch(suspect=True, symptoms=0, exposure=70_000, unit="req"))
    ruling = may_refute(CLAIM, [watch, EXPLAINED], INCIDENT)
    assert ruling.allowed
    assert ruling.on == ("E2", "E3")


def test_the_symptom_without_the_suspect_refutes():
    seen = intervention(**measured_watch(suspect=False, symptoms=2, exposure=100, unit="req"))
    assert may_refute(CLAIM, [seen, EXPLAINED], None).allowed


def test_one_kind_of_evidence_is_not_enough_for_a_hazard_and_is_for_another_claim():
    watch = intervention(**measured_watch(suspect=True, symptoms=0, exposure=70_000, unit="req"))
    assert "a second, independent kind" in missing(watch)
    assert missing(watch, claim=Claim(id="H1", text="it is slow", hazard=False)) == ""


def test_two_items_of_one_group_count_once():
    watch = intervention(**measured_watch(suspect=True, symptoms=0, exposure=70_000, unit="req"))
    twin = Evidence(id="E4", kind="observation", text="same run", claim="H1", direction="against", group="watch")
    assert "a second, independent kind" in missing(watch, twin)


@pytest.mark.parametrize(
    ("measured", "text"),
    [
        (
            {"suspect": "present", "symptoms": 0, "exposure": 1000, "exposure_unit": "req"},
            "1000 req clean, and T* is 68 577 requests",
        ),
        ({"suspect": "present", "symptoms": 1, "exposure": 90_000, "exposure_unit": "req"}, "speaks for the claim"),
        ({"suspect": "present", "symptoms": 0, "exposure": 90_000, "exposure_unit": "h"}, "it counts h"),
        ({"suspect": "absent", "symptoms": 0, "exposure": 10, "exposure_unit": "req"}, "no symptom was seen without"),
        ({}, "does not say whether the suspect was in place"),
    ],
)
def test_an_intervention_that_does_not_do_says_why(measured, text):
    assert text in missing(intervention(**measured), EXPLAINED)


def test_without_a_count_no_silence_is_long_enough():
    watch = intervention(**measured_watch(suspect=True, symptoms=0, exposure=1e9, unit="req"))
    assert "no count and exposure" in missing(watch, EXPLAINED, incident=Incident(id="INC-1", text="hang"))


# ---- which value was tested ------------------------------------------------------------------------------------------


def test_a_clearance_says_that_the_accused_value_was_in_place():
    found = displaces(diagnosis(cleared=[CLEARED]), CLAIM, services=(), in_place={"E1": "512"})
    assert found is not None
    assert "at 512, by the ledger" in found


def test_a_clearance_at_another_value_displaces_nothing():
    assert displaces(diagnosis(cleared=[CLEARED]), CLAIM, services=(), in_place={"E1": "256"}) is None


def test_a_conviction_beside_a_clearance_at_another_value_displaces_and_says_which_was_not_running():
    found = displaces(diagnosis(cleared=[CLEARED]), CLAIM, services=("decode",), in_place={"E1": "256"})
    assert found is not None
    assert found.startswith("E1 convicts proxy")
    assert "with 256 in place by the ledger; 512 was not running, so this says nothing of it" in found


def test_a_clearance_at_a_value_that_nobody_wrote_down_says_so():
    found = displaces(diagnosis(cleared=[CLEARED]), CLAIM, services=())
    assert found is not None
    assert "at a value that is not on record" in found


def test_t_star_is_rounded_up_as_the_goal_of_a_watch_is():
    asked = Incident(id="INC-1", text="hang", count=2, exposure=53)
    assert t_star(53, 2) == pytest.approx(184.02, abs=0.01)
    assert t_star_text(asked) == "185 requests"


@pytest.mark.parametrize(("held", "displaced"), [("512", True), ("256", False), (None, False)])
def test_the_value_that_the_live_processes_held_comes_before_the_ledgers(held, displaced):
    seen = replace(diagnosis(cleared=[CLEARED]), fingerprint={"knob:K_K": held})
    found = displaces(seen, CLAIM, services=(), in_place={"E1": "256" if displaced else "512"})

    assert (found is not None) is displaced
    if found:
        assert "at 512, as the live processes said" in found
