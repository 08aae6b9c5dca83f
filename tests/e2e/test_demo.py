"""The demo does what it says, and cleans up however it ends."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest


def _play(directory, log):
    """Start the demo in *directory*, its output in the file *log*."""
    with log.open("wb") as sink:
        return subprocess.Popen(
            [sys.executable, "-m", "vindicate", "demo", "--keep", str(directory)],
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, "HOME": str(directory.parent)},
        )


def _wait(condition, seconds, what):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def _running_in(directory):
    """Processes whose command line or working folder names *directory*."""
    found = []
    for process in psutil.process_iter():
        try:
            if str(directory) in " ".join(process.cmdline()) or process.cwd().startswith(str(directory)):
                found.append((process.pid, process.cmdline()))
        except psutil.Error:
            continue
    return found


@pytest.mark.timeout(300)
def test_plays_all_six_acts_and_leaves_nothing_running(tmp_path):
    log = tmp_path / "log"
    demo = _play(tmp_path / "story", log)
    try:
        code = demo.wait(timeout=280)
    finally:
        demo.kill()
        demo.wait()
    text = log.read_text()
    assert code == 0, text[-6000:]
    for number in range(1, 7):
        assert f"\n{number}. " in text
    assert "proxy.connector_starvation" in text
    assert _running_in(tmp_path / "story") == []


@pytest.mark.timeout(120)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_cleans_up_when_it_is_interrupted_or_killed(tmp_path, number):
    log = tmp_path / "log"
    story = tmp_path / "story"
    demo = _play(story, log)
    try:
        _wait(
            lambda: b"$ vindicate load" in log.read_bytes() or demo.poll() is not None, 60, "the harness never started"
        )
        assert demo.poll() is None, log.read_text()[-3000:]
        demo.send_signal(number)
        code = demo.wait(timeout=60)
    finally:
        demo.kill()
        demo.wait()
    assert code == (-signal.SIGKILL if number == signal.SIGKILL else 130)
    _wait(lambda: not _running_in(story), 60, f"still running: {_running_in(story)}")


@pytest.mark.timeout(120)
@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGHUP])
def test_cleans_up_also_when_its_caretaker_is_dead_and_the_user_is_impatient(tmp_path, first):
    log = tmp_path / "log"
    story = tmp_path / "story"
    demo = _play(story, log)
    try:
        _wait(lambda: b"decode: starting" in log.read_bytes() or demo.poll() is not None, 60, "decode never started")
        assert demo.poll() is None, log.read_text()[-3000:]
        caretaker = next(
            child for child in psutil.Process(demo.pid).children() if "vindicate.rehearse.caretaker" in child.cmdline()
        )
        caretaker.kill()
        demo.send_signal(first)
        _wait(lambda: b"cleaning up" in log.read_bytes(), 30, "it went on")
        demo.send_signal(signal.SIGINT)
        demo.send_signal(signal.SIGTERM)
        assert demo.wait(timeout=60) == 130, log.read_text()[-3000:]
        assert _running_in(story) == []
    finally:
        demo.kill()
        demo.wait()
