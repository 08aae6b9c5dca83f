"""`vindicate unpin` on a real pair of engines: what is pinned is found, aborted by its full id, and gone; its neighbours live on."""

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

import pytest
from click.testing import CliRunner

from fakes.reference_stack import ask_now, chat, metric, running_stack, until
from vindicate.cli.unpin import unpin as verb
from vindicate.errors import RefusedError
from vindicate.operate import unpin as room

PARKED = ["--fault", "inflight_parked", "--fault-after", "0"]
ENDED = (400, 500)  # whichever leg the router hears of first


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(room, "_APART_S", 0.3)
    monkeypatch.setattr(room, "_GONE_WITHIN_S", 2.0)


def unpin(folder, *words):
    done = CliRunner().invoke(
        verb, [*words, "--json", "--stack", str(folder / "vindicate.toml")], standalone_mode=False
    )
    if done.exception is not None:
        raise done.exception
    return done.return_value, json.loads(done.stdout), done.stderr


def write_stack_file(running, folder):
    text = '[stack]\nname = "pinned"\nentry = "router"\n'
    for name, upstream in (("router", ["prefill", "decode"]), ("prefill", []), ("decode", [])):
        text += (
            f'[services.{name}]\nrole = "{name}"\nengine = "reference"\nurl = "{running.url(name)}"\nupstream = {json.dumps(upstream)}\n'
            f'launcher = {{ kind = "script", file = "{name}.sh", log = "{name}.log" }}\n'
        )
        (folder / f"{name}.sh").write_text("true\n")
    (folder / "vindicate.toml").write_text(text)


@pytest.fixture(scope="module")
def parked(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parked")
    with running_stack(folder, prefill=[*PARKED, "--log-requests"], decode=["--log-requests"]) as running:
        write_stack_file(running, folder)
        yield running, folder


@pytest.fixture
def clients():
    with ThreadPoolExecutor(4) as pool:
        yield pool


def hang(running, clients, *rids):
    """Requests that will never be answered, with these ids."""
    asked = [clients.submit(ask_now, running.url("router"), chat("hi", rid=rid), patience=20) for rid in rids]
    until(
        lambda: metric(running.url("prefill"), "sglang:num_prefill_inflight_queue_reqs") == len(rids), "they are parked"
    )
    return asked


def test_aborts_pinned_requests_and_reads_back_that_they_are_gone(parked, clients):
    running, folder = parked
    asked = hang(running, clients, "a" * 32, "b" * 32)
    code, said, _ = unpin(folder, "--older-than", "5m", "--yes")
    assert (code, said["pins"]) == (0, [])  # young ones are left alone
    with pytest.raises(RefusedError):  # nobody said yes
        unpin(folder, "--older-than", "100ms")
    code, said, _ = unpin(folder, "--older-than", "100ms", "--yes")
    assert (code, {pin["rid"]: (pin["state"], pin["engines"]) for pin in said["pins"]}) == (
        0, dict.fromkeys(("a" * 32, "b" * 32), ("gone", ["prefill", "decode"]))
    )  # fmt: skip
    assert all(each.result().status in ENDED for each in asked)
    assert metric(running.url("prefill"), "sglang:num_prefill_inflight_queue_reqs") == 0


def test_spares_the_request_whose_id_a_short_one_begins(parked, clients):
    running, folder = parked
    asked = hang(running, clients, "agent-1", "agent-17")
    code, said, told = unpin(folder, "--rid", "agent-1", "--yes")
    assert (code, said["pins"][0]["state"]) == (4, "refused")
    assert "agent-17" in told
    code, said, _ = unpin(folder, "--rid", "agent-17", "--yes")
    assert (code, said["pins"][0]["state"]) == (0, "gone")
    assert asked[1].result().status in ENDED
    assert not asked[0].done()
    assert unpin(folder, "--rid", "agent-1", "--yes")[0] == 0


def test_says_that_the_ids_are_not_known_where_no_engine_logs_them(tmp_path, clients):
    with running_stack(tmp_path, prefill=PARKED) as running:
        write_stack_file(running, tmp_path)
        hang(running, clients, "a" * 32)
        code, said, _ = unpin(tmp_path, "--older-than", "0s", "--yes")
        assert (code, said["pins"]) == (3, [])
        assert "--log-requests" in said["unclear"][0]
        code, said, _ = unpin(tmp_path, "--rid", "a" * 32, "--yes")  # a person who knows the id may give it
        assert (code, said["pins"][0]["state"]) == (0, "gone")


@pytest.mark.parametrize("logs", [True, False])
def test_says_which_engine_to_restart_when_an_abort_has_no_effect(tmp_path, logs):
    """An engine that answers 200 to an abort, as all do, and goes on holding the request."""
    stamp = datetime.now().astimezone().isoformat()
    line = json.dumps({"timestamp": stamp, "event": "request.received", "rid": "c" * 32}) + "\n"
    (tmp_path / "p.log").write_text(line if logs else "INFO ready\n")

    async def play():
        async def answer(reader, writer):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            body = b'{"loads": [{"num_running_reqs": 0, "disaggregation": {"prefill_inflight_queue_reqs": 1}}]}'
            body = body if "/v1/loads" in head else b""
            writer.write(
                b"HTTP/1.1 %d X\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
                % (404 if "/metrics" in head else 200, len(body))
                + body
            )
            await writer.drain()
            writer.close()

        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            (tmp_path / "vindicate.toml").write_text(
                f'[stack]\nname = "x"\nentry = "p"\n[services.p]\nrole = "prefill"\nengine = "sglang"\nurl = "http://127.0.0.1:{port}"\n'
                'launcher = { kind = "none", log = "p.log" }\n'
            )
            return await asyncio.to_thread(unpin, tmp_path, "--rid", "c" * 32, "--yes")

    code, said, _ = asyncio.run(play())
    assert (code, said["pins"][0]["state"], said["next"]) == (4, "held", ["vindicate stack restart p"])
