"""Engines that stall or crawl in the ways of real ones: each scenario a chain of processes that follow files of figures."""

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diagnosis import Chain, Scenario, body, busy, forever, free_ports, hang, session_of, stream, wait_for

NODE = Path(__file__).parents[1] / "tests" / "fakes" / "node.py"
Plan = dict[str, Any]


@dataclass(frozen=True)
class Layout:
    """What is started: one *engine*, or every *prefill* with every *decode* behind a router; a proxy in front with *proxy* words."""

    engine: Plan | None = None
    prefill: tuple[Plan, ...] = ()
    decode: tuple[Plan, ...] = ()
    proxy: tuple[str, ...] | None = None
    stack: str = "sglang"
    keep_log: bool = False
    common: Plan = field(default_factory=dict)


@contextmanager
def launched(layout: Layout, folder: Path) -> Iterator[Chain]:
    """Start the processes of *layout*, each with a plan of its own, and write the stack file."""
    ports = iter(free_ports(12))
    plans: dict[str, Plan] = {}
    if layout.engine is not None:
        plans["engine"] = {"role": "engine", **layout.engine}
    for role, made in (("prefill", layout.prefill), ("decode", layout.decode)):
        for number, plan in enumerate(made):
            plans[role if len(made) == 1 else f"{role}{number}"] = {"role": role, **plan}
    for name, plan in plans.items():
        plan |= {"name": name, "port": next(ports), **layout.common}
        if plan["role"] == "prefill":
            plan["kv_port"] = next(ports)
    upstream = {name: [] for name in plans}
    if layout.engine is None:
        url = "http://127.0.0.1:{}".format
        plans["router"] = {
            "role": "route",
            "name": "router",
            "port": next(ports),
            "prefill": [(url(p["port"]), p["kv_port"]) for p in plans.values() if p["role"] == "prefill"],
            "decode": [url(p["port"]) for p in plans.values() if p["role"] == "decode"],
        }
        upstream["router"] = [name for name in plans if name != "router"]
    entry = "engine" if layout.engine is not None else "router"
    commands = {}
    for number, (name, plan) in enumerate(plans.items()):
        file = folder / f"node-{number}.json"
        file.write_text(json.dumps(plan))
        commands[name] = [sys.executable, str(NODE), str(file)]
    listen = {name: plan["port"] for name, plan in plans.items()}
    if layout.proxy is not None:
        listen["proxy"] = next(ports)
        relay = ["rehearse", "proxy", "--listen", f"127.0.0.1:{listen['proxy']}"]
        commands["proxy"] = [
            sys.executable,
            "-m",
            "vindicate",
            *relay,
            "--upstream",
            f"http://127.0.0.1:{listen[entry]}",
            *layout.proxy,
        ]
        upstream["proxy"] = [entry]
        entry = "proxy"
    running: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for name, command in commands.items():
            with (folder / f"{name}.log").open("wb") as log:
                running[name] = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        for name, port in listen.items():
            wait_for(f"http://127.0.0.1:{port}/{'v1/models' if name == 'proxy' else 'health'}")
        file = folder / "vindicate.toml"
        file.write_text(_stack_text(layout, plans, listen, upstream, entry, folder))
        yield running, f"http://127.0.0.1:{listen[entry]}", file
    finally:
        _stop(running)


def _stack_text(  # noqa: PLR0917
    layout: Layout,
    plans: dict[str, Plan],
    listen: dict[str, int],
    upstream: dict[str, list[str]],
    entry: str,
    folder: Path,
) -> str:
    text = f'[stack]\nname = "bench"\nentry = "{entry}"\n'
    for name, port in listen.items():
        role = {"route": "router"}.get(plans[name]["role"], plans[name]["role"]) if name in plans else "proxy"
        text += f'[services.{name}]\nrole = "{role}"\nengine = "{layout.stack if role in ("engine", "prefill", "decode") else "generic"}"\n'
        text += f'url = "http://127.0.0.1:{port}"\nupstream = {json.dumps(upstream[name])}\n'
        if role == "prefill":
            text += f"bootstrap_port = {plans[name]['kv_port']}\n"
        if layout.keep_log and name in plans:
            text += f'launcher = {{ kind = "process", start = ["true"], log = "{folder / name}.log" }}\n'
    return text


def _stop(running: dict[str, subprocess.Popen[bytes]]) -> None:
    import os

    for process in running.values():
        for sign in (signal.SIGCONT, signal.SIGKILL):
            try:
                os.killpg(process.pid, sign)
            except ProcessLookupError:
                break
        process.wait()


def starts(**layout: Any) -> Callable[[Scenario, Path], AbstractContextManager[Chain]]:
    """A `Scenario.start` for a layout."""
    return lambda _, folder: launched(Layout(**layout), folder)


def case(name: str, layer: str, service: str | None = None, mechanism: str | None = None, **words: Any) -> Scenario:
    """A scenario; words of `Scenario` are taken out, the others are its layout."""
    its = {
        key: words.pop(key) for key in ("clients", "settle_s", "may_abstain", "more", "kill", "signal") if key in words
    }
    return Scenario(name, layer, service, mechanism, start=starts(**words), **its)


def bent(kind: str, after: int = 0, **more: Any) -> Plan:
    """How a node goes wrong."""
    return {"kind": kind, "after": after, **more}


# ---- clients ---------------------------------------------------------------------------------------------------------


async def big_then_hang(url: str) -> None:
    """A prompt of 12,000 tokens, and half a second later eight agents with small ones."""
    async with session_of(1) as session:
        text = body(32) | {"messages": [{"role": "user", "content": "word " * 9600}]}
        large = asyncio.ensure_future(session.post(url + "/v1/chat/completions", json=text))
        await asyncio.sleep(0.5)
        await asyncio.gather(hang(url), large)


async def big_now_and_then(url: str) -> None:
    """Eight agents with small prompts, and a prompt of 600 kB every 2.5 s."""

    async def post() -> None:
        async with session_of(4) as session:
            while True:
                text = body(8) | {"messages": [{"role": "user", "content": "word " * 120_000}]}
                async with session.post(url + "/v1/chat/completions", json=text) as got:
                    await got.read()
                await asyncio.sleep(1.5)

    await asyncio.gather(hang(url), post())


async def walk_off(url: str) -> None:
    """Begin four long answers on connections of their own and leave them in the middle; then eight agents ask."""

    async def one() -> None:
        async with session_of(1) as session:
            try:
                async with asyncio.timeout(3):
                    await stream(session, url, 4000, stop_after=4)
            except TimeoutError:
                pass

    await asyncio.gather(*(one() for _ in range(4)))
    await hang(url)


async def one_long(url: str) -> None:
    """A single answer of very many tokens."""
    async with session_of(1) as session:
        await forever(session, url, 100_000)


async def long_streams(url: str) -> None:
    """Six answers of 400 tokens each, again and again."""
    async with session_of(6) as session:
        await asyncio.gather(*(forever(session, url, 400) for _ in range(6)))


async def long_prompt(url: str) -> None:
    """One prompt that takes very long to compute, and nothing else."""
    async with session_of(1) as session:
        text = body(32) | {"messages": [{"role": "user", "content": "word " * 9600}]}
        async with session.post(url + "/v1/chat/completions", json=text) as got:
            await got.read()


async def twenty(url: str) -> None:
    """Twenty agents."""
    async with session_of(20) as session:
        await asyncio.gather(*(forever(session, url, 64) for _ in range(20)))


CLIENTS = {
    f.__name__: f for f in (big_then_hang, big_now_and_then, walk_off, one_long, long_streams, long_prompt, twenty)
}

PAIR: dict[str, Any] = {"prefill": ({},), "decode": ({},)}
SPUN = {"children": ["scheduler", "scheduler"], "bent": bent("halt", 8, spin=2)}
SCENARIOS: tuple[Scenario, ...] = (
    case("sgl_parked", "prefill", "prefill", "prefill.inflight_parked", prefill=({"bent": bent("keep", 8)},), decode=({},)),
    case("ranks_diverge", "prefill", "prefill", "prefill.pp_divergence_after_abort_storm", prefill=({"ranks": 4, "bent": bent("diverge", 12)},), decode=({},), clients=("hang",)),
    case("retract_wedge", "decode", "decode", "decode.prealloc_wedge_after_retraction", prefill=({},), decode=({"bent": bent("wedge", 8)},)),
    case("retract_crawl", "decode", "decode", "decode.retraction_collapse", prefill=({},), decode=({"itl": 0.02, "pool": 1400, "bent": bent("collapse", 4)},), clients=("long_streams",), settle_s=12),
    case("big_head", "engine", "engine", "engine.unservable_head_of_line", engine={"pool": 6000}, clients=("big_then_hang",)),
    case("big_head_vllm", "engine", "engine", "engine.unservable_head_of_line", engine={"pool": 6000, "dialect": "vllm"}, stack="vllm", proxy=(), clients=("big_then_hang",)),
    case("paused", "engine", "engine", "engine.paused", engine={"bent": bent("pause", 8)}),
    case("ranks_spin", "engine", "engine", "engine.collective_deadlock", engine=SPUN, proxy=()),
    case("ranks_spin_vllm", "engine", "engine", "engine.collective_deadlock", engine=SPUN | {"dialect": "vllm"}, stack="vllm"),
    case("walked_off", "engine", "engine", "engine.zombie_after_disconnect", engine={"slots": 4, "bent": bent("forget")}, clients=("walk_off",), settle_s=6),
    case("bad_cell", "transfer", "prefill0", "kv.session_blacklist", prefill=({"bent": bent("shun", 2, peer="decode1")}, {}), decode=({}, {})),
    case("remote_wait", "transfer", "decode", "kv.remote_wait_without_timeout", prefill=({"bent": bent("lose", 10, every=5)},), decode=({},)),
    case("remote_wait_vllm", "transfer", "decode", "kv.remote_wait_without_timeout", prefill=({"bent": bent("lose", 10, every=5)},), decode=({},), common={"dialect": "vllm"}, stack="vllm"),
    case("detok_blamed", "engine", "engine", "engine.detokenizer_is_victim", engine={"children": ["scheduler", "detokenizer"], "titles": True, "health": "progress", "bent": bent("halt", 8, spin=1)}, keep_log=True),
    case("loop_blocked", "engine", "engine", "engine.tokenizer_blocks_loop", engine={"apart": True, "pool": 10**7, "prefill_rate": 10**6, "bent": bent("block", 0, bytes_per_s=300_000)}, clients=("big_now_and_then",)),
    case("green_zombie", "engine", "engine", "engine.false_green_health", engine={"children": ["scheduler"], "bent": bent("halt", 8, die=True)}),
    case("gauges_freeze", "engine", "engine", "engine.stall_mid_stream", engine={"loads": True, "bent": bent("halt", 8)}, proxy=()),
    case("vllm_stalls", "engine", "engine", "engine.stall_mid_stream", engine={"dialect": "vllm", "bent": bent("halt", 8)}, stack="vllm", proxy=()),
    case("pair_decode_halts", "decode", "decode", "decode.stall_mid_stream", prefill=({},), decode=({"bent": bent("halt", 8)},)),
    case("long_prefill", "none", engine={"pool": 60_000, "prefill_rate": 200}, clients=("long_prompt",), may_abstain=True),
    case("full_house", "none", engine={"slots": 4}, clients=("twenty",)),
    case("one_long_answer", "none", engine={"pool": 10**7}, clients=("one_long",)),
    case("crawls", "none", prefill=({},), decode=({"itl": 0.4},), clients=("long_streams",)),
    case("pair_idle", "none", clients=("idle",), **PAIR),
    case("pair_busy", "none", clients=("busy",), **PAIR),
    case("pair_busy_ranks", "none", prefill=({"ranks": 4},), decode=({"ranks": 2},), clients=("busy",)),
    case("vllm_busy", "none", engine={"dialect": "vllm"}, stack="vllm", clients=("busy",)),
    case("two_pairs", "none", prefill=({}, {}), decode=({}, {}), clients=("busy",)),
)  # fmt: skip
__all__ = ["CLIENTS", "SCENARIOS", "busy"]
