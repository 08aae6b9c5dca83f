"""Healthy chains that look like a fault, and a fault after everybody has left."""

import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from diagnosis import PY, STARVED, Chain, Scenario, free_ports, wait_for

__all__ = ["SCENARIOS"]

FAKES = Path(__file__).parents[1] / "tests" / "fakes"


@contextmanager
def among_strangers(scenario: Scenario, folder: Path) -> Iterator[Chain]:
    """A relay and an engine; the relay tells a tracer of each request, pushes to a collector and to one that is dead, and names a database.

    The two strangers that listen write down whether they were asked anything; then the run fails.
    """
    engine, *strangers, dead = free_ports(5)
    relay = strangers.pop()
    observed = [PY, str(FAKES / "observed.py")]
    commands = {
        "engine": [PY, str(FAKES / "engine.py"), "--port", str(engine), "--lifetime", "90", *(scenario.plain or ())],
        "tracer": [*observed, "pusher", "--life", "90", "--port", str(strangers[0])],
        "database": [*observed, "pusher", "--life", "90", "--port", str(strangers[1])],
        "proxy": [
            *observed, "relay", "--life", "90", "--port", str(relay), "--upstream", str(engine), "--also", str(strangers[0]), str(dead),
            "--push", str(strangers[1]), str(dead), "--arg", f"database-url=http://127.0.0.1:{strangers[1]}",
        ],
    }  # fmt: skip
    running: dict[str, subprocess.Popen[bytes]] = {}
    with socket.socket() as held:
        held.bind(("127.0.0.1", dead))  # nobody listens there, and nobody else gets it
        try:
            for name, command in commands.items():
                with (folder / f"{name}.log").open("wb") as log:
                    running[name] = subprocess.Popen(command, stdout=log, stderr=log)
            wait_for(f"http://127.0.0.1:{engine}/health")
            wait_for(f"http://127.0.0.1:{relay}/v1/models")
            file = folder / "vindicate.toml"
            file.write_text(
                f'[stack]\nname = "bench"\nentry = "proxy"\n[services.proxy]\nrole = "proxy"\nengine = "generic"\n'
                f'url = "http://127.0.0.1:{relay}"\nupstream = ["engine"]\n'
                f'[services.engine]\nrole = "engine"\nengine = "generic"\nurl = "http://127.0.0.1:{engine}"\n'
            )
            yield running, f"http://127.0.0.1:{relay}", file
            for name in ("tracer", "database"):
                if "asked" in (folder / f"{name}.log").read_text():
                    raise RuntimeError(f"something was sent to the {name}, which is no part of the chain")
        finally:
            for process in running.values():
                process.send_signal(signal.SIGKILL)
                process.wait()


SCENARIOS = (
    Scenario("slow_model", "none", plain=("--itl", "3.3", "--tokens", "40"), clients=("busy",), may_abstain=True),
    Scenario("slow_model_alone", "none", plain=("--itl", "3.3", "--tokens", "40"), clients=(), may_abstain=True),
    Scenario("limit_and_no_bytes", "none", plain=("--delay-first", "18", "--tokens", "5"), proxy=("--fault", "none", "--slots", "4"), clients=("busy",), may_abstain=True),
    Scenario("busy_beside_idle", "none", clients=("idle", "busy")),
    Scenario("starved_left", "proxy", "proxy", "proxy.connector_starvation", proxy=STARVED, clients=("leave",), decode_cleared=True),
    Scenario("plain_starved_left", "proxy", "proxy", "proxy.connector_starvation", plain=("--itl", "0.05", "--tokens", "40"), proxy=STARVED, clients=("leave",)),
    Scenario("among_strangers", "none", plain=("--itl", "0.05", "--tokens", "40"), clients=("busy",), start=among_strangers, discovered=True),
    Scenario("stall_among_strangers", "engine", "engine", "engine.stall_mid_stream", plain=("--stall-at", "3", "--after", "8"), start=among_strangers, discovered=True),
)  # fmt: skip
