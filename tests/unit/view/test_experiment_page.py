"""The page of an experiment: whole, self-contained, and harmless whatever the values are."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

import pytest

from fakes.bench import FakeBench, design_of
from vindicate.experiment.journal import Journal
from vindicate.experiment.judge import judge_experiment
from vindicate.experiment.run import run_experiment
from vindicate.record.experiment import ClientError
from vindicate.view.experiment_page import report_page

VOID = {"meta"}
HOSTILE = "<script>alert(1)</script>\"'&"


class Checker(HTMLParser):
    """Keeps a stack of open elements, and everything that could load or run something."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.open, self.loads, self.text = [], [], []

    def handle_starttag(self, tag, attrs):
        if tag not in VOID:
            self.open.append(tag)
        self.loads += [
            (tag, name) for name, value in attrs if name in ("src", "href", "xlink:href") or name.startswith("on")
        ]
        self.loads += [tag] if tag in ("script", "iframe", "object", "link", "img") else []

    def handle_startendtag(self, tag, attrs):
        self.loads += [(tag, name) for name, _ in attrs if name.startswith("on")]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def checked(page):
    checker = Checker()
    checker.feed(page)
    checker.close()
    assert checker.open == []
    assert checker.loads == []
    return " ".join("".join(checker.text).split())


def picture(page):
    return ET.fromstring(re.search(r"<svg.*</svg>", page, re.DOTALL)[0])


@pytest.fixture
def result(tmp_path):
    design = replace(
        design_of(blocks=6), client_error=(ClientError(level=64, requests=9, ttft_ms=0.4, itl_ms=0.01, e2e_ms=0.9),)
    )
    journal, bench = Journal(tmp_path / "X1"), FakeBench({"512": 0.128})
    journal.register(design)
    bench.fail_start = lambda count, _value: count == 5
    return run_experiment(design, bench, journal, clock=bench.clock, say=lambda _line: None)


def test_holds_the_plot_the_table_the_design_every_exclusion_and_what_would_change_it(result):
    page = report_page(result)
    text = checked(page)
    for line in (*result.exclusions, *result.notes, *result.would_change, *result.design["rules"]):
        assert " ".join(line.split()) in text
    assert result.exclusions
    for part in ("All figures are simulated", "X1: TARGET_CTAS", "ab ba", "seed", "output_tok_per_s", "ttft_ms 0.4"):
        assert part in text, part


def test_every_block_is_a_dot_and_every_interval_a_line_in_its_place(result):
    svg = picture(report_page(result))
    groups = svg.findall("g")
    assert [group.get("class") for group in groups] == ["better", "better"]
    for group, item in zip(groups, result.effects, strict=True):
        assert len(group.findall("circle")) == item.blocks == 5
        line, low, high = group.findall("line")
        mark = group.find("rect")
        middle = float(mark.get("x")) + 5
        assert float(line.get("x1")) < middle < float(line.get("x2"))
        assert (low.get("x1"), high.get("x1")) == (line.get("x1"), line.get("x2"))
        dots = [float(dot.get("cx")) for dot in group.findall("circle")]
        assert sorted(dots) == [x for x, _ in sorted(zip(dots, sorted(item.block_gains_pct), strict=True))]
    width, height = map(float, svg.get("viewBox").split()[2:])
    for shape in svg.iter():
        for name in ("x", "x1", "x2", "cx"):
            assert 0 <= float(shape.get(name, 0)) <= width
        for name in ("y", "y1", "y2", "cy"):
            assert 0 <= float(shape.get(name, 0)) <= height


def test_hostile_values_names_and_problems_are_text(result):
    evil = replace(
        result,
        id=HOSTILE,
        knob=HOSTILE,
        arms={"a": HOSTILE, "b": "\x1b[2J"},
        notes=(HOSTILE,),
        exclusions=(HOSTILE,),
        would_change=(HOSTILE,),
        design=result.design | {"url": HOSTILE, HOSTILE: HOSTILE},
        effects=tuple(replace(item, reason=HOSTILE, metric=HOSTILE) for item in result.effects),
    )
    page = report_page(evil)
    checked(page)
    assert "<script" not in page
    assert page.count("&lt;script&gt;") >= 8
    picture(page)


def test_before_the_first_block_there_is_a_page_and_no_plot():
    page = report_page(judge_experiment(design_of(blocks=6), []))
    text = checked(page)
    assert "Not finished: 0 of 6 blocks" in text
    assert "No level has an interval to draw" in text


@pytest.mark.parametrize("gain", [0.0, 0.0003, 5.0, -0.9])
def test_tiny_and_huge_gains_have_an_axis(result, gain):
    effects = tuple(
        replace(
            item, gain_pct=100 * gain, lo_pct=100 * gain - 0.01, hi_pct=100 * gain + 0.01, block_gains_pct=(100 * gain,)
        )
        for item in result.effects
    )
    svg = picture(report_page(replace(result, effects=effects)))
    ticks = [each.text for each in svg.findall("text") if "%" in (each.text or "")]
    assert 2 <= len(ticks) <= 10
    assert "+0 %" in ticks
