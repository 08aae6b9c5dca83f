"""Starts a process that prints `listening on URL` and ends it whatever the test does."""

import contextlib
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ENGINE = Path(__file__).parent / "engine.py"


@dataclass
class Started:
    process: subprocess.Popen
    url: str
    log: Path

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def stop(self, number=signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(10)


@contextlib.contextmanager
def started(argv):
    """Run *argv* until the block ends; its output goes to a file, so that it never blocks."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with log.open("wb") as out:
            process = subprocess.Popen(argv, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        try:
            yield Started(process, _ready(process, log), log)
        finally:
            if process.poll() is None:
                process.kill()
            process.wait(10)


def _ready(process, log):
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        match = re.search(r"^listening on (\S+)\n", log.read_text(), re.MULTILINE)
        if match:
            return match[1]
        assert process.poll() is None, f"ended with {process.returncode}: {log.read_text()}"
        time.sleep(0.02)
    raise AssertionError(f"not ready: {log.read_text()}")


def fake_engine(*switches):
    return started([sys.executable, str(ENGINE), *map(str, switches)])


def rehearsed_proxy(upstream, *words):
    return started([sys.executable, "-m", "vindicate", "rehearse", "proxy", "--upstream", upstream, *map(str, words)])


def eventually(check, *, within=10.0):
    """Poll until *check* gives something true; give it."""
    deadline = time.monotonic() + within
    while not (found := check()):
        assert time.monotonic() < deadline, f"not within {within} s: {check}"
        time.sleep(0.02)
    return found


def open_sockets(pid, port):
    """How many connections process *pid* has to *port* on this host."""
    import psutil

    connections = psutil.Process(pid).net_connections("tcp")
    return sum(bool(item.raddr) and item.raddr.port == port for item in connections)
