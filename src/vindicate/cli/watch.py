"""`vindicate watch`: the chain while it runs, and without a change: who waits for whom, what moves, what is pinned."""

import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

from vindicate.cli.option import DURATION, example, say, stack_option
from vindicate.errors import CannotError, MisuseError
from vindicate.redact import redact_json

if TYPE_CHECKING:
    from vindicate.diagnose.moment import Watching
    from vindicate.observe.onlook import Onlooker
    from vindicate.record.watch import WatchSample
    from vindicate.stack.model import Stack

__all__ = ["watch"]

_SHARE = 0.03  # of one core, for what a sample costs
_FASTEST_S = 0.2


@click.command(epilog=example("vindicate watch --interval 2s"))
@click.argument("url", required=False)
@stack_option
@click.option("--interval", "interval_s", type=DURATION, default="1s", show_default=True, help="How often to sample.")
@click.option("--for", "for_s", type=DURATION, help="Stop by itself after so long.")
@click.option(
    "--keep",
    "keep_dir",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Also append every sample to DIR/watch.jsonl.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document a line and sample, nothing else there.")
def watch(
    url: str | None,
    stack_file: str | None,
    interval_s: float,
    for_s: float | None,
    keep_dir: Path | None,
    *,
    as_json: bool,
) -> int:
    """Watch the chain while it runs: who waits for whom, what moves, what is pinned.

    Reads sockets, metrics and processes, and sends no request of its own. A table on a terminal, a line a sample
    elsewhere; with --json a JSON document on each line. Ctrl-C ends it, with a summary.

    Exit code: 0 nothing bad was seen, 1 a fault in two diagnoses running, a service that was down, or pinned requests.
    """
    import asyncio

    from vindicate.diagnose.moment import Watching
    from vindicate.operate.interrupt import interruptible
    from vindicate.view.watch import summary_lines

    if interval_s < _FASTEST_S:
        raise MisuseError(f"--interval {interval_s:g} s is too short to be cheap", remedy=f"{_FASTEST_S:g} s or more")
    stack, renew = _stack(url, stack_file)
    keep = _Keep.open(keep_dir) if keep_dir else None
    watching, course = Watching(), _Course()
    say(f"watching {' > '.join(stack.path_from(stack.entry))} every {interval_s:g} s; Ctrl-C ends it")
    try:
        with interruptible(), suppress(KeyboardInterrupt), _shower(as_json=as_json) as show:
            asyncio.run(
                _go_on(stack, renew, watching, course, interval_s=interval_s, for_s=for_s, keep=keep, show=show)
            )
    finally:
        if keep is not None:
            keep.close()
    if course.last is not None and course.last.verdict == "fault":  # nothing has spoken against it since
        watching.bad.setdefault(course.last.summary, course.last.t_s)
    lines = "\n".join(summary_lines(course.last, course.n_samples, watching.bad, watching.n_judged))
    say(lines) if as_json else print(lines)
    if keep is not None and keep.problem is not None:
        raise CannotError(
            f"{keep.file}: {keep.problem}; samples are missing there",
            remedy="make room, or name another folder with --keep",
        )
    return 1 if watching.bad else 0


@dataclass(slots=True)
class _Course:
    """How far a watch has come."""

    n_samples: int = 0
    last: "WatchSample | None" = None


async def _go_on(
    stack: "Stack",
    renew: "Callable[[Stack], Stack]",
    watching: "Watching",
    course: _Course,
    *,
    interval_s: float,
    for_s: float | None,
    keep: "_Keep | None",
    show: "Callable[[WatchSample], None]",
) -> None:
    """Sample until the time is over or nobody reads any more."""
    import asyncio

    from vindicate.observe.onlook import onlooking

    began = time.monotonic()
    dear_until = 0.0
    async with onlooking(stack, interval_s, renew) as onlooker:
        due = time.monotonic()
        while True:
            due = max(due + interval_s, time.monotonic())
            await asyncio.sleep(due - time.monotonic())
            if (problem := onlooker.failed()) is not None:
                raise problem
            begun = time.thread_time()
            sample, dear = await _sample(onlooker, watching, began, fresh=time.monotonic() >= dear_until)
            if dear:  # a capture of thousands of connections is drawn up less often
                dear_until = time.monotonic() + (time.thread_time() - begun) / _SHARE
            course.n_samples, course.last = course.n_samples + 1, sample
            if keep is not None:
                keep.append(sample)
            show(sample)
            if (for_s is not None and time.monotonic() - began >= for_s) or (keep is None and not _is_read()):
                return


async def _sample(
    onlooker: "Onlooker", watching: "Watching", began: float, *, fresh: bool
) -> "tuple[WatchSample, bool]":
    from vindicate.clock import utc_now
    from vindicate.diagnose.moment import Seen

    capture = await onlooker.capture() if fresh else None
    seen = Seen(
        at=utc_now(),
        t_s=time.monotonic() - began,
        scrapes=onlooker.take(),
        listening=onlooker.listening,
        local=onlooker.local,
        pids=onlooker.pids,
    )
    return replace(watching.add(seen, capture), cpu_s=round(time.process_time(), 3)), fresh


def _stack(url: str | None, stack_file: str | None) -> "tuple[Stack, Callable[[Stack], Stack]]":
    """What to watch, and how to look again where its ports are."""
    from vindicate.stack.file import find_stack_file, load_stack

    def reload(old: "Stack") -> "Stack":
        assert old.file is not None
        new = load_stack(str(old.file))
        return replace(new, entry=old.entry) if old.entry in new.services else new

    if find_stack_file(stack_file) is not None:
        stack = load_stack(stack_file)
        same = (
            stack.entry
            if url is None
            else next((s.name for s in stack.services.values() if s.url == url.rstrip("/")), None)
        )
        if same is not None:
            return replace(stack, entry=same), reload
        if stack_file is not None:
            urls = ", ".join(service.url for service in stack.services.values())
            raise MisuseError(f"no service of {stack_file} is at {url}", remedy=f"one of: {urls}; or leave --stack out")
    from vindicate.stack.discover import discover

    return discover(url), lambda old: old


# ---- where samples go --------------------------------------------------------------------------------------------


def _line_of(sample: "WatchSample") -> bytes:
    import msgspec

    return msgspec.json.encode(redact_json(msgspec.to_builtins(sample)))


@dataclass(slots=True)
class _Keep:
    """A file of samples, each written at once: whatever kills us, the last one is lost at most."""

    file: Path
    out: IO[bytes]
    problem: str | None = None

    @classmethod
    def open(cls, folder: Path) -> "_Keep":
        """Make the folder; begin on a line of its own where the file ends in the middle of one."""
        file = folder / "watch.jsonl"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            out = file.open("ab+", buffering=0)
            if out.seek(0, os.SEEK_END):
                out.seek(-1, os.SEEK_END)
                if out.read(1) != b"\n":
                    out.write(b"\n")
        except OSError as error:
            raise CannotError(
                f"{file}: cannot be written: {error.strerror}", remedy="name another folder with --keep"
            ) from error
        return cls(file, out)

    def append(self, sample: "WatchSample") -> None:
        """Write one sample; what cannot be written is said once, and the watch goes on."""
        try:
            self.out.write(_line_of(sample) + b"\n")
        except OSError as error:
            if self.problem is None:
                self.problem = error.strerror or str(error)
                say(f"{self.file}: {self.problem}; the watch goes on")

    def close(self) -> None:
        """No more samples."""
        self.out.close()


@contextmanager
def _shower(*, as_json: bool) -> "Iterator[Callable[[WatchSample], None]]":
    """How a sample is shown: a JSON line, a plain line, or a table that is drawn anew on a terminal."""
    if as_json:
        yield lambda sample: _out(_line_of(sample).decode())
        return
    from vindicate.view.watch import sample_line, sample_table

    if not sys.stdout.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        yield lambda sample: _out(sample_line(sample))
        return
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(), auto_refresh=False) as live:
        yield lambda sample: live.update(sample_table(sample), refresh=True)


def _out(line: str) -> None:
    print(line, flush=True)


def _is_read() -> bool:
    """Whether somebody still reads what we write: a pipe whose other end is closed has no reader."""
    try:
        ends = select.poll()
        ends.register(sys.stdout.fileno(), 0)
        return not any(event & (select.POLLERR | select.POLLHUP) for _, event in ends.poll(0))
    except (OSError, ValueError):
        return True
