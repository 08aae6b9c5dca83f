"""`vindicate ab` as a subprocess: the price, wrong words, wrong knobs, and a no."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from fakes.small_stack import write_small_stack


@pytest.fixture
def stack(tmp_path: Path):
    return write_small_stack(tmp_path)


def ab(stack, *words, stdin=""):
    return subprocess.run(
        [sys.executable, "-m", "vindicate", "ab", "--stack", str(stack.file), *words],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


def test_plan_prints_the_price_and_touches_nothing(stack):
    before = {path.name: path.read_bytes() for path in stack.file.parent.iterdir() if path.is_file()}
    seen = ab(stack, "KNOB=256..512", "--levels", "8,16", "--blocks", "6", "--seed", "3", "--plan")
    assert seen.returncode == 0, seen.stderr
    for part in (
        "6 blocks",
        "15 of worker and helper",
        "30 service restarts",
        "with 80 % chance",
        "assumed",
        "grade B",
    ):
        assert part in seen.stdout
    assert {path.name: path.read_bytes() for path in stack.file.parent.iterdir() if path.is_file()} == before
    assert not (stack.home / "experiments").exists()
    assert not (stack.home / "ledger.db").exists()


def test_plan_as_json_is_one_document_with_design_and_price(stack):
    seen = ab(stack, "KNOB=256..", "--unset-b", "--levels", "8", "--blocks", "12", "--plan", "--json")
    document = json.loads(seen.stdout)
    assert document["schema"] == "vindicate.experiment-plan/1"
    assert (document["design"]["a"], document["design"]["b"]) == ("256", None)
    assert document["design"]["looks"] == [6, 12]
    assert document["design"]["alpha"] == [0.02, 0.03]
    assert document["price"]["starts"] == 27
    assert not document["price"]["sd_known"]


def test_an_arm_against_itself_is_planned_at_the_present_value(stack):
    seen = ab(stack, "--aa", "--levels", "8", "--plan", "--json")
    document = json.loads(seen.stdout)
    assert (document["design"]["knob"], document["design"]["a"], document["design"]["b"]) == ("KNOB", "256", "256")


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["KNOB=256"], ["'KNOB=256'", "KNOB=256..512"]),
        ([], ["which knob"]),
        (["NOBODY=1..2"], ["'NOBODY'", "KNOB"]),
        (["KNOB=7..7"], ["--aa KNOB"]),
        (["KNOB=1..2", "--levels", "many"], ["--levels is 'many'"]),
        (["KNOB=1..2", "--blocks", "2"], ["2 blocks", "--blocks 3"]),
        (["KNOB=1..2", "--metric", "speed"], ["'speed'", "output_tok_per_s"]),
        (["KNOB=1..2", "--primary", "7"], ["level 7", "48, 64"]),
        (["--resume", "X9"], ["'X9'", "none yet"]),
        (["--aa", "KNOB=1..2"], ["--aa takes the name"]),
    ],
)
def test_wrong_words_exit_2_and_say_what_was_wrong_and_what_to_do(stack, words, parts):
    seen = ab(stack, *words)
    assert seen.returncode == 2, seen.stderr
    assert seen.stdout == ""
    assert "Traceback" not in seen.stderr
    for part in parts:
        assert part in seen.stderr


def test_a_path_that_is_down_is_said_before_anything_is_restarted(stack):
    seen = ab(stack, "KNOB=256..512", "--levels", "8", "--yes")
    assert seen.returncode == 2
    assert "front is down" in seen.stderr
    assert "stack up" in seen.stderr
    assert not (stack.home / "experiments").exists()


def test_help_has_an_example_that_runs():
    seen = subprocess.run(
        [sys.executable, "-m", "vindicate", "ab", "--help"], capture_output=True, text=True, timeout=30, check=True
    )
    assert "vindicate ab SGLANG_SM120_MMA_TARGET_CTAS=256..512" in seen.stdout
    assert "--unset-a" in seen.stdout


@pytest.fixture
def measured(stack):
    """The same stack, and an experiment that was measured on it."""
    from fakes.bench import FakeBench, design_of
    from vindicate.experiment.journal import Journal
    from vindicate.experiment.run import run_experiment

    bench, journal = FakeBench({"512": -0.2}), Journal(stack.home / "experiments" / "X1")
    design = design_of(blocks=6)
    journal.register(design)
    run_experiment(design, bench, journal, clock=bench.clock, say=lambda _line: None)
    return stack


def test_report_says_again_what_an_experiment_said_and_writes_a_page(measured, tmp_path):
    seen = ab(measured, "report", "X1")
    assert seen.returncode == 0, seen.stderr
    assert "worse" in seen.stdout
    page = tmp_path / "X1.html"
    for _ in range(2):
        written = ab(measured, "report", "X1", "--html", str(page), "--json")
        assert written.returncode == 0, written.stderr
        assert json.loads(written.stdout)["id"] == "X1"
        assert str(page) in written.stderr
    assert "<svg" in page.read_text()


def test_a_page_never_replaces_a_file_of_somebody_else_without_consent(measured, tmp_path):
    theirs = tmp_path / "notes.html"
    theirs.write_text("mine")
    seen = ab(measured, "report", "X1", "--html", str(theirs), stdin="n\n")
    assert seen.returncode == 2
    assert theirs.read_text() == "mine"
    assert ab(measured, "report", "X1", "--html", str(theirs), "--yes").returncode == 0
    assert "<svg" in theirs.read_text()


@pytest.mark.parametrize(
    ("words", "code", "part"),
    [
        (["report"], 2, "known: X1"),
        (["report", "X9"], 2, "'X9'"),
        (["report", "X1", "X2"], 2, "known: X1"),
        (["--html", "x.html"], 2, "report of which experiment"),
        (["KNOB=1..2", "KNOB=3..4"], 2, "one question at a time"),
        (["report", "X1", "--html", "/nowhere/at/all.html"], 4, "/nowhere/at/all.html cannot be written"),
    ],
)
def test_wrong_words_about_a_report_say_what_was_wrong(measured, words, code, part):
    seen = ab(measured, *words)
    assert seen.returncode == code, seen.stderr
    assert part in seen.stderr
    assert "Traceback" not in seen.stderr
