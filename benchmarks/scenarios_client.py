"""Clients that hold themselves up, requests that do, and idle connections: real clients with habits before a relay and a fake engine."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import diagnosis as bench
from diagnosis import PY, Scenario

FAKES = Path(__file__).parents[1] / "tests" / "fakes"


@contextmanager
def called(
    _scenario: Scenario,
    folder: Path,
    *,
    agents: dict[str, Any],
    engine: str = "",
    hop: dict[str, Any] | None = None,
    below: dict[str, Any] | None = None,
    restart_after_s: float | None = None,
) -> Iterator[bench.Chain]:
    """Start engine, relay and client, none of which shows on its command line what it does.

    Args:
        hop: Habits of a relay of our own; ``None``: the correct one of `vindicate rehearse`.
        below: Habits of a second relay that stands before the engine and is taken for it.
        restart_after_s: Kill the relay so long after the client has begun, and start it again.
    """
    x, d, e = bench.free_ports(3)
    url = f"http://127.0.0.1:{x}"
    files = {
        "agents.json": {"url": url, **agents},
        "hop.json": {"listen": ["127.0.0.1", x], "upstream": ["127.0.0.1", d], **(hop or {})},
        "below.json": {"listen": ["127.0.0.1", d], "upstream": ["127.0.0.1", e], **(below or {})},
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    port = d if below is None else e
    correct = [
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
        "inner": [PY, str(FAKES / "engine.py"), "--port", str(port), "--lifetime", "120", *engine.split()],
        "engine": [PY, str(FAKES / "hop.py"), str(folder / "below.json")],
        "proxy": correct if hop is None else [PY, str(FAKES / "hop.py"), str(folder / "hop.json")],
        "agents": [PY, str(FAKES / "agents.py"), str(folder / "agents.json")],
    }
    if below is None:
        del commands["engine"]
    running: dict[str, subprocess.Popen[bytes]] = {}

    def start(name: str) -> None:
        with (folder / f"{name}.log").open("ab") as log:
            running[name] = subprocess.Popen(commands[name], stdout=log, stderr=log, start_new_session=True)

    try:
        for name in commands:
            if name != "agents":
                start(name)
        for at in {d, x}:
            bench.wait_for(f"http://127.0.0.1:{at}/v1/models")
        start("agents")
        if restart_after_s is not None:
            time.sleep(restart_after_s)
            running["proxy"].kill()
            running["proxy"].wait()
            start("proxy")
            bench.wait_for(f"{url}/v1/models")
        file = folder / "vindicate.toml"
        file.write_text(
            f'[stack]\nname = "bench"\nentry = "proxy"\n[services.proxy]\nrole = "proxy"\nurl = "{url}"\nupstream = ["engine"]\n'
            f'[services.engine]\nrole = "engine"\nurl = "http://127.0.0.1:{d}"\n'
        )
        yield running, url, file
    finally:
        for process in running.values():
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def client(name: str, layer: str, mechanism: str | None, agents: dict[str, Any], **more: Any) -> Scenario:
    """One scenario; words for `called` and for `Scenario` may be mixed."""
    ours = {key: more.pop(key) for key in ("engine", "hop", "below", "restart_after_s") if key in more}
    return Scenario(name, layer, mechanism=mechanism, clients=(), start=partial(called, agents=agents, **ours), **more)


FLOW = "--itl 0.05 --tokens 4000"
NAMED = ("--client-pid", "{agents}")
SCENARIOS = (
    client("agent_ignores", "client", "client.not_reading", {"habit": "ignores", "tokens": 4000}, engine=FLOW),
    client("agent_ignores_fast", "client", "client.not_reading", {"habit": "ignores", "tokens": 200000}, engine="--itl 0.005 --burst 200 --tokens 200000"),
    client("agent_sips", "none", None, {"habit": "sips", "tokens": 4000}, engine=FLOW),
    client("agent_sleeps", "client", "client.half_closed_ignored", {"habit": "sleeps", "tokens": 4000, "n": 2}, engine=FLOW, restart_after_s=3.0),
    client("agent_parks", "client", "client.pool_slot_leak", {"habit": "parks", "n": 8}, more=NAMED),
    client("agent_keeps_named", "client", "client.pool_slot_leak", {"habit": "keeps"}, hop={"idle_s": 2}, more=NAMED),
    client("agent_keeps", "none", None, {"habit": "keeps"}, hop={"idle_s": 2}),
    client("agent_keeps_open", "none", None, {"habit": "keeps"}),
    client("agent_turns", "none", None, {"habit": "turns", "tokens": 40}, engine="--itl 0.03 --tokens 400"),
    client("agent_insists", "client", "retry.amplification", {"habit": "insists", "limit_s": 2.0, "n": 1}, engine="--delay-first 5", hop={}),
    client("agent_insists_heard", "none", None, {"habit": "insists", "limit_s": 2.0, "n": 1}, engine="--delay-first 5"),
    client("agent_leaves", "none", None, {"habit": "leaves", "limit_s": 1.5, "tokens": 400}, engine="--itl 0.05 --tokens 400"),
    client("request_endless", "request", "request.endless_generation", {"habit": "reads", "n": 1, "tokens": 10**6}, engine="--itl 0.0002 --burst 100 --tokens 1000000", settle_s=35.0),
    client("request_long", "none", None, {"habit": "reads", "n": 1, "tokens": 6000}, engine="--itl 0.005 --burst 10 --tokens 6000"),
    client("pool_reuses_closed", "proxy", "keepalive.race", {"habit": "reads", "n": 2, "pause_s": 2.6}, hop={"trust": True}, below={"idle_s": 2}),
    client("pool_reuses_open", "none", None, {"habit": "reads", "n": 2, "pause_s": 1.0}, hop={"trust": True}, below={"idle_s": 20}),
)  # fmt: skip
