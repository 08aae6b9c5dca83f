"""`vindicate diagnose`: who is waiting for whom? Records a window, judges it, shows the chain and its guilty node."""

import os
import re
import sys
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from vindicate.cli.option import (
    DURATION,
    example,
    json_option,
    ledger_file,
    ledger_option,
    print_json,
    say,
    stack_option,
)
from vindicate.errors import CannotError, MisuseError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from vindicate.record.diagnosis import Diagnosis
    from vindicate.record.observation import Capture
    from vindicate.stack.model import Stack

__all__ = ["diagnose"]

_FINDING_TOKENS = 4  # of the budget, for finding a chain
_EXIT = {"healthy": 0, "fault": 1, "undetermined": 3}


class TokenBudget(click.ParamType[int]):
    """A number of tokens: ``32tok`` or ``32``."""

    name = "tokens"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Parse text; a number passes through."""
        match = re.fullmatch(r"\s*([0-9]+)\s*(?:t|tok|tokens?)?\s*", str(value))
        if match is None:
            self.fail(f"{value!r} is no number of tokens; try: 32tok", param, ctx)
        return int(match[1])


@click.command(epilog=example("vindicate diagnose http://127.0.0.1:8000"))
@click.argument("words", nargs=-1, metavar="[capture] [URL]")
@stack_option
@ledger_option
@click.option("--window", "window_s", type=DURATION, default="10s", show_default=True, help="How long to look.")
@click.option("--no-probe", is_flag=True, help="Send no request of our own; only watch.")
@click.option(
    "--probe-budget",
    type=TokenBudget(),
    default="32tok",
    show_default=True,
    help="Most tokens that our own requests may ask for.",
)
@click.option(
    "--client-pid",
    "client_pids",
    type=click.IntRange(1, 2**22),
    multiple=True,
    metavar="PID",
    help="A process that hangs; may be given several times.",
)
@click.option("--findings", is_flag=True, help="Show every finding with its numbers.")
@click.option(
    "--html", "html_file", type=click.Path(path_type=Path), metavar="FILE", help="Also write one self-contained page."
)
@click.option("--save", is_flag=True, help="Keep the diagnosis in the ledger as evidence, and print its id.")
@click.option(
    "--out",
    "out_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="With the word capture: where the recording goes.",
)
@click.option(
    "--replay",
    "replay_files",
    type=click.Path(path_type=Path),
    multiple=True,
    metavar="FILE",
    help="Judge a recording; give it once for each host.",
)
@click.option(
    "--host",
    "hosts",
    multiple=True,
    metavar="USER@NAME",
    help="Look from another host too, over ssh; nothing is installed there. May be given several times.",
)
@click.option("--ssh", default="ssh", show_default=True, metavar="COMMAND", help="How --host is reached.")
@click.option(
    "--list-mechanisms",
    is_flag=True,
    help="List what can be named: how it looks, what it is confused with, what to do.",
)
@json_option
def diagnose(
    *,
    words: tuple[str, ...],
    stack_file: str | None,
    ledger_path: str | None,
    window_s: float,
    no_probe: bool,
    probe_budget: int,
    client_pids: tuple[int, ...],
    findings: bool,
    html_file: Path | None,
    save: bool,
    out_file: Path | None,
    replay_files: tuple[Path, ...],
    hosts: tuple[str, ...],
    ssh: str,
    list_mechanisms: bool,
    as_json: bool,
) -> int:
    """It hangs: who is waiting for whom?

    Watches sockets, metrics and processes of the whole chain for a window, sends a few small requests of its own past one
    layer after another, and names the guilty one, or says what is missing to name it. URL is where clients call; without
    it the stack file's entry, and without that the chain that this host's sockets show. The word capture before it
    only records: diagnose capture [URL] --out FILE.

    Exit code: 0 healthy, 1 a fault, 3 undetermined.
    """
    if list_mechanisms:
        _list_mechanisms(as_json=as_json)
        return 0
    for option, file in (("--out", out_file), ("--html", html_file)):
        if file is not None:
            _check_writable(file, option)
    if html_file is not None:
        from vindicate.cli.page import require_ours
        from vindicate.view.page import MARK

        require_ours(html_file, MARK)
    if save:
        from vindicate.ledger.store import Ledger

        Ledger.open(ledger_file(ledger_path, stack_file)).close()  # said now rather than after the window
    began = time.monotonic()
    if hosts and replay_files:
        raise MisuseError("--host looks now, and --replay judges what was recorded", remedy="leave one of them out")
    if replay_files:  # --replay a.json b.json: what follows the first file are files too
        capture = _replayed((*replay_files, *(Path(word) for word in words)))
    else:
        records_only = words[:1] == ("capture",)
        url = _one(words[1:] if records_only else words)
        if records_only != (out_file is not None):
            raise MisuseError(
                "the word capture was given without --out FILE"
                if records_only
                else f"--out {out_file} was given without the word capture",
                remedy=f"try: vindicate diagnose capture {url or ''}".rstrip() + f" --out {out_file or 'capture.json'}",
            )
        budget = 0 if no_probe else probe_budget
        stack = _stack(url, stack_file, min(_FINDING_TOKENS, budget // 8))
        _check_running(client_pids)
        with _afar(stack, hosts, ssh, window_s) as joined:
            capture = joined(_recorded(stack, window_s, budget - stack.spent, client_pids))
        capture = replace(capture, blind=(*stack.notes, *capture.blind))
        if stack.others:
            urls = ", ".join(stack.others)
            capture = replace(capture, blind=(*capture.blind, f"not looked at, though seen on this host: {urls}"))
        if out_file is not None:
            from vindicate.observe.capture_file import save_capture

            save_capture(capture, out_file)
            print_json({"capture": str(out_file)}) if as_json else print(
                f"wrote {out_file}\nnext: vindicate diagnose --replay {out_file}"
            )
            return 0
    from vindicate.diagnose.judge import judge

    diagnosis = judge(capture)
    diagnosis = replace(diagnosis, took_s=round(capture.window_s if replay_files else time.monotonic() - began, 3))
    _show(diagnosis, capture, findings=findings, as_json=as_json)
    if html_file is not None:
        from vindicate.cli.page import write_page
        from vindicate.view.diagnosis import diagnosis_html
        from vindicate.view.page import MARK

        write_page(html_file, diagnosis_html(diagnosis, capture).encode(errors="backslashreplace"), MARK)
    if save:
        saved = _save(diagnosis, capture, ledger_file(ledger_path, stack_file))
        say(saved) if as_json else print(saved)
    return _EXIT[diagnosis.status]


def _one(words: tuple[str, ...]) -> str | None:
    if len(words) > 1:
        raise MisuseError(f"{len(words)} URLs were given: {' '.join(words)}", remedy="diagnose one entry at a time")
    return words[0] if words else None


def _stack(url: str | None, stack_file: str | None, tokens: int) -> "Stack":
    """The stack file's chain, entered at *url* when that is one of its services; else what the sockets show, for *tokens* at most."""
    from vindicate.stack.file import find_stack_file, load_stack

    if find_stack_file(stack_file) is not None:
        stack = load_stack(stack_file)
        if url is None:
            return stack
        same = next((s.name for s in stack.services.values() if s.url == url.rstrip("/")), None)
        if same is not None:
            return replace(stack, entry=same)
        if stack_file is not None:
            urls = ", ".join(service.url for service in stack.services.values())
            raise MisuseError(
                f"no service of {stack_file} is at {url}",
                remedy=f"one of: {urls}; or leave --stack out, to look for its chain",
            )
    from vindicate.stack.discover import discover

    return discover(url, tokens)


def _recorded(stack: "Stack", window_s: float, budget: int, client_pids: tuple[int, ...]) -> "Capture":
    from vindicate.observe.record import record_capture

    def progress(at_s: float, doing: str) -> None:
        if sys.stderr.isatty():
            print(f"\r{doing} {at_s:4.0f} of {window_s:.0f} s ", end="", file=sys.stderr, flush=True)

    say(f"watching {' > '.join(stack.path_from(stack.entry))} for {window_s:g} s")
    try:
        return record_capture(
            stack,
            window_s=window_s,
            probe=budget > 0,
            probe_tokens=budget,
            client_pids=client_pids,
            on_progress=progress,
        )
    finally:
        if sys.stderr.isatty():
            print("\r" + " " * 60 + "\r", end="", file=sys.stderr, flush=True)


@contextmanager
def _afar(
    stack: "Stack", hosts: tuple[str, ...], ssh: str, window_s: float
) -> "Iterator[Callable[[Capture], Capture]]":
    """Looks from *hosts* as long as the block runs; what it yields joins their sight with ours."""
    if not hosts:
        yield lambda own: own
        return
    from vindicate.diagnose.join import join_captures
    from vindicate.observe.afar import LATE_S, Afar, seen_from_afar

    ports = [service.port for service in stack.services.values()]
    eyes = [Afar(name, ssh=ssh, window_s=window_s, ports=ports) for name in dict.fromkeys(hosts)]

    def joined(own: "Capture") -> "Capture":
        until = time.monotonic() + LATE_S
        for eye in eyes:
            eye.wait(until)
        whole = join_captures(seen_from_afar(own, eyes))
        return replace(whole, blind=tuple(line.removeprefix(f"{own.host}: ") for line in whole.blind))

    try:
        for eye in eyes:
            eye.start()
        yield joined
    finally:
        for eye in eyes:
            eye.wait(0.0)


def _replayed(files: tuple[Path, ...]) -> "Capture":
    from vindicate.diagnose.join import join_captures
    from vindicate.observe.capture_file import load_capture

    return join_captures([load_capture(file) for file in files])


def _show(diagnosis: "Diagnosis", capture: "Capture", *, findings: bool, as_json: bool) -> None:
    if as_json:
        print_json(diagnosis)
        return
    from vindicate.view.diagnosis import diagnosis_text

    print(diagnosis_text(diagnosis, capture, findings=findings), end="")


def _check_running(pids: tuple[int, ...]) -> None:
    """Fail for a process that is not there, rather than look past it for a whole window."""
    import psutil

    gone = next((pid for pid in pids if not psutil.pid_exists(pid)), None)
    if gone is not None:
        raise MisuseError(
            f"--client-pid {gone}: there is no such process on this host",
            remedy="find the one that hangs: pgrep -a NAME; or leave --client-pid out",
        )


def _check_writable(file: Path, option: str) -> None:
    """Fail in the first second rather than after the window."""
    folder, remedy = file.absolute().parent, f"name another file with {option}"
    if not folder.is_dir():
        raise MisuseError(f"{file}: there is no folder {folder}", remedy=f"make it, or {remedy}")
    if file.is_dir():
        raise MisuseError(f"{file} is a folder", remedy=remedy)
    if not os.access(file if file.exists() else folder, os.W_OK):
        raise CannotError(f"{file}: cannot be written: Permission denied", remedy=remedy)


def _list_mechanisms(*, as_json: bool) -> None:
    if as_json:
        from vindicate.diagnose.catalogue import CATALOGUE

        print_json({"schema": "vindicate.mechanisms/1", "mechanisms": list(CATALOGUE.values())})
        return
    from vindicate.view.diagnosis import mechanisms_text

    print(mechanisms_text(), end="")


def _save(diagnosis: "Diagnosis", capture: "Capture", ledger_at: Path) -> str:
    """Keep the diagnosis as evidence; the sentence that names its id."""
    import msgspec

    from vindicate.ledger.importing import diagnosis_evidence
    from vindicate.ledger.live import held_in
    from vindicate.ledger.store import Ledger

    found = diagnosis_evidence(msgspec.to_builtins(diagnosis), source="vindicate diagnose", held=held_in(capture))
    with Ledger.open(ledger_at) as ledger:
        evidence = replace(found, id=ledger.next_id("E"))
        ledger.append(evidence, happened_at=diagnosis.started_at or None)
    return f"saved as {evidence.id} in {ledger_at}"
