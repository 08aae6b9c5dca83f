"""Repositories in different hands, and what `change discover` proposes of each: the change, its reason, who and when."""

import json
import os
import subprocess
import sys

import pytest

from fakes.other_repositories import REPOSITORIES, build
from fakes.story_repository import KNOB, git, story_repository
from vindicate.ledger.discover import discover_changes

CTAS, CHUNKS = "DECODE_TARGET_CTAS", "--chunked-prefill-size"

# repository → kind, knob, from, to, words of the reason, day of May, by whom
PROPOSES = {
    "compose": [
        ("apply", "MAX_BATCH_TOKENS", "8192", "16384", "", 3, "Noor"),
        ("revert", "MAX_BATCH_TOKENS", "16384", "8192", "OOM at startup", 9, "Kim"),
    ],
    "drop-in": [
        ("apply", "ENABLE_OVERLAP_SCHEDULE", None, "1", "", 2, "Kim"),
        ("apply", "OMP_NUM_THREADS", None, "8", "", 2, "Kim"),
        ("revert", "ENABLE_OVERLAP_SCHEDULE", "1", None, "sessions freeze under PD", 6, "Kim"),
        ("revert", "OMP_NUM_THREADS", "8", None, "sessions freeze under PD", 6, "Kim"),
    ],
    "helm": [
        ("apply", CTAS, "256", "512", "", 2, "Kim"),
        ("revert", CTAS, "512", "256", "hangs in long sessions", 8, "Noor"),
    ],
    "kustomize": [
        ("revert", "NCCL_CUMEM_ENABLE", "1", "0", "memory overhead in graph capture (NCCL 2.19)", 5, "Kim"),
    ],
    "flag": [
        ("apply", CHUNKS, "4096", "8192", "", 2, "Kim"),
        ("revert", CHUNKS, "8192", "4096", "the new cards have less memory", 20, "Kim"),
        ("revert", CTAS, "512", "256", "sessions hang", 20, "Kim"),
    ],
    "windows": [
        ("apply", "MAX_RUNNING_REQUESTS", "64", "128", "", 3, "Kim"),
        ("revert", "MAX_RUNNING_REQUESTS", "128", "64", "p99 doubled", 4, "Kim"),
    ],
    "squashed": [("revert", CTAS, "512", "256", "decode hangs", None, None)],
    "moved": [
        ("apply", CTAS, "256", "512", "", 2, "Kim"),
        ("revert", CTAS, "512", "256", "hangs", 7, "Kim"),
    ],
    "disabled": [("revert", "ENABLE_OVERLAP_SCHEDULE", "1", "0", "hang in the router", 11, "Kim")],
    "twice": [
        ("apply", CTAS, "256", "512", "", 2, "Kim"),
        ("revert", CTAS, "512", "256", "the build was broken", 4, "Kim"),
        ("restore", CTAS, "256", "512", "", 14, "Kim"),
        ("revert", CTAS, "512", "256", "sessions hang", 24, "Kim"),
    ],
    "backups": [
        ("apply", CTAS, "256", "512", "", 2, None),
        ("revert", CTAS, "512", "256", "sessions froze", 9, None),
    ],
    "two services": [("apply", "NCCL_CUMEM_ENABLE", "1", "0", "", 2, "Kim")],
    "innocent": [],
}


@pytest.fixture(scope="module")
def repositories(tmp_path_factory):
    home = tmp_path_factory.mktemp("archaeology")
    folders = {name: build(repository, home / name) for name, repository in REPOSITORIES.items()}
    for day in (2, 9):
        moment = 1777626000 + (day - 1) * 86400  # 1 May 2026, 9:00
        os.utime(folders["backups"] / f"serve.sh.bak.202605{day:02}", (moment, moment))
    return folders


def test_every_repository_has_its_line_in_the_table():
    assert set(REPOSITORIES) == set(PROPOSES)


@pytest.mark.parametrize("name", PROPOSES)
def test_a_repository_yields_its_changes_and_no_others(name, repositories):
    blind = []

    found = discover_changes(None, git_dirs=[repositories[name]], blind=blind)

    told = [(item.kind, item.knob, item.from_value, item.to_value) for item in found]
    assert told == [line[:4] for line in PROPOSES[name]], [quote for item in found for quote in item.quotes]
    for item, (*_, reason, day, author) in zip(found, PROPOSES[name], strict=True):
        assert item.reason == reason
        assert item.from_known
        if day:
            assert item.happened_at.startswith(f"2026-05-{day:02}")
        if author:
            assert item.quotes[0].by == author
    assert blind == []


def test_a_revert_names_what_it_took_back_also_across_a_move(repositories):
    raised, reverted = discover_changes(None, git_dirs=[repositories["moved"]])

    assert reverted.undoes == raised.id


def test_looking_at_a_repository_writes_nothing_into_it(repositories):
    folder = repositories["helm"]
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}

    discover_changes(None, git_dirs=[folder])

    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_one_command_finds_the_revert_its_reason_and_its_worth_without_stack_file_or_ledger(tmp_path):
    folder = story_repository(tmp_path / "team")
    (folder / "vindicate.toml").unlink()
    (folder / "deploy").mkdir()
    (folder / "docs").mkdir()
    for name in ("serve_decode.sh", "serve_decode.sh.bak"):
        git(folder, "mv", name, f"deploy/{name}")
    git(folder, "mv", "PLAN.md", "docs/PLAN.md")
    git(folder, "commit", "-am", "folders", date="2026-11-21T10:00:00Z")

    done = subprocess.run(
        [sys.executable, "-m", "vindicate", "clawback", "--discover", "--json"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "VINDICATE_STACK": ""},
    )

    (candidate,) = json.loads(done.stdout)["candidates"]
    assert (candidate["knob"], candidate["from"], candidate["to"]) == (KNOB, "512", "256")
    assert candidate["because"][0]["text"] == "multi-turn agent sessions hang after a few rounds"
    assert {row["level"]: row["gain_pct"] for row in candidate["worth"]} == {64: 12.8, 80: 1.2, 96: 5.7}
    assert {row["grade"] for row in candidate["worth"]} == {"D"}
    assert not (folder / ".vindicate").exists()
