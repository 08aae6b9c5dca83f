"""The public story of NCCL_CUMEM_ENABLE=0, by the verbs: a premise that went out of scope by version, a copy of it, an unsafe restore."""

import contextlib
import io
import json

import pytest

from fakes.nccl_repository import CUMEM, nccl_repository, restored_and_taken_back
from vindicate import cli
from vindicate.clock import utc_now

WHY = "CUDA-graph capture takes gigabytes more with it"


@pytest.fixture
def run(tmp_path):
    folder = nccl_repository(tmp_path / "team")

    def run(*arguments, code=0):
        stdout, stderr = io.StringIO(), io.StringIO()
        with contextlib.chdir(folder), contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
            done = cli._run(list(arguments), debug=False)
        assert done == code, f"{arguments}: {done}\n{stdout.getvalue()}\n{stderr.getvalue()}"
        run.told = stderr.getvalue()
        return stdout.getvalue().strip()

    run.folder = folder
    return run


def rows(run, *more):
    return {row["change"]: row for row in json.loads(run("clawback", "--json", *more))["candidates"]}


def labels(run, *more):
    return {name: (row["standing"], row["next"]) for name, row in rows(run, *more).items()}


def upgraded(run):
    """The override and its copy found, their premise scoped, and the image upgraded; the moment before that."""
    assert run("change", "discover", "--yes") == "recorded: C1, C2"
    run("claim", "add", WHY, "--id", "H1", "--scope", "nccl < 2.22.3")
    run("evidence", "add", "image of May 2024", "--at", "2024-05-20", "--fingerprint", "nccl=2.21.5")
    before = utc_now()
    run("evidence", "add", "image of September 2025", "--at", "2025-09-01", "--fingerprint", "nccl=2.27.3")
    assert "C2 is now orphaned (was justified)" in run.told
    return before


def test_a_premise_that_the_upgrade_overtook_orphans_the_override_and_its_copy_and_refutes_nothing(run):
    before = upgraded(run)

    assert labels(run) == {"C1": ("orphaned", "experiment"), "C2": ("orphaned", "experiment")}
    assert labels(run, "--as-of", before) == {"C1": ("justified", "leave"), "C2": ("justified", "leave")}
    told = rows(run)
    assert told["C1"]["services"] == ["server"]
    assert told["C1"]["because"][0]["status"] == "open"
    assert told["C1"]["because"][0]["out_of_scope"] == ["nccl 2.27.3 is not < 2.22.3 (E2, 2025-09-01)"]
    assert "H1 is out of scope, which is no refutation" in told["C1"]["plan"]
    assert told["C1"]["worth"] == []
    assert told["C1"]["copies"] == ["C2"]
    assert told["C2"]["follows"]["change"] == "C1"
    assert told["C2"]["follows"]["quote"].endswith("train: disable cuMem, same as serve.sh")
    assert "same as serve.sh   (C2 rests on it)   (repeats H1)" in run("claim", "list")
    shown = run("claim", "show", "H1")
    assert "H1 is open" in shown
    assert "out of scope: nccl 2.27.3 is not < 2.22.3" in shown
    assert "C2 rests on it: revert NCCL_CUMEM_ENABLE unset → 0, orphaned" in shown
    assert "server, trainer must hold one value; restart together: server, trainer" in run("knob", "show", CUMEM)

    run("evidence", "add", "the old image again", "--fingerprint", "nccl=2.21.5")
    assert labels(run) == labels(run, "--as-of", before)


def test_a_restore_that_was_unsafe_is_taken_back_on_a_ground_of_its_own_which_stands(run):
    upgraded(run)
    restored_and_taken_back(run.folder, 1)
    assert run("change", "discover", "--yes") == "recorded: C3"
    assert list(labels(run)) == ["C1"], "the trainer has it back, the server has not"
    shown = run("knob", "show", CUMEM, code=1)
    assert "the ledger says unset (by the ledger, since C3 on trainer)" in shown
    assert "the ledger says 0 (by the ledger, since C1 on server)" in shown

    what = "70B configs that used to fit run out of memory"
    assert run("incident", "open", what, "--at", "2026-05-04", "--count", "2", "--exposure", "3h", "--service", "trainer") == "INC-1"  # fmt: skip
    assert f"C3 restore: {CUMEM} 0 → unset" in run("incident", "timeline", "INC-1", "--days", "60")
    restored_and_taken_back(run.folder, 2)
    assert run("change", "discover", "--yes") == "recorded: C4"
    run("claim", "add", "70B configs run out of memory", "--id", "H3", "--incident", "INC-1")
    taken = ("--kind", "intervention", "--claim", "H3", "--for", "--suspect", "present", "--symptoms", "2")
    assert run("evidence", "add", "two runs without the override ran out of memory", *taken, "--exposure", "3h") == "E3"
    assert "H3 is supported" in run("claim", "support", "H3", "--evidence", "E3")

    assert labels(run) == {"C1": ("orphaned", "experiment"), "C4": ("justified", "leave")}
    assert rows(run)["C4"]["follows"] is None, "it is no copy: its reason is another"
    assert rows(run)["C4"]["plan"].startswith("H3 still holds")
    assert labels(run, "--if", "H3=refuted")["C4"] == ("orphaned", "experiment")
    assert "0 problems" in run("ledger", "check")


def test_a_scope_that_cannot_be_read_is_refused_and_one_that_nobody_can_tell_says_how(run):
    run("change", "discover", "--yes")
    run("claim", "add", WHY, "--id", "H1", "--scope", "older nccl", code=2)
    run("evidence", "add", "x", "--fingerprint", "nccl", code=2)
    run("claim", "add", WHY, "--id", "H1", "--scope", "nccl < 2.22.3")
    asked = 'in scope as far as is known: nccl is not known here; say it with: vindicate evidence add "WHAT IS SO" --fingerprint nccl=VALUE'
    assert asked in run("claim", "show", "H1")
    assert asked in run("clawback")
    assert labels(run)["C1"] == ("justified", "leave")
