"""Changes of what systemd keeps, by a drop-in of their own, and of what a person starts: applied, read back, undone, after kill -9 too.

systemd is a stand-in that starts real processes and knows a unit's files as of the last daemon-reload (tests/fakes/keeper.py).
"""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from fakes.change_bench import Bench, quiet
from fakes.kept_stack import KeptStack
from vindicate.errors import CannotError, MisuseError, UndoneError
from vindicate.operate import journal
from vindicate.operate.change import operation_on
from vindicate.operate.files import write_edit
from vindicate.operate.plan import plan_edits
from vindicate.operate.services import bring_down, restart, run_members
from vindicate.stack.keeper import unit_properties
from vindicate.stack.process import service_pids

STATES = ("backed_up", "written", "restarted", "read_back", "checked", "done")


@pytest.fixture
def kept_bench(tmp_path, monkeypatch):
    """A function that gives a bench on a stack whose worker is kept by systemd; it is taken down at the end."""
    made = []

    def make(**options):
        kept = KeptStack(tmp_path, monkeypatch, "systemd", **options)
        made.append(Bench(kept.stack))
        made[-1].kept = kept
        return made[-1]

    yield make
    for item in made:
        item.ledger.close()
        bring_down(item.stack, tuple(item.stack.services), say=quiet, by_hand=True)


def line(value):
    return f'Environment="KNOB={value}"'


def test_apply_writes_one_drop_in_and_rolling_back_takes_it_away(kept_bench):
    b = kept_bench()
    unit = b.kept.unit.read_bytes()
    b.change(KNOB="512")
    assert b.live == {"512"}
    assert b.kept.drop_in.read_text().splitlines()[1:] == ["[Service]", line(512)]
    b.change(KNOB=None)
    assert b.live == {None}
    assert "UnsetEnvironment=KNOB" in b.kept.drop_in.read_text()
    operation_on(b.stack, b.ledger, b.book, "C2", say=quiet).roll_back("asked for")
    assert b.live == {"512"}
    assert line(512) in b.kept.drop_in.read_text()
    operation_on(b.stack, b.ledger, b.book, "C1", say=quiet).roll_back("asked for")
    assert b.live == {"256"}
    assert [path.name for path in b.kept.drop_in.parent.iterdir()] == ["vindicate-KNOB.conf.vindicate-C2.bak"]
    assert b.kept.unit.read_bytes() == unit
    assert not [words for words in b.kept.calls("systemctl") if "revert" in words]


def test_any_printable_value_arrives_as_it_was_given(kept_bench):
    b = kept_bench()
    for value in ("", "50%", "it's; $(touch x) $HOME \\", 'a "b" \\c ünï'):
        plan = plan_edits(b.stack, "apply", {"KNOB": value}, ids=["C1"])
        write_edit(plan.files[0], plan.edits, b.stack)
        restart(b.stack, ("worker",), say=quiet)
        assert b.live == {value}
        assert plan_edits(b.stack, "apply", {"KNOB": "1"}, ids=["C2"]).edits[0].before == value


@pytest.mark.parametrize("die_at", [f"{state}:{when}" for state in STATES for when in ("before", "after")])
def test_killed_at_any_step_a_unit_can_be_rolled_back_and_resumed(kept_bench, die_at):
    b = kept_bench()
    for change, finish, value in (("C1", "rollback", "256"), ("C2", "resume", "512")):
        b.change_and_die(die_at, KNOB="512")
        assert b.state(change) not in journal.FINAL
        operation = operation_on(b.stack, b.ledger, b.book, change, say=quiet)
        if finish == "rollback":
            operation.roll_back("asked for")
            assert not b.kept.drop_in.parent.exists()
        else:
            operation.go_on()
            assert line(512) in b.kept.drop_in.read_text()
            assert [path.name for path in b.kept.drop_in.parent.iterdir()] == [b.kept.drop_in.name]
        assert b.live == {value}
        assert b.state(change) == ("rolled_back" if finish == "rollback" else "done")
        assert len(run_members(b.stack, b.stack.service("worker"))) == 1
        # what systemd has read is what stands there: the next start by anybody gives the same value
        assert unit_properties("small-worker.service")[1]["NeedDaemonReload"] == "no"
    assert not [words for words in b.kept.calls("systemctl") if "revert" in words]


def test_undoing_before_the_restart_makes_systemd_forget_what_it_had_read(kept_bench):
    b = kept_bench()
    b.change_and_die("written:after", KNOB="512")
    subprocess.run(["systemctl", "daemon-reload"], check=True)
    operation_on(b.stack, b.ledger, b.book, "C1", say=quiet).roll_back("asked for")
    assert unit_properties("small-worker.service")[1]["NeedDaemonReload"] == "no"
    assert b.live == {"256"}


def test_the_tool_killed_while_systemctl_starts_the_unit_can_be_rolled_back(kept_bench):
    b = kept_bench()
    with open(b.stack.home / "err", "wb") as sink:
        tool = subprocess.Popen(
            [sys.executable, "-m", "vindicate", "apply", "KNOB=512", "--yes", "--stack", str(b.stack.file)],
            stdout=sink,
            stderr=sink,
        )
        began, starts = time.monotonic(), len([words for words in b.kept.calls("systemctl") if "start" in words])
        while len([words for words in b.kept.calls("systemctl") if "start" in words]) == starts:
            assert time.monotonic() - began < 30
            time.sleep(0.01)
        tool.send_signal(signal.SIGKILL)
        tool.wait()
    operation_on(b.stack, b.ledger, b.book, "C1", say=quiet).roll_back("asked for")
    assert b.live == {"256"}
    assert not b.kept.drop_in.exists()


def test_a_unit_that_does_not_come_up_with_the_value_is_undone_and_explained(kept_bench):
    b = kept_bench(worker="--fail-knob 512")
    with pytest.raises(UndoneError) as caught:
        b.change(KNOB="512")
    assert "failed/failed, result exit-code" in caught.value.problem
    assert "live again: KNOB=256" in caught.value.problem
    assert b.live == {"256"}
    assert not b.kept.drop_in.exists()


@pytest.mark.parametrize(
    ("before", "unit", "problem"),
    [
        ([("zz.conf", "[Service]\nEnvironment=KNOB=300\n")], "", r"zz\.conf:2: has the last word on KNOB: 300"),
        ([("a.conf", "[Service]\nUnsetEnvironment=KNOB\n")], "", r"a\.conf:2: has the last word on KNOB: unset"),
        ([("vindicate-KNOB.conf", "[Service]\nNice=3\n")], "", "holds more than this tool writes there"),
        ([], 'Environment="KNOB=%i"\n', "a specifier of systemd"),
    ],
)
def test_a_unit_in_which_a_drop_in_would_do_nothing_is_refused_with_file_and_line(kept_bench, before, unit, problem):
    b = kept_bench(before=before, unit=unit)
    with pytest.raises(MisuseError, match=problem):
        plan_edits(b.stack, "apply", {"KNOB": "512"}, ids=["C1"])


def test_an_environment_file_that_sets_it_is_refused_with_file_and_line(kept_bench, tmp_path):
    (tmp_path / "env").write_text("A=1\nKNOB=9\n")
    b = kept_bench(unit=f"EnvironmentFile=-{tmp_path / 'env'}\n")
    with pytest.raises(MisuseError, match=r"env:2: sets KNOB, and an environment file wins"):
        plan_edits(b.stack, "apply", {"KNOB": "512"}, ids=["C1"])


def test_a_drop_in_that_somebody_edited_is_left_alone(kept_bench):
    b = kept_bench()
    b.change(KNOB="512")
    b.kept.drop_in.write_text("# mine\n")
    with pytest.raises(CannotError, match="edited by somebody else"):
        operation_on(b.stack, b.ledger, b.book, "C1", say=quiet).roll_back("asked for")
    assert b.kept.drop_in.read_text() == "# mine\n"


def test_the_plan_and_the_status_say_the_drop_in_and_the_unit(kept_bench):
    b = kept_bench()
    plan = b.cli("apply", "KNOB=512", "--dry-run", expect=0).stderr
    for text in (
        "vindicate-KNOB.conf, new; undoing takes it away",
        f"+{line(512)}",
        "systemctl restart small-worker.service",
    ):
        assert text in plan
    assert not b.kept.drop_in.exists()
    b.cli("apply", "KNOB=512", "--yes", expect=0)
    assert "512" in b.cli("stack", "status", expect=0).stdout
    assert "512 (vindicate-KNOB.conf:3)" in " ".join(b.cli("knob", "show", "KNOB", expect=0).stdout.split())
    assert "already so" in b.cli("apply", "KNOB=512", "--yes", expect=0).stdout
    b.cli("change", "rollback", "C1", "--yes", expect=0)
    assert b.live == {"256"}


# ---- a service that a person starts ----------------------------------------------------------------------------------


class ByHand:
    """The worker, started by a person, who does as told when told."""

    def __init__(self, folder, monkeypatch):
        self.kept = KeptStack(folder, monkeypatch, "none")
        self.log = (folder / "hand.log").open("wb")
        self.process, self.told = None, []
        self.start("256")
        self.bench = Bench(self.kept.stack)

    def start(self, value):
        env = {name: text for name, text in os.environ.items() if name != "KNOB"} | (
            {} if value is None else {"KNOB": value}
        )
        self.process = subprocess.Popen(self.kept.argv, env=env, stdout=self.log, stderr=self.log)
        deadline = time.monotonic() + 10
        while not service_pids(self.kept.stack.service("worker")):
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def stop(self):
        self.process.kill()
        self.process.wait()

    def obeys(self, *values):
        """What is said to the person; at each request to restart the service they do it, with the next of *values*."""
        rest = list(values)

        def say(text):
            self.told.append(text)
            if "YOUR TURN" in text and rest:
                threading.Thread(target=lambda: (self.stop(), self.start(rest.pop(0)))).start()

        return say


@pytest.fixture
def by_hand(tmp_path, monkeypatch):
    made = ByHand(tmp_path, monkeypatch)
    yield made
    made.bench.ledger.close()
    made.stop()
    bring_down(made.kept.stack, ("helper",), say=quiet)
    made.log.close()


def test_a_person_is_told_what_to_do_and_waited_for_and_then_it_is_verified(by_hand):
    b = by_hand.bench
    operation = b.change(KNOB="512", say=by_hand.obeys("512"))
    (told,) = [text for text in by_hand.told if "YOUR TURN" in text]
    assert "worker: YOUR TURN: stop it, and start it again with KNOB = 512" in told
    assert "KNOB is now 256 in pid" in told
    assert b.live == {"512"}
    assert b.state("C1") == "done"
    assert operation.progress.plan.edits[0].before == "256"


def test_a_person_who_does_nothing_is_waited_for_in_bounds_and_nothing_of_theirs_is_stopped(by_hand, monkeypatch):
    monkeypatch.setattr("vindicate.operate.services.TELL_EACH_S", 0.5)
    b, pid = by_hand.bench, by_hand.process.pid
    with pytest.raises(UndoneError, match="not restarted as asked in 2"):
        b.change(KNOB="512", say=by_hand.obeys(), timeout_s=2.0)
    assert any(f"still waiting for you: pid {pid} still runs as before" in text for text in by_hand.told)
    assert service_pids(b.stack.service("worker")) == (pid,)
    assert b.state("C1") == "rolled_back"


def test_a_person_who_sets_another_value_is_told_and_asked_back(by_hand):
    b = by_hand.bench
    with pytest.raises(UndoneError, match="not restarted as asked"):
        b.change(KNOB="512", say=by_hand.obeys("300", "256"), timeout_s=4.0)
    assert b.live == {"256"}
    assert len([text for text in by_hand.told if "YOUR TURN" in text]) == 2


def test_a_restart_outside_a_change_does_not_touch_what_a_person_starts(by_hand):
    with pytest.raises(CannotError, match="names no launcher"):
        restart(by_hand.kept.stack, ("worker",), say=quiet)
    bring_down(by_hand.kept.stack, ("worker",), say=quiet)
    assert by_hand.process.poll() is None


def test_the_plan_says_that_a_person_is_asked(by_hand):
    plan = by_hand.bench.cli("apply", "KNOB=512", "--dry-run", expect=0).stderr
    assert "no file changes: you start worker, and set its value there" in plan
    assert "worker has no launcher: you will be asked to restart it yourself" in plan
