"""Routers, several workers a role, and figures that lie: chains of `tests/fakes/member.py`, whose config files alone say what is odd."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diagnosis import Chain, Scenario, body, forever, free_ports, session_of, stream, wait_for

__all__ = ["CLIENTS", "SCENARIOS"]

MEMBER = Path(__file__).parents[1] / "tests" / "fakes" / "member.py"


@dataclass(frozen=True)
class Member:
    """A process of the chain. ``@name`` in *config* becomes that member's URL, ``@name:boot`` its bootstrap port."""

    name: str
    role: str
    config: dict[str, Any] = field(default_factory=dict)
    upstream: tuple[str, ...] = ()
    engine: str = "generic"
    declared: bool = True
    words: tuple[str, ...] = ()  # for one of the reference stack


def chain_of(*members: Member, host: str = "127.0.0.1") -> Callable[[Scenario, Path], Any]:
    """A way to start *members*, the entry first; they are ready when it returns."""
    at = f"[{host}]" if ":" in host else host

    @contextmanager
    def start(_: Scenario, folder: Path) -> Iterator[Chain]:
        ports = dict(
            zip(
                [m.name for m in members] + [f"{m.name}:boot" for m in members],
                free_ports(2 * len(members)),
                strict=True,
            )
        )
        running: dict[str, subprocess.Popen[bytes]] = {}
        try:
            for number, m in enumerate(reversed(members)):
                running[m.name] = _begin(m, ports, folder, number, host)
            for m in reversed(members):
                if not m.config.get("loading") and m.config.get("kind") != "shut":
                    wait_for(f"http://{at}:{ports[m.name]}/health")
            file = folder / "vindicate.toml"
            file.write_text(
                f'[stack]\nname = "bench"\nentry = "{members[0].name}"\n'
                + "".join(_declared(m, ports, at) for m in members)
            )
            yield running, f"http://{at}:{ports[members[0].name]}", file
        finally:
            for process in running.values():
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    return start


def _begin(m: Member, ports: dict[str, int], folder: Path, number: int, host: str) -> "subprocess.Popen[bytes]":
    at = f"[{host}]" if ":" in host else host
    config = folder / f"part{number}.json"
    config.write_text(json.dumps(_filled(m.config | {"host": host, "port": ports[m.name]}, ports, at)))
    command = [sys.executable, str(MEMBER), str(config)]
    if m.engine == "reference":
        boot = ["--bootstrap-port", str(ports[m.name + ":boot"])] if m.role == "prefill" else []
        command = [sys.executable, "-m", "vindicate.reference", m.role, "--port", str(ports[m.name]), *boot, *m.words]
    with (folder / f"part{number}.log").open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)


def _filled(value: Any, ports: dict[str, int], at: str) -> Any:
    if isinstance(value, dict):
        return {key: _filled(inner, ports, at) for key, inner in value.items()}
    if isinstance(value, list):
        return [_filled(inner, ports, at) for inner in value]
    if isinstance(value, str) and value.startswith("@"):
        name, slash, path = value[1:].partition("/")
        return ports[name] if name.endswith(":boot") else f"http://{at}:{ports[name]}{slash}{path}"
    return value


def _declared(m: Member, ports: dict[str, int], at: str) -> str:
    if not m.declared:
        return ""
    boot = f"bootstrap_port = {ports[m.name + ':boot']}\n" if m.role == "prefill" else ""
    return (
        f'[services.{m.name}]\nrole = "{m.role}"\nengine = "{m.engine}"\nurl = "http://{at}:{ports[m.name]}"\n'
        f"upstream = {json.dumps(m.upstream)}\n{boot}"
    )


def worker(name: str, **config: Any) -> Member:
    """An unsplit engine with SGLang's figures."""
    return Member(name, "engine", {"kind": "worker"} | config, engine="sglang")


def relay(
    name: str, role: str, *below: str, engine: str = "generic", hidden: tuple[str, ...] = (), **config: Any
) -> Member:
    """A relay over *below*, and over *hidden* ones that the stack file does not know."""
    members = [{"url": f"@{b}"} for b in (*below, *hidden)]
    return Member(name, role, {"kind": "relay", "workers": members} | config, below, engine)


def pair_router(n_prefill: int = 1, n_decode: int = 1, **config: Any) -> Member:
    """A router over so many prefill and decode workers."""
    prefills, decodes = [f"prefill_{i}" for i in range(n_prefill)], [f"decode_{i}" for i in range(n_decode)]
    members: list[dict[str, str]] = [{"url": f"@{p}", "role": "prefill", "boot": f"@{p}:boot"} for p in prefills]
    members += [{"url": f"@{d}", "role": "decode"} for d in decodes]
    return Member("router", "router", {"kind": "relay", "workers": members} | config, (*prefills, *decodes))


def pair(n_prefill: int = 1, n_decode: int = 1, bad: str = "", words: tuple[str, ...] = ()) -> tuple[Member, ...]:
    """Prefill and decode workers of the reference stack; *bad* gets *words*."""
    names = [("prefill", f"prefill_{i}") for i in range(n_prefill)] + [
        ("decode", f"decode_{i}") for i in range(n_decode)
    ]
    return tuple(Member(name, role, engine="reference", words=words if name == bad else ()) for role, name in names)


async def few(url: str) -> None:
    """Three agents, round after round."""
    async with session_of(3) as session:
        await asyncio.gather(*(forever(session, url, 40) for _ in range(3)))


async def crowd_leaves(url: str) -> None:
    """Twenty requests, all left after a moment."""
    async with session_of(20) as session:
        tasks = [asyncio.ensure_future(stream(session, url, 200)) for _ in range(20)]
        await asyncio.sleep(1.5)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.sleep(3600)


async def later(url: str) -> None:
    """Twelve agents that begin when the crowd has left."""
    await asyncio.sleep(4)
    async with session_of(12) as session:
        await asyncio.gather(*(forever(session, url, 64) for _ in range(12)))


async def checks(url: str) -> None:
    """Nothing but health checks, on one connection."""
    async with session_of(1) as session:
        while True:
            async with session.get(url + "/health") as answer:
                await answer.read()
            await asyncio.sleep(0.4)


async def rest(url: str) -> None:
    """Some answers, and then nothing more."""
    async with session_of(6) as session:
        await asyncio.gather(*(session.post(url + "/v1/chat/completions", json=body(8)) for _ in range(6)))
    await asyncio.sleep(3600)


CLIENTS = {"few": few, "crowd_leaves": crowd_leaves, "checks": checks, "later": later, "rest": rest}

SGL = {"engine": "sglang-router"}
TWO = (worker("left", slots=64), worker("right", slots=64))
ONE = (worker("engine"),)
STALE = {"figures": "lazy", "itl": 0.1, "tokens": 400}
SCENARIOS: tuple[Scenario, ...] = (
    Scenario("join_2x2", "router", "router", "router.dual_dispatch_join", start=chain_of(pair_router(2, 2, miss={"role": "decode", "every": 3, "after": 4}), *pair(2, 2))),
    Scenario("join_busy", "router", "router", "router.dual_dispatch_join", clients=("few", "busy"), settle_s=8, start=chain_of(pair_router(1, 1, miss={"role": "decode", "every": 12, "after": 4}), *pair())),
    Scenario("swallowed", "router", "router", "router.prefill_failure_swallowed", start=chain_of(pair_router(miss={"role": "prefill", "every": 3, "after": 4}), *pair())),
    Scenario("swallowed_2x2", "router", "router", "router.prefill_failure_swallowed", start=chain_of(pair_router(2, 2, miss={"role": "prefill", "every": 3, "after": 4}), *pair(2, 2))),
    Scenario("bad_decode_of_two", "decode", "decode_1", "decode.stall_mid_stream", start=chain_of(pair_router(2, 2), *pair(2, 2, "decode_1", ("--fault", "stall_mid_stream:20", "--fault-after", "3")))),
    Scenario("bad_prefill_of_two", "prefill", "prefill_1", "prefill.inflight_parked", start=chain_of(pair_router(2, 2), *pair(2, 2, "prefill_1", ("--fault", "inflight_parked", "--fault-after", "3")))),
    Scenario("bad_engine_of_two", "engine", "right", "engine.stall_mid_stream", start=chain_of(relay("router", "router", "left", "right"), worker("left"), worker("right", stall={"after": 3, "at": 3}))),
    Scenario("two_by_two_busy", "none", clients=("busy",), start=chain_of(pair_router(2, 2), *pair(2, 2))),
    Scenario("ghost", "router", "router", "router.ghost_endpoint", clients=("few",), start=chain_of(relay("router", "router", "left", "right", hidden=("gone",)), *TWO, Member("gone", "engine", {"kind": "shut"}, declared=False))),
    Scenario("ghost_among_busy", "router", "router", "router.ghost_endpoint", clients=("busy", "few"), settle_s=3, start=chain_of(relay("router", "router", "left", "right", hidden=("gone",), connect_patience=3), *TWO, Member("gone", "engine", {"kind": "shut"}, declared=False))),
    Scenario("permits_429", "router", "router", "router.permit_leak", clients=("leave", "hang"), start=chain_of(relay("router", "router", "left", "right", permits=5, scoped=False), *TWO)),
    Scenario("permits_429_behind_two", "router", "router", "router.permit_leak", clients=("leave", "hang"), start=chain_of(relay("proxy", "proxy", "gateway"), relay("gateway", "gateway", "router"), relay("router", "router", "left", "right", permits=5, scoped=False), *TWO)),
    Scenario("permits_v6", "router", "router", "router.permit_leak", clients=("leave", "hang"), start=chain_of(relay("proxy", "proxy", "router"), relay("router", "router", "engine", permits=5, scoped=False), *ONE, host="::1")),
    Scenario("permits_gateway", "gateway", "gateway", "router.permit_leak", clients=("leave", "hang"), start=chain_of(relay("gateway", "gateway", "router", permits=5, scoped=False), relay("router", "router", "engine"), *ONE)),
    Scenario("permits_wait", "router", "router", "router.hold", clients=("leave", "hang"), start=chain_of(relay("router", "router", "left", "right", permits=5, scoped=False, on_full="wait"), *TWO)),
    Scenario("breaker", "router", "router", "router.breaker_open", start=chain_of(relay("router", "router", "left", "right", errors=6, breaker=6, **SGL), *TWO)),
    Scenario("orphans", "router", "router", "router.cancel_not_propagated", clients=("leave", "checks"), settle_s=2, start=chain_of(relay("router", "router", "engine", detached=True), worker("engine", itl=0.12, tokens=400))),
    Scenario("orphans_in_proxy", "proxy", "proxy", "router.cancel_not_propagated", clients=("leave", "checks"), settle_s=2, start=chain_of(relay("proxy", "proxy", "router", detached=True), relay("router", "router", "engine"), worker("engine", itl=0.12, tokens=400))),
    Scenario("load_leak", "router", "router", "router.load_counter_leak", clients=("crowd_leaves", "crowd_leaves", "busy"), settle_s=8, start=chain_of(relay("router", "router", "left", "right", pick="least", counted="plain", forgets={"worker": "@right", "at": 5.5}, **SGL), worker("left", slots=4, itl=0.1), worker("right", slots=4, itl=0.1))),
    Scenario("stale_starved", "metrics", "left", "metrics.stale_after_mass_abort", clients=("crowd_leaves", "later"), settle_s=8, start=chain_of(relay("router", "router", "left", "right", pick="spare"), worker("left", slots=16, **STALE), worker("right", slots=4, itl=0.1))),
    Scenario("negative", "metrics", "engine", "metrics.negative_delta", clients=("leave", "idle"), start=chain_of(relay("router", "router", "engine"), worker("engine", figures="twice", itl=0.1, tokens=40))),
    Scenario("flapping", "metrics", "engine", "metrics.multiprocess_exposition", clients=("rest",), start=chain_of(relay("router", "router", "engine"), worker("engine", processes=3))),
    Scenario("phantom_floor", "none", clients=("crowd_leaves",), start=chain_of(relay("router", "router", "engine"), worker("engine", **STALE))),
    Scenario("usage_high", "none", clients=("rest",), start=chain_of(relay("router", "router", "engine"), worker("engine", usage=0.96))),
    Scenario("cold_start", "engine", "engine", "service.not_ready", may_abstain=True, start=chain_of(relay("router", "router", "engine"), worker("engine", loading=100))),
    Scenario("router_queue", "none", clients=("busy",), start=chain_of(relay("router", "router", "left", "right", permits=4, on_full="wait"), *TWO)),
    Scenario("router_429_at_capacity", "none", clients=("busy",), start=chain_of(relay("router", "router", "left", "right", permits=4), *TWO)),
    Scenario("borrowed_page", "none", clients=("busy",), start=chain_of(relay("gateway", "gateway", "router"), relay("router", "router", "engine", metrics_of="@engine/metrics"), worker("engine"))),
    Scenario("three_relays_v6", "none", clients=("few",), start=chain_of(relay("proxy", "proxy", "gateway"), relay("gateway", "gateway", "router"), relay("router", "router", "left", "right"), *TWO, host="::1")),
    Scenario("phantom_beside_permits", "router", "router", "router.permit_leak", clients=("leave", "hang"), start=chain_of(relay("router", "router", "engine", permits=5, scoped=False), worker("engine", figures="twice", itl=0.1, tokens=40))),
)  # fmt: skip
