import contextlib
import functools
import io
import json
import os
import shlex
import subprocess
import sys
from typing import NamedTuple

import pytest

from fakes.story_repository import KNOB, PLAN, STACK, story_repository, write_script
from vindicate import cli
from vindicate.ledger.store import Ledger
from vindicate.record.ledger import Change, ChangeStep


class Done(NamedTuple):
    code: int
    stdout: str
    stderr: str


DIAGNOSIS = {
    "schema": "vindicate.diagnosis/1", "status": "fault", "layer": "proxy", "service": "proxy",
    "mechanism": "proxy.connector_starvation", "confidence": 0.97, "summary": "the proxy has no free connector",
    "cleared": [{"service": "decode", "knobs": [KNOB], "of": "stalling streams at this load", "because": "it delivered all it owed"}],
    "suspects": [], "started_at": "2026-11-29T10:00:00Z", "window_s": 10.0, "took_s": 11.0,
}  # fmt: skip


@pytest.fixture
def team(tmp_path):
    folder = tmp_path / "team"
    folder.mkdir()
    (folder / "vindicate.toml").write_text(STACK)
    (folder / "PLAN.md").write_text(PLAN)
    (folder / "diagnosis.json").write_text(json.dumps(DIAGNOSIS))
    write_script(folder, "256")
    return folder


def as_process(folder, arguments):
    """The real thing: a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "vindicate", *arguments],
        cwd=folder, capture_output=True, text=True, timeout=50, check=False, stdin=subprocess.DEVNULL,
        env={**os.environ, "NO_COLOR": "1"},
    )  # fmt: skip
    return Done(done.returncode, done.stdout, done.stderr)


def in_process(folder, arguments):
    """The same, without the cost of a start."""
    stdout, stderr = io.StringIO(), io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
        code = cli._run(list(arguments), debug=False)
    return Done(code, stdout.getvalue(), stderr.getvalue())


def run(folder, *arguments, code=0, way=in_process):
    done = way(folder, arguments)
    assert done.code == code, f"{arguments}: {done.code}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr
    return done


def out(folder, *arguments, **more):
    return run(folder, *arguments, **more).stdout.strip()


def asked(folder, *arguments, **more):
    return json.loads(out(folder, *arguments, "--json", **more))


def test_one_command_finds_the_revert_its_reason_and_its_worth_in_a_repository_without_a_ledger(tmp_path):
    folder = story_repository(tmp_path / "team")

    told = asked(folder, "clawback", "--discover")

    (row,) = told["candidates"]
    assert (row["knob"], row["from"], row["to"], row["recorded"]) == (KNOB, "512", "256", "retroactive")
    assert row["because"][0]["text"] == "multi-turn agent sessions hang after a few rounds"
    assert [(w["level"], w["gain_pct"], w["lo90_pct"], w["grade"]) for w in row["worth"]] == [
        (64, 12.8, None, "D"), (80, 1.2, None, "D"), (96, 5.7, None, "D"),
    ]  # fmt: skip
    assert told["recorded"] is False
    assert not (folder / ".vindicate").exists()


def test_what_is_found_is_recorded_with_yes_and_then_stays(tmp_path):
    folder = story_repository(tmp_path / "team")
    run(folder, "clawback", "--discover", "--yes")

    assert "orphaned" in out(folder, "clawback", "--if", "H1=refuted")
    assert asked(folder, "clawback", "--discover")["discovered"] == []
    assert "0 problems" in out(folder, "ledger", "check")


def test_the_story_by_its_verbs_each_a_process_of_its_own(team):
    run, out, asked = (
        functools.partial(way, way=as_process) for way in (globals()["run"], globals()["out"], globals()["asked"])
    )

    assert out(team, "incident", "open", "sessions freeze", "--count", "3", "--exposure", "40000req") == "INC-1"
    assert (
        out(team, "claim", "add", "512 hangs the sessions", "--incident", "INC-1", "--about", f"knob:{KNOB}=512")
        == "H1"
    )
    assert "E1" in out(team, "evidence", "import", "PLAN.md", "--yes")
    imported = run(team, "evidence", "import", "diagnosis.json", "--yes")
    assert "next: vindicate claim displace H1 --evidence E2" in imported.stderr

    refused = run(team, "claim", "refute", "H1", "--reason", "the proxy it was", code=3)
    assert "an intervention" in refused.stderr
    assert "68 577 requests" in refused.stderr
    assert "H1 is displaced, on E2" in out(team, "claim", "displace", "H1", "--evidence", "E2")

    watched = ("--kind", "intervention", "--claim", "H1", "--against", "--suspect", "present", "--symptoms", "0")
    out(team, "evidence", "add", "ran at 512", *watched, "--exposure", "70000req")
    assert "H1 is refuted" in out(team, "claim", "refute", "H1")
    assert asked(team, "claim", "show", "H1")["status"] == "refuted"
    assert "H1 is open" in out(team, "claim", "reopen", "H1", "--reason", "it froze again")


def test_a_displaced_claim_weakens_what_rests_on_it_and_clawback_says_how_to_test_it(tmp_path):
    team = story_repository(tmp_path / "team")
    (team / "diagnosis.json").write_text(json.dumps(DIAGNOSIS))
    run(team, "clawback", "--discover", "--yes")
    run(team, "incident", "open", "sessions freeze", "--count", "3", "--exposure", "12h")
    run(team, "claim", "add", "it hangs", "--id", "H1", "--incident", "INC-1", "--about", f"knob:{KNOB}=512")
    run(team, "evidence", "import", "diagnosis.json", "--yes")

    assert "C2 is now weakened (was justified)" in out(team, "claim", "displace", "H1", "--evidence", "E2")
    (row,) = asked(team, "clawback")["candidates"]
    assert (row["standing"], row["next"]) == ("weakened", "refute_first")
    assert "20 h 34 m" in row["plan"]
    assert row["command"] == 'vindicate restore C2 --accept "REASON"'


def test_a_document_that_was_made_false_is_named_and_corrected(tmp_path):
    team = story_repository(tmp_path / "team")
    run(team, "clawback", "--discover", "--yes")
    assert "no sentence is contradicted" in out(team, "docs", "check", "PLAN.md")
    run(team, "claim", "withdraw", "H1", "--reason", "badly put")
    run(team, "claim", "reopen", "H1", "--reason", "again")
    out(
        team,
        "evidence",
        "add",
        "hang stays at 256",
        "--kind",
        "intervention",
        "--claim",
        "H1",
        "--against",
        "--suspect",
        "absent",
        "--symptoms",
        "2",
    )
    out(team, "evidence", "add", "the proxy starved", "--kind", "log", "--claim", "H1", "--explains-away")
    run(team, "claim", "refute", "H1")

    check = run(team, "docs", "check", "PLAN.md", code=1)
    assert "PLAN.md:13: Reverted to 256 because" in check.stdout
    before = (team / "PLAN.md").read_bytes()
    assert "+~~Reverted to 256" in out(team, "docs", "sync", "PLAN.md", "--dry-run")
    run(team, "docs", "sync", "PLAN.md", code=2)
    assert (team / "PLAN.md").read_bytes() == before
    run(team, "docs", "sync", "PLAN.md", "--yes")
    assert (
        "~~Reverted to 256 because multi-turn agent sessions hang after a few rounds.~~ *(20"
        in (team / "PLAN.md").read_text()
    )
    assert "no sentence is contradicted" in out(team, "docs", "check", "PLAN.md")
    assert out(team, "docs", "sync", "PLAN.md", "--yes") == "nothing to correct"
    assert "changed since it was read" not in run(team, "ledger", "check").stderr, "it was our own writing"
    (team / "PLAN.md").write_text((team / "PLAN.md").read_text() + "More.\n")
    assert "changed since it was read" in run(team, "ledger", "check").stderr


def test_a_knob_that_drifted_is_flagged(tmp_path):
    team = story_repository(tmp_path / "team")
    run(team, "clawback", "--discover", "--yes")
    assert asked(team, "knob", "show", KNOB)["state"]["drift"] == []
    write_script(team, "1024")

    shown = out(team, "knob", "list", code=1)
    assert "DRIFT" in shown
    assert "serve_decode.sh:3 says 1024" in out(team, "knob", "show", KNOB, code=1)
    told = run(team, "change", "discover", "--dry-run").stderr
    assert f"drift  {KNOB}: serve_decode.sh:3 says 1024" in told
    assert f"vindicate apply {KNOB}=256" in told


def test_the_live_value_is_read_from_the_process(tmp_path):
    team = story_repository(tmp_path / "team")
    run(team, "clawback", "--discover", "--yes")
    stack = team / "vindicate.toml"
    process = subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"], env={**os.environ, KNOB: "512"}, stdin=subprocess.PIPE
    )
    stack.write_text(stack.read_text().replace('role = "decode"', f'role = "decode"\npid = {process.pid}'))
    try:
        (row,) = asked(team, "clawback")["candidates"]
        assert (row["live_value"], row["in_force"], row["next"]) == ("512", False, "leave")
        assert f"pid {process.pid} (decode) holds 512" in out(team, "knob", "show", KNOB, code=1)
        told = run(team, "change", "discover", "--yes")
        assert f"/proc/{process.pid}/environ:1 (unknown, " in told.stderr
        assert told.stdout == "recorded: C3\n"
        (*_, last) = asked(team, "change", "list")["changes"]
        assert (last["from"], last["to"], last["kind"], last["state"]) == ("256", "512", "apply", "done")
        assert run(team, "change", "discover", "--yes").stdout == "all of it was on record already\n"
    finally:
        process.communicate()


def test_export_and_import_carry_everything_over(tmp_path):
    team = story_repository(tmp_path / "team")
    run(team, "clawback", "--discover", "--yes")
    run(team, "ledger", "export", "--out", "ledger.jsonl")
    run(team, "--", "ledger", "import", "ledger.jsonl", "--ledger", str(tmp_path / "other.db"))
    assert (
        out(team, "ledger", "export", "--ledger", str(tmp_path / "other.db"))
        == (team / "ledger.jsonl").read_text().strip()
    )


def test_the_timeline_names_leads_before_the_incident(tmp_path):
    team = story_repository(tmp_path / "team")
    run(team, "clawback", "--discover", "--yes")
    run(team, "incident", "open", "freeze", "--at", "2026-11-21T00:00:00Z")

    told = asked(team, "incident", "timeline", "INC-1", "--days", "30")
    kinds = [(lead["kind"], lead["what"]) for lead in told["leads"]]
    assert ("commit", "set target CTAs back") in kinds
    assert any(kind == "change" and what.startswith("C2 revert") for kind, what in kinds)
    assert all(lead["at"] <= "2026-11-21T00:00:00.000000Z" for lead in told["leads"])
    assert "never causes" in out(team, "incident", "timeline", "INC-1", "--days", "30")


@pytest.mark.parametrize(
    "verb",
    [
        ("clawback",),
        ("claim", "list"),
        ("incident", "list"),
        ("evidence", "list"),
        ("knob", "list"),
        ("ledger", "check"),
        ("ledger", "export"),
    ],
)
def test_reading_an_empty_ledger_is_good_news_and_makes_no_file(tmp_path, verb):
    run(tmp_path, *verb)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("claim", "show", "H9"), 2, "no claim 'H9'"),
        (("claim", "add", "x", "--about", "512"), 2, "--about is '512'"),
        (("claim", "refute", "H9"), 2, "no claim 'H9'"),
        (("incident", "open", "x", "--count", "3"), 2, "an exposure"),
        (("incident", "open", "x", "--count", "3", "--exposure", "40000"), 2, "has no unit"),
        (("evidence", "import", "vindicate.toml"), 2, "nothing to record was understood"),
        (("evidence", "import", "none.md"), 2, "none.md: cannot be read"),
        (("evidence", "import", "PLAN.md"), 2, "--yes"),
        (("clawback", "--if", "H1"), 2, "CLAIM=STATUS"),
        (("clawback", "--as-of", "yesterday"), 2, "is no time"),
        (("knob", "show", "NOPE_X"), 2, "no knob 'NOPE_X'"),
        (("ledger", "import", "PLAN.md"), 2, "PLAN.md:1: no fact"),
        (("ledger", "check", "--ledger", "TYPO.db"), 2, "TYPO.db"),
        (("claim", "list", "--ledger", "TYPO.db"), 0, "there is no ledger at"),
        (("claim", "list", "--ledger", "PLAN.md"), 4, "PLAN.md is no ledger"),
        (("claim", "add", "x", "--ledger", "PLAN.md/l.db"), 4, "PLAN.md is a file"),
        (("claim", "list", "--ledger", "postgresql://x/y"), 2, "postgresql"),
    ],
)
def test_an_error_says_what_was_seen_and_what_to_do(team, arguments, code, text):
    assert text in run(team, *arguments, code=code).stderr


@pytest.mark.parametrize(
    "verb",
    ["clawback", "incident open", "incident list", "incident timeline", "claim add", "claim support", "claim displace", "claim refute", "claim reopen",
     "claim withdraw", "claim show", "claim list", "evidence add", "evidence import", "evidence list", "evidence show", "knob list", "knob show",
     "docs check", "docs sync", "ledger export", "ledger import", "ledger check"],
)  # fmt: skip
def test_every_verb_helps_with_an_example(verb):
    import click

    from vindicate.cli import program

    command, context = program, click.Context(program)
    for word in verb.split():
        command = command.get_command(context, word)
    text = command.get_help(click.Context(command, info_name=verb))
    assert f"Example:\n    vindicate {verb}" in text


def test_a_correction_keeps_what_it_does_not_mention(team):
    run(team, "incident", "open", "freeze", "--at", "2026-11-01T00:00:00Z", "--service", "decode")
    run(team, "incident", "open", "sessions freeze", "--id", "INC-1", "--count", "3", "--exposure", "12h")
    run(team, "claim", "add", "it hangs", "--about", f"knob:{KNOB}=512")
    run(team, "claim", "add", "512 hangs", "--id", "H1", "--incident", "INC-1")

    (incident,) = asked(team, "incident", "list")["incidents"]
    assert (incident["began_at"], incident["incident"]["services"]) == ("2026-11-01T00:00:00.000000Z", ["decode"])
    told = asked(team, "claim", "show", "H1")
    assert (told["claim"]["text"], told["claim"]["about"]) == ("512 hangs", f"knob:{KNOB}=512")
    assert round(told["t_star"], 1) == 20.6


def test_what_is_found_and_not_recorded_says_first_how_to_record_it_with_the_same_places(tmp_path):
    team = story_repository(tmp_path / "team")
    (team / "ops").mkdir()
    (team / "PLAN.md").rename(team / "ops" / "my plan.md")

    told = run(team, "clawback", "--discover", "--git", ".", "--doc", "ops/my plan.md")
    how = "vindicate clawback --discover --git . --doc 'ops/my plan.md' --yes"
    assert how in told.stderr
    assert f"$ {how}" in told.stdout
    assert "$ vindicate claim show" not in told.stdout

    run(team, *shlex.split(how)[1:])
    assert "$ vindicate" in out(team, "clawback")
    assert how not in out(team, "clawback")
    assert "reverted" in out(team, "clawback", "--discover", "--git", ".")


def test_a_what_if_is_marked_as_one_and_an_early_moment_says_what_came_later(tmp_path):
    team = story_repository(tmp_path / "team")
    run(team, "clawback", "--discover", "--yes")

    told = asked(team, "clawback", "--if", "H1=refuted")
    assert (told["hypothetical"], told["what_if"]) == (True, {"H1": "refuted"})
    told = asked(team, "clawback")
    assert (told["hypothetical"], told["what_if"]) == (False, {})
    assert "the ledger holds 2 changes that were recorded later" in out(
        team, "clawback", "--as-of", "2026-01-01T00:00:00Z"
    )


def test_a_claim_without_an_incident_says_how_to_count_and_the_command_does_it(tmp_path):
    team = story_repository(tmp_path / "team")
    run(team, "clawback", "--discover", "--yes")
    shown = out(team, "claim", "show", "H1")
    how = 'vindicate incident open "WHAT WAS SEEN" --claim H1 --count M --exposure Nreq'
    assert how in shown

    run(
        team,
        *shlex.split(how.replace("count M", "count 3").replace("Nreq", "40000req"))[1:],
    )
    told = asked(team, "claim", "show", "H1")
    assert (told["claim"]["incident"], round(told["t_star"])) == ("INC-1", 68577)
    assert "count it" not in out(team, "claim", "show", "H1")
    run(team, "incident", "open", "freeze", "--claim", "H9", code=2)


def test_a_knob_is_shown_with_the_gain_as_it_was_measured_whatever_value_it_has(tmp_path):
    team = story_repository(tmp_path / "team")
    run(team, "clawback", "--discover", "--yes")
    for value in ("256", "512"):
        write_script(team, value)
        told = run(team, "knob", "show", KNOB, code=1 if value == "512" else 0).stdout
        assert "512 over 256:" in told
        assert "+12.8 %" in told
        assert "256 over 512:" not in told


def test_a_change_that_was_undone_is_not_why_a_knob_has_its_value(team):
    with Ledger.open(team / ".vindicate" / "ledger.db") as ledger:
        for name, before, after, state in (("C1", "512", "256", "done"), ("C2", "256", "1024", "rolled_back")):
            kind = "revert" if name == "C1" else "apply"
            ledger.append(
                Change(id=name, kind=kind, knob=KNOB, services=("decode",), from_value=before, to_value=after)
            )
            ledger.append(ChangeStep(change=name, state=state))
    told = out(team, "knob", "show", KNOB)
    assert "why: C1 (revert, " in told
    assert "for no reason on record; never_justified" in told
    assert "C2 apply 256 → 1024, rolled_back" in told
