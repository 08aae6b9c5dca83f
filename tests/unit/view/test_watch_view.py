"""A sample of a watch on one line, and as a table."""

import io
from dataclasses import replace

from rich.console import Console

from vindicate.record.watch import Owed, Pins, ServiceMoment, WatchSample
from vindicate.view.watch import sample_line, sample_table, summary_lines

PINS = Pins(
    verdict="pinned", least=2, most=3, held=3, over_s=85.0, ended=40, stages={"inflight": 3}, because="of Little"
)
SAMPLE = WatchSample(
    schema="vindicate.watch/1", at="2026-12-01T05:00:07.1Z", t_s=90.0, verdict="fault", guilty="prefill", mechanism="prefill.inflight_parked",
    summary="prefill keeps KV", lasting=True, owed=tuple(Owed(caller="[red]c", callee="prefill", age_s=30.0 - n) for n in range(7)),
    services=(
        ServiceMoment(name="prefill", role="prefill", state="up", running=0, waiting=2, handover=3, tokens_per_s=12.34, ended_per_s=0.5,
                      streams=1, answer_bytes_per_s=48200, owed=7, oldest_owed_s=30.0, pins=PINS, errors=("2 wait to be accepted",)),
        ServiceMoment(name="decode", role="decode", state="down"),
    ),
)  # fmt: skip


def test_says_all_of_it_on_one_line():
    line = sample_line(SAMPLE)
    assert line == (
        "05:00:07  FAULT prefill (prefill.inflight_parked) | prefill up run 0 wait 2 pd 3 12.3 tok/s 0.5 req/s streams 1, 48.2 kB/s "
        "owes 7, oldest 30.0 s 2 to 3 pinned for 85.0 s (inflight 3) [2 wait to be accepted] | decode down | oldest wait [red]c > prefill 30.0 s"
    )


def test_draws_a_row_a_service_and_what_is_wrong_below():
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(sample_table(SAMPLE))
    text = console.export_text()
    for part in (
        "48.2 kB",
        "decode",
        "down",
        "[red]c > prefill 30.0 s",
        "and 2 more that wait",
        "of Little",
        "prefill keeps KV",
    ):
        assert part in text


def test_lets_no_name_move_the_cursor():
    sample = replace(
        SAMPLE, owed=(Owed(caller="client:\x1b[2Jx:7", callee="prefill", age_s=1.0),), news=("\x1b]0;x\x07",)
    )
    console = Console(width=160, record=True, file=io.StringIO(), color_system=None)
    console.print(sample_table(sample))
    assert "\x1b" not in sample_line(sample) + console.export_text()
    assert "client:?[2Jx:7" in sample_line(sample)


def test_sums_up_what_was_wrong_and_since_when():
    lines = summary_lines(SAMPLE, 90, {"prefill keeps KV": 12.0}, 16)
    assert lines[1:] == ["  from 12.0 s on: prefill keeps KV", "next: vindicate diagnose"]
    assert summary_lines(None, 0, {}, 0) == ["nothing was seen yet"]
