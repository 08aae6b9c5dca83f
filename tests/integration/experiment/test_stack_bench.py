"""The bench on real scripts and processes; only the load is made up."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fakes.bench import design_of
from fakes.quick_bench import QuickBench
from fakes.small_stack import SERVICE, write_small_stack
from vindicate.clock import SystemClock
from vindicate.errors import CannotError, EngineError, MisuseError
from vindicate.experiment.bench import present_value, require_editable
from vindicate.experiment.journal import Journal
from vindicate.experiment.run import put_back, run_experiment
from vindicate.operate.services import bring_down, bring_up
from vindicate.operate.status import live_readings, look_at
from vindicate.stack.file import read_stack


class ImpatientBench(QuickBench):
    """Does not wait ten minutes for the value that hangs."""

    def start(self, before, value):
        self.ready_s = 1.0 if value == "512" else 60.0
        return super().start(before, value)


def quiet(_line):
    pass


@pytest.fixture
def stack(tmp_path: Path):
    made = write_small_stack(tmp_path)
    yield made
    bring_down(made, tuple(made.services), say=quiet, by_hand=True)


@pytest.fixture
def journal(stack):
    return Journal(stack.home / "experiments" / "X1")


def design_for(stack, **plan):
    plan = {"blocks": 3, "levels": (8,)} | plan
    return replace(design_of(**plan), knob="KNOB", services=("worker",), restarted=stack.restart_set(("worker",)))


def script(stack):
    return stack.service("worker").launcher.file


def live(stack):
    return {reading.value for reading in live_readings(stack.service("worker"), "KNOB")}


def test_runs_both_arms_on_fresh_processes_and_leaves_bytes_mode_and_running_services_as_they_were(stack, journal):
    script(stack).chmod(0o751)
    before = script(stack).read_bytes()
    bring_up(stack, ("front", "worker", "helper"), say=quiet)
    design = design_for(stack)
    journal.register(design)
    result = run_experiment(design, QuickBench(stack, design, say=quiet), journal, clock=SystemClock(), say=quiet)
    assert [item.verdict for item in result.effects] == ["better"]
    pids = [pid for trial in journal.trials() for pid in trial.start.read_back]
    assert len(set(pids)) == len(pids), "every start is a fresh process"
    assert all(value == trial.value for trial in journal.trials() for value in trial.start.read_back.values())
    assert script(stack).read_bytes() == before
    assert script(stack).stat().st_mode & 0o7777 == 0o751
    assert live(stack) == {"256"}
    assert [look_at(stack, stack.service(name)).state for name in ("front", "worker", "helper")] == ["ready"] * 3
    assert not list(script(stack).parent.glob(".*vindicate*.sh*"))


def test_ctrl_c_leaves_the_script_and_the_value_as_they_were_and_services_that_were_down_stay_down(stack, journal):
    before = script(stack).read_bytes()
    design = design_for(stack)
    journal.register(design)
    bench = QuickBench(stack, design, say=quiet)
    bench.stop_at = 2
    with pytest.raises(KeyboardInterrupt):
        run_experiment(design, bench, journal, clock=SystemClock(), say=quiet)
    assert script(stack).read_bytes() == before
    assert [look_at(stack, stack.service(name)).state for name in ("worker", "helper")] == ["down"] * 2
    assert journal.trials()[-1].outcome == "interrupted"
    bench.stop_at = 0
    assert run_experiment(design, bench, journal, clock=SystemClock(), say=quiet).complete


def test_what_a_kill_left_behind_is_put_back_by_another_process(stack, journal):
    before = script(stack).read_bytes()
    bring_up(stack, ("worker", "helper"), say=quiet)
    design = design_for(stack)
    journal.register(design)
    bench = QuickBench(stack, design, say=quiet)
    kept = bench.look()
    journal.keep(kept)
    bench.start(kept, "512")
    assert live(stack) == {"512"}
    put_back(QuickBench(stack, design, say=quiet), journal, say=quiet)
    assert script(stack).read_bytes() == before
    assert live(stack) == {"256"}
    assert journal.before() is None


def test_an_arm_can_leave_the_knob_unset(stack, journal):
    design = design_for(stack, a=None)
    journal.register(design)
    bench = QuickBench(stack, design, say=quiet)
    kept = bench.look()
    journal.keep(kept)
    assert set(bench.start(kept, None).read_back.values()) == {None}
    put_back(bench, journal, say=quiet)


@pytest.mark.parametrize(
    ("fault", "part"), [("--never-listen-knob 512", "not healthy"), ("--fail-knob 512", "exit code")]
)
def test_a_start_that_hangs_or_crashes_is_a_result_and_the_stack_is_left_on_the_value_it_had(tmp_path, fault, part):
    stack = write_small_stack(tmp_path / "faulty", worker=fault)
    try:
        bring_up(stack, ("front", "worker", "helper"), say=quiet)
        before = script(stack).read_bytes()
        journal = Journal(stack.home / "experiments" / "X1")
        design = design_for(stack)
        journal.register(design)
        bench = ImpatientBench(stack, design, say=quiet)
        result = run_experiment(design, bench, journal, clock=SystemClock(), say=quiet)
        assert result.complete
        assert [item.verdict for item in result.effects] == ["invalid"]
        assert "arm b does not start" in result.effects[0].reason
        assert part in result.effects[0].reason
        assert [trial.outcome for trial in journal.trials() if trial.arm == "b"] == ["failed_start"] * 2
        assert script(stack).read_bytes() == before
        assert live(stack) == {"256"}
        assert [look_at(stack, stack.service(name)).state for name in ("front", "worker", "helper")] == ["ready"] * 3
    finally:
        bring_down(stack, tuple(stack.services), say=quiet, by_hand=True)


def test_a_script_that_somebody_else_changed_meanwhile_is_left_alone(stack, journal):
    design = design_for(stack)
    journal.register(design)
    bench = QuickBench(stack, design, say=quiet)
    kept = bench.look()
    journal.keep(kept)
    theirs = script(stack).read_bytes() + b"# a colleague was here\n"
    script(stack).write_bytes(theirs)
    with pytest.raises(CannotError, match="somebody else"):
        bench.start(kept, "512")
    with pytest.raises(CannotError, match="could not be put back"):
        put_back(bench, journal, say=quiet)
    assert script(stack).read_bytes() == theirs
    assert journal.before() is not None


def test_a_value_that_does_not_reach_the_process_is_a_failed_start(stack, journal):
    wrapper = script(stack).with_name("wrapper")
    wrapper.write_text('#!/bin/bash\nunset KNOB\nexec "$@"\n')
    wrapper.chmod(0o755)
    text = script(stack).read_text().replace("exec ", f"exec {wrapper} ")
    script(stack).write_text(text)
    design = design_for(stack)
    journal.register(design)
    bench = QuickBench(stack, design, say=quiet)
    with pytest.raises(EngineError, match="should be 512, and holds unset"):
        bench.start(bench.look(), "512")


def test_a_knob_that_systemd_or_a_person_holds_is_refused_before_anything_is_touched(stack):
    for kind in ("systemd", "none"):
        text = stack.file.read_text().replace('"script", file = "worker.sh"', f'"{kind}"')
        other = stack.file.with_name(f"{kind}.toml")
        other.write_text(text)
        changed = read_stack(other)
        with pytest.raises(MisuseError, match=f"'{kind}'"):
            require_editable(changed, changed.knob("KNOB"))
    assert present_value(stack, stack.knob("KNOB")) == "256"


@pytest.mark.parametrize("kind", ["script", "process"])
def test_both_arms_of_a_flag_are_started_and_the_file_is_put_back(stack, journal, kind):
    worker = stack.service("worker")
    if kind == "script":
        path = script(stack)
        path.write_text(path.read_text().rstrip() + " --max-cap 64\n")
        text = stack.file.read_text()
    else:
        path = stack.file
        start = json.dumps([sys.executable, str(SERVICE), str(worker.port), "--max-cap", "64"])
        text = path.read_text().replace('"script", file = "worker.sh"', f'"process", start = {start}')
    stack.file.write_text(text + '[knobs."--max-cap"]\nservices = ["worker"]\nkind = "arg"\n')
    declared = read_stack(stack.file)
    knob = declared.knob("max-cap")
    bring_up(declared, ("front", "worker", "helper"), say=quiet)
    before = path.read_bytes()
    design = replace(design_for(declared), knob=knob.name, a="64", b="128")
    journal.register(design)
    bench = QuickBench(declared, design, say=quiet)
    kept = bench.look()
    assert kept.value == "64"
    started = bench.start(kept, "128")
    assert set(started.read_back.values()) == {"128"}
    assert b"128" in path.read_bytes()
    bench.put_back(kept)
    assert path.read_bytes() == before
    assert {reading.value for reading in live_readings(worker, knob)} == {"64"}
