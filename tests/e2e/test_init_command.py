"""`vindicate init` on the reference stack: it draws what that stack's own file declares, and writes nothing over anything."""

import json
import os
import subprocess
import sys

import pytest

from fakes.observed_start import observed
from vindicate.stack.discover import search
from vindicate.stack.draft import draft_of
from vindicate.stack.file import read_stack

KNOB = "SGLANG_SM120_MMA_TARGET_CTAS"
SECRET = "sk-planted-0123456789abcdef"


def vindicate(folder, *words, code=0):
    environment = {name: value for name, value in os.environ.items() if name not in ("VINDICATE_STACK", KNOB)}
    done = subprocess.run(
        [sys.executable, "-m", "vindicate", *words],
        cwd=folder, capture_output=True, text=True, timeout=50, check=False, env=environment, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    return done


@pytest.fixture
def reference(tmp_path):
    folder = tmp_path / "reference"
    vindicate(tmp_path, "stack", "init", "--reference", str(folder))
    vindicate(folder, "stack", "up")
    yield read_stack(folder / "vindicate.toml")
    vindicate(folder, "stack", "down")


def drawn(stack):
    return {
        service.role: (service.engine, service.url, {stack.service(one).role for one in service.upstream}, service.bootstrap_port,
                       service.gpus, service.launcher.kind, service.launcher.file, service.launcher.log, service.restart_with)
        for service in stack.services.values()
    }  # fmt: skip


def test_draws_what_the_reference_stack_declares(reference, tmp_path):
    said = vindicate(tmp_path, "init", reference.service(reference.entry).url).stdout
    made = read_stack(tmp_path / "vindicate.toml")
    assert drawn(made) == drawn(reference)
    assert made.service(made.entry).role == "router"
    assert {name: knob.services for name, knob in made.knobs.items()} == {KNOB: ("decode",)}
    text = (tmp_path / "vindicate.toml").read_text()
    assert "# it calls decode: named by --decode" in text
    assert f"# decode holds '256', set in {reference.service('decode').launcher.file}:" in text
    assert "its command line says vindicate.reference" in said


def test_writes_over_no_file_unless_forced_and_keeps_it_then(tmp_path):
    (tmp_path / "vindicate.toml").write_text("mine\n")
    with observed(tmp_path, "engine") as engine:
        refused = vindicate(tmp_path, "init", engine.url, code=2)
        shown = vindicate(tmp_path, "init", engine.url, "--dry-run", "--json")
        assert (tmp_path / "vindicate.toml").read_text() == "mine\n"
        vindicate(tmp_path, "init", engine.url, "--force")
    assert "--force" in refused.stderr
    (only,) = json.loads(shown.stdout)["services"]
    assert (only["role"], only["engine"], only["url"]) == ("engine", "sglang", engine.url)
    assert (tmp_path / "vindicate.toml.bak").read_text() == "mine\n"
    assert [one.url for one in read_stack(tmp_path / "vindicate.toml").services.values()] == [engine.url]


def test_no_planted_secret_reaches_the_file(tmp_path, monkeypatch):
    monkeypatch.setenv("SGLANG_API_KEY", "planted-plainly")
    monkeypatch.setenv("SGLANG_NOTE", f"bearer {SECRET}")
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("MY_OWN", "planted-too")
    with observed(tmp_path, "engine", "--api-key", SECRET) as engine:
        text = draft_of(search(engine.url), {}, tmp_path).text
    assert "# engine holds 'INFO', from its environment" in text
    assert not [one for one in (SECRET, "planted-plainly", "planted-too") if one in text]
