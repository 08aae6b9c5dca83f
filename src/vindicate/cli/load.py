"""`vindicate load`: drive multi-round sessions against a server; every run ends."""

import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from vindicate.cli.option import DURATION, example, json_option, print_json, say, stack_option
from vindicate.errors import MisuseError
from vindicate.units import Seconds

if TYPE_CHECKING:
    from vindicate.load.run import Progress

__all__ = ["load"]


class LevelsType(click.ParamType[tuple[int, ...]]):
    """Whole numbers with commas between: 48,64,80."""

    name = "levels"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """Parse text."""
        if not re.fullmatch(r"\s*\d+\s*(,\s*\d+\s*)*", str(value), re.ASCII):
            self.fail(f"{value!r} is no list of levels; try: 48,64,80,96", param, ctx)
        return tuple(int(word) for word in str(value).split(","))


@click.command(epilog=example("vindicate load http://127.0.0.1:8000 --concurrency 8 --rounds 6 --stall-after 30s"))
@click.argument("url", required=False)
@click.option("--model", metavar="M", help="Default: the first of /v1/models.")
@stack_option
@click.option("--concurrency", type=click.IntRange(min=1), metavar="N", help="Streams at a time.  [default: 8]")
@click.option("--levels", type=LevelsType(), metavar="N,N,…", help="Several concurrencies, one after another.")
@click.option("--rounds", type=click.IntRange(min=1), default=4, show_default=True, help="Rounds of a session.")
@click.option(
    "--sessions",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help='Play these instead: {"rounds": [{"say": "…", "expect": "…"}]} a line.',
)
@click.option(
    "--requests", type=click.IntRange(min=1), metavar="N", help="Requests a level.  [default: one session a slot]"
)
@click.option("--duration", type=DURATION, metavar="S", help="Start no requests of a level after so long.")
@click.option("--max-tokens", type=click.IntRange(min=1), default=64, show_default=True)
@click.option(
    "--stall-after", type=DURATION, default="30s", show_default=True, help="Silence that makes a stream stalled."
)
@click.option(
    "--deadline", type=DURATION, default="10m", show_default=True, help="Age at which any stream is given up."
)
@click.option(
    "--cancel-share",
    type=click.FloatRange(0, 1),
    default=0.0,
    show_default=True,
    help="Share of streams that are abandoned in the middle, as agents do.",
)
@click.option("--seed", type=click.IntRange(min=0), help="Same seed, same prompts.  [default: a fresh one]")
@click.option(
    "--api-key-env", metavar="NAME", help="Variable that holds the key.  [default: that of the stack's entry]"
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Where requests.jsonl and summary.json go.  [default: a fresh folder under .vindicate/load]",
)
@json_option
def load(
    *,
    url: str | None,
    model: str | None,
    stack_file: str | None,
    concurrency: int | None,
    levels: tuple[int, ...] | None,
    rounds: int,
    sessions: Path | None,
    requests: int | None,
    duration: Seconds | None,
    max_tokens: int,
    stall_after: Seconds,
    deadline: Seconds,
    cancel_share: float,
    seed: int | None,
    api_key_env: str | None,
    out: Path | None,
    as_json: bool,
) -> int:
    """Drive multi-round sessions against URL, or against the entry of the stack.

    Each round plants a fresh value and asks for one of an earlier round; a stream that falls silent is given up and
    named with its age. Exit code 1: a stream stalled, broke, or an answer was wrong.
    """
    if concurrency is not None and levels is not None:
        raise MisuseError("--concurrency and --levels were both given", remedy="leave one out")
    from vindicate.load.keep import fresh_folder
    from vindicate.load.plan import LoadPlan, read_sessions

    target, home, key_env = _target(url, stack_file)
    plan = LoadPlan(
        url=target,
        model=model,
        levels=levels or (concurrency or 8,),
        requests_per_level=requests,
        duration_s=duration,
        rounds=rounds,
        max_tokens=max_tokens,
        stall_after_s=stall_after,
        deadline_s=deadline,
        cancel_share=cancel_share,
        seed=seed,
        api_key_env=api_key_env or key_env,
        sessions=read_sessions(sessions) if sessions is not None else (),
    )
    folder = out or fresh_folder(home)
    from vindicate.load.run import run_load_blocking
    from vindicate.view.load import show_load

    # Whoever ends us with SIGTERM gets the partial results too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        summary = run_load_blocking(plan, out=folder, on_progress=_teller())
    except KeyboardInterrupt:
        if (folder / "summary.json").exists():
            say(f"partial results: {folder}/summary.json, {folder}/requests.jsonl")
        raise
    if as_json:
        print_json(summary)
    else:
        show_load(summary)
    bad = any(level.stalled or level.failed or level.truncated or level.recall_failed for level in summary.levels)
    return 1 if bad or not summary.complete else 0


def _target(url: str | None, stack_file: str | None) -> tuple[str, Path, str | None]:
    """URL, home of our files, and the name of the key's variable."""
    from vindicate.stack.file import find_stack_file, load_stack, read_stack

    if url is None:
        stack = load_stack(stack_file)
        entry = stack.service(stack.entry)
        return entry.url, stack.home, entry.api_key_env
    path = find_stack_file(stack_file)
    if path is None:
        return url, Path.cwd() / ".vindicate", None
    stack = read_stack(path)
    known = next((service for service in stack.services.values() if service.url == url.rstrip("/")), None)
    return url, stack.home, known.api_key_env if known else None


def _teller() -> "Callable[[Progress], None]":
    """Notes always; how far we are every two seconds, on a terminal only."""
    last = 0.0
    live = sys.stderr.isatty()

    def tell(progress: "Progress") -> None:
        nonlocal last
        if progress.note:
            say(f"vindicate load: {progress.note}")
        if live and time.monotonic() - last >= 2:
            last = time.monotonic()
            say(
                f"level {progress.level}: {progress.requests} ended ({progress.broken} broken), {progress.running} running, {progress.elapsed_s:.0f} s"
            )

    return tell
