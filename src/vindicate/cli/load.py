"""`vindicate load`: drive multi-round sessions against a server; every run ends."""

import contextlib
import gc
import re
import resource
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from vindicate.cli.option import DURATION, example, json_option, print_json, say, stack_option
from vindicate.errors import MisuseError
from vindicate.record.load import SLO_NAMES
from vindicate.units import Seconds

if TYPE_CHECKING:
    from vindicate.load.dialect import Api
    from vindicate.load.export import Format
    from vindicate.load.run import Progress
    from vindicate.load.schedule import Arrivals

__all__ = ["load"]


class SloType(click.ParamType[dict[str, float]]):
    """Bounds with commas between: ttft=500ms,itl=50ms."""

    name = "slo"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, float]:
        """Parse text; seconds by name."""
        found: dict[str, float] = {}
        for part in str(value).split(","):
            name, equals, text = part.strip().partition("=")
            if name not in SLO_NAMES or not equals:
                self.fail(f"{part!r} is no bound on {', '.join(SLO_NAMES)}; try: ttft=500ms,itl=50ms", param, ctx)
            found[name] = float(DURATION.convert(text, param, ctx))
        return found


class LevelsType(click.ParamType[tuple[int, ...]]):
    """Whole numbers with commas between: 48,64,80."""

    name = "levels"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """Parse text."""
        if not re.fullmatch(r"\s*\d+\s*(,\s*\d+\s*)*", str(value), re.ASCII):
            self.fail(f"{value!r} is no list of levels; try: 48,64,80,96", param, ctx)
        return tuple(int(word) for word in str(value).split(","))


@click.command(epilog=example("vindicate load http://127.0.0.1:8000 --concurrency 8 --rounds 6 --stall-after 30s"))
@click.argument("words", nargs=-1, metavar="[URL | export [DIR]]")
@click.option("--model", metavar="M", help="Default: the first of /v1/models.")
@stack_option
@click.option("--concurrency", type=click.IntRange(min=1), metavar="N", help="Streams at a time.  [default: 8]")
@click.option("--levels", type=LevelsType(), metavar="N,N,…", help="Several concurrencies, one after another.")
@click.option(
    "--rate",
    type=click.FloatRange(0, min_open=True),
    metavar="R",
    help="Open loop: R sessions arrive a second, come what may.",
)
@click.option(
    "--arrivals",
    type=click.Choice(["poisson", "constant", "burst"]),
    default="poisson",
    show_default=True,
    help="With --rate.",
)
@click.option(
    "--burst", type=click.IntRange(min=1), default=8, show_default=True, help="How many at once, with --arrivals burst."
)
@click.option(
    "--trace",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help='Open loop by a file: {"timestamp": MS, "input_length": N, "output_length": M} or {"at_s": S, "prompt": "…"} a line.',
)
@click.option("--ramp", type=DURATION, metavar="S", help="Until all streams, or the rate, are reached.")
@click.option("--api", type=click.Choice(["chat", "completions", "generate"]), default="chat", show_default=True)
@click.option("--stream/--no-stream", "streaming", default=True, show_default=True)
@click.option("--slo", type=SloType(), metavar="ttft=S,itl=S,…", help="Bounds of a good request: ttft, itl, tpot, e2e.")
@click.option("--rounds", type=click.IntRange(min=1), help="Rounds of a session.  [default: 4; 1 in an open loop]")
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
@click.option("--ignore-eos", is_flag=True, help="Every answer goes on to --max-tokens: equal work (SGLang, vLLM).")
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
    "--calibrate", is_flag=True,
    help="First measure this client's own error at each level, against a mock of known timing.",
)  # fmt: skip
@click.option(
    "--capture/--no-capture", default=True, show_default=True,
    help="Record the chain, once, when a stream falls silent and before it is given up.",
)  # fmt: skip
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Where requests.jsonl and summary.json go.  [default: a fresh folder under .vindicate/load]",
)
@click.option(
    "--format", "kind", type=click.Choice(["csv", "parquet", "aiperf"]), help="With the word export: as what."
)
@json_option
def load(
    *,
    words: tuple[str, ...],
    model: str | None,
    stack_file: str | None,
    concurrency: int | None,
    levels: tuple[int, ...] | None,
    rate: float | None,
    arrivals: "Arrivals",
    burst: int,
    trace: Path | None,
    ramp: Seconds | None,
    api: "Api",
    streaming: bool,
    slo: dict[str, float] | None,
    rounds: int | None,
    sessions: Path | None,
    requests: int | None,
    duration: Seconds | None,
    max_tokens: int,
    ignore_eos: bool,
    stall_after: Seconds,
    deadline: Seconds,
    cancel_share: float,
    seed: int | None,
    api_key_env: str | None,
    calibrate: bool,
    capture: bool,
    out: Path | None,
    kind: "Format | None",
    as_json: bool,
) -> int:
    """Drive multi-round sessions against URL, or against the entry of the stack.

    Each round plants a fresh value and asks for one of an earlier round; a stream that falls silent is given up and
    named with its age. Exit code 1: a stream stalled, broke, or an answer was wrong. docs/load.md defines every figure.
    load export [DIR] --format csv [--out FILE] writes the requests of a run, by default the last one, in another form.
    """
    if words[:1] == ("export",):
        return _export(words[1:], kind, out, stack_file, as_json=as_json)
    if kind is not None:
        raise MisuseError(
            "--format was given without the word export", remedy=f"try: vindicate load export --format {kind}"
        )
    if len(words) > 1:
        raise MisuseError(f"{len(words)} targets were given: {' '.join(words)}", remedy="name one URL")
    url = words[0] if words else None
    ways = {"--concurrency": concurrency, "--levels": levels, "--rate": rate, "--trace": trace}
    given = [name for name, value in ways.items() if value is not None]
    if len(given) > 1:
        raise MisuseError(f"{' and '.join(given)} were both given", remedy="leave one out")
    from vindicate.load.keep import fresh_folder
    from vindicate.load.plan import LoadPlan, read_sessions
    from vindicate.load.schedule import read_trace

    target, home, key_env = _target(url, stack_file)
    plan = LoadPlan(
        url=target,
        model=model,
        levels=levels or (concurrency or 8,),
        requests_per_level=requests,
        duration_s=duration,
        rate=rate,
        arrivals=arrivals,
        burst=burst,
        trace=read_trace(trace) if trace is not None else (),
        ramp_s=ramp or 0.0,
        api=api,
        streaming=streaming,
        slo_s=slo or {},
        rounds=rounds or (1 if rate is not None else 4),
        max_tokens=max_tokens,
        ignore_eos=ignore_eos,
        stall_after_s=stall_after,
        deadline_s=deadline,
        cancel_share=cancel_share,
        seed=seed,
        api_key_env=api_key_env or key_env,
        sessions=read_sessions(sessions) if sessions is not None else (),
    )
    if calibrate:
        if plan.is_open:
            raise MisuseError(
                "--calibrate measures at a level, and an open loop has none", remedy="leave it out, or name --levels"
            )
        from vindicate.load.calibrate import calibrate as measure

        say("calibrating the client, about a second a level")
        plan = replace(plan, client_errors_ms={error.level: error.ttft_ms for error in measure(plan.levels)})
    folder = out or fresh_folder(home)
    from vindicate.cli.stall_capture import StallCapture
    from vindicate.load.run import run_load_blocking
    from vindicate.view.load import show_load

    _have_room()
    # Whoever ends us with SIGTERM gets the partial results too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    where = [target] if words else ["--stack", stack_file] if stack_file else []
    try:
        with StallCapture(where, folder, stall_after_s=stall_after) as recording:
            on_silence = recording.start if capture else None
            summary = run_load_blocking(plan, out=folder, on_progress=_teller(), on_silence=on_silence)
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


def _export(
    words: tuple[str, ...], kind: "Format | None", out: Path | None, stack_file: str | None, *, as_json: bool
) -> int:
    """Write a run's rows in another form."""
    from vindicate.load.export import export_run, read_run
    from vindicate.stack.file import find_stack_file, read_stack

    if kind is None or len(words) > 1:
        raise MisuseError(
            "export takes one folder and a --format", remedy="try: vindicate load export DIR --format csv"
        )
    if words:
        folder = Path(words[0])
    else:
        path = find_stack_file(stack_file)
        home = (Path.cwd() / ".vindicate" if path is None else read_stack(path).home) / "load"
        runs = sorted(home.iterdir()) if home.is_dir() else []
        if not runs:
            raise MisuseError(f"{home} holds no run", remedy="name the folder: vindicate load export DIR --format csv")
        folder = runs[-1]
    records, torn = read_run(folder)
    if torn:
        say("its last line was torn by a kill, and is left out")
    ending = {"csv": "csv", "parquet": "parquet", "aiperf": "aiperf.jsonl"}[kind]
    target = out or (folder if folder.is_dir() else folder.parent) / f"requests.{ending}"
    export_run(records, kind, target)
    print_json({"requests": len(records), "file": str(target)}) if as_json else print(
        f"{len(records)} requests: {target}"
    )
    return 0


def _have_room() -> None:
    """A socket a stream, and few pauses for rubbish: what the imports made stays anyway."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


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
