"""Relays that spoil answers by time or by content, and correct ones that look alike: a fake relay before a fake engine."""

import asyncio
import json
import os
import random
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import diagnosis as bench
from diagnosis import PY, Scenario

FAKES = Path(__file__).parents[1] / "tests" / "fakes"


@contextmanager
def pair(
    _scenario: Scenario, folder: Path, *, settings: dict[str, Any], engine: tuple[str, ...] = ()
) -> Iterator[bench.Chain]:
    """Start a relay with *settings* before an engine; neither shows on its command line what it does."""
    x, d = bench.free_ports(2)
    (folder / "settings.json").write_text(json.dumps({"listen": x, "to": d, **settings}))
    commands = {
        "engine": [PY, str(FAKES / "engine.py"), "--port", str(d), "--lifetime", "90", *engine],
        "proxy": [PY, str(FAKES / "passer.py"), "--config", str(folder / "settings.json")],
    }
    running: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for name, command in commands.items():
            with (folder / f"{name}.log").open("wb") as log:
                running[name] = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        bench.wait_for(f"http://127.0.0.1:{d}/v1/models")
        scheme = "https" if "tls" in settings else "http"
        if scheme == "http":
            bench.wait_for(f"http://127.0.0.1:{x}/v1/models")
        else:
            bench.wait_for_listener(x)
        file = folder / "vindicate.toml"
        file.write_text(
            f'[stack]\nname = "bench"\nentry = "proxy"\n[services.proxy]\nrole = "proxy"\nurl = "{scheme}://127.0.0.1:{x}"\n'
            f'upstream = ["engine"]\n[services.engine]\nrole = "engine"\nurl = "http://127.0.0.1:{d}"\n'
        )
        yield running, f"{scheme}://127.0.0.1:{x}", file
    finally:
        for process in running.values():
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@contextmanager
def pair_with_few_ports(scenario: Scenario, folder: Path, **more: Any) -> Iterator[bench.Chain]:
    """The same in a network namespace of this thread, in which a connection can choose among 200 ports only; needs root."""
    import ctypes
    import fcntl
    import socket
    import struct

    libc = ctypes.CDLL(None, use_errno=True)
    new_net, up_and_running, set_flags = 0x40000000, 0x1 | 0x8 | 0x40, 0x8914
    with Path("/proc/thread-self/ns/net").open("rb") as before:
        if libc.unshare(new_net):
            raise TimeoutError("no network namespace of its own: root is needed")
        try:
            with socket.socket() as any_socket:
                fcntl.ioctl(any_socket, set_flags, struct.pack("16sH14x", b"lo", up_and_running))
            Path("/proc/sys/net/ipv4/ip_local_port_range").write_text("40000 40199")
            Path("/proc/sys/net/ipv4/tcp_tw_reuse").write_text("0")  # as between hosts: loopback would be let off
            with pair(scenario, folder, **more) as made:
                yield made
        finally:
            libc.setns(before.fileno(), new_net)


def relay(name: str, verdict: str | None, settings: dict[str, Any], engine: str = "", **more: Any) -> Scenario:
    """One scenario: the mechanism of the relay, or ``None`` where all is well."""
    more.setdefault("clients", ("busy",))
    start = partial(pair, settings=settings, engine=tuple(engine.split()))
    if verdict is None:
        return Scenario(name, "none", start=start, **more)
    return Scenario(name, "proxy", "proxy", verdict, start=start, **more)


STREAM = "--itl 0.05 --tokens 60"  # answers of 3 s

SCENARIOS = (
    relay("relay_buffers", "proxy.sse_buffering", {"hold": 16384}, STREAM),
    relay("relay_buffers_slow", "proxy.sse_buffering", {"hold": 16384}, "--itl 0.3 --tokens 20"),
    relay("relay_cuts_at_age", "gateway.total_timeout", {"age": 5}, "--itl 0.1 --tokens 120"),
    relay("relay_first_byte", "gateway.idle_timeout_before_first_byte", {"first": 3}, "--delay-first 4 --itl 0.05"),
    relay("relay_first_byte_long", "gateway.idle_timeout_before_first_byte", {"first": 3}, "--prefill-rate 2000 --itl 0.02", clients=("lengths",)),
    relay("relay_masks_end", "stream.missing_done_masked_by_heartbeat", {"beat": 1}, STREAM, clients=("hang",)),
    relay("relay_refuses_large", "proxy.body_truncation", {"body": 65536}, "--itl 0.02", clients=("growing",)),
    relay("relay_cuts_large", "proxy.body_truncation", {"body": 65536, "over": "pass"}, "--itl 0.02 --check-json", clients=("growing",)),
    relay("relay_crlf", "proxy.sse_reframing", {"parse": "text"}, f"{STREAM} --crlf"),
    relay("relay_split_chars", "proxy.sse_reframing", {"parse": "text"}, f"{STREAM} --split", may_abstain=True),
    relay("relay_stale", "proxy.poisoned_pooled_connection", {"stale": 1.0}, "--itl 0.02", clients=("pauses",), more=("--window", "25s")),
    Scenario("relay_churns", "proxy", "proxy", "proxy.ephemeral_port_churn", clients=("busy",),
             start=partial(pair_with_few_ports, settings={"reuse": False}, engine=("--tokens", "4"))),
    relay("relay_looks_up_slowly", "proxy.dns_threadpool", {"reuse": False, "lookup": 2}, "--itl 0.02 --tokens 8", clients=("short",)),
    relay("well_but_slow_at_its_limit", None, {"reuse": False, "lookup": 0.5}, "--itl 0.02 --tokens 8"),
    relay("relay_caps", "gateway.h2_stream_cap", {"streams": 3}, "--itl 0.05 --tokens 100000", clients=("long",), settle_s=25),
    relay("well_capped_so_far", None, {"streams": 3}, "--itl 0.05 --tokens 100000", clients=("long",)),
    relay("well_capped_and_moving", None, {"streams": 3}, "--itl 0.05 --tokens 40", clients=("hang",)),
    relay("well_looks_up", None, {"reuse": False, "lookup": 0.1}, "--itl 0.02 --tokens 8", clients=("short",)),
    relay("well_slow", None, {}, "--itl 0.5 --tokens 30"),
    relay("well_long_prefill", None, {}, "--delay-first 6 --itl 0.02", may_abstain=True),
    relay("well_uploads", None, {}, "--itl 0.02", clients=("growing",)),
    relay("well_slow_reader", None, {}, "--itl 0.002 --tokens 4000", clients=("reader",)),
    relay("well_leavers", None, {}, STREAM, clients=("leavers",)),
    relay("well_leavers_constant", None, {}, "--itl 0.1 --tokens 120", clients=("impatient",)),
    relay("well_short", None, {"reuse": False}, "--tokens 4", clients=("short",)),
    relay("well_same_length", None, {"reuse": False}, STREAM),
    relay("well_bursts", None, {}, "--burst 20 --itl 0.05 --tokens 60"),
    relay("well_not_streamed", None, {}, "--itl 0.05 --tokens 60", clients=("pauses",)),
    relay("well_refuses_some", None, {"turned": 4}, STREAM),
)  # fmt: skip


# ---- clients ---------------------------------------------------------------------------------------------------------


async def lengths(url: str) -> None:
    """Eight agents with prompts of many lengths."""
    async with bench.session_of(8) as session:

        async def one() -> None:
            while True:
                await ask(session, url, words=random.randrange(50, 2600))

        await asyncio.gather(*(one() for _ in range(8)))


async def growing(url: str) -> None:
    """Agents whose conversations grow with each round, beyond any usual limit of a body, and begin again."""
    async with bench.session_of(6) as session:

        async def one(n: int) -> None:
            words = 300 + 900 * n
            while True:
                await ask(session, url, words=words)
                words = words * 5 // 4 if words < 40_000 else 300
                await asyncio.sleep(0.3)

        await asyncio.gather(*(one(n) for n in range(6)))


async def pauses(url: str) -> None:
    """One agent that asks four times at once, then thinks for 1.8 s."""
    async with bench.session_of(4) as session:
        while True:
            await ask(session, url)
            await ask(session, url)
            await ask(session, url)
            await ask(session, url)
            await asyncio.sleep(1.8)


async def leavers(url: str) -> None:
    """Agents that leave in the middle at varied ages."""
    async with bench.session_of(8) as session:

        async def one() -> None:
            while True:
                await ask(session, url, leave_s=random.uniform(0.3, 4.0))

        await asyncio.gather(*(one() for _ in range(8)))


async def impatient(url: str) -> None:
    """Agents that all leave after the same time."""
    async with bench.session_of(8) as session:

        async def one() -> None:
            while True:
                await ask(session, url, leave_s=5.0)

        await asyncio.gather(*(one() for _ in range(8)))


async def short(url: str) -> None:
    """Many short requests, a connection each."""
    while True:
        async with bench.session_of(1) as session:
            await ask(session, url)
        await asyncio.sleep(0.02)


async def long(url: str) -> None:
    """Six agents, each with one answer that does not end."""
    async with bench.session_of(6) as session:
        await asyncio.gather(*(bench.forever(session, url, 100_000) for _ in range(6)))


async def reader(url: str) -> None:
    """Four agents that read slowly."""
    async with bench.session_of(4) as session:

        async def one() -> None:
            async with session.post(url + "/v1/chat/completions", json=bench.body(4000)) as response:
                while await response.content.read(400):  # noqa: ASYNC110 it plays a slow reader
                    await asyncio.sleep(0.2)

        await asyncio.gather(*(one() for _ in range(4)))


async def ask(session: Any, url: str, *, words: int = 40, leave_s: float | None = None) -> None:
    """Read one answer, or what comes of it within *leave_s*."""
    import aiohttp

    try:
        async with (
            asyncio.timeout(leave_s),
            session.post(url + "/v1/chat/completions", json=bench.body(200, words)) as response,
        ):
            if response.status != 200:
                await asyncio.sleep(0.4)
            await response.read()
    except (aiohttp.ClientError, OSError):
        await asyncio.sleep(0.2)


CLIENTS = {f.__name__: f for f in (lengths, growing, pauses, leavers, impatient, short, long, reader)}
