"""Services that systemd, docker or compose keep: started, stopped and restarted through their own commands, never by a signal.

The programs are stand-ins that start and stop real processes (tests/fakes/keeper.py); no real systemd or docker was there.
"""

import os
import subprocess
import sys
import time

import psutil
import pytest

from fakes import keeper
from fakes.kept_stack import KeptStack
from vindicate.errors import CannotError, EngineError, MisuseError
from vindicate.operate import running
from vindicate.operate.launch import launch_of
from vindicate.operate.services import bring_down, bring_up, restart, run_members, running_by_hand
from vindicate.operate.status import look_at
from vindicate.stack.file import read_stack
from vindicate.stack.process import live_readings, service_pids

KINDS = ("systemd", "docker", "docker-run", "docker-attached", "compose")


def quiet(_line):
    pass


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """A function that writes a stack whose worker is kept; whatever runs of it is ended."""
    made = []

    def make(kind, **options):
        made.append(KeptStack(tmp_path, monkeypatch, kind, **options))
        return made[-1]

    yield make
    for item in made:
        (item.home / "deny").unlink(missing_ok=True)
        bring_down(item.stack, tuple(item.stack.services), say=quiet, by_hand=True)


@pytest.fixture
def no_signal_to(monkeypatch):
    """A set of pids; a signal from here to one of them fails the test."""
    pids, send = set(), running._signal

    def checked(proc, number, name):
        assert proc.pid not in pids, f"{name}: pid {proc.pid} was sent {number!r} from here"
        send(proc, number, name)

    monkeypatch.setattr(running, "_signal", checked)
    return pids


def worker(made):
    return made.stack.service("worker")


def live(made):
    return {reading.value for reading in live_readings(worker(made), "KNOB")}


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_started_restarted_and_stopped_by_its_keeper_and_never_signalled(kept, no_signal_to, kind):
    made, said = kept(kind), []
    bring_up(made.stack, ("worker",), say=said.append)
    assert live(made) == {"256"}
    (first,) = service_pids(worker(made))
    no_signal_to.add(first)
    assert first in {proc.pid for proc in run_members(made.stack, worker(made))}
    assert not running_by_hand(made.stack, worker(made))
    assert look_at(made.stack, worker(made)).state == "ready"
    bring_up(made.stack, ("worker",), say=said.append)
    assert f"worker: already running, pid {first}" in said

    restart(made.stack, ("worker",), say=quiet)
    (second,) = service_pids(worker(made))
    no_signal_to.add(second)
    assert second != first
    assert not psutil.pid_exists(first)

    assert set(bring_down(made.stack, ("worker", "helper"), say=quiet)) == {"worker", "helper"}
    assert not service_pids(worker(made))
    assert look_at(made.stack, worker(made)).state == "down"
    assert not bring_down(made.stack, ("worker",), say=quiet)


def test_the_calls_are_those_that_a_person_would_make(kept):
    wanted = {
        "systemd": ("systemctl", [["--no-ask-password", "start", "--", "small-worker.service"],
                                  ["--no-ask-password", "stop", "--", "small-worker.service"]]),
        "docker": ("docker", [["start", "small"], ["stop", "-t", "10", "small"]]),
        "docker-run": ("docker", [["run", "-d"], ["stop", "-t", "10", "small"], ["rm", "small"], ["run", "-d"]]),
    }  # fmt: skip
    for kind, (program, words) in wanted.items():
        made = kept(kind)
        bring_up(made.stack, ("worker",), say=quiet)
        bring_down(made.stack, ("worker",), say=quiet)
        if kind == "docker-run":  # a stopped container is in the way of the script that makes it
            bring_up(made.stack, ("worker",), say=quiet)
        asked = [call for call in made.calls(program) if not {"show", "inspect"} & set(call)]
        assert [call[: len(word)] for call, word in zip(asked, words, strict=True)] == words
        bring_down(made.stack, ("worker",), say=quiet)
        (made.home / "calls").unlink()
        (made.home / "kept" / "small.json").unlink(missing_ok=True)


def test_a_unit_of_the_user_is_asked_of_the_users_manager(kept):
    made = kept("systemd")
    made.unit.rename(made.home / "user" / made.unit.name)
    bring_up(made.stack, ("worker",), say=quiet)
    assert ["--user", "--no-ask-password", "start", "--", "small-worker.service"] in made.calls("systemctl")
    assert live(made) == {"256"}


def test_what_systemd_runs_by_itself_is_no_hand_start_and_is_left_running_by_down(kept):
    made, said = kept("systemd"), []
    subprocess.run(["systemctl", "start", "small-worker.service"], check=True)
    deadline = time.monotonic() + 10
    while not service_pids(worker(made)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert not running_by_hand(made.stack, worker(made))
    assert not bring_down(made.stack, ("worker",), say=said.append)
    assert said == ["worker: active/running, not started from here, and left running"]
    (first,) = service_pids(worker(made))
    restart(made.stack, ("worker",), say=quiet)
    assert service_pids(worker(made)) != (first,)
    # once somebody else restarted it, it is theirs again
    subprocess.run(["systemctl", "stop", "small-worker.service"], check=True)
    subprocess.run(["systemctl", "start", "small-worker.service"], check=True)
    assert not bring_down(made.stack, ("worker",), say=quiet)


def test_a_start_by_hand_beside_the_unit_is_said_and_comes_back_under_systemd(kept):
    made = kept("systemd")
    with open(made.home / "hand.log", "wb") as sink:
        hand = subprocess.Popen(made.argv, stdout=sink, stderr=sink, env={**os.environ, "KNOB": "7"})
    deadline = time.monotonic() + 10
    while not service_pids(worker(made)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert running_by_hand(made.stack, worker(made)) == (hand.pid,)
    assert look_at(made.stack, worker(made)).by_hand
    restart(made.stack, ("worker",), say=quiet)
    hand.wait()
    assert live(made) == {"256"}
    assert not running_by_hand(made.stack, worker(made))


@pytest.mark.parametrize("kind", ["systemd", "docker", "compose"])
def test_a_service_that_ends_at_once_is_noticed_with_its_log_and_without_its_secrets(kept, kind):
    made, said = kept(kind, worker="--fail-knob 256"), []
    with pytest.raises(EngineError) as caught:
        bring_up(made.stack, ("worker",), say=said.append, timeout_s=20.0)
    assert "will not be" in caught.value.problem
    assert "CUDA out of memory" in caught.value.problem
    assert "planted" not in caught.value.problem + "".join(said)
    assert "logs" in caught.value.remedy or "journalctl" in caught.value.remedy


def test_a_unit_that_systemd_starts_again_and_again_is_noticed_and_stopped(kept):
    made = kept("systemd", worker="--fail-knob 256", unit="Restart=always\n")
    with pytest.raises(EngineError, match="ended 2 times since it was started"):
        bring_up(made.stack, ("worker",), say=quiet, timeout_s=30.0)
    assert ["--no-ask-password", "stop", "--", "small-worker.service"] in made.calls("systemctl")


def test_a_drain_without_end_is_ended_by_the_keeper_in_bounded_time(kept, no_signal_to, monkeypatch):
    monkeypatch.setattr("vindicate.operate.services.DRAIN_S", 1.0)
    made, said = kept("systemd", worker="--ignore-term"), []
    bring_up(made.stack, ("worker",), say=quiet)
    no_signal_to |= set(service_pids(worker(made)))
    began = time.monotonic()
    assert bring_down(made.stack, ("worker",), say=said.append) == ("worker",)
    assert time.monotonic() - began < 20
    assert any("its keeper is told to kill it" in line for line in said)
    assert ["--no-ask-password", "kill", "--signal=SIGKILL", "--", "small-worker.service"] in made.calls("systemctl")


def test_a_failed_start_stops_what_it_started(kept):
    made = kept("docker", worker="--unhealthy")
    with pytest.raises(EngineError, match="not healthy after"):
        bring_up(made.stack, ("worker",), say=quiet, timeout_s=2.0)
    assert not run_members(made.stack, worker(made))


def test_what_cannot_be_asked_is_said_with_the_remedy_before_anything_is_stopped(kept):
    made = kept("docker")
    bring_up(made.stack, ("worker", "helper"), say=quiet)
    helper = service_pids(made.stack.service("helper"))
    (made.home / "deny").write_text("")
    with pytest.raises(CannotError, match="permission denied") as caught:
        restart(made.stack, ("worker",), say=quiet)
    assert "group docker" in caught.value.remedy
    assert service_pids(made.stack.service("helper")) == helper
    assert "permission denied" in look_at(made.stack, worker(made)).detail
    assert not look_at(made.stack, worker(made)).by_hand


def test_names_that_nobody_knows_are_refused_with_the_place_to_mend(kept):
    for kind, old, new, problem in (
        ("systemd", 'unit = "small-worker"', 'unit = "nobody"', "systemd knows no unit nobody.service"),
        ("docker", 'container = "small"', 'container = "nobody"', "docker has no container 'nobody'"),
    ):
        made = kept(kind)
        made.file.write_text(made.file.read_text().replace(old, new))
        with pytest.raises((CannotError, MisuseError), match=problem):
            bring_up(read_stack(made.file), ("worker",), say=quiet)


FORWARD = """
import socket, sys, threading, time
port, behind = (int(word) for word in sys.argv[1:])

def reach():
    try:
        return socket.create_connection(("127.0.0.1", behind))
    except OSError:
        return None

def pump(a, b):
    while data := a.recv(65536):
        b.sendall(data)
    b.shutdown(socket.SHUT_WR)

while True:  # there while the container is, as docker's
    while not (probe := reach()):
        time.sleep(0.02)
    probe.close()
    with socket.create_server(("127.0.0.1", port)) as listener:
        listener.settimeout(0.1)
        while probe := reach():
            probe.close()
            try:
                here, there = listener.accept()[0], reach()
            except TimeoutError:
                continue
            for pair in ((here, there), (there, here)):
                threading.Thread(target=pump, args=pair, daemon=True).start()
"""


def test_a_published_port_is_read_in_the_container_and_not_in_its_forwarder(kept, tmp_path, monkeypatch):
    made = kept("docker-bridge")
    (tmp_path / "docker-proxy").symlink_to(sys.executable)
    monkeypatch.setenv("KNOB", "of the forwarder")
    with open(tmp_path / "forward.log", "wb") as sink:
        words = [str(tmp_path / "docker-proxy"), "-c", FORWARD, *(str(port) for port in made.ports)]
        proxy = subprocess.Popen(words, stdout=sink, stderr=sink)
    try:
        bring_up(made.stack, ("worker",), say=quiet)
        (pid,) = service_pids(worker(made))
        assert pid != proxy.pid
        assert live(made) == {"256"}
        assert not running_by_hand(made.stack, worker(made))
        said = []
        bring_up(made.stack, ("worker",), say=said.append)
        assert said == [f"worker: already running, pid {pid}"]
        assert bring_down(made.stack, ("worker",), say=quiet) == ("worker",)
        assert not service_pids(worker(made))
        assert proxy.poll() is None
    finally:
        proxy.kill()
        proxy.wait()


def test_down_stops_the_others_when_one_keeper_cannot_be_asked_and_still_fails(kept):
    made, said = kept("docker"), []
    bring_up(made.stack, ("worker", "helper"), say=quiet)
    (made.home / "deny").write_text("")
    with pytest.raises(CannotError, match="permission denied"):
        bring_down(made.stack, ("worker", "helper"), say=said.append)
    assert not service_pids(made.stack.service("helper"))
    assert any(line.startswith("worker: not stopped: ") for line in said)


def test_another_user_is_taken_by_root_for_a_script_and_refused_elsewhere(kept):
    made = kept("docker")
    text = made.file.read_text()
    made.file.write_text(text.replace('container = "small"', 'container = "small", user = "nobody"'))
    with pytest.raises(CannotError, match=r"launcher\.user is 'nobody'"):
        bring_up(read_stack(made.file), ("worker",), say=quiet)
    made.file.write_text(text.replace('file = "helper.sh"', 'user = "nobody", file = "helper.sh"'))
    stack = read_stack(made.file)
    if os.geteuid() != 0:
        with pytest.raises(CannotError, match="only root can"):
            bring_up(stack, ("helper",), say=quiet)
        return
    argv = launch_of(stack, stack.service("helper")).start()[-1].argv
    said = subprocess.run([*argv[: argv.index("env")], "id", "-un"], capture_output=True, text=True, check=True).stdout
    assert said == "nobody\n"
    assert "USER=nobody" in argv


def test_a_unit_name_that_would_be_an_option_is_refused(kept):
    made = kept("systemd")
    made.file.write_text(made.file.read_text().replace('unit = "small-worker"', 'unit = "--now"'))
    with pytest.raises(MisuseError, match="has the unit '--now'"):
        read_stack(made.file)


def test_the_stand_in_starts_nothing_with_the_callers_environment(kept, monkeypatch):
    monkeypatch.setenv("KNOB", "999")
    made = kept("docker-run")
    bring_up(made.stack, ("worker",), say=quiet)
    assert live(made) == {"256"}
    assert keeper.calls(made.home, "docker")
    assert {reading.value for reading in live_readings(worker(made), running.MARK)} == {None}
