"""`vindicate stack` as a user types it, on the reference stack."""

import json
import os
import subprocess
import sys

import pytest

KNOB = "SGLANG_SM120_MMA_TARGET_CTAS"


@pytest.fixture
def vindicate(tmp_path):
    """A function that runs the program in a folder of its own; its stack is down at the end."""
    environment = {name: value for name, value in os.environ.items() if name not in ("VINDICATE_STACK", KNOB)}

    def run(*words, expect=0, **more):
        done = subprocess.run(
            [sys.executable, "-m", "vindicate", *words],
            cwd=tmp_path, capture_output=True, text=True, timeout=50, check=False, env=environment | more, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == expect, done.stdout + done.stderr
        return done

    yield run
    if (tmp_path / "vindicate.toml").exists():
        run("stack", "down")


def services(vindicate):
    document = json.loads(vindicate("stack", "status", "--json").stdout)
    assert document["schema"] == "vindicate.stack/1"
    return {service["name"]: service for service in document["services"]}


def test_up_status_restart_and_down(vindicate, tmp_path):
    vindicate("stack", "init", "--reference", ".")
    assert {service["state"] for service in services(vindicate).values()} == {"down"}
    vindicate("stack", "up")
    first = services(vindicate)
    assert {service["state"] for service in first.values()} == {"ready"}
    decode = first["decode"]
    assert (decode["role"], decode["engine"]) == ("decode", "reference")
    assert decode["started_at"].endswith("Z")
    pid = str(decode["pids"][0])
    assert decode["knobs"][KNOB] == {
        "declared": "256",
        "live": {pid: "256"},
        "drift": False,
        "problem": None,
        "declared_known": True,
        "unread": [],
        "read_from": {},
        "unseen": "",
    }

    plan = vindicate("stack", "restart", "decode", "--dry-run").stderr
    assert "stop:  decode, prefill" in plan
    assert "needs a yes" in vindicate("stack", "restart", "decode", expect=2).stderr
    vindicate("stack", "restart", "decode", "--yes")
    second = services(vindicate)
    assert all(first[name]["pids"] != second[name]["pids"] for name in ("decode", "prefill"))
    assert first["router"]["pids"] == second["router"]["pids"]

    script = tmp_path / "serve_decode.sh"
    script.write_text(script.read_text().replace("CTAS=256", "CTAS=512"))
    assert "DRIFT" in vindicate("stack", "status", expect=1).stdout

    assert "stopped: router, decode, prefill" in vindicate("stack", "down").stdout
    assert "nothing was running" in vindicate("stack", "down").stdout


def test_what_is_wrong_is_said_with_place_and_remedy(vindicate, tmp_path):
    assert "no stack file" in vindicate("stack", "up", expect=2).stderr
    vindicate("stack", "init", "--reference", ".")
    assert "is there already" in vindicate("stack", "init", "--reference", ".", expect=2).stderr
    file = tmp_path / "vindicate.toml"
    text = file.read_text()

    file.write_text(text.replace('kind = "script", file = "serve_router.sh", log = "router.log"', 'kind = "systemd"'))
    assert "there is no systemctl on the PATH" in vindicate("stack", "up", expect=4, PATH=str(tmp_path)).stderr

    file.write_text(text.replace("serve_router.sh", "not_there.sh"))
    assert "not_there.sh: the start script of router is not there" in vindicate("stack", "up", expect=2).stderr

    file.write_text(text.replace("[services.router]", "[services.router"))
    assert f"{file}: no valid TOML" in vindicate("stack", "up", expect=2).stderr
    file.write_text(text)
    assert "no service 'nobody'" in vindicate("stack", "restart", "nobody", "--yes", expect=2).stderr
    assert {service["state"] for service in services(vindicate).values()} == {"down"}


def test_a_change_and_the_end_of_a_stack_are_told_as_one_document(vindicate):
    vindicate("stack", "init", "--reference", ".")
    vindicate("stack", "up")
    planned = json.loads(vindicate("apply", f"{KNOB}=512", "--dry-run", "--json").stdout)
    assert [(c["to"], c["state"], c["restarts"]) for c in planned["changes"]] == [
        ("512", "planned", ["prefill", "decode"])
    ]
    made = json.loads(vindicate("apply", f"{KNOB}=512", "--yes", "--json").stdout)
    assert made["schema"] == "vindicate.changes/1"
    assert [(c["id"], c["from"], c["to"], c["state"]) for c in made["changes"]] == [("C1", "256", "512", "done")]
    again = json.loads(vindicate("apply", f"{KNOB}=512", "--yes", "--json").stdout)
    assert (again["changes"], "already so" in again["told"][0]) == ([], True)
    down = json.loads(vindicate("stack", "down", "--json").stdout)
    assert (down["schema"], sorted(down["stopped"])) == ("vindicate.stack/1", ["decode", "prefill", "router"])
    assert {service["state"] for service in down["services"]} == {"down"}


def test_what_the_stack_file_gives_a_process_is_said_alike_by_all_and_comes_back_when_it_does_not_start(
    vindicate, tmp_path
):
    (tmp_path / "vindicate.toml").write_text(
        '[stack]\nentry = "worker"\n[services.worker]\nrole = "engine"\nurl = "http://127.0.0.1:9"\n'
        'launcher = { kind = "process", start = ["true"], env = { K_X = "7" } }\n[knobs.K_X]\nservices = ["worker"]\n'
    )
    before = (tmp_path / "vindicate.toml").read_bytes()
    assert services(vindicate)["worker"]["knobs"]["K_X"]["declared"] == "7"
    assert json.loads(vindicate("knob", "list", "--json").stdout)["knobs"][0]["scripts"] == {"worker": "7"}
    assert "the change was undone" in vindicate("apply", "K_X=8", "--yes", expect=1).stderr
    assert (tmp_path / "vindicate.toml").read_bytes() == before
