"""Samples of a watch → one line each, or a table that is drawn anew; and a summary at the end."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from vindicate.record.watch import Owed, Pins, ServiceMoment, WatchSample
from vindicate.units import format_bytes, format_duration

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

__all__ = ["plain", "sample_line", "sample_table", "summary_lines"]

_MOST_OWED = 5


def sample_line(sample: WatchSample) -> str:
    """The whole chain on one line, entry first."""
    parts = [f"{sample.at[11:19]}  {_verdict(sample)}"]
    parts += [" ".join([one.name, *_words(one)]) for one in sample.services]
    if sample.owed:
        parts.append(f"oldest wait {_owed(sample.owed[0])}")
    parts += [plain(text) for text in sample.news]
    return " | ".join(parts)


def sample_table(sample: WatchSample) -> "Group":
    """A table with a row for each service, and below it who waits, and the verdict."""
    from rich.console import Group
    from rich.text import Text

    below = [f"{_owed(one)} without a byte of an answer" for one in sample.owed[:_MOST_OWED]]
    if len(sample.owed) > _MOST_OWED:
        below.append(f"and {len(sample.owed) - _MOST_OWED} more that wait")
    below += [f"{one.name}: {error}" for one in sample.services for error in one.errors]
    below += [
        f"{one.name}: {_pins(one.pins)}: {one.pins.because}"
        for one in sample.services
        if one.pins and _counts(one.pins)
    ]
    below += [
        *(plain(text) for text in sample.news),
        f"{_verdict(sample)}{': ' if sample.summary else ''}{plain(sample.summary)}",
    ]
    return Group(
        _table(sample), *(Text(line) for line in below), Text(f"{format_duration(sample.t_s)}; Ctrl-C ends it")
    )


def _table(sample: WatchSample) -> "Table":
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for title in ("service", "state"):
        table.add_column(title)
    for title in ("run", "wait", "pd", "tok/s", "req/s", "streams", "out/s", "owed", "oldest"):
        table.add_column(title, justify="right")
    for one in sample.services:
        cells = (
            one.name,
            one.state,
            *(_number(n) for n in (one.running, one.waiting, one.handover, one.tokens_per_s, one.ended_per_s)),
            str(one.streams),
            "" if one.answer_bytes_per_s is None else format_bytes(one.answer_bytes_per_s),
            str(one.owed or ""),
            "" if one.oldest_owed_s is None else f"{one.oldest_owed_s:.0f} s",
        )
        style = (
            "red"
            if one.state in ("down", "silent") or (sample.verdict == "fault" and sample.guilty == one.name)
            else ""
        )
        table.add_row(*(Text(cell) for cell in cells), style=style)
    return table


def summary_lines(last: WatchSample | None, n_samples: int, bad: Mapping[str, float], n_judged: int) -> list[str]:
    """What the watch came to. *bad*: what was wrong, and when it was first seen."""
    if last is None:
        return ["nothing was seen yet"]
    lines = [f"watched for {format_duration(last.t_s)}: {n_samples} samples, {n_judged} diagnoses without a probe"]
    lines += [f"  from {format_duration(at)} on: {plain(what)}" for what, at in bad.items()]
    if bad:
        lines.append("next: vindicate diagnose")
    elif n_judged == 0:
        lines.append("nothing wrong was seen, in too short a time for a diagnosis")
    elif last.verdict == "healthy":
        lines.append("nothing wrong was seen")
    else:
        lines.append("no fault was found; small requests of our own tell more: vindicate diagnose")
    return lines


def _verdict(sample: WatchSample) -> str:
    if sample.verdict is None:
        return "no verdict yet"
    if sample.verdict != "fault":
        return sample.verdict
    return f"FAULT {sample.guilty} ({sample.mechanism})" + ("" if sample.lasting else ", seen once")


def _words(one: ServiceMoment) -> list[str]:
    words: list[str] = [one.state]
    words += [
        f"{title} {_number(n)}"
        for title, n in (("run", one.running), ("wait", one.waiting), ("pd", one.handover))
        if n is not None
    ]
    words += [f"{_number(one.tokens_per_s)} tok/s"] if one.tokens_per_s is not None else []
    words += [f"{_number(one.ended_per_s)} req/s"] if one.ended_per_s is not None else []
    if one.streams or one.answer_bytes_per_s:
        words.append(f"streams {one.streams}, {format_bytes(one.answer_bytes_per_s or 0)}/s")
    if one.owed:
        words.append(f"owes {one.owed}, oldest {one.oldest_owed_s or 0:.1f} s")
    if one.pins is not None and _counts(one.pins):
        words.append(_pins(one.pins))
    return words + [f"[{error}]" for error in one.errors]


def _counts(pins: Pins) -> bool:
    """Whether they are worth a word: that a busy engine holds requests for some seconds is not."""
    return pins.verdict in ("pinned", "stuck") or pins.over_s >= 60


def _pins(pins: Pins) -> str:
    number = f"{pins.least}" if pins.least == pins.most else f"{pins.least} to {pins.most}"
    stages = ", ".join(f"{name} {n}" for name, n in pins.stages.items())
    where = f" ({stages})" if stages else ""
    match pins.verdict:
        case "pinned" | "stuck":
            return f"{number} {pins.verdict} for {format_duration(pins.over_s)}{where}"
        case "rotating":
            return f"{pins.held} held{where} and rotating" + (f", at most {pins.most} pinned" if pins.most else "")
        case _:
            return f"{number} may be pinned"


def _owed(one: Owed) -> str:
    return f"{plain(one.caller)} > {plain(one.callee)} {one.age_s:.1f} s"


def plain(text: str) -> str:
    """Without what moves a terminal's cursor: a process may call itself anything."""
    return "".join(sign if sign.isprintable() else "?" for sign in text)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.0f}" if value >= 100 or value == int(value) else f"{value:.1f}"
