"""`vindicate ab` on the real reference stack: its true gain is found, the stack is left as it was, a kill is survived."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from vindicate import __version__
from vindicate.ledger.store import Ledger
from vindicate.operate.services import bring_down, bring_up
from vindicate.operate.status import live_readings
from vindicate.rehearse.reference_stack import write_reference_stack
from vindicate.stack.file import read_stack

KNOB = "SGLANG_SM120_MMA_TARGET_CTAS"
SMALL = ("--blocks", "3", "--max-tokens", "6", "--rounds", "2", "--yes", "--seed", "5")


@pytest.fixture
def stack(tmp_path: Path):
    made = read_stack(write_reference_stack(tmp_path, device="simulated:rtx-pro-6000", proxy=False))
    router = made.service("router").launcher.file
    router.write_text(router.read_text().replace("--host", "--health-check-interval-secs 0.5 \\\n  --host"))
    bring_up(made, tuple(made.services), say=lambda _line: None)
    yield made
    bring_down(made, tuple(made.services), say=lambda _line: None)


def command(stack, *words):
    return [sys.executable, "-m", "vindicate", "ab", "--stack", str(stack.file), *words]


def script_bytes(stack):
    return stack.service("decode").launcher.file.read_bytes()


def live(stack):
    return {reading.value for reading in live_readings(stack.service("decode"), KNOB)}


@pytest.mark.timeout(150)
def test_gives_an_interval_for_each_level_and_leaves_everything_as_it_was(stack):
    before = script_bytes(stack)
    words = command(stack, f"{KNOB}=256..512", "--levels", "4,8", "--requests-per-level", "8", *SMALL, "--json")
    seen = subprocess.run(words, capture_output=True, text=True, timeout=140, check=False)
    assert seen.returncode == 0, seen.stderr
    document = json.loads(seen.stdout)
    assert document["simulated"]
    assert document["blocks_done"] == 3
    assert not document["exclusions"]
    assert [effect["grade"] for effect in document["effects"]] == ["B", "B"]
    for effect in document["effects"]:
        assert effect["lo_pct"] < effect["gain_pct"] < effect["hi_pct"]
        assert effect["verdict"] in ("better", "unresolved"), (
            "a gain that is there is never worse, equivalent or invalid"
        )
    assert script_bytes(stack) == before
    assert live(stack) == {"256"}
    with Ledger.open(stack.home / "ledger.db", read_only=True) as ledger:
        kept = [fact.body for fact in ledger.facts("evidence")]
    assert [len(item.effects) for item in kept] == [0, 2]
    assert kept[1].fingerprint["reference"] == __version__, "measured with which engine: what makes it stale later"
    assert all(effect.simulated and effect.grade == "B" for effect in kept[1].effects)
    rows = list((stack.home / "experiments" / "X1" / "requests").glob("block*/level*/requests.jsonl"))
    assert len(rows) == 3 * 2 * 2, "raw rows of every measured level are kept"


def test_a_kill_is_said_to_the_next_one_and_put_back_restores_the_bytes(stack, tmp_path):
    before = script_bytes(stack)
    words = command(stack, f"{KNOB}=128..512", "--levels", "4", "--requests-per-level", "8", *SMALL)
    with (tmp_path / "ab.log").open("wb") as log:
        child = subprocess.Popen(words, stdout=log, stderr=log)
    deadline = time.monotonic() + 40
    while live(stack) != {"512"} and child.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    assert script_bytes(stack) != before
    again = subprocess.run(words, capture_output=True, text=True, timeout=20, check=False)
    assert again.returncode == 4
    assert "--resume X1" in again.stderr
    change = [sys.executable, "-m", "vindicate", "apply", f"{KNOB}=128", "--stack", str(stack.file), "--yes"]
    refused = subprocess.run(change, capture_output=True, text=True, timeout=20, check=False)
    assert refused.returncode == 4, "a change must not take an arm's value for the user's"
    assert "--put-back X1" in refused.stderr
    done = subprocess.run(
        command(stack, "--put-back", "X1", "--yes"), capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stderr
    assert script_bytes(stack) == before
    assert live(stack) == {"256"}
    left = subprocess.run(
        command(stack, "--resume", "X1", "--plan"), capture_output=True, text=True, timeout=30, check=False
    )
    assert left.returncode == 0, left.stderr
    assert "0 of 3 blocks done, up to 7 starts left" in left.stderr, "what was killed can be gone on with"


def test_ctrl_c_exits_130_with_the_command_that_goes_on(stack, tmp_path):
    before = script_bytes(stack)
    words = command(stack, f"{KNOB}=128..512", "--levels", "4", "--requests-per-level", "8", *SMALL)
    with (tmp_path / "ab.log").open("wb") as log:
        child = subprocess.Popen(words, stdout=log, stderr=log)
    deadline = time.monotonic() + 40
    while b"block 1" not in (tmp_path / "ab.log").read_bytes() and time.monotonic() < deadline:
        time.sleep(0.02)
    child.send_signal(signal.SIGINT)
    assert child.wait(timeout=30) == 130
    assert "vindicate ab --resume X1" in (tmp_path / "ab.log").read_text()
    assert script_bytes(stack) == before
    assert live(stack) == {"256"}
