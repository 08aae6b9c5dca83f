"""Services in a network namespace of their own, as containers have one, called at its address or at a published port; needs root and ip(8)."""

import itertools
import json
import os
import random
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import diagnosis as bench
from diagnosis import PY, STARVED, Scenario

FAKES = Path(__file__).parents[1] / "tests" / "fakes"
_numbers = itertools.count(random.randrange(200))


@contextmanager
def box() -> Iterator[tuple[str, str, str]]:
    """A namespace: its name, its address, and ours on the way to it."""
    number = next(_numbers) % 250 + 1
    name, far, near = f"vin{os.getpid()}-{number}", f"10.213.{number}.2", f"10.213.{number}.1"
    link, peer = f"vb{os.getpid() % 100_000}-{number}", f"vi{os.getpid() % 100_000}-{number}"
    try:
        for words in (
            f"netns add {name}",
            f"link add {link} type veth peer name {peer}",
            f"link set {peer} netns {name}",
            f"addr add {near}/24 dev {link}",
            f"link set {link} up",
            f"-n {name} addr add {far}/24 dev {peer}",
            f"-n {name} link set {peer} up",
            f"-n {name} link set lo up",
        ):
            try:
                made = subprocess.run(["ip", *words.split()], capture_output=True, check=False)
            except FileNotFoundError as problem:
                raise TimeoutError("there is no ip(8) here") from problem
            if made.returncode:
                raise TimeoutError(f"no network namespace: ip {words}: {made.stderr.decode().strip()}")
        yield name, far, near
    finally:
        for words in (["link", "del", link], ["netns", "del", name]):
            subprocess.run(["ip", *words], capture_output=True, check=False)


@contextmanager
def boxed(
    scenario: Scenario, folder: Path, *, router: dict[str, Any], engine: Sequence[str], published: bool
) -> Iterator[bench.Chain]:
    """A proxy out here, and in the namespace a router that calls an engine over loopback; or with *published* the engine alone,
    behind a forwarder at a port out here."""  # noqa: D205, D209 one sentence
    x, r, e = bench.free_ports(3)
    with box() as (name, far, _):
        inside = ["ip", "netns", "exec", name]
        (folder / "settings.json").write_text(json.dumps({"listen": r, "host": "0.0.0.0", "to": e, **router}))
        proxy = [PY, "-m", "vindicate", "rehearse", "proxy", "--listen", f"127.0.0.1:{x}", "--upstream"]
        far_engine = [*inside, PY, str(FAKES / "engine.py"), "--port", str(e), "--lifetime", "90", "--host"]
        if published:
            commands = {
                "engine": [*far_engine, "0.0.0.0", *engine],
                "forwarder": [PY, str(FAKES / "forwarder.py"), str(r), far, str(e)],
                "proxy": [*proxy, f"http://127.0.0.1:{r}", *scenario.proxy],
            }
        else:
            commands = {
                "engine": [*far_engine, "0.0.0.0", *engine],
                "router": [*inside, PY, str(FAKES / "passer.py"), "--config", str(folder / "settings.json")],
                "proxy": [*proxy, f"http://{far}:{r}", *scenario.proxy],
            }
        running: dict[str, subprocess.Popen[bytes]] = {}
        try:
            for part, command in commands.items():
                with (folder / f"{part}.log").open("wb") as log:
                    running[part] = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
            bench.wait_for(f"http://127.0.0.1:{r}/v1/models" if published else f"http://{far}:{r}/v1/models")
            bench.wait_for(f"http://127.0.0.1:{x}/v1/models")
            file = folder / "vindicate.toml"
            below = "engine" if published else "router"
            text = (
                f'[stack]\nname = "boxed"\nentry = "proxy"\n[services.proxy]\nrole = "proxy"\nurl = "http://127.0.0.1:{x}"\n'
                f'upstream = ["{below}"]\n[services.engine]\nrole = "engine"\n'
            )
            if published:
                text += f'url = "http://127.0.0.1:{r}"\npid = {running["engine"].pid}\n'
            else:
                text += f'url = "http://{far}:{e}"\n'
                text += f'[services.router]\nrole = "router"\nurl = "http://{far}:{r}"\nupstream = ["engine"]\n'
            file.write_text(text)
            yield running, f"http://127.0.0.1:{x}", file
        finally:
            for process in running.values():
                for sign in (signal.SIGCONT, signal.SIGKILL):
                    try:
                        os.killpg(process.pid, sign)
                    except ProcessLookupError:
                        break
                process.wait()


def one(
    name: str,
    verdict: tuple[str, str, str] | None,
    engine: str,
    *,
    router: dict[str, Any] | None = None,
    published: bool = False,
    **more: Any,
) -> Scenario:
    """A scenario: *verdict* is layer, service and mechanism, ``None`` where all is well."""
    start = partial(boxed, router=router or {}, engine=tuple(engine.split()), published=published)
    layer, service, mechanism = verdict or ("none", None, None)
    return Scenario(name, layer, service, mechanism, start=start, **more)


STREAM = "--itl 0.05 --tokens 60"
STALLS = "--itl 0.05 --tokens 60 --stall-at 3 --after 12"
STARVES = ("proxy", "proxy", "proxy.connector_starvation")

SCENARIOS = (
    one("boxed_engine_stalls", ("engine", "engine", "engine.stall_mid_stream"), STALLS),
    one("boxed_router_masks_end", ("router", "router", "stream.missing_done_masked_by_heartbeat"), STREAM, router={"beat": 1}),
    one("boxed_starved", STARVES, STREAM, proxy=(*STARVED, "--variant", "permit"), clients=("leave", "hang")),
    one("well_boxed", None, STREAM, clients=("busy",)),
    one("published_engine_stalls", ("engine", "engine", "engine.stall_mid_stream"), STALLS, published=True),
    one("published_starved", STARVES, STREAM, published=True, proxy=(*STARVED, "--variant", "permit"), clients=("leave", "hang")),
    one("well_published", None, STREAM, published=True, clients=("busy",)),
)  # fmt: skip
