"""What examples/ promises holds, as far as it can without GPUs."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "dsv4-sm120"
KNOB = "SGLANG_SM120_MMA_TARGET_CTAS"


@pytest.fixture
def stack(tmp_path):
    folder = tmp_path / "dsv4"
    shutil.copytree(EXAMPLE, folder)
    return folder


def vindicate(folder, *words, code=0):
    done = subprocess.run(
        [sys.executable, "-m", "vindicate", *words], cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == code, done.stderr
    return done


@pytest.mark.parametrize("script", sorted(path.name for path in EXAMPLE.glob("serve_*.sh")))
def test_bash_reads_every_start_script(script):
    subprocess.run(["bash", "-n", EXAMPLE / script], check=True, timeout=10)


def test_knob_list_reads_the_value_in_the_script(stack):
    listed = json.loads(vindicate(stack, "knob", "list", "--json").stdout)["knobs"]
    assert [(knob["knob"], knob["scripts"]) for knob in listed] == [(KNOB, {"decode": "256"})]


def test_discovery_finds_the_revert_its_reason_and_its_worth(stack):
    found = json.loads(vindicate(stack, "clawback", "--discover", "--yes", "--json").stdout)["candidates"]
    assert [(item["knob"], item["from"], item["to"]) for item in found] == [(KNOB, "512", "256")]
    assert "hang after a few rounds" in found[0]["because"][0]["text"]
    assert {row["level"]: row["gain_pct"] for row in found[0]["worth"]} == {64: 12.8, 80: 1.2, 96: 5.7}
    again = vindicate(stack, "restore", found[0]["change"], "--dry-run", code=2)
    assert "H1" in again.stderr + again.stdout, "its claim still holds, and the refusal names it"


def test_a_dry_run_of_apply_shows_the_plan_and_touches_nothing(stack):
    before = {path.name: path.read_bytes() for path in stack.iterdir()}
    plan = vindicate(stack, "apply", f"{KNOB}=512", "--dry-run")
    assert f"+export {KNOB}=512" in plan.stderr + plan.stdout
    assert {path.name: path.read_bytes() for path in stack.iterdir() if path.is_file()} == before
