"""`vindicate knob explain` speaks the contract's document and says what a fit proves."""

import json
import subprocess
import sys

import pytest

KNOB = "SGLANG_SM120_MMA_TARGET_CTAS"


def run(*words, cwd):
    return subprocess.run(
        [sys.executable, "-m", "vindicate", "knob", "explain", *words],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_prints_the_published_document_best_fit_first(tmp_path):
    done = run(KNOB, "--fit", "64:12.8,80:1.2,96:5.7", "--json", cwd=tmp_path)
    document = json.loads(done.stdout)
    assert (document["schema"], document["card"], document["decides"]) == ("vindicate.explain/1", "rtx-pro-6000", 48)
    errors = [mapping["rmse_pct"] for mapping in document["mappings"]]
    assert errors == sorted(errors)
    first = document["mappings"][0]["levels"][1]
    assert (first["level"], first["ctas"], first["waves"], first["efficiency"]) == (
        64,
        [256, 512],
        [1.36, 2.72],
        [0.68, 0.91],
    )
    assert any("random gains" in text for text in document["says"])


def test_takes_the_figures_of_the_ledger_when_none_are_given(tmp_path):
    (tmp_path / "PLAN.md").write_text(
        f"# `{KNOB}` 256 → 512\n\n| concurrent | change in tok/s |\n|---|---|\n| 64 | +12.8 % |\n| 80 | +1.2 % |\n| 96 | +5.7 % |\n"
    )
    subprocess.run(
        [sys.executable, "-m", "vindicate", "evidence", "import", "PLAN.md", "--yes"],
        cwd=tmp_path,
        check=True,
        capture_output=True,
        timeout=60,
    )
    document = json.loads(run(KNOB, "--json", cwd=tmp_path).stdout)
    assert document["mappings"][0]["rmse_pct"] == 0.74


@pytest.mark.parametrize(
    "words", [("--fit", "64"), ("--card", "abacus"), ("--levels", "a"), ("--values", "256"), ("--fit", "64:1,64:2")]
)
def test_says_what_was_wrong_with_the_value_seen(tmp_path, words):
    done = run(KNOB, *words, cwd=tmp_path)
    assert done.returncode == 2
    assert words[1] in done.stderr
    assert not done.stdout
