"""What a service calls beside its upstream is no part of the chain: nothing is sent to it, and nobody is blamed for it."""

import contextlib
import http.client
import socket
import subprocess
import sys
import threading

import pytest

from fakes.observed_start import observed
from vindicate.diagnose.judge import judge
from vindicate.errors import MisuseError
from vindicate.observe.record import record_capture
from vindicate.stack.discover import discover, search
from vindicate.stack.sockets import InodeOwners


@pytest.fixture
def unused():
    """A port at which nobody listens, and that nobody else gets meanwhile."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


@pytest.fixture
def collectors(tmp_path):
    """Three programs that take what others push, each with a log folder of its own that says whether it was asked."""
    with contextlib.ExitStack() as opened:
        yield [opened.enter_context(observed(_made(tmp_path / name), "pusher")) for name in ("a", "b", "c")]


def _made(folder):
    folder.mkdir()
    return folder


def asked(tmp_path):
    return [log for log in tmp_path.glob("[abc]/*.log") if "asked" in log.read_text()]


def ports(stack):
    return {service.port for service in stack.services.values()}


@contextlib.contextmanager
def users_of(port, many):
    """So many users, each with one streamed chat after another."""
    over = threading.Event()

    def ask():
        while not over.is_set():
            call = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            call.request("POST", "/v1/chat/completions", '{"max_tokens": 64}')
            call.getresponse().read()
            call.close()

    users = [threading.Thread(target=ask) for _ in range(many)]
    for user in users:
        user.start()
    try:
        yield
    finally:
        over.set()
        for user in users:
            user.join()


def test_a_proxy_that_traces_pushes_and_stores_has_one_upstream(tmp_path, collectors, unused):
    traced, pushed, stored = (str(one.port) for one in collectors)
    aside = ["--also", traced, unused, "--push", pushed, unused, "--arg", f"database-url=http://127.0.0.1:{stored}"]
    with (
        observed(tmp_path, "engine") as engine,
        observed(tmp_path, "relay", "--upstream", engine.port, *aside) as proxy,
    ):
        found = search(proxy.url)
    assert ports(found.stack) == {proxy.port, engine.port}
    assert found.nodes[found.stack.entry].upstream == {str(engine.port): "a request of ours was passed on to it"}
    assert asked(tmp_path) == []
    assert any(f"127.0.0.1:{pushed}" in note and "nothing was sent there" in note for note in found.stack.notes)


def test_a_proxy_that_answers_us_by_itself_is_followed_by_its_users_answers(tmp_path, collectors, unused):
    with (
        observed(tmp_path, "engine") as engine,
        observed(tmp_path, "aside", "--upstream", engine.port, "--push", collectors[0].port, unused) as proxy,
        users_of(proxy.port, 3),
    ):
        found = search(proxy.url)
    assert ports(found.stack) == {proxy.port, engine.port}
    assert found.nodes[found.stack.entry].upstream == {str(engine.port): "what comes from there goes on to its callers"}
    assert asked(tmp_path) == []


def test_a_silent_proxy_that_only_pushes_may_call_more_than_is_seen(tmp_path, collectors):
    with observed(tmp_path, "silent", "--push", collectors[0].port) as proxy:
        stack = discover(proxy.url)
    assert [(one.port, one.opaque) for one in stack.services.values()] == [(proxy.port, True)]
    assert asked(tmp_path) == []


UNIX_RELAY = """
import asyncio, sys

async def pump(source, target):
    while data := await source.read(65536):
        target.write(data)
        await target.drain()
    target.close()

async def main(path):
    async def hold(reader, writer):
        await reader.read(10)
        await asyncio.sleep(60)

    async def onward(reader, writer):
        there = await asyncio.open_unix_connection(path)
        await asyncio.gather(pump(reader, there[1]), pump(there[0], writer))

    if len(sys.argv) == 3:
        server = await asyncio.start_unix_server(hold, path)
        print("ready", flush=True)
    else:
        server = await asyncio.start_server(onward, "127.0.0.1", 0)
        print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.sleep(60)

asyncio.run(main(sys.argv[1]))
"""


def test_a_relay_that_calls_a_unix_socket_may_be_innocent_of_what_stops_behind_it(tmp_path):
    path = str(tmp_path / "app.sock")
    with contextlib.ExitStack() as opened:
        ports = []
        for more in (["server"], []):
            words = [sys.executable, "-c", UNIX_RELAY, path, *more]
            one = opened.enter_context(subprocess.Popen(words, stdout=subprocess.PIPE))
            opened.callback(one.kill)
            ports.append(one.stdout.readline().strip())
        port = int(ports[1])
        for _ in range(3):  # users who hang
            user = opened.enter_context(socket.create_connection(("127.0.0.1", port)))
            user.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
        stack = discover(f"http://127.0.0.1:{port}")
        diagnosis = judge(record_capture(stack, window_s=3.0, probe_deadline_s=1.5))
    assert [one.opaque for one in stack.services.values()] == [True]
    assert any(f"the Unix socket {path}" in note for note in stack.notes), stack.notes
    assert diagnosis.status == "undetermined", diagnosis.summary


def test_a_model_server_that_pushes_its_metrics_hides_nothing(tmp_path, collectors):
    with observed(tmp_path, "engine", "--served-model-name", "tiny", "--push", collectors[0].port) as engine:
        stack = discover(engine.url)
    assert [(one.port, one.opaque) for one in stack.services.values()] == [(engine.port, False)]
    assert stack.notes == ()
    assert asked(tmp_path) == []


def test_of_two_chains_only_the_one_asked_for_is_followed(tmp_path):
    with (
        observed(tmp_path, "engine") as mine,
        observed(tmp_path, "engine", "--served-model-name", "tiny") as other,
        observed(tmp_path, "relay", "--upstream", mine.port) as proxy,
        observed(tmp_path, "relay", "--upstream", other.port, "--arg", f"upstream={other.url}"),
    ):
        assert ports(discover(proxy.url)) == {proxy.port, mine.port}


def test_upstreams_in_a_configuration_file_are_followed_and_its_log_server_is_not(tmp_path, collectors, unused):
    config = tmp_path / "proxy.conf"
    with observed(tmp_path, "engine") as engine:
        config.write_text(
            f"access_log syslog:server=127.0.0.1:{collectors[0].port};\nlisten 127.0.0.1:{unused};\n"
            f"upstream u {{\n  listen 127.0.0.1:{unused}; server 127.0.0.1:{engine.port}; # server 127.0.0.1:{collectors[1].port}\n}}\n"
        )
        with observed(tmp_path, "silent", "--config", config) as proxy:
            assert ports(discover(proxy.url)) == {proxy.port, engine.port}
    assert asked(tmp_path) == []


def test_workers_are_those_of_the_router_whose_metrics_name_them_and_not_of_a_proxy_that_passes_the_page_on(tmp_path):
    with (
        observed(tmp_path, "engine") as one,
        observed(tmp_path, "engine") as two,
        observed(tmp_path, "engine", "--also", one.port, two.port) as router,
        observed(tmp_path, "relay", "--upstream", router.port) as proxy,
    ):
        nodes = {node.port: set(node.upstream) for node in search(proxy.url).nodes.values()}
    assert nodes[proxy.port] == {str(router.port)}
    assert nodes[router.port] == {str(one.port), str(two.port)}


def test_https_to_a_plain_port_is_the_callers_slip(tmp_path):
    with observed(tmp_path, "engine") as engine, pytest.raises(MisuseError) as caught:
        discover(f"https://127.0.0.1:{engine.port}")
    assert "plain HTTP" in caught.value.problem
    assert engine.url in caught.value.remedy


def test_a_port_of_the_other_family_is_dead_and_that_is_said(tmp_path):
    with observed(tmp_path, "engine", "--host", "::1") as engine:
        (dead,) = (stack := discover(f"http://127.0.0.1:{engine.port}")).services.values()
    assert (dead.name, dead.opaque) == (f"pid:unknown:{engine.port}", False)
    assert any("::1 only" in note for note in stack.notes)


def test_says_that_a_process_of_another_user_cannot_be_looked_into(tmp_path, monkeypatch):
    monkeypatch.setattr(InodeOwners, "__getitem__", lambda *_: ())
    with observed(tmp_path, "relay", "--upstream", 1) as proxy:
        stack = discover(proxy.url)
    assert [one.opaque for one in stack.services.values()] == [True]
    assert any("root" in note and f"port {proxy.port}" in note for note in stack.notes)


def test_a_hung_relay_is_followed_by_one_small_chat_of_ours_and_only_where_that_is_allowed(
    tmp_path, collectors, unused
):
    """Nobody answers, and nothing names the service behind it; what it pushes elsewhere is no upstream."""
    aside = ["--also", collectors[1].port, unused, "--push", collectors[0].port, unused]
    with (
        observed(tmp_path, "silent") as stuck,
        observed(tmp_path, "aside", "--upstream", stuck.port, *aside) as proxy,
        socket.create_connection(("127.0.0.1", proxy.port)) as user,
    ):
        user.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
        unseen = discover(proxy.url)
        found = search(proxy.url, tokens=4)
    assert ports(unseen) == {proxy.port}
    assert ports(found.stack) == {proxy.port, stuck.port}
    assert found.nodes[found.stack.entry].upstream == {str(stuck.port): "a request of ours was handed on to it"}
    assert found.stack.service(found.stack.entry).opaque  # of several workers one request shows one
    assert asked(tmp_path) == []
