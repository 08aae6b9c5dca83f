"""What every test can rely on: no child process survives the session."""

import os
import signal
import time

import psutil
import pytest
from hypothesis import settings

# The same examples every time, so that a run says something of the change; look further with: pytest --hypothesis-profile=default
settings.register_profile("steady", derandomize=True)
settings.load_profile("steady")


@pytest.fixture(scope="session", autouse=True)
def no_child_left_behind():
    """Fail the run when a process started by a test is still there at its end."""
    os.environ["VINDICATE_TEST_SESSION"] = mark = f"{os.getpid()}-{time.monotonic_ns()}"
    yield
    survivors = [process for process in psutil.process_iter() if _marked(process, mark)]
    deadline = time.monotonic() + 5
    while survivors and time.monotonic() < deadline:
        time.sleep(0.05)
        survivors = [process for process in survivors if _alive(process)]
    lines = [f"{process.pid} {' '.join(_cmdline(process))[:160]}" for process in survivors]
    for process in survivors:
        os.kill(process.pid, signal.SIGKILL)
    assert not lines, "left running:\n" + "\n".join(lines)


def _marked(process: psutil.Process, mark: str) -> bool:
    try:
        return process.pid != os.getpid() and process.environ().get("VINDICATE_TEST_SESSION") == mark
    except psutil.Error:
        return False


def _alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _cmdline(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []
