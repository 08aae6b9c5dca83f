"""The screen says in words who is guilty, in 80 columns, without colour; the page holds no markup of anybody else's."""

from dataclasses import replace

import pytest

from fakes.captures import KNOB, Scenery
from vindicate.diagnose.catalogue import CATALOGUE
from vindicate.diagnose.judge import judge
from vindicate.view.diagnosis import diagnosis_html, diagnosis_text, mechanisms_text


@pytest.fixture
def starved():
    scene = Scenery().idle_engines().waiting(8, "client", "proxy").silent(4, "proxy", "router", since=60)
    return scene.probe("proxy", "no_headers").probe("router").probe("decode").capture()


def test_marks_the_guilty_node_in_words_and_draws_what_waits_on_each_edge(starved):
    text = diagnosis_text(judge(starved), starved)
    assert "proxy  << GUILTY: proxy.connector_starvation" in text
    assert "8 connections, 8 waiting" in text
    assert "4 connections, 4 silent" in text


def test_says_what_is_cleared_of_what_with_the_knob(starved):
    text = " ".join(diagnosis_text(judge(starved), starved).split())
    assert f"decode and its knob {KNOB}, of stalling streams at this load" in text


def test_gives_three_sentences_of_why_and_what_to_do(starved):
    lines = diagnosis_text(judge(starved), starved).splitlines()
    why = lines[lines.index("Why") + 1 : lines.index("Cleared")]
    assert sum(line.startswith("  - ") for line in why) == 3
    assert "Next" in lines


def test_shows_every_finding_with_its_number_when_asked(starved):
    diagnosis = judge(starved)
    text = diagnosis_text(diagnosis, starved, findings=True)
    assert all(f"- {finding.id} {finding.kind}" in text for finding in diagnosis.findings)


@pytest.mark.parametrize("findings", [False, True])
def test_fits_80_columns_without_escape_codes(starved, findings):
    text = diagnosis_text(judge(starved), starved, findings=findings)
    assert max(map(len, text.splitlines())) <= 80
    assert text.isascii()
    assert "\x1b" not in text


def test_says_undetermined_with_the_observation_that_would_settle_it():
    capture = Scenery().probe("proxy", "garbage").probe("router").probe("decode").capture()
    text = diagnosis_text(judge(capture), capture)
    assert text.startswith("UNDETERMINED\n")
    assert "proxy  (suspected)" in text
    assert "Next" in text


def test_draws_something_even_when_no_service_was_found():
    capture = replace(Scenery().capture(), services=(), entry=None)
    assert "no service was found" in diagnosis_text(judge(capture), capture)


def test_escapes_everything_on_the_page(starved):
    evil = replace(starved, blind=("<script>alert(1)</script>",))
    page = diagnosis_html(judge(evil), evil)
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "GUILTY" in page


def test_lists_every_mechanism_with_what_it_is_confused_with_and_what_to_do():
    text = mechanisms_text()
    for name, entry in CATALOGUE.items():
        assert f"{name}  (layer: {entry.layer})" in text
        assert entry.remedy
    assert text.count("Not to be confused with") >= len(CATALOGUE) - 1


def test_names_caller_and_callee_on_each_edge(starved):
    text = diagnosis_text(judge(starved), starved)
    for pair in ("clients > proxy", "proxy > router", "router > prefill", "router > decode"):
        assert f"| {pair}: " in text
    assert "down: requests, up: answers" in text


def test_wraps_an_edge_between_long_names(starved):
    long = {"proxy": "pid:python3.11-with-a-long-name:4000", "router": "pid:python3.11-with-a-long-name:8000"}
    services = tuple(
        replace(s, name=long.get(s.name, s.name), upstream=tuple(long.get(u, u) for u in s.upstream))
        for s in starved.services
    )
    renamed = replace(starved, services=services, entry=long["proxy"], probes=(), scrapes=())
    edges = [line for line in diagnosis_text(judge(renamed), renamed).splitlines() if "  | " in line]
    assert len(edges) > 4
    assert max(map(len, edges)) <= 80
