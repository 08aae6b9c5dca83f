"""A knob that is a flag of a command line: declared, changed, read back from live processes, shown, put back; on real services."""

import json
import subprocess
import sys

import pytest

from fakes.small_stack import write_small_stack


@pytest.fixture
def stack(tmp_path):
    """Worker with ``--models 2`` on its command line, declared as a knob; started, and stopped at the end."""
    write_small_stack(tmp_path, worker="--models 2 \\\n  --life 60")
    file = tmp_path / "vindicate.toml"
    file.write_text(file.read_text() + '[knobs."--models"]\nkind = "arg"\nservices = ["worker"]\ndefault = "1"\n')
    assert run(tmp_path, "stack", "up").returncode == 0
    yield tmp_path
    run(tmp_path, "stack", "down")


def run(folder, *words):
    return subprocess.run(
        [sys.executable, "-m", "vindicate", *words], cwd=folder, capture_output=True, text=True, timeout=50, check=False
    )


def told(folder, *words):
    return json.loads(run(folder, *words, "--json").stdout)


def live(folder):
    (worker,) = (one for one in told(folder, "stack", "status")["services"] if one["name"] == "worker")
    return set(worker["knobs"]["--models"]["live"].values()), worker["knobs"]["--models"]["declared"]


def script(folder):
    return (folder / "worker.sh").read_text()


def test_a_flag_is_changed_added_taken_out_and_put_back(stack):
    before = script(stack)
    assert live(stack) == ({"2"}, "2")
    assert run(stack, "apply", "models=5", "--yes").returncode == 0
    assert script(stack) == before.replace("--models 2", "--models 5")
    assert live(stack) == ({"5"}, "5")
    assert run(stack, "apply", "--unset", "models", "--yes").returncode == 0
    assert "--models" not in script(stack)
    assert live(stack) == ({None}, None)
    (state,) = (one for one in told(stack, "knob", "list")["knobs"] if one["knob"] == "--models")
    assert (state["ledger"], state["drift"]) == (None, [])
    assert run(stack, "change", "rollback", "C2", "--yes").returncode == 0
    assert live(stack) == ({"5"}, "5")
    shown = run(stack, "knob", "show", "models").stdout
    assert "worker.sh" in shown
    assert "5" in shown


def test_a_value_changed_by_hand_is_drift_and_a_wrong_one_is_refused_by_the_service_and_undone(stack):
    path = stack / "worker.sh"
    path.write_text(script(stack).replace("--models 2", "--models 3"))
    assert run(stack, "stack", "status").returncode == 1
    assert live(stack) == ({"2"}, "3")
    path.write_text(script(stack).replace("--models 3", "--models 2"))
    before = script(stack)
    failed = run(stack, "apply", "models=many", "--yes")
    assert failed.returncode == 1, failed.stderr
    assert script(stack) == before
    assert live(stack) == ({"2"}, "2")


def test_what_cannot_be_understood_is_refused_with_file_and_line_and_nothing_is_touched(stack):
    path = stack / "worker.sh"
    path.write_text(script(stack).replace("--models 2", "--models $N"))
    before = script(stack)
    refused = run(stack, "apply", "models=5", "--yes")
    assert refused.returncode == 2, refused.stderr
    assert "worker.sh:8" in refused.stderr
    assert script(stack) == before


def test_an_experiment_reads_and_plans_a_flag(stack):
    planned = run(stack, "ab", "models=2..3", "--plan", "--levels", "1", "--blocks", "3")
    assert planned.returncode == 0, planned.stderr
    assert "--models" in planned.stdout + planned.stderr


@pytest.mark.parametrize("table", ["models", '"--bad flag"'])
def test_a_flag_is_declared_by_a_name_that_no_environment_variable_has(tmp_path, table):
    write_small_stack(tmp_path)
    file = tmp_path / "vindicate.toml"
    file.write_text(file.read_text() + f'[knobs.{table}]\nkind = "arg"\nservices = ["worker"]\n')
    refused = run(tmp_path, "stack", "status")
    assert refused.returncode == 2
    assert "is of kind arg, and no flag" in refused.stderr
