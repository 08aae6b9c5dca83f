"""An experiment that is killed again and again, at moments drawn by chance, and resumed each time."""

import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

from fakes.bench import design_of
from fakes.small_stack import write_small_stack
from vindicate.experiment.journal import Journal
from vindicate.experiment.judge import judge_experiment
from vindicate.operate.services import bring_down, bring_up
from vindicate.operate.status import live_readings, look_at

FAKES = Path(__file__).parents[2]
ALL = ("front", "worker", "helper")


def test_ends_with_every_block_once_and_the_stack_as_it_was(tmp_path):
    stack = write_small_stack(tmp_path)
    script = stack.service("worker").launcher.file
    before = script.read_bytes()
    design = replace(
        design_of(blocks=3, levels=(8,)), knob="KNOB", services=("worker",), restarted=stack.restart_set(("worker",))
    )
    journal = Journal(stack.home / "experiments" / "X1")
    journal.register(design)
    draw, kills = random.Random(1), 0
    try:
        bring_up(stack, ALL, say=lambda _line: None)
        deadline = time.monotonic() + 45
        while time.monotonic() < deadline:
            code = run_until(stack, tmp_path, draw.uniform(0.0, 0.3 + 0.2 * kills) if kills < 5 else None)
            kills += code == -signal.SIGKILL
            if code == 0:
                break
            assert code == -signal.SIGKILL, (tmp_path / "log").read_text()
            if script.read_bytes() != before:
                assert journal.before() is not None, "what was changed is written down as to be put back"
        result = judge_experiment(design, journal.trials())
        assert kills >= 2
        assert result.complete
        assert result.blocks_done == 3
        assert result.effects[0].blocks == 3
        assert result.effects[0].verdict in ("better", "unresolved")
        assert journal.before() is None
        assert script.read_bytes() == before
        assert {reading.value for reading in live_readings(stack.service("worker"), "KNOB")} == {"256"}
        assert [look_at(stack, stack.service(name)).state for name in ALL] == ["ready"] * 3
    finally:
        bring_down(stack, tuple(stack.services), say=lambda _line: None, by_hand=True)


def run_until(stack, folder, delay):
    """Go on with it, and kill it so many seconds after it touched its folder or a script; its exit code."""
    words = [sys.executable, "-m", "fakes.quick_bench", str(stack.file), "X1"]
    began = state_of(stack)
    with (folder / "log").open("ab") as log:
        child = subprocess.Popen(words, stdout=log, stderr=log, env=os.environ | {"PYTHONPATH": str(FAKES)})
    if delay is None:
        return child.wait(timeout=40)
    while child.poll() is None and state_of(stack) == began:
        time.sleep(0.01)
    try:
        return child.wait(timeout=delay)
    except subprocess.TimeoutExpired:
        os.kill(child.pid, signal.SIGKILL)
        return child.wait()


def state_of(stack):
    """When each file was last written that an experiment writes first."""
    folder = stack.home / "experiments" / "X1"
    files = [folder / "before.json", folder / "trials.jsonl", stack.service("worker").launcher.file]
    return [path.stat().st_mtime_ns if path.exists() else 0 for path in files]
