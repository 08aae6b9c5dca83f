"""Start, stop and look at real processes."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import psutil
import pytest

from fakes.small_stack import SERVICE
from vindicate.errors import CannotError, EngineError, MisuseError
from vindicate.operate import services as services_module
from vindicate.operate.health import check_health
from vindicate.operate.lock import locked
from vindicate.operate.running import Run, identify, members, read_run, write_run
from vindicate.operate.services import bring_down, bring_up, restart, run_members, sweep_undeclared
from vindicate.operate.status import look
from vindicate.stack.file import read_stack
from vindicate.stack.process import listening_pids


def up(stack, **options):
    said = []
    return bring_up(stack, tuple(stack.services), say=said.append, **options), said


def down(stack, **options):
    said = []
    return bring_down(stack, tuple(stack.services), say=said.append, **options), said


def start_up(stack):
    with (stack.home.parent / "up.log").open("wb") as log:
        words = [sys.executable, "-m", "vindicate", "stack", "up", "--stack", str(stack.file)]
        return subprocess.Popen(words, stdout=log, stderr=log)


def nothing_left(stack):
    return not any(run_members(stack, service) or listening_pids(service.port) for service in stack.services.values())


def wait_for(condition, seconds=10.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_starts_callees_first_and_stops_everything(small_stack):
    stack = small_stack()
    started, _ = up(stack)
    assert set(started[:2]) == {"worker", "helper"}
    assert started[2] == "front"
    assert [stand.state for stand in look(stack)] == ["ready"] * 3
    assert up(stack)[0] == ()
    assert set(down(stack)[0]) == {"front", "worker", "helper"}
    assert nothing_left(stack)
    assert down(stack)[0] == ()
    assert [stand.state for stand in look(stack)] == ["down"] * 3


def test_shows_the_live_value_of_each_process_and_drift(small_stack):
    stack = small_stack(worker="--spawn-worker")
    up(stack)
    knob = next(stand for stand in look(stack) if stand.name == "worker").knobs["KNOB"]
    assert knob.declared == "256"
    assert list(knob.live.values()) == ["256", "256"]
    assert not knob.drift
    script = stack.service("worker").launcher.file
    script.write_text(script.read_text().replace("KNOB=256", "KNOB=512"))
    knob = next(stand for stand in look(stack) if stand.name == "worker").knobs["KNOB"]
    assert (knob.declared, knob.drift) == ("512", True)


def test_a_knob_in_the_operators_shell_does_not_reach_the_service(small_stack, monkeypatch):
    stack = small_stack(value=None)
    monkeypatch.setenv("KNOB", "999")
    up(stack)
    knob = next(stand for stand in look(stack) if stand.name == "worker").knobs["KNOB"]
    assert (knob.declared, set(knob.live.values()), knob.drift) == (None, {None}, False)


@pytest.mark.parametrize("execs", [True, False])
def test_workers_that_outlive_their_leader_are_swept(small_stack, execs, monkeypatch):
    monkeypatch.setattr(services_module, "DRAIN_S", 1.0)
    stack = small_stack(worker="--spawn-worker --daemon-worker", execs=execs)
    up(stack)
    run = read_run(stack.home, "worker")
    assert len(members(run)) == (3 if execs else 4)
    os.kill(run.pid, signal.SIGKILL)
    wait_for(lambda: identify(run.pid) is None)
    down(stack)
    assert members(run) == ()
    assert nothing_left(stack)


def test_a_service_that_ignores_sigterm_is_killed_and_it_is_said(small_stack, monkeypatch):
    monkeypatch.setattr(services_module, "DRAIN_S", 0.5)
    stack = small_stack(worker="--ignore-term")
    up(stack)
    stopped, said = down(stack)
    assert "worker" in stopped
    assert any("still there after SIGTERM and 0.5 s" in line for line in said)
    assert nothing_left(stack)


def test_says_exit_code_and_redacted_log_of_a_service_that_dies_and_stops_what_it_started(small_stack):
    stack = small_stack(worker="--fail-knob 256")
    with pytest.raises(EngineError) as caught:
        up(stack)
    assert "exit code 7" in caught.value.problem
    assert "CUDA out of memory" in caught.value.problem
    assert "planted" not in caught.value.problem
    assert nothing_left(stack)


def test_says_what_is_unhealthy_when_time_runs_out(small_stack):
    stack = small_stack(worker="--unhealthy")
    with pytest.raises(EngineError, match="answers 503"):
        up(stack, timeout_s=2.0)
    assert nothing_left(stack)


def test_leaves_what_ran_before_when_another_fails(small_stack):
    stack = small_stack(front="--fail-knob ''")
    script = stack.service("front").launcher.file
    script.write_text("exit 5\n")
    bring_up(stack, ("worker", "helper"), say=lambda _: None)
    with pytest.raises(EngineError, match="front: ended with exit code 5"):
        up(stack)
    assert check_health(stack.service("worker")).good
    assert check_health(stack.service("helper")).good


def test_a_live_service_whose_health_is_slow_is_not_touched(small_stack):
    stack = small_stack(worker="--sick-file sick")
    up(stack)
    before = run_members(stack, stack.service("worker"))
    (stack.home.parent / "sick").write_text("")  # /health takes 3 s from here on, and a look at the stack waits 2
    started, said = up(stack)
    assert started == ()
    assert run_members(stack, stack.service("worker")) == before
    assert any("worker: runs already" in line for line in said)


def test_a_live_service_that_stays_unhealthy_is_named_and_left_running(small_stack):
    stack = small_stack(worker="--sick-file sick")
    up(stack)
    before = run_members(stack, stack.service("worker"))
    (stack.home.parent / "sick").write_text("503")
    with pytest.raises(EngineError, match="answers 503; it ran before and is left running") as caught:
        up(stack, timeout_s=1.0)
    assert "vindicate stack restart worker" in caught.value.remedy
    assert run_members(stack, stack.service("worker")) == before


def test_names_the_program_that_holds_the_port(small_stack):
    stack = small_stack()
    port = stack.service("worker").port
    squatter = subprocess.Popen(
        [sys.executable, "-c", f"import socket,time; s=socket.create_server(('127.0.0.1',{port})); time.sleep(40)"]
    )
    try:
        wait_for(lambda: listening_pids(port))
        with pytest.raises(CannotError) as caught:
            up(stack)
        assert f"port {port} is held by pid {squatter.pid}" in caught.value.problem
        assert not run_members(stack, stack.service("helper"))
    finally:
        squatter.kill()
        squatter.wait()


def test_a_service_started_by_hand_is_left_by_up_and_down_and_taken_over_by_restart(small_stack):
    stack = small_stack()
    port = stack.service("worker").port
    hand = subprocess.Popen([sys.executable, str(SERVICE), str(port)], stdout=subprocess.DEVNULL)
    try:
        wait_for(lambda: check_health(stack.service("worker")).good)
        started, said = up(stack)
        assert set(started) == {"helper", "front"}
        assert any("already running, not started from here" in line for line in said)
        stand = next(stand for stand in look(stack) if stand.name == "worker")
        assert stand.by_hand
        assert stand.knobs["KNOB"].drift
        down(stack)
        assert hand.poll() is None
        restart(stack, ("worker",), say=lambda _: None)
        assert hand.wait(5) is not None
        assert run_members(stack, stack.service("worker"))
        assert run_members(stack, stack.service("helper"))
    finally:
        hand.kill()
        hand.wait()


def test_ctrl_c_while_starting_stops_what_was_started(small_stack):
    stack = small_stack(worker="--never-listen")
    tool = start_up(stack)
    wait_for(lambda: run_members(stack, stack.service("worker")) and check_health(stack.service("helper")).good)
    tool.send_signal(signal.SIGINT)
    assert tool.wait(20) == 130
    assert nothing_left(stack)


def test_down_finds_what_a_killed_tool_left(small_stack):
    stack = small_stack(worker="--never-listen --daemon-worker")
    tool = start_up(stack)
    wait_for(lambda: len(run_members(stack, stack.service("worker"))) == 2)
    tool.kill()
    tool.wait()
    assert {stand.name: stand.state for stand in look(stack)}["worker"] == "starting"
    down(stack)
    assert nothing_left(stack)


def test_a_reused_pid_is_never_touched(small_stack):
    stack = small_stack()
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(40)"], start_new_session=True, env={})
    try:
        found = identify(other.pid)
        with open("/proc/sys/kernel/random/boot_id") as source:
            boot = source.read().strip()
        write_run(
            stack.home,
            Run(
                service="worker", mark="gone", argv=("x",), log="x", started_at="", boot_id=boot, pid=other.pid,
                start_ticks=found.start_ticks - 5,
            ),
        )  # fmt: skip
        down(stack)
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_the_lock_names_its_owner_and_goes_with_it(small_stack):
    stack = small_stack()
    with locked(stack, "stack up"), pytest.raises(CannotError) as caught, locked(stack, "stack down"):
        pass
    assert f"pid {os.getpid()} (vindicate stack up)" in caught.value.problem
    with locked(stack, "stack down"):
        assert json.loads((stack.home / "lock").read_text())["command"] == "stack down"


def test_zombies_count_as_gone(small_stack):
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    wait_for(lambda: psutil.Process(child.pid).status() == psutil.STATUS_ZOMBIE)
    assert identify(child.pid) is None
    child.wait()


def test_down_stops_what_the_stack_file_no_longer_names(small_stack):
    stack = small_stack()
    up(stack)
    renamed = replace(stack, services={"front": replace(stack.service("front"), upstream=())})
    down(renamed)
    assert set(sweep_undeclared(renamed, say=lambda _: None)) == {"worker", "helper"}
    assert nothing_left(stack)


def test_a_service_without_a_launcher_is_named_and_the_others_start(small_stack):
    stack = small_stack()
    file = stack.file
    file.write_text(file.read_text().replace('kind = "script", file = "front.sh", log = "front.log"', 'kind = "none"'))
    stack = read_stack(file)
    started, said = up(stack)
    assert set(started) == {"worker", "helper"}
    assert any("front: not running, and the stack file gives it no launcher" in line for line in said)


def test_a_start_script_in_another_language_is_refused(small_stack):
    stack = small_stack()
    script = stack.service("worker").launcher.file
    script.write_text("#!/usr/bin/env python3\nprint(1)\n")
    with pytest.raises(MisuseError, match=r"worker\.sh:1: .* no shell script"):
        up(stack)
    assert nothing_left(stack)


IMPATIENT = "import vindicate.operate.services as s; s.DRAIN_S = 1.0\nfrom vindicate.cli import main\nmain()"


def interrupted_twice(stack, *words):
    """The program, with Ctrl-C pressed while worker starts and again while it is being stopped; what it said."""
    log = stack.home.parent / "tool.log"
    with log.open("wb") as sink:
        tool = subprocess.Popen(
            [sys.executable, "-c", IMPATIENT, *words, "--stack", str(stack.file)], stdout=sink, stderr=sink
        )
    wait_for(lambda: "worker: starting" in log.read_text() and run_members(stack, stack.service("worker")))
    tool.send_signal(signal.SIGINT)
    wait_for(lambda: "stopping again what was started" in log.read_text())
    tool.send_signal(signal.SIGINT)
    assert tool.wait(20) == 130
    return log.read_text()


def test_a_second_ctrl_c_leaves_no_process(small_stack):
    stack = small_stack(worker="--never-listen --ignore-term")
    interrupted_twice(stack, "stack", "up")
    assert nothing_left(stack)


def test_an_interrupted_restart_names_what_is_down_and_the_command_that_starts_it(small_stack):
    stack = small_stack(worker="--never-listen --ignore-term")
    bring_up(stack, ("helper",), say=lambda _: None)
    said = interrupted_twice(stack, "stack", "restart", "worker", "--yes")
    assert "not running now: helper, worker; start again: vindicate stack restart worker" in said
    assert nothing_left(stack)


def test_what_a_failed_start_wrote_is_shown_line_by_line_without_escapes_and_without_earlier_starts(small_stack):
    stack = small_stack()
    script = stack.service("worker").launcher.file
    stack.service("worker").launcher.log.write_text("of an earlier start\n")
    script.write_text("printf 'one\\ntwo \\033[2J\\033]0;title\\007\\n'; exit 3\n")
    said = []
    with pytest.raises(EngineError) as caught:
        bring_up(stack, ("worker",), say=said.append)
    assert "ended with exit code 3" in caught.value.problem
    assert caught.value.problem.endswith("its log ends: two \\x1b[2J\\x1b]0;title\\x07")
    assert "\n  | one\n" in "\n".join(said)
    assert "earlier" not in "".join(said) + caught.value.problem
    assert "stack up" not in caught.value.remedy


def test_a_restart_is_over_when_the_router_answers_again(small_stack):
    stack = small_stack(front="--refuse-file refuse")
    up(stack)
    refuse, log = stack.home.parent / "refuse", stack.home.parent / "tool.log"
    refuse.write_text("")
    with log.open("wb") as sink:
        words = [sys.executable, "-m", "vindicate", "stack", "restart", "worker", "--yes", "--stack", str(stack.file)]
        tool = subprocess.Popen(words, stdout=sink, stderr=sink)
    wait_for(lambda: "asking front" in log.read_text() or tool.poll() is not None)
    assert tool.poll() is None
    refuse.unlink()
    assert tool.wait(20) == 0
    assert "front answers a small request" in log.read_text()


def test_nothing_is_stopped_when_the_next_start_could_not_be_recorded(small_stack):
    stack = small_stack()
    up(stack)
    before = run_members(stack, stack.service("worker"))
    run, away = stack.home / "run", stack.home / "away"
    run.rename(away)
    run.write_text("in the way, as a full disk is")
    with pytest.raises(CannotError, match=r"no start can be recorded there: .*; nothing was stopped"):
        restart(stack, ("worker",), say=lambda _: None)
    run.unlink()
    away.rename(run)
    assert run_members(stack, stack.service("worker")) == before
