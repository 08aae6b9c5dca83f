import subprocess
from pathlib import Path

from fakes.story_repository import KNOB, PLAN, commit, git, story_repository, write_script
from vindicate.ledger.discover import discover_changes, record_proposals
from vindicate.ledger.state import Book
from vindicate.ledger.store import Ledger
from vindicate.record.ledger import Change, ChangeStep
from vindicate.stack.file import read_stack


def look(folder, **more):
    return discover_changes(read_stack(folder / "vindicate.toml"), **more)


def told(proposals):
    return [(item.kind, item.from_value, item.to_value) for item in proposals]


def test_finds_the_revert_of_the_story_its_reason_and_all_its_traces(tmp_path):
    raised, reverted = look(story_repository(tmp_path / "team"))

    assert (raised.kind, raised.from_value, raised.to_value) == ("apply", "256", "512")
    assert (reverted.kind, reverted.from_value, reverted.to_value, reverted.undoes) == (
        "revert",
        "512",
        "256",
        raised.id,
    )
    assert (reverted.knob, reverted.services) == (KNOB, ("decode",))
    assert reverted.reason == "multi-turn agent sessions hang after a few rounds"
    assert reverted.happened_at == "2026-11-20T10:00:00.000000Z"
    files = [Path(quote.file).name for quote in reverted.quotes]
    assert files == ["serve_decode.sh", "serve_decode.sh.bak", "PLAN.md"]
    plan = reverted.quotes[2]
    assert (plan.line, plan.by, plan.date) == (13, "Ann", "2026-11-20T11:00:00.000000Z")


def test_finds_it_without_git_from_the_backup_and_the_sentence(tmp_path):
    folder = story_repository(tmp_path / "team")
    subprocess.run(["rm", "-rf", str(folder / ".git")], check=True)

    (reverted,) = look(folder)

    assert (reverted.kind, reverted.from_value, reverted.to_value) == ("revert", "512", "256")
    assert reverted.reason


def test_finds_it_from_the_document_alone(tmp_path):
    folder = story_repository(tmp_path / "team")
    subprocess.run(["rm", "-rf", str(folder / ".git")], check=True)
    (folder / "serve_decode.sh.bak").unlink()

    (reverted,) = look(folder)

    assert (reverted.kind, reverted.from_value, reverted.to_value) == ("revert", "512", "256")
    assert reverted.quotes[0].text.startswith("Reverted to 256")


def test_reformatting_moving_and_renaming_change_no_knob(tmp_path):
    folder = story_repository(tmp_path / "team")
    script = folder / "serve_decode.sh"
    lines = script.read_text().splitlines()
    script.write_text("\n".join([lines[0], f'export   {KNOB}="256"  # default', lines[1], "", lines[3], ""]))
    commit(folder, "tidy the script", "2026-11-21T10:00:00Z")
    git(folder, "mv", "serve_decode.sh", "start_decode.sh")
    git(folder, "mv", "serve_decode.sh.bak", "start_decode.sh.bak")
    stack = folder / "vindicate.toml"
    stack.write_text(stack.read_text().replace("serve_decode.sh", "start_decode.sh"))
    commit(folder, "rename", "2026-11-22T10:00:00Z")

    assert told(look(folder)) == [("apply", "256", "512"), ("revert", "512", "256")]


def test_a_value_put_back_again_is_a_restore(tmp_path):
    folder = story_repository(tmp_path / "team")
    write_script(folder, "512")
    commit(folder, "512 again", "2026-11-25T10:00:00Z")

    found = look(folder)

    assert told(found)[2] == ("restore", "256", "512")
    assert found[2].undoes == found[1].id


def test_what_is_not_committed_yet_is_seen(tmp_path):
    folder = story_repository(tmp_path / "team")
    write_script(folder, "1024")

    found = look(folder)

    assert told(found) == [("apply", "256", "512"), ("revert", "512", "256"), ("apply", "256", "1024")]
    assert "not committed" in found[-1].quotes[0].text


def test_secrets_in_a_script_are_not_sightings(tmp_path):
    folder = story_repository(tmp_path / "team")
    for value in ("aaa", "bbb", "aaa"):
        (folder / "serve_decode.sh").write_text(f"export HF_API_TOKEN={value}\nexport {KNOB}=256\n")
        commit(folder, "key", "2026-11-26T10:00:00Z")

    assert all(item.knob == KNOB for item in look(folder))


def test_an_unreadable_script_is_told_and_stops_nothing(tmp_path):
    folder = story_repository(tmp_path / "team")
    (folder / "serve_decode.sh.bak").write_bytes(b"\xff\xfe\x00")
    blind = []

    found = look(folder, blind=blind)

    assert told(found) == [("apply", "256", "512"), ("revert", "512", "256")]
    assert "no UTF-8 text" in blind[0]


def test_records_on_consent_marks_it_retroactive_and_never_twice(tmp_path):
    folder = story_repository(tmp_path / "team")
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        assert record_proposals(ledger, look(folder)) == ["C1", "C2"]
        assert record_proposals(ledger, look(folder)) == []
        book = Book.from_facts(ledger.facts())

    reverted = book.change("C2")
    assert (reverted.change.recorded, reverted.change.undoes, reverted.state) == ("retroactive", "C1", "done")
    assert reverted.at == "2026-11-20T10:00:00.000000Z"
    assert book.claim("H1").claim.about == f"knob:{KNOB}=512"
    (ground,) = reverted.grounds
    assert ground.recorded == "retroactive"
    assert "PLAN.md:13 (Ann, 2026-11-20)" in ground.quote


def test_changes_of_our_own_are_not_found_again(tmp_path):
    folder = story_repository(tmp_path / "team")
    script = write_script(folder, "512")
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        record_proposals(ledger, look(folder)[:2])
        ledger.append_all(
            [
                Change(
                    id=ledger.next_id("C"),
                    kind="restore",
                    knob=KNOB,
                    services=("decode",),
                    from_value="256",
                    to_value="512",
                    undoes="C2",
                ),
                ChangeStep(change="C3", state="done", data={"backup": str(script) + ".bak.1"}),
            ]
        )
        assert record_proposals(ledger, look(folder)) == []


def test_a_sentence_that_does_not_say_from_which_value_is_a_lead_and_is_not_recorded(tmp_path):
    folder = tmp_path / "team"
    folder.mkdir()
    (folder / "PLAN.md").write_text(f"# {KNOB}\n\nReverted to 256 because it hangs.\n")
    (folder / "vindicate.toml").write_text((story_repository(tmp_path / "other") / "vindicate.toml").read_text())

    (lead,) = look(folder)
    assert lead.from_known is False
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        assert record_proposals(ledger, [lead]) == []


def test_a_colon_gives_a_reason_in_a_commit_and_because_in_a_sentence(tmp_path):
    folder = story_repository(tmp_path / "team")
    (folder / "PLAN.md").write_text(PLAN.replace(" because multi-turn agent sessions hang after a few rounds", ""))
    write_script(folder, "1024")
    commit(folder, "1024", "2026-11-25T10:00:00Z")
    write_script(folder, "256")
    commit(folder, "Revert to 256 due to OOM at startup. See #12", "2026-11-26T10:00:00Z")

    assert look(folder)[-1].reason == "OOM at startup"


def test_commits_of_one_moment_keep_the_order_of_the_history(tmp_path):
    folder = story_repository(tmp_path / "team")
    for value in ("1024", "2048", "1024"):
        write_script(folder, value)
        commit(folder, value, "2026-11-25T10:00:00Z")

    assert told(look(folder))[2:] == [("apply", "256", "1024"), ("apply", "1024", "2048"), ("revert", "2048", "1024")]
