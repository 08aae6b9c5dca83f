"""The client against a server of known timing: its own error, at the concurrency asked for."""

import json
import os
import subprocess
import sys
from time import monotonic

import pytest

from fakes.start import fake_engine
from vindicate.errors import CannotError
from vindicate.load import calibrate as module
from vindicate.load.calibrate import calibrate
from vindicate.load.run import run_load_blocking


def test_gives_a_small_error_at_each_level():
    seen = calibrate((4, 24))
    assert [item.level for item in seen] == [4, 24]
    assert [item.requests for item in seen] == [24, 72]
    for item in seen:
        assert abs(item.ttft_ms) < 40
        assert abs(item.itl_ms) < 10
        assert item.e2e_ms > -1, "a client cannot see an end before it was sent"


def test_a_client_that_stamps_late_is_found_out(monkeypatch):
    def late(plan):
        summary = run_load_blocking(plan)
        (level,) = summary.levels
        return _with_ttft(summary, level, level.ttft_ms.mean + 100)

    monkeypatch.setattr(module, "run_load_blocking", late)
    (seen,) = calibrate((24,))
    assert seen.ttft_ms > 95


def _with_ttft(summary, level, mean):
    from dataclasses import replace

    return replace(summary, levels=(replace(level, ttft_ms=replace(level.ttft_ms, mean=mean)),))


def test_requests_that_do_not_complete_are_no_calibration(monkeypatch):
    from dataclasses import replace

    def losing(plan):
        summary = run_load_blocking(plan)
        return replace(summary, levels=(replace(summary.levels[0], completed=3),))

    monkeypatch.setattr(module, "run_load_blocking", losing)
    with pytest.raises(CannotError, match="calibration at 24: 3 of 72 requests"):
        calibrate((24,))


def test_the_mock_does_not_outlive_who_started_it():
    child = subprocess.Popen(
        [sys.executable, "-m", "vindicate.load.mock"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert int(child.stdout.readline()) > 0
        began = monotonic()
        child.stdin.close()
        assert child.wait(timeout=20) == 0
        assert monotonic() - began < 20
    finally:
        child.stdout.close()
        if child.poll() is None:
            os.kill(child.pid, 9)
            child.wait()


def test_a_run_that_calibrates_itself_says_by_how_much_its_times_are_off(tmp_path):
    with fake_engine() as engine:
        words = [
            engine.url,
            "--model",
            "fake",
            "--levels",
            "2,4",
            "--requests",
            "8",
            "--calibrate",
            "--json",
            "--out",
            "run",
        ]
        command = [sys.executable, "-m", "vindicate", "load", *words]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=50)
    assert done.returncode == 0, done.stderr
    errors = [level["client_error_ms"] for level in json.loads(done.stdout)["levels"]]
    assert len(errors) == 2
    assert all(error is not None and abs(error) < 100 for error in errors)
