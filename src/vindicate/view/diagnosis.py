"""A diagnosis and its capture → the screen: the chain with what moves on each edge, the guilty node in words, and why."""

import textwrap
from collections.abc import Iterator

from vindicate.diagnose.catalogue import CATALOGUE
from vindicate.diagnose.judge import scene_of
from vindicate.diagnose.link import Link
from vindicate.diagnose.rule import Scene, count
from vindicate.record.diagnosis import Diagnosis, Finding
from vindicate.record.observation import Capture
from vindicate.units import format_bytes, format_duration
from vindicate.view.page import MARK

__all__ = ["diagnosis_html", "diagnosis_text", "mechanisms_text"]

WIDTH = 80
_DIRECTION = {"implicates": "speaks against", "clears": "speaks for", "neutral": "seen at"}


def diagnosis_text(diagnosis: Diagnosis, capture: Capture, *, findings: bool = False) -> str:
    """The whole screen, in 80 columns, without colour, in an order that reads well aloud.

    Args:
        findings: Show every finding with its numbers, not only the three that weigh most.
    """
    lines = [*_verdict(diagnosis), "", *_chain(diagnosis, scene_of(capture))]
    chosen = list(diagnosis.findings) if findings else _three(diagnosis)
    if chosen:
        lines += ["", "Findings" if findings else "Why"]
        for finding in chosen:
            lines += _item(_sentence(finding, full=findings))
    if diagnosis.cleared:
        lines += ["", "Cleared"]
        for clearance in diagnosis.cleared:
            knobs = (
                f" and its knob{'s' if len(clearance.knobs) > 1 else ''} {', '.join(clearance.knobs)}"
                if clearance.knobs
                else ""
            )
            lines += _item(f"{clearance.service}{knobs}, of {clearance.of}: {clearance.because}")
    if diagnosis.suspects:
        lines += ["", "Suspected, not convicted"]
        lines += [
            line for s in diagnosis.suspects for line in _item(f"{s.service}: {s.mechanism} ({s.confidence:.0%})")
        ]
    if diagnosis.aggravators:
        lines += ["", "Makes it worse"]
        lines += [line for a in diagnosis.aggravators for line in _item(f"{a.service}: {a.mechanism}")]
    for title, texts in (("Could not be seen", diagnosis.blind), ("Next", diagnosis.next)):
        if texts:
            lines += ["", title]
            lines += [line for text in texts for line in _item(text)]
    lines += [
        "",
        f"Looked for {format_duration(diagnosis.window_s)}, took {format_duration(diagnosis.took_s)}; started {diagnosis.started_at}",
    ]
    return "\n".join(lines) + "\n"


def _verdict(diagnosis: Diagnosis) -> Iterator[str]:
    if diagnosis.status == "fault":
        yield f"FAULT in {diagnosis.service} (layer: {diagnosis.layer}), confidence {diagnosis.confidence:.0%}"
        yield f"Mechanism: {diagnosis.mechanism}"
    else:
        sure = f", confidence {diagnosis.confidence:.0%}" if diagnosis.status == "healthy" else ""
        yield f"{diagnosis.status.upper()}{sure}"
    yield from textwrap.wrap(_capital(diagnosis.summary, diagnosis.service) + ".", WIDTH)


def _capital(text: str, name: str | None) -> str:
    """A sentence begins with a capital, unless it begins with the *name* of a service."""
    return text if name is not None and text.startswith(name) else text[:1].upper() + text[1:]


def _item(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent="  - ", subsequent_indent="    ", break_on_hyphens=False)


def _three(diagnosis: Diagnosis) -> list[Finding]:
    """The three findings that say most, one of each kind: against the guilty, or else whatever was found."""
    wanted = [f for f in diagnosis.findings if f.service == diagnosis.service and f.direction == "implicates"]
    if diagnosis.service is None:
        wanted = [f for f in diagnosis.findings if f.direction == "implicates"] or list(diagnosis.findings)
    order = ["probe", "process", "wait-for", "conservation", "counter", "socket", "queue", "host", "log"]
    seen: dict[tuple[str, str], Finding] = {}
    for finding in sorted(wanted, key=lambda f: order.index(f.kind)):
        seen.setdefault((finding.kind, finding.service if diagnosis.service is None else ""), finding)
    return list(seen.values())[:3]


def _sentence(finding: Finding, *, full: bool) -> str:
    text = _capital(finding.text, finding.service) + "."
    if not full:
        return text
    numbers = ", ".join(f"{name} {value}" for name, value in finding.measured.items() if value is not None)
    return f"{finding.id} {finding.kind}, {_DIRECTION[finding.direction]} {finding.service}: {text}" + (
        f" [{numbers}]" if numbers else ""
    )


def _chain(diagnosis: Diagnosis, scene: Scene) -> Iterator[str]:
    """The chain from the clients down; the line between two nodes says what moved there and who waits."""
    entry = scene.chain.entry or next(iter(scene.chain.order), None)
    if entry is None:
        yield "(no service was found)"
        return
    above = diagnosis.service is not None and diagnosis.service not in scene.chain.services
    yield f"clients  << GUILTY: {diagnosis.service}, {diagnosis.mechanism}" if above else "clients"
    callers = [
        link
        for link in scene.account.links
        if link.callee == entry and not link.ours and link.caller not in scene.chain.services
    ]
    yield from _edge(callers, 0, f"clients > {entry}")
    yield from _node(entry, diagnosis, scene, 0, set())
    yield "(down: requests, up: answers; waiting: no byte of answer yet;"
    yield " silent: an answer begun, and nothing moves: over, idle or stalled)"


def _node(name: str, diagnosis: Diagnosis, scene: Scene, depth: int, drawn: set[str]) -> Iterator[str]:
    indent = "    " * depth
    role = scene.chain.role(name)
    mark = ""
    if name == diagnosis.service:
        mark = f"  << GUILTY: {diagnosis.mechanism}"
    elif any(c.service == name for c in diagnosis.cleared):
        mark = "  (cleared)"
    elif any(s.service == name for s in diagnosis.suspects):
        mark = "  (suspected)"
    work = _work(scene, name)
    title = name if name == role else f"{name} ({role})"
    yield f"{indent}{title}{work}{mark}"
    if name in drawn:
        return
    drawn.add(name)
    for below in scene.chain.services[name].upstream:
        if below in scene.chain.services:
            links = [link for link in scene.account.links if link.caller == name and link.callee == below]
            yield from _edge(links, depth + 1, f"{name} > {below}")
            yield from _node(below, diagnosis, scene, depth + 1, drawn)


def _work(scene: Scene, name: str) -> str:
    progress = scene.progress[name]
    if name not in scene.leaves or progress.in_work_last is None:
        return ""
    return f"  [{progress.work}: {progress.in_work_last:g} in work]"


def _edge(links: list[Link], depth: int, who: str) -> list[str]:
    """What moved on the connections of *who*, caller and callee, and who waits there."""
    live = [link for link in links if link.is_open]
    words = [count(len(live), "connection")]
    for state, word in (
        ("owed", "waiting"),
        ("moving", "streaming"),
        ("open", "silent"),
        ("connecting", "not connected"),
    ):
        n = sum(link.state == state for link in live)
        if n:
            words.append(f"{n} {word}")
    gave_up = sum(link.gave_up for link in links)
    words += [f"{gave_up} gave up"] if gave_up else []
    down, up = sum(link.request_delta for link in links), sum(link.response_delta for link in links)
    words.append(f"{format_bytes(down)} down, {format_bytes(up)} up")
    indent = "    " * depth
    return textwrap.wrap(
        f"{who}: {', '.join(words)}", WIDTH, initial_indent=f"{indent}  | ", subsequent_indent=f"{indent}  |   "
    )


def mechanisms_text() -> str:
    """The catalogue, one paragraph a mechanism."""
    lines: list[str] = []
    for entry in CATALOGUE.values():
        lines.append(f"{entry.name}  (layer: {entry.layer})")
        for title, text in (
            ("It", entry.headline.removeprefix("it ")),
            ("Looks", entry.looks),
            ("Not to be confused with", entry.confused_with),
            ("Do", entry.remedy),
        ):
            if text:
                lines += textwrap.wrap(
                    f"{title}: {text.replace('{service}', 'NAME')}",
                    WIDTH,
                    initial_indent="  ",
                    subsequent_indent="    ",
                )
        lines.append("")
    return "\n".join(lines)


def diagnosis_html(diagnosis: Diagnosis, capture: Capture) -> str:
    """One page that needs nothing else: the screen with every finding, all text escaped."""
    from html import escape

    title = escape(f"vindicate: {diagnosis.status}" + (f", {diagnosis.service}" if diagnosis.service else ""))
    body = escape(diagnosis_text(diagnosis, capture, findings=True))
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">{MARK}<title>{title}</title>'
        '<meta name="viewport" content="width=device-width">'
        "<style>body{margin:2rem auto;max-width:52rem;padding:0 1rem;font:16px/1.5 system-ui,sans-serif;color:#222;background:#fff}"
        "pre{white-space:pre-wrap;font:14px/1.5 ui-monospace,monospace}</style></head>"
        f"<body><h1>{title}</h1><pre>{body}</pre></body></html>\n"
    )
