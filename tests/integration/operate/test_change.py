"""Apply, revert and their undoing on real services: what the scripts, the live processes and the ledger say afterwards."""

import json
import os
import signal
import stat
import subprocess
import sys
import time

import pytest

from fakes.change_bench import quiet
from vindicate.errors import CannotError, MisuseError, UndoneError
from vindicate.operate import answers, health, journal
from vindicate.operate.begin import before_last_apply, numbered
from vindicate.operate.change import Operation, operation_on
from vindicate.operate.lock import locked
from vindicate.operate.plan import plan_edits
from vindicate.operate.services import bring_down, bring_up, run_members
from vindicate.operate.status import live_readings
from vindicate.record.ledger import Claim
from vindicate.stack.file import read_stack


def test_apply_changes_the_value_in_script_and_process_and_nothing_else(bench):
    b = bench()
    b.script.chmod(0o751)
    b.change(KNOB="512")
    assert b.script.read_bytes() == b.before.replace(b"KNOB=256", b"KNOB=512")
    assert b.live == {"512"}
    assert b.state("C1") == "done"
    assert stat.S_IMODE(b.script.stat().st_mode) == 0o751
    backup = b.script.with_name("worker.sh.vindicate-C1.bak")
    assert backup.read_bytes() == b.before
    assert stat.S_IMODE(backup.stat().st_mode) == 0o751
    steps = [step.state for _, step in b.book.change("C1").steps if "next" not in step.data]
    assert steps == ["planned", "backed_up", "written", "restarted", "read_back", "checked", "done"]


def test_unset_empty_and_a_value_are_three_things_and_come_back(bench):
    b = bench()
    b.change(KNOB=None)
    assert b.live == {None}
    assert b"KNOB" not in b.script.read_bytes()
    b.change(KNOB="")
    assert b.live == {""}
    assert before_last_apply(b.book, "KNOB") is None
    b.ledger.append(Claim(id="H1", text="it hangs"))
    b.change("revert", because=["H1"], KNOB=None)
    assert b.live == {None}
    assert b.book.change("C3").because == ("H1",)


def test_a_symlinked_script_stays_a_link_and_its_target_is_edited(bench, tmp_path):
    b = bench()
    target = tmp_path / "elsewhere.sh"
    b.script.rename(target)
    b.script.symlink_to(target)
    b.change(KNOB="512")
    assert b.script.is_symlink()
    assert b"KNOB=512" in target.read_bytes()
    assert target.with_name("elsewhere.sh.vindicate-C1.bak").exists()


def test_a_service_that_does_not_come_up_is_undone_and_explained(bench):
    b = bench(worker="--fail-knob 512")
    with pytest.raises(UndoneError) as caught:
        b.change(KNOB="512")
    assert "exit code 7" in caught.value.problem
    assert "live again: KNOB=256" in caught.value.problem
    assert "planted" not in str(b.book.change("C1").steps)
    assert b.script.read_bytes() == b.before
    assert b.live == {"256"}
    assert b.state("C1") == "rolled_back"


def test_a_value_that_the_process_does_not_take_is_undone(bench):
    b = bench()
    bring_down(b.stack, ("worker",), say=quiet)
    b.script.with_name("wrap.sh").write_text('KNOB=999 exec "$@"\n')
    before = b.before.replace(b"exec ", b"exec bash ./wrap.sh ")
    b.script.write_bytes(before)
    bring_up(b.stack, ("worker",), say=quiet)
    assert b.live == {"999"}
    with pytest.raises(UndoneError, match="KNOB is 999 in pid"):
        b.change(KNOB="512")
    assert b.script.read_bytes() == before
    assert b.live == {"999"}


def test_answers_that_lost_their_context_are_undone(bench):
    b = bench(worker="--forget-knob 512")
    with pytest.raises(UndoneError, match="lost its context"):
        b.change(KNOB="512")
    assert b.live == {"256"}
    assert b.script.read_bytes() == b.before


def test_answers_that_differ_are_undone(bench):
    b = bench(worker="--answer-knob")
    with pytest.raises(UndoneError, match="answered differently"):
        b.change(KNOB="512")
    assert b.live == {"256"}


def test_streams_that_stall_in_the_short_load_are_undone(bench, monkeypatch):
    monkeypatch.setattr("vindicate.operate.change._LOAD_STALL_S", 1.0)
    b = bench(worker="--stall-knob 512")
    with pytest.raises(UndoneError, match="stalled"):
        b.change(KNOB="512")
    assert b.live == {"256"}


def test_a_script_that_somebody_edited_meanwhile_is_never_overwritten(bench, monkeypatch):
    b = bench(worker="--answer-knob")
    theirs = b"# mine\n" + b.before

    def edited_meanwhile(stack, baseline):
        b.script.write_bytes(theirs)
        raise answers.AnswerError("worker: wrong", remedy="x")

    monkeypatch.setattr("vindicate.operate.change.compare_answers", edited_meanwhile)
    with pytest.raises(CannotError) as caught:
        b.change(KNOB="512")
    assert "edited by somebody else" in caught.value.problem
    assert "diff" in caught.value.remedy
    assert b.script.read_bytes() == theirs
    assert b.state("C1") == "failed"
    # Once the script is as the change left it, rolling back works.
    b.script.write_bytes(b.before.replace(b"KNOB=256", b"KNOB=512"))
    operation_on(b.stack, b.ledger, b.book, "C1", say=quiet).roll_back("asked for")
    assert b.script.read_bytes() == b.before
    assert b.live == {"256"}
    assert b.state("C1") == "rolled_back"


def test_a_script_edited_between_plan_and_write_is_left_alone(bench):
    b = bench()
    plan = plan_edits(b.stack, "apply", {"KNOB": "512"}, ids=["C1"])
    progress = journal.begin(b.ledger, plan, reason="", undoes={}, more=[])
    theirs = b"# mine\n" + b.before
    b.script.write_bytes(theirs)
    with pytest.raises(UndoneError, match="changed after this was planned"):
        Operation(b.stack, b.ledger, progress, quiet).go_on()
    assert b.script.read_bytes() == theirs
    assert b.live == {"256"}


def test_a_damaged_backup_is_not_put_back(bench):
    b = bench()
    b.change(KNOB="512")
    b.script.with_name("worker.sh.vindicate-C1.bak").write_text("gone wrong")
    with pytest.raises(CannotError, match="not the backup"):
        operation_on(b.stack, b.ledger, b.book, "C1", say=quiet).roll_back("asked for")
    assert b.live == {"512"}


STATES = ("backed_up", "written", "restarted", "read_back", "checked", "done")


@pytest.mark.parametrize("die_at", [f"{state}:{when}" for state in STATES for when in ("before", "after")])
def test_killed_at_any_step_it_can_be_rolled_back_and_resumed(bench, die_at):
    b = bench()
    for change, finish, value in (("C1", "rollback", "256"), ("C2", "resume", "512")):
        b.change_and_die(die_at, KNOB="512")
        assert b.state(change) not in journal.FINAL
        operation = operation_on(b.stack, b.ledger, b.book, change, say=quiet)
        if finish == "rollback":
            operation.roll_back("asked for")
        else:
            operation.go_on()
        assert b.script.read_bytes() == b.before.replace(b"KNOB=256", f"KNOB={value}".encode())
        assert b.live == {value}
        assert b.state(change) == ("rolled_back" if finish == "rollback" else "done")
        assert not [path.name for path in b.script.parent.glob(".*.vindicate")]
        assert len(run_members(b.stack, b.stack.service("worker"))) == 1


def test_a_killed_change_blocks_the_next_one_and_names_what_finishes_it(bench):
    b = bench()
    killed = b.cli("apply", "KNOB=512", "--yes", die_at="written:after")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    refused = b.cli("apply", "KNOB=1024", "--yes", expect=4)
    assert "vindicate change resume C1" in refused.stderr
    b.cli("change", "rollback", "C1", "--yes", expect=0)
    assert b.live == {"256"}
    assert "rolled back already" in b.cli("change", "rollback", "C1", "--yes", expect=2).stderr
    assert "nothing to finish" in b.cli("change", "resume", "C1", "--yes", expect=2).stderr


def test_a_service_killed_before_resuming_is_started_again(bench):
    b = bench()
    b.cli("apply", "KNOB=512", "--yes", die_at="checked:before")
    for proc in run_members(b.stack, b.stack.service("worker")):
        os.kill(proc.pid, signal.SIGKILL)
    b.cli("change", "resume", "C1", "--yes", expect=0)
    assert b.live == {"512"}
    assert b.state("C1") == "done"


def test_ctrl_c_leaves_it_resumable_and_says_how(bench):
    b = bench(worker="--never-listen-knob 512")
    with open(b.stack.home / "err", "wb") as sink:
        tool = subprocess.Popen(
            [sys.executable, "-m", "vindicate", "apply", "KNOB=512", "--yes", "--stack", str(b.stack.file)],
            stdout=sink, stderr=sink,
        )  # fmt: skip
        deadline = time.monotonic() + 20
        while "restarted" not in str([step.data for _, step in b.book.changes["C1"].steps] if b.book.changes else ""):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        tool.send_signal(signal.SIGINT)
        assert tool.wait(20) == 130
    assert "vindicate change rollback C1" in (b.stack.home / "err").read_text()
    b.cli("change", "rollback", "C1", "--yes", expect=0)
    assert b.live == {"256"}


def test_the_command_line_says_the_plan_refuses_and_lists(bench):
    b = bench()
    plan = b.cli("apply", "KNOB=512", "--dry-run", expect=0)
    for text in ("KNOB: 256 -> 512", "-export KNOB=256", "+export KNOB=512", "stop:  helper, worker"):
        assert text in plan.stderr
    assert b.script.read_bytes() == b.before
    assert b.cli("change", "list", expect=0).stdout == "no change on record\n"
    assert "needs a yes" in b.cli("apply", "KNOB=512", expect=2).stderr
    assert "rests on a claim" in b.cli("revert", "KNOB", expect=2).stderr
    assert "no claim 'H9'" in b.cli("revert", "KNOB=1", "--because", "H9", "--yes", expect=2).stderr
    assert "no knob 'OTHER'" in b.cli("apply", "OTHER=1", "--yes", expect=2).stderr
    assert "already so" in b.cli("apply", "KNOB=256", "--yes", expect=0).stdout
    with locked(b.stack, "apply KNOB=1"):
        assert f"pid {os.getpid()}" in b.cli("apply", "KNOB=512", "--yes", expect=4).stderr
    assert b.script.read_bytes() == b.before
    assert not list(b.script.parent.glob("*.bak"))


def test_values_and_names_that_look_like_secrets_are_refused(bench):
    b = bench()
    with pytest.raises(MisuseError, match="secret"):
        b.change(KNOB="sk-planted1234567890")
    assert b.script.read_bytes() == b.before


def test_a_read_only_folder_is_said_before_anything_happens(bench):
    b = bench()
    if os.geteuid() == 0:
        pytest.skip("root writes everywhere")
    b.script.parent.chmod(0o555)
    try:
        with pytest.raises(CannotError, match="cannot be written"):
            b.change(KNOB="512")
    finally:
        b.script.parent.chmod(0o755)
    assert b.live == {"256"}


def test_two_knobs_are_one_change_with_one_restart_and_one_undo(bench):
    b = bench()
    file = b.stack.file
    file.write_text(file.read_text() + '[knobs.OTHER]\nservices = ["worker"]\n')
    b.stack = read_stack(file)
    b.change(KNOB="512", OTHER="it's; $(touch x)")
    assert b.live == {"512"}
    assert {reading.value for reading in live_readings(b.stack.service("worker"), "OTHER")} == {"it's; $(touch x)"}
    assert not (b.script.parent / "x").exists()
    assert [b.state("C1"), b.state("C2")] == ["done", "done"]
    operation_on(b.stack, b.ledger, b.book, "C2", say=quiet).roll_back("asked for")
    assert b.script.read_bytes() == b.before
    assert b.live == {"256"}
    assert [b.state("C1"), b.state("C2")] == ["rolled_back", "rolled_back"]


def test_services_that_were_down_are_down_again_after_an_undo(bench):
    b = bench(worker="--fail-knob 512")
    bring_down(b.stack, tuple(b.stack.services), say=quiet)
    with pytest.raises(UndoneError, match="stopped, as they were"):
        b.change(KNOB="512")
    assert b.script.read_bytes() == b.before
    assert not run_members(b.stack, b.stack.service("worker"))
    b.change(KNOB="300")
    assert b.live == {"300"}


def test_a_slow_health_at_plan_time_does_not_leave_it_stopped_after_an_undo(bench):
    b = bench(worker="--fail-knob 512 --sick-file sick")
    (b.stack.home.parent / "sick").write_text("")  # /health takes 3 s
    with pytest.raises(UndoneError, match="live again: KNOB=256"):
        b.change(KNOB="512", timeout_s=20.0)
    assert b.live == {"256"}


def test_one_missed_answer_of_health_after_the_restart_undoes_nothing(bench, monkeypatch):
    answers_of_health = [health.Health(good=False, detail="/health answers 503")]

    def misses_once(service, **more):
        return answers_of_health.pop() if answers_of_health else health.Health(good=True, detail="")

    b = bench()
    monkeypatch.setattr(health, "check_health", misses_once)
    b.change(KNOB="512")
    assert not answers_of_health
    assert b.state("C1") == "done"


def test_whatever_stops_a_change_half_way_is_told_how_it_is_finished(bench):
    b = bench()
    said = []
    plan = numbered(b.ledger, plan_edits(b.stack, "apply", {"KNOB": "512"}, ids=["C1"]))
    progress = journal.begin(b.ledger, plan, reason="", undoes={}, more=[])

    def breaks(place):
        if place == "written:after":
            raise RuntimeError("a bug of ours")

    with pytest.raises(RuntimeError):
        Operation(b.stack, b.ledger, progress, said.append, at_step=breaks).go_on()
    assert "stopped by RuntimeError; C1 stands half done (backed_up)" in said[-1]
    assert "vindicate change rollback C1" in said[-1]


def test_a_process_that_was_not_restarted_does_not_count(bench, monkeypatch):
    b = bench()
    b.script.write_bytes(b.before.replace(b"KNOB=256", b"KNOB=300"))
    monkeypatch.setattr("vindicate.operate.change.restart", lambda *_args, **_options: ())
    with pytest.raises(CannotError, match="older than the change"):
        b.change(KNOB="256")


def test_apply_revert_and_list_from_the_command_line(bench):
    b = bench()
    b.cli("apply", "KNOB=512", "--yes", expect=0)
    b.cli("claim", "add", "it freezes sessions", "--about", "knob:KNOB=512", expect=0)
    done = b.cli("revert", "KNOB", "--because", "H1", "--yes", expect=0)
    assert "nothing on record says what it is worth" in done.stderr
    assert "s at the last change" in done.stderr
    assert b.script.read_bytes() == b.before
    listed = json.loads(b.cli("change", "list", "--json", expect=0).stdout)
    assert listed["schema"] == "vindicate.changes/1"
    seen = [[item[name] for name in ("id", "kind", "from", "to", "state", "because")] for item in listed["changes"]]
    assert seen == [["C1", "apply", "256", "512", "done", []], ["C2", "revert", "512", "256", "done", ["H1"]]]
    assert listed["changes"][1]["undoes"] == "C1"
    assert "read_back" in b.cli("change", "show", "C2", expect=0).stdout
    assert "no change 'C7'" in b.cli("change", "show", "C7", expect=2).stderr


def test_secrets_reach_neither_screen_nor_ledger_nor_journal(bench, monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", "sk-planted-in-environ-123456")
    b = bench(worker="--api-key sk-planted-argv-123456 --fail-knob 512", before="export HF_TOKEN=hf_planted123456\n")
    shown = [b.cli("apply", f"KNOB={value}", "--yes") for value in ("512", "300")]
    assert [done.returncode for done in shown] == [1, 0]
    shown += [b.cli("change", "show", "C1"), b.cli("stack", "status", "--json")]
    assert "planted" in b.script.read_text()
    for done in shown:
        assert "planted" not in done.stdout + done.stderr
    for path in b.stack.home.rglob("*"):
        assert path.is_dir() or b"planted" not in path.read_bytes(), path


def test_processes_that_do_not_follow_the_script_are_restarted_and_nothing_is_written(bench):
    b = bench()
    b.script.write_bytes(b.before.replace(b"KNOB=256", b"KNOB=300"))
    b.change(KNOB="300")
    assert b.live == {"300"}
    assert (b.book.change("C1").change.from_value, b.book.change("C1").change.to_value) == ("256", "300")
    assert not list(b.script.parent.glob("*.bak"))
