"""`vindicate diagnose` as a user runs it: exit codes, one JSON document, captures that are judged again, evidence that is kept."""

import json
import socket
import subprocess
import sys

import pytest

from fakes.captures import Scenery
from fakes.observed_start import observed
from vindicate.observe.capture_file import save_capture

FIELDS = {
    "schema", "status", "layer", "service", "mechanism", "confidence", "summary", "cleared", "suspects", "aggravators",
    "findings", "next", "blind", "started_at", "window_s", "took_s",
}  # fmt: skip


def run(*words, cwd):
    return subprocess.run(
        [sys.executable, "-m", "vindicate", "diagnose", *words],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=40,
        check=False,
    )


@pytest.fixture
def captures(tmp_path):
    starved = (
        Scenery()
        .idle_engines()
        .waiting(8, "client", "proxy")
        .probe("proxy", "no_headers")
        .probe("router")
        .probe("decode")
    )
    healthy = Scenery().idle_engines().probe("proxy").probe("router").probe("decode")
    unclear = Scenery().probe("proxy", "garbage").probe("router").probe("decode")
    for name, scene in {"starved": starved, "healthy": healthy, "unclear": unclear}.items():
        save_capture(scene.capture(), tmp_path / f"{name}.json")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "code", "status"), [("healthy", 0, "healthy"), ("starved", 1, "fault"), ("unclear", 3, "undetermined")]
)
def test_judges_a_recording_and_leaves_with_the_code_of_the_verdict(captures, name, code, status):
    made = run("--replay", f"{name}.json", "--json", cwd=captures)
    document = json.loads(made.stdout)
    assert (made.returncode, document["status"], document["schema"]) == (code, status, "vindicate.diagnosis/1")
    assert set(document) == FIELDS


def test_gives_the_same_verdict_when_a_recording_is_judged_again(captures):
    assert run("--replay", "starved.json", cwd=captures).stdout == run("--replay", "starved.json", cwd=captures).stdout


def test_keeps_the_diagnosis_as_evidence_and_says_its_id(captures):
    made = run("--replay", "starved.json", "--save", cwd=captures)
    assert "saved as E1" in made.stdout
    again = run("--replay", "starved.json", "--save", "--json", cwd=captures)
    assert json.loads(again.stdout)["status"] == "fault"
    assert "saved as E2" in again.stderr


def test_writes_one_page_beside_the_screen(captures):
    made = run("--replay", "starved.json", "--html", "page.html", cwd=captures)
    assert "GUILTY" in made.stdout
    assert "GUILTY" in (captures / "page.html").read_text()


def test_calls_a_dead_entry_guilty(tmp_path):
    with socket.socket() as taken:  # bound and never listening: nobody else gets the port
        taken.bind(("127.0.0.1", 0))
        made = run(f"http://127.0.0.1:{taken.getsockname()[1]}", "--window", "1s", "--json", cwd=tmp_path)
    document = json.loads(made.stdout)
    assert (made.returncode, document["mechanism"]) == (1, "service.down")
    assert not made.stderr.startswith("Traceback")


def test_calls_an_entry_dead_that_listens_on_the_other_family_only_and_says_where(tmp_path):
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as listener:
        port = listener.getsockname()[1]
        done = run(f"http://127.0.0.1:{port}", "--window", "1s", "--json", cwd=tmp_path)
    said = json.loads(done.stdout)
    assert (done.returncode, said["mechanism"]) == (1, "service.down")
    assert any("::1 only" in text for text in said["blind"])


def test_says_that_a_port_speaks_plain_http_when_https_was_meant(tmp_path):
    with observed(tmp_path, "engine") as engine:
        done = run(f"https://127.0.0.1:{engine.port}", "--window", "1s", cwd=tmp_path)
    assert done.returncode == 2
    assert "plain HTTP is spoken there" in done.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("no url",), "no url"),
        (("http://127.0.0.1:99999",), "99999"),
        (("--stack", "nosuch.toml"), "nosuch.toml"),
        (("--replay", "nosuch.json"), "nosuch.json"),
        (("--window", "soon"), "soon"),
        (("--probe-budget", "much"), "much"),
        (("capture",), "--out"),
        (("capture", "http://127.0.0.1:9"), "http://127.0.0.1:9 --out capture.json"),
        (("http://127.0.0.1:9", "--html", "nosuch/page.html"), "nosuch"),
        (("http://127.0.0.1:9", "--html", "."), "is a folder"),
        (("http://127.0.0.1:9", "--client-pid", "-5"), "-5"),
        (("http://user@127.0.0.1:9",), "login"),
        (("http://a:1", "http://b:2"), "http://b:2"),
        (("--replay", "broken.json"), "broken.json"),
    ],
)
def test_says_what_was_wrong_with_the_value_seen_and_leaves_with_2(tmp_path, words, says):
    (tmp_path / "broken.json").write_bytes(b"\xff\xfe{")
    made = run(*words, cwd=tmp_path)
    assert made.returncode == 2
    assert says in made.stderr
    assert "Traceback" not in made.stderr
    assert made.stdout == ""


def test_lists_every_mechanism(tmp_path):
    made = run("--list-mechanisms", cwd=tmp_path)
    assert made.returncode == 0
    assert "proxy.connector_starvation  (layer: proxy)" in made.stdout
    listed = json.loads(run("--list-mechanisms", "--json", cwd=tmp_path).stdout)
    assert "proxy.connector_starvation" in {entry["name"] for entry in listed["mechanisms"]}


def test_refuses_a_client_that_is_not_there_before_it_looks(tmp_path):
    made = run("http://127.0.0.1:1", "--client-pid", "4194305", cwd=tmp_path)
    assert made.returncode == 2
    assert "4194305" in made.stderr
