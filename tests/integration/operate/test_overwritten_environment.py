"""A process that has written over its environment is unknown, never unset."""

import subprocess
import sys

import pytest

from vindicate.operate.running import members, spawn
from vindicate.stack.process import process_tree, read_knob

# What setproctitle does: text over the start of the area, NULs over the rest (fields 50 and 51 of proc_pid_stat(5)).
OVERWRITE = """
import sys
stat = open("/proc/self/stat").read().rpartition(")")[2].split()
start, stop = int(stat[47]), int(stat[48])
with open("/proc/self/mem", "r+b", 0) as memory:
    memory.seek(start)
    memory.write(b"engine::worker".ljust(stop - start - 1, bytes(1)))
"""
WAIT = "print('ready', flush=True); sys.stdin.read()"


@pytest.fixture
def start():
    children = []

    def run(code, env):
        child = subprocess.Popen(
            [sys.executable, "-c", "import sys\n" + code], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        children.append(child)
        assert child.stdout.readline() == b"ready\n"
        return child.pid

    yield run
    for child in children:
        child.communicate()


def test_an_environment_without_path_or_with_nothing_is_read(start):
    assert read_knob(start(WAIT, {"K": "5"}), "K").value == "5"
    empty = read_knob(start(WAIT, {}), "K")
    assert (empty.value, empty.problem) == (None, None)


def test_an_overwritten_environment_is_unknown_although_the_parent_holds_another_value(start, monkeypatch):
    monkeypatch.setenv("K", "of the shell that started it")
    reading = read_knob(start(OVERWRITE + WAIT, {"K": "5", "PATH": "/bin"}), "K")
    assert reading.value is None
    assert "written over" in reading.problem


def test_a_worker_that_overwrote_it_has_what_its_own_engine_holds(start):
    worker = (
        "import subprocess\n"
        f"child = subprocess.Popen([sys.executable, '-c', {OVERWRITE + WAIT!r}], stdin=subprocess.PIPE)\n"
        "sys.stdin.read(); child.communicate()"
    )
    pids = process_tree([start(worker, {"K": "5"})])
    assert [read_knob(pid, "K", within=pids).value for pid in pids] == ["5", "5"]
    assert read_knob(pids[1], "K").problem


def test_a_run_without_a_path_is_found_by_its_mark_and_a_stranger_is_not(start, tmp_path):
    stranger = start(WAIT, {"A": "1"})
    run = spawn("a", ["/bin/sleep", "30"], cwd=tmp_path, env={}, log=tmp_path / "log", home=tmp_path)
    try:
        found = [proc.pid for proc in members(run)]
        assert run.pid in found
        assert stranger not in found
    finally:
        subprocess.run(["kill", "-9", str(run.pid)], check=True)
