"""A stream that falls silent has its chain recorded before it is given up."""

import json
import signal
import subprocess
import sys

from fakes.start import eventually, fake_engine


def load(*words, cwd):
    command = [sys.executable, "-m", "vindicate", "load", *map(str, words)]
    return subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def code_of(run):
    run.communicate(timeout=50)
    return run.returncode


def test_the_recording_is_of_the_moment_and_can_be_judged(tmp_path):
    with fake_engine("--stall-at", 3, "--itl", 0.02) as engine:
        words = ("--model", "fake", "--concurrency", 2, "--requests", 2, "--stall-after", "14s", "--out", "run")
        _, told = load(engine.url, *words, cwd=tmp_path).communicate(timeout=50)
    file = tmp_path / "run" / "stall.capture.json"
    assert "next: vindicate diagnose --replay run/stall.capture.json" in told
    capture = json.loads(file.read_text())
    streams = [c for c in capture["connections"] if not c["ours"] and c["samples"][0]["state"] == "ESTABLISHED"]
    assert streams, "the silent streams were still there"
    replay = [sys.executable, "-m", "vindicate", "diagnose", "--replay", str(file), "--json"]
    verdict = json.loads(subprocess.run(replay, capture_output=True, check=False, timeout=30).stdout)
    assert (verdict["status"], verdict["layer"]) == ("fault", "engine"), verdict["summary"]


def test_nothing_is_recorded_of_a_good_run_or_when_it_is_not_wanted(tmp_path):
    with fake_engine() as engine:
        words = ("--model", "fake", "--concurrency", 2, "--requests", 4, "--stall-after", "2s", "--out", "good")
        assert code_of(load(engine.url, *words, cwd=tmp_path)) == 0
    with fake_engine("--stall-at", 3) as engine:
        words = (
            "--model",
            "fake",
            "--concurrency",
            1,
            "--requests",
            1,
            "--stall-after",
            "1s",
            "--out",
            "bad",
            "--no-capture",
        )
        assert code_of(load(engine.url, *words, cwd=tmp_path)) == 1
    assert not list(tmp_path.glob("*/stall*"))


def test_a_run_that_is_broken_off_ends_its_recording(tmp_path):
    with fake_engine("--stall-at", 3) as engine:
        words = ("--model", "fake", "--concurrency", 1, "--requests", 1, "--stall-after", "20s", "--out", "run")
        run = load(engine.url, *words, cwd=tmp_path)
        eventually((tmp_path / "run" / "stall.capture.log").exists, within=30)
        run.send_signal(signal.SIGINT)
        run.communicate(timeout=20)
        assert run.returncode == 130
    assert not (tmp_path / "run" / "stall.capture.json").exists()
