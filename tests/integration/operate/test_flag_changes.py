"""Knobs on a command line: applied, read back from what the process was started with, shown, undone; wherever they stand."""

import json
import re
import subprocess
import sys
import time

import pytest

from fakes.change_bench import Bench, quiet
from fakes.kept_stack import KeptStack
from fakes.small_stack import SERVICE
from vindicate.errors import EngineError, UndoneError
from vindicate.operate import journal
from vindicate.operate.change import Operation, operation_on
from vindicate.operate.services import bring_down, bring_up
from vindicate.operate.status import live_readings
from vindicate.record.ledger import Claim
from vindicate.stack.file import read_stack

FLAG = '[knobs."--max-cap"]\nservices = ["worker"]\nkind = "arg"\n'
STATES = ("backed_up", "written", "restarted", "read_back", "checked", "done")


def live(b, name="--max-cap"):
    stack = read_stack(b.stack.file)
    return {reading.value for reading in live_readings(stack.service("worker"), stack.knob(name))}


@pytest.fixture
def flag_bench(bench):
    return lambda worker="--max-cap 64", **options: bench(worker=worker, knobs=FLAG, **options)


@pytest.fixture
def process_bench(small_stack):
    """A bench whose worker is started from the stack file itself."""
    made = []

    def make():
        stack = small_stack(entry="worker")
        worker = stack.service("worker")
        start = [sys.executable, str(SERVICE), str(worker.port), "--max-cap", "64"]
        launcher = (
            f'{{ kind = "process", start = {json.dumps(start)}, log = "worker.log", env = {{ KNOB = "256" }} }}  # ours'
        )
        text = stack.file.read_text().replace('{ kind = "script", file = "worker.sh", log = "worker.log" }', launcher)
        stack.file.write_text("# the chain\n" + text + FLAG)
        made.append(Bench(read_stack(stack.file)))
        return made[-1]

    yield make
    for b in made:
        b.ledger.close()
        bring_down(read_stack(b.stack.file), tuple(b.stack.services), say=quiet, by_hand=True)


@pytest.fixture
def kept_bench(tmp_path, monkeypatch):
    made = []

    def make(kind):
        kept = KeptStack(tmp_path, monkeypatch, kind, worker="--max-cap 64")
        kept.file.write_text(kept.file.read_text() + FLAG)
        made.append(Bench(read_stack(kept.file)))
        return made[-1]

    yield make
    for b in made:
        b.ledger.close()
        bring_down(b.stack, tuple(b.stack.services), say=quiet, by_hand=True)


def test_apply_changes_the_flag_in_script_and_process_and_nothing_else(flag_bench):
    b = flag_bench()
    assert live(b) == {"64"}
    b.change(max_cap="128")
    assert b.script.read_bytes() == b.before.replace(b"--max-cap 64", b"--max-cap 128")
    assert live(b) == {"128"}
    assert b.book.change("C1").change.knob == "--max-cap"
    operation_on(b.stack, b.ledger, b.book, "C1", say=quiet).roll_back("asked for")
    assert b.script.read_bytes() == b.before
    assert live(b) == {"64"}


def test_unset_without_a_value_and_a_value_are_three_things(flag_bench):
    b = flag_bench(worker="")
    assert live(b) == {None}
    b.change(**{"--max-cap": "5"})
    assert live(b) == {"5"}
    b.ledger.append(Claim(id="H1", text="it hangs"))
    b.change("revert", because=["H1"], **{"--max-cap": None})
    assert live(b) == {None}
    assert b.script.read_bytes() == b.before


def test_a_variable_and_a_flag_are_changed_together(flag_bench):
    b = flag_bench()
    b.change(**{"--max-cap": "128", "KNOB": "512"})
    assert (live(b), b.live) == ({"128"}, {"512"})
    assert b.script.read_bytes() == b.before.replace(b"cap 64", b"cap 128").replace(b"KNOB=256", b"KNOB=512")


def test_a_service_that_does_not_come_up_with_the_flag_is_undone(flag_bench):
    b = flag_bench()
    with pytest.raises(UndoneError, match="exit code 6"):
        b.change(**{"--max-cap": "666"})
    assert b.script.read_bytes() == b.before
    assert live(b) == {"64"}


def test_a_flag_that_the_process_does_not_get_is_undone(flag_bench):
    b = flag_bench()
    bring_down(b.stack, ("worker",), say=quiet)
    wrapper = b.script.with_name("drop.py")
    wrapper.write_text(
        "import os, sys\nos.execv(sys.argv[1], [w for w in sys.argv[1:] if w not in ('--max-cap', '512')])\n"
    )
    text = b.before.replace(b"exec ", f"exec {sys.executable} {wrapper} ".encode())
    b.script.write_bytes(text.replace(b" --max-cap 64", b""))
    bring_up(b.stack, ("worker",), say=quiet)
    with pytest.raises(UndoneError, match="--max-cap is unset in pid"):
        b.change(**{"--max-cap": "512"})
    assert live(b) == {None}


def test_a_process_that_is_older_than_the_change_is_a_failure(flag_bench):
    b = flag_bench()
    operation = b.change(**{"--max-cap": "128"})
    assert isinstance(operation, Operation)
    with pytest.raises(EngineError, match="is older than the change"):
        operation._require_live(operation.progress.plan.edits[0], "128", since=time.clock_gettime(time.CLOCK_BOOTTIME))


@pytest.mark.parametrize("spelling", ["--max-cap=128", "max-cap=128", "max_cap=128"])
def test_the_command_line_takes_the_flag_in_every_spelling(flag_bench, spelling):
    b = flag_bench()
    shown = json.loads(b.cli("apply", spelling, "--dry-run", "--json", expect=0).stdout)
    assert [(one["knob"], one["from"], one["to"]) for one in shown["changes"]] == [("--max-cap", "64", "128")]
    name = spelling.partition("=")[0]
    assert json.loads(b.cli("knob", "show", name, "--json", expect=0).stdout)["state"]["scripts"] == {"worker": "64"}


def test_every_verb_works_on_a_flag(flag_bench):
    b = flag_bench()
    b.cli("apply", "--max-cap=128", "--yes", expect=0)
    state = json.loads(b.cli("knob", "show", "--max-cap", "--json", expect=0).stdout)["state"]
    assert (state["ledger"], state["scripts"], list(state["live"]["worker"].values())) == (
        "128",
        {"worker": "128"},
        ["128"],
    )
    assert json.loads(b.cli("knob", "list", "--json", expect=0).stdout)["knobs"][1]["live"]["worker"]
    stand = json.loads(b.cli("stack", "status", "--json", expect=0).stdout)["services"]
    knob = next(one for one in stand if one["name"] == "worker")["knobs"]["--max-cap"]
    assert (knob["declared"], list(knob["live"].values()), knob["drift"]) == ("128", ["128"], False)
    assert "script says 128; live: 128 in pid" in b.cli("stack", "status", expect=0).stdout
    b.script.write_bytes(b.before)
    assert b.cli("stack", "status").returncode == 1
    assert "DRIFT" in b.cli("knob", "show", "max_cap", expect=1).stdout
    b.script.write_bytes(b.before.replace(b"cap 64", b"cap 128"))
    b.cli("claim", "add", "it hangs", "--about", "knob:max_cap=128", "--id", "H1", expect=0)
    b.cli("revert", "--max-cap", "--because", "H1", "--yes", expect=0)
    assert live(b) == {"64"}


def test_what_a_revert_of_a_flag_gave_up_is_restored_and_rolled_back(flag_bench):
    b = flag_bench()
    b.cli("stack", "up", expect=0)
    b.cli("apply", "max-cap=128", "--yes", expect=0)
    b.cli("claim", "add", "it hangs", "--about", "knob:max_cap=128", "--id", "H1", expect=0)
    assert b.book.claims["H1"].claim.about == "knob:--max-cap=128"
    b.cli("revert", "max-cap", "--because", "H1", "--yes", expect=0)
    b.cli("claim", "displace", "H1", "--reason", "it was the proxy", expect=0)
    words = ("--accept", "tried it", "--watch", "1s", "--watch-requests", "2", "--streams", "1", "--yes")
    b.cli("restore", "C2", *words, expect=0)
    assert live(b) == {"128"}
    b.cli("change", "rollback", "C3", "--yes", expect=0)
    assert live(b) == {"64"}
    assert b.script.read_bytes() == b.before


def test_an_option_of_ours_and_a_mistyped_one_are_not_taken_for_a_knob(flag_bench):
    b = flag_bench()
    wrong = b.cli("apply", "max-cap=128", "--dryrun")
    assert wrong.returncode == 2
    assert "--dryrun" in wrong.stderr
    wrong = b.cli("apply", "--no-such=1", "--yes")
    assert wrong.returncode == 2
    assert "no knob" in wrong.stderr
    assert live(b) == {"64"}


@pytest.mark.parametrize(("name", "value", "old", "new"), [
    ("--max-cap", "128", '"--max-cap", "64"', '"--max-cap", "128"'),
    ("KNOB", "512", 'KNOB = "256"', 'KNOB = "512"'),
])  # fmt: skip
def test_a_knob_in_the_stack_file_is_changed_there_and_comes_back(process_bench, name, value, old, new):
    b = process_bench()
    before = b.stack.file.read_text()
    b.change(**{name: value})
    assert b.stack.file.read_text() == before.replace(old, new)
    assert live(b, name) == {value}
    stack = read_stack(b.stack.file)
    operation_on(stack, b.ledger, b.book, "C1", say=quiet).roll_back("asked for")
    assert b.stack.file.read_text() == before
    assert live(b, name) == {old.split('"')[-2]}


@pytest.mark.parametrize("die_at", [f"{state}:{when}" for state in STATES for when in ("before", "after")])
def test_killed_at_any_step_a_change_of_the_stack_file_can_be_rolled_back_and_resumed(process_bench, die_at):
    b = process_bench()
    before = b.stack.file.read_text()
    for change, finish in (("C1", "rollback"), ("C2", "resume")):
        b.stack = read_stack(b.stack.file)
        b.change_and_die(die_at, **{"--max-cap": "128"})
        assert b.state(change) not in journal.FINAL
        operation = operation_on(read_stack(b.stack.file), b.ledger, b.book, change, say=quiet)
        if finish == "rollback":
            operation.roll_back("asked for")
        else:
            operation.go_on()
        value = "64" if finish == "rollback" else "128"
        assert b.stack.file.read_text() == before.replace('cap", "64"', f'cap", "{value}"')
        assert live(b) == {value}


@pytest.mark.parametrize("kind", ["docker-run", "compose"])
@pytest.mark.parametrize(("name", "value", "old"), [("--max-cap", "128", "64"), ("KNOB", "512", "256")])
def test_a_knob_of_a_container_is_changed_in_its_file_and_comes_back(kept_bench, kind, name, value, old):
    b = kept_bench(kind)
    before = b.before
    assert live(b, name) == {old}
    b.change(**{name: value})
    whole = re.compile(rb"(?<!\d)" + old.encode() + rb"(?!\d)")  # a port may hold the same digits
    assert b.script.read_bytes() == whole.sub(value.encode(), before)
    assert live(b, name) == {value}
    operation_on(b.stack, b.ledger, b.book, "C1", say=quiet).roll_back("asked for")
    assert b.script.read_bytes() == before
    assert live(b, name) == {old}


def test_what_a_person_starts_is_asked_for_with_the_flag(kept_bench):
    b = kept_bench("none")
    argv = [sys.executable, str(SERVICE), str(b.stack.service("worker").port)]
    with open(b.stack.home / "log", "wb") as sink:
        child = subprocess.Popen([*argv, "--max-cap", "64"], stdout=sink, stderr=sink)
    try:
        deadline = time.monotonic() + 20.0
        while live(b) != {"64"}:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        text = b.cli("apply", "max-cap=128", "--dry-run", expect=0).stderr
        assert "--max-cap" in text
        assert "128" in text
    finally:
        child.kill()
        child.wait()
