"""How often is the verdict right? Real processes with one fault each → accuracy, convictions of innocents, time to verdict.

    python benchmarks/diagnosis.py [--runs 3] [--jobs 2] [--only NAME…] [--core] [--busy half] [--no-stack-file] [--out FILE] [--keep DIR]
    python benchmarks/diagnosis.py --report FILE… [--cases FILE]

Each run starts a fresh chain (proxy, router, prefill, decode) on free ports, lets clients of its own hang on it, and runs
`vindicate diagnose` on it as a user would. What part a process plays, and which fault it has, stands in a file that nobody is shown.
Prints one line a scenario, then k of n with 95 % bounds (verdicts.py).
"""

import argparse
import asyncio
import http.client
import importlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
import tomllib
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

sys.path.insert(0, str(Path(__file__).parent))  # it may be loaded by path
from callers import CLIENTS, body, busy, forever, hang, session_of, stream
from verdicts import bounds, grade, read_runs, report

__all__ = [  # families and other benchmarks take these from here
    "CORE", "KNOB", "PY", "SCENARIOS", "STARVED", "Chain", "Scenario", "body", "bounds", "busy", "forever", "free_ports", "hang",
    "run_once", "session_of", "stop_all", "stream", "wait_for",
]  # fmt: skip

KNOB = "SGLANG_SM120_MMA_TARGET_CTAS"
PY = sys.executable
Chain = tuple[dict[str, subprocess.Popen[bytes]], str, Path]  # processes by service, the entry's URL, the stack file


@dataclass(frozen=True)
class Scenario:
    """One chain with one fault, and the verdict it deserves; ``layer`` none is healthy.

    With *plain*, a foreign engine without metrics stands behind the proxy instead of router, prefill and decode.
    """

    name: str
    layer: str
    service: str | None = None
    mechanism: str | None = None
    proxy: tuple[str, ...] = ()
    router: tuple[str, ...] = ()
    prefill: tuple[str, ...] = ()
    decode: tuple[str, ...] = ()
    clients: tuple[str, ...] = ("hang",)
    kill: str | None = None
    signal: int = signal.SIGKILL
    has_proxy: bool = True
    decode_cleared: bool | None = None
    settle_s: float = 6.0
    plain: tuple[str, ...] | None = None
    start: Callable[["Scenario", Path], AbstractContextManager[Chain]] | None = None
    may_abstain: bool = False  # undetermined is a right answer too
    discovered: bool = False  # without its stack file, whatever the command line says
    more: tuple[str, ...] = ()  # further words for vindicate diagnose; {NAME} is the pid of a process of the chain


STARVED = ("--fault", "proxy.connector_starvation", "--slots", "4")
SCENARIOS = (
    Scenario("starved_pinned", "proxy", "proxy", "proxy.connector_starvation", proxy=STARVED, clients=("leave", "hang"), decode_cleared=True, settle_s=6),
    Scenario("starved_permit", "proxy", "proxy", "proxy.connector_starvation", proxy=(*STARVED, "--variant", "permit"), clients=("leave", "hang"), decode_cleared=True, settle_s=6),
    Scenario("decode_stalls", "decode", "decode", "decode.stall_mid_stream", decode=("--fault", "stall_mid_stream:20", "--fault-after", "6"), decode_cleared=False),
    Scenario("router_holds", "router", "router", "router.hold", router=("--fault", "hold", "--fault-after", "6"), decode_cleared=True),
    Scenario("decode_no_end", "decode", "decode", "decode.no_end", decode=("--fault", "no_end", "--fault-after", "6"), decode_cleared=False),
    Scenario("dead_proxy", "proxy", "proxy", "service.down", kill="proxy"),
    Scenario("dead_router", "router", "router", "service.down", kill="router"),
    Scenario("dead_prefill", "prefill", "prefill", "service.down", kill="prefill"),
    Scenario("dead_decode", "decode", "decode", "service.down", kill="decode", decode_cleared=False),
    Scenario("stopped_decode", "decode", "decode", "service.stopped", kill="decode", signal=signal.SIGSTOP, decode_cleared=False),
    Scenario("stopped_router", "router", "router", "service.stopped", kill="router", signal=signal.SIGSTOP),
    Scenario("busy", "none", clients=("busy",)),
    Scenario("idle", "none", clients=("idle",)),
    Scenario("quiet", "none", clients=()),
    Scenario("slow_decode", "none", decode=("--fault", "slow:8"), clients=("busy",)),
    Scenario("busy_no_proxy", "none", clients=("busy",), has_proxy=False),
    Scenario("at_capacity", "none", proxy=("--fault", "none", "--slots", "4"), clients=("busy",)),
    Scenario("stall_no_proxy", "decode", "decode", "decode.stall_mid_stream", decode=("--fault", "stall_mid_stream:20", "--fault-after", "6"), has_proxy=False, decode_cleared=False),
    Scenario("prefill_parked", "prefill", "prefill", "prefill.inflight_parked", prefill=("--fault", "inflight_parked", "--fault-after", "6")),
    Scenario("router_one_leg", "router", "router", "router.dual_dispatch_join", router=("--fault", "dual_dispatch_join", "--fault-after", "6"), decode_cleared=True),
    Scenario("decode_stalls_each", "decode", "decode", "decode.stall_mid_stream", decode=("--fault", "stall_each:20", "--fault-after", "6"), decode_cleared=False),
    Scenario("proxy_drops", "proxy", "proxy", "proxy.drop_stream", proxy=("--fault", "proxy.drop_stream")),
    Scenario("proxy_no_end", "proxy", "proxy", "stream.missing_done_masked_by_heartbeat", proxy=("--fault", "stream.missing_done_masked_by_heartbeat")),
    Scenario("plain_busy", "none", plain=("--itl", "0.05", "--tokens", "40"), clients=("busy",)),
    Scenario("plain_idle", "none", plain=(), clients=("idle",)),
    Scenario("plain_slow", "none", plain=("--itl", "0.9", "--tokens", "20"), clients=("busy",)),
    Scenario("plain_slow_first", "none", plain=("--delay-first", "1.5", "--itl", "0.02"), clients=("busy",)),
    Scenario("plain_starved", "proxy", "proxy", "proxy.connector_starvation", plain=("--itl", "0.05", "--tokens", "40"), proxy=(*STARVED, "--variant", "permit"), clients=("leave", "hang")),
    Scenario("plain_stalls", "engine", "engine", "engine.stall_mid_stream", plain=("--stall-at", "3", "--after", "8")),
    Scenario("plain_silent", "engine", "engine", "engine.no_first_token", plain=("--stall-at", "0", "--after", "8"), settle_s=20),  # less may be a long prompt
    Scenario("plain_no_end", "engine", "engine", "engine.no_end", plain=("--no-done", "--after", "8")),
    Scenario("plain_cuts", "engine", "engine", "engine.cuts_streams", plain=("--cut", "--after", "8")),
    Scenario("plain_errors", "engine", "engine", "service.answers_errors", plain=("--http-error", "500", "--after", "8")),
)  # fmt: skip
FAMILIES = sorted(file.stem for file in Path(__file__).parent.glob("scenarios_*.py"))
CORE = 17  # the first so many are those that must never be wrong


def free_ports(n: int) -> list[int]:
    """Ports outside the range from which the kernel takes its own."""
    found: list[int] = []
    while len(found) < n:
        port = random.randint(20_000, 32_000)
        with socket.socket() as knock:
            try:
                knock.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in found:
            found.append(port)
    return found


def wait_for(url: str, deadline_s: float = 60.0) -> None:
    """Until *url* answers 200."""
    end = time.monotonic() + deadline_s
    while time.monotonic() < end:
        try:
            with urllib.request.urlopen(url, timeout=2) as answer:
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(0.1)
    raise TimeoutError(url)


def wait_for_listener(port: int, deadline_s: float = 60.0) -> None:
    """Until somebody takes connections at *port*."""
    end = time.monotonic() + deadline_s
    while time.monotonic() < end:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=2).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise TimeoutError(f"port {port}")


@contextmanager
def chain(scenario: Scenario, folder: Path) -> Iterator[tuple[dict[str, subprocess.Popen[bytes]], str, Path]]:
    """Start the chain; yields its processes, the entry's URL and the stack file."""
    p, b, d, r, x = free_ports(5)
    reference = [PY, "-m", "vindicate.reference"]
    commands = {
        "prefill": [*reference, "prefill", "--port", str(p), "--bootstrap-port", str(b), *scenario.prefill],
        "decode": [*reference, "decode", "--port", str(d), *scenario.decode],
        "router": [*reference, "router", "--port", str(r), "--prefill", f"http://127.0.0.1:{p}", str(b), "--decode", f"http://127.0.0.1:{d}", *scenario.router],
        "proxy": [PY, "-m", "vindicate", "rehearse", "proxy", "--listen", f"127.0.0.1:{x}", "--upstream", f"http://127.0.0.1:{r}", *scenario.proxy],
    }  # fmt: skip
    ports = {"prefill": p, "decode": d, "router": r, "proxy": x}
    if scenario.plain is not None:
        fake = str(Path(__file__).parents[1] / "tests" / "fakes" / "engine.py")
        relay = [
            PY,
            "-m",
            "vindicate",
            "rehearse",
            "proxy",
            "--listen",
            f"127.0.0.1:{x}",
            "--upstream",
            f"http://127.0.0.1:{d}",
        ]
        commands = {
            "engine": [PY, fake, "--port", str(d), "--lifetime", "90", *scenario.plain],
            "proxy": [*relay, *scenario.proxy],
        }
        ports = {"engine": d, "proxy": x}
    if not scenario.has_proxy:
        del commands["proxy"], ports["proxy"]
    entry = "proxy" if scenario.has_proxy else "router"
    running: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for number, (name, command) in enumerate(commands.items()):
            with (folder / f"{number}.log").open("wb") as log:
                env = os.environ | {KNOB: "512"}
                words = disguised(command, folder / f"{number}.json")
                running[name] = subprocess.Popen(words, stdout=log, stderr=log, start_new_session=True, env=env)
        for name, port in ports.items():
            wait_for(f"http://127.0.0.1:{port}/health" if name != "proxy" else f"http://127.0.0.1:{port}/v1/models")
        above = "engine" if scenario.plain is not None else "router"
        upstream = {"proxy": [above], "router": ["prefill", "decode"], "prefill": [], "decode": [], "engine": []}
        kind = {"router": "reference", "prefill": "reference", "decode": "reference"}
        text = f'[stack]\nname = "bench"\nentry = "{entry}"\n'
        for name, port in ports.items():
            boot = f"bootstrap_port = {b}\n" if name == "prefill" else ""
            text += (
                f'[services.{name}]\nrole = "{name}"\nengine = "{kind.get(name, "generic")}"\n'
                f'url = "http://127.0.0.1:{port}"\nupstream = {json.dumps(upstream[name])}\n{boot}'
            )
        if scenario.plain is None:
            text += f'[knobs.{KNOB}]\nservices = ["decode"]\ndefault = "256"\n'
        file = folder / "vindicate.toml"
        file.write_text(text)
        if "router" in ports:
            wait_for(f"http://127.0.0.1:{ports['router']}/readiness")
        yield running, f"http://127.0.0.1:{ports[entry]}", file
    finally:
        for process in running.values():
            for sign in (signal.SIGCONT, signal.SIGKILL):
                try:
                    os.killpg(process.pid, sign)
                except ProcessLookupError:
                    break
            process.wait()


def disguised(command: list[str], file: Path) -> list[str]:
    """The same Python program, with its arguments in *file*: its command line does not tell its part."""
    file.write_text(json.dumps(command[1:]))
    return [PY, str(Path(__file__).parents[1] / "tests" / "fakes" / "begin.py"), str(file)]


@contextmanager
def neighbour(busy: bool) -> Iterator[None]:
    """Somebody else on this host, who wants a whole core."""
    process = subprocess.Popen([PY, "-c", "while True: pass"]) if busy else None
    try:
        yield
    finally:
        if process is not None:
            process.kill()
            process.wait()


def baselines(running: dict[str, subprocess.Popen[bytes]], file: Path) -> dict[str, str | None]:
    """Whom two simple ways would blame: what changed last (died or was started), and whose figures show most requests in work."""
    import psutil

    from vindicate.diagnose.progress import WORK_GAUGES, bare_name

    def changed_at(pid: int) -> float:
        try:
            process = psutil.Process(pid)
            return time.time() if process.status() == psutil.STATUS_ZOMBIE else process.create_time()
        except psutil.Error:
            return time.time()

    changed = {name: changed_at(process.pid) for name, process in running.items()}
    in_work = {}
    for name, said in tomllib.loads(file.read_text())["services"].items():
        try:
            with urllib.request.urlopen(said.get("metrics", said["url"] + "/metrics"), timeout=1) as answer:
                page = answer.read(1_000_000).decode(errors="replace")
        except (OSError, http.client.HTTPException):
            continue
        rows = (line.rpartition(" ") for line in page.splitlines() if line and not line.startswith("#"))
        values = [float(value) for key, _, value in rows if bare_name(key.partition("{")[0]) in WORK_GAUGES]
        in_work[name] = sum(values)
    busiest = max(in_work, key=lambda name: in_work[name], default=None)
    return {
        "newest_change": max(changed, key=lambda name: changed[name], default=None),
        "busiest_metric": busiest if busiest is not None and in_work[busiest] > 0 else None,
    }


def run_once(scenario: Scenario, args: argparse.Namespace) -> dict[str, object]:
    """Start the chain and its clients, diagnose, stop all; the verdict with the seconds it *took*, or a *crash*."""
    if scenario.discovered:
        args = argparse.Namespace(**{**vars(args), "no_stack_file": True})
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        if args.keep:
            folder = Path(args.keep) / f"{scenario.name}-{random.randrange(1 << 32):08x}"
            folder.mkdir(parents=True)
        with (scenario.start or chain)(scenario, folder) as (running, url, file):
            clients = []
            try:
                for kind in scenario.clients:
                    with (folder / f"client-{kind}.log").open("wb") as log:
                        command = [PY, __file__, "--client", kind, "--url", url]
                        clients.append(subprocess.Popen(command, stdout=log, stderr=log))
                    if kind == "leave":
                        clients[-1].wait(60)
                time.sleep(scenario.settle_s)
                if scenario.kill:
                    running[scenario.kill].send_signal(scenario.signal)
                    if scenario.signal == signal.SIGKILL:
                        running[scenario.kill].wait()
                    time.sleep(1)
                pids = {name: process.pid for name, process in running.items()}
                others = baselines(running, file)
                verdict = diagnose(url, file, folder, args, tuple(word.format(**pids) for word in scenario.more))
                return verdict | {"baselines": others, "is": declared(str(verdict.get("service")), file)}
            finally:
                for client in clients:
                    client.kill()
                    client.wait()


def declared(found: str, file: Path) -> str | None:
    """The name in the stack file of a service that was discovered, by its port."""
    services = tomllib.loads(file.read_text())["services"]
    port = found.rpartition(":")[2]
    return next((name for name, one in services.items() if found != name and one["url"].endswith(f":{port}")), None)


def diagnose(
    url: str, file: Path, folder: Path, args: argparse.Namespace, more: tuple[str, ...] = ()
) -> dict[str, object]:
    """Run the command on the chain and read its document."""
    capture = folder / "capture.json"
    where = [url] if args.no_stack_file else ["--stack", str(file)]
    began = time.monotonic()
    base = [PY, "-m", "vindicate", "diagnose"]
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir(exist_ok=True)
    words = [*where, *args.more, *more]

    def run(*command: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run([*base, *command], capture_output=True, cwd=elsewhere, check=False)

    made = run("capture", "--out", str(capture), *words) if args.keep else None
    replay = made is not None and made.returncode == 0
    result = run(*(["--replay", str(capture)] if replay else words), "--json")
    took = time.monotonic() - began
    try:
        document = json.loads(result.stdout)
    except ValueError:
        return {"took": took, "crash": result.stderr.decode()[-600:] + (made.stderr.decode()[-600:] if made else "")}
    (folder / "diagnosis.json").write_bytes(result.stdout)
    return {"took": took, "code": result.returncode, **document}


def measured(scenario: Scenario, args: argparse.Namespace, *, busy: bool) -> dict[str, Any]:
    """One run as it is written down: what was true, what was said, and under which circumstances."""
    try:
        with neighbour(busy):
            verdict = run_once(scenario, args)
    except TimeoutError as error:
        verdict = {"took": 0.0, "crash": f"the chain was not ready: {error}"}
    kept = (
        "status",
        "layer",
        "service",
        "mechanism",
        "confidence",
        "cleared",
        "window_s",
        "took",
        "code",
        "crash",
        "is",
    )
    truth = ("layer", "service", "mechanism", "may_abstain", "decode_cleared")
    return {
        "scenario": scenario.name,
        "truth": {name: getattr(scenario, name) for name in truth},
        "busy": busy,
        "stack_file": not args.no_stack_file,
        "knob": KNOB,
        "baselines": verdict.get("baselines"),
        "verdict": {name: verdict[name] for name in kept if name in verdict},
    }


def main() -> int:
    """Run what was chosen and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--core", action="store_true", help="only those that must never be wrong")
    parser.add_argument("--no-stack-file", action="store_true")
    parser.add_argument("--busy", choices=("none", "half", "all"), default="none", help="runs with a busy neighbour")
    parser.add_argument("--out", type=Path, help="add a line of JSON for each run to this file, as it ends")
    parser.add_argument("--report", type=Path, nargs="+", help="run nothing: print the tables of these files")
    parser.add_argument("--cases", type=Path, help="published cases, JSON lines: how many of them have a scenario")
    parser.add_argument("--keep")
    parser.add_argument("--more", nargs="*", default=[], help="further words for vindicate diagnose")
    parser.add_argument("--client")
    parser.add_argument("--url")
    args = parser.parse_args()
    if args.client:
        return asyncio.run(CLIENTS[args.client](args.url)) or 0
    known = [s.mechanism for s in SCENARIOS if s.mechanism]
    if args.report:
        print("\n".join(report(read_runs(args.report), args.cases, known)))
        return 0
    chosen = [s for s in (SCENARIOS[:CORE] if args.core else SCENARIOS) if not args.only or s.name in args.only]
    runs: list[dict[str, Any]] = []

    def one(scenario: Scenario, number: int) -> None:
        run = measured(scenario, args, busy=args.busy == "all" or (args.busy == "half" and number % 2 == 1))
        runs.append(run)
        if args.out:
            with args.out.open("a") as file:
                file.write(json.dumps(run) + "\n")

    pool = ThreadPoolExecutor(args.jobs)
    try:
        list(pool.map(lambda job: one(*job), [(s, number) for number in range(args.runs) for s in chosen]))
    finally:
        pool.shutdown(cancel_futures=True)  # Ctrl-C: what runs is stopped in good order, what waits is not begun
    print("\n".join(report(runs, args.cases, known)))
    return 0 if all(grade(run, KNOB)["layer"] for run in runs) else 1


MARK = "VINDICATE_BENCHMARK"


def stop_all(number: int, _frame: object) -> NoReturn:
    """Interrupted: end every process of this run, by the mark in its environment, and leave."""
    import psutil

    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get(MARK) == os.environ[MARK]:
                process.kill()
        except psutil.Error:
            continue
    os._exit(128 + number)


if __name__ == "__main__":
    if "--client" not in sys.argv:
        os.environ[MARK] = str(os.getpid())
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, stop_all)
    sys.modules["diagnosis"] = sys.modules["__main__"]  # families import Scenario from here
    for family in map(importlib.import_module, FAMILIES):
        SCENARIOS += family.SCENARIOS
        CLIENTS |= getattr(family, "CLIENTS", {})
    sys.exit(main())
