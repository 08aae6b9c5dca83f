"""Starts the servers of observed.py for tests, reads their ports, and stops them."""

import contextlib
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from vindicate.stack.model import Service, Stack

SCRIPT = Path(__file__).with_name("observed.py")


@dataclass
class Observed:
    port: int
    pid: int
    process: subprocess.Popen

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"


@contextlib.contextmanager
def observed(folder, *arguments):
    """One server, until the block ends."""
    log = folder / f"{time.monotonic_ns()}.log"
    with log.open("w") as out:
        process = subprocess.Popen(
            [sys.executable, str(SCRIPT), *map(str, arguments)], stdout=out, stderr=subprocess.STDOUT
        )
    try:
        deadline = time.monotonic() + 20
        while not (match := re.search(r"listening on (\d+)", log.read_text())):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.02)
        yield Observed(int(match[1]), process.pid, process)
    finally:
        process.kill()
        process.wait()


def service(name, role, server, upstream=(), engine="generic", **more):
    return Service(
        name=name, role=role, engine=engine, url=server.url, metrics=server.url + "/metrics", health="/health",
        upstream=tuple(upstream), **more,
    )  # fmt: skip


def stack(*services, **more):
    return Stack(name="test", entry=services[0].name, services={one.name: one for one in services}, **more)
