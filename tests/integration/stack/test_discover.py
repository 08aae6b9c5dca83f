"""Chains of real processes, found from their sockets alone."""

import contextlib
import socket
import subprocess
import sys
import threading

import pytest

from fakes.observed_start import SCRIPT, observed
from vindicate.errors import MisuseError
from vindicate.stack import calls, passed_on
from vindicate.stack.discover import discover
from vindicate.stack.sockets import dump_sockets


@pytest.fixture
def chain(tmp_path):
    """proxy → router → prefill and decode; the router calls prefill for everything and names decode in its arguments."""
    with contextlib.ExitStack() as opened:
        start = lambda *words: opened.enter_context(observed(tmp_path, *words))  # noqa: E731
        prefill = start("engine", "--arg", "prefill", "--served-model-name", "tiny")
        decode = start("engine", "--arg", "decode", "--served-model-name", "tiny")
        router = start("relay", "--upstream", prefill.port, "--arg", f"decode={decode.url}")
        proxy = start("relay", "--upstream", router.port, "--arg", f"backend={router.url}")
        yield {"proxy": proxy, "router": router, "prefill": prefill, "decode": decode}


def roles(stack):
    return {service.port: service.role for service in stack.services.values()}


def only(monkeypatch, *servers):
    """Hide the rest of this host from the search."""
    ports = [server.port for server in servers]
    for module in (calls, passed_on):
        monkeypatch.setattr(module, "dump_sockets", lambda: dump_sockets(ports))


def test_follows_the_chain_from_its_entry(chain):
    stack = discover(chain["proxy"].url)
    assert roles(stack) == {chain[name].port: name for name in chain}
    by_port = {service.port: service for service in stack.services.values()}
    assert by_port[chain["proxy"].port].upstream == (by_port[chain["router"].port].name,)
    assert set(by_port[chain["router"].port].upstream) == {
        by_port[chain[name].port].name for name in ("prefill", "decode")
    }
    assert stack.entry == by_port[chain["proxy"].port].name
    assert by_port[chain["decode"].port].engine == "sglang"
    for port, service in by_port.items():
        assert service.name.startswith("pid:")
        assert service.name.endswith(f":{port}")


def test_finds_the_entry_by_itself(chain, monkeypatch):
    only(monkeypatch, *chain.values())
    stack = discover(None)
    assert stack.service(stack.entry).port == chain["proxy"].port
    assert len(stack.services) == 4


def test_a_starved_proxy_without_an_upstream_socket_is_followed_by_its_arguments(tmp_path):
    with (
        observed(tmp_path, "engine") as engine,
        observed(tmp_path, "silent", "--arg", f"upstream={engine.url}") as proxy,
    ):
        stack = discover(proxy.url)
    assert roles(stack) == {proxy.port: "proxy", engine.port: "engine"}


def test_and_by_its_environment_where_the_arguments_say_nothing(tmp_path, monkeypatch):
    with observed(tmp_path, "engine") as engine:
        monkeypatch.setenv("OBSERVED_UPSTREAM", engine.url)
        with observed(tmp_path, "silent") as proxy:
            stack = discover(proxy.url)
    assert roles(stack) == {proxy.port: "proxy", engine.port: "engine"}


@pytest.fixture
def unused():
    """A port at which nobody listens, and that nobody else gets meanwhile."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


def test_what_a_relay_s_arguments_name_is_kept_where_nothing_listens(tmp_path, unused):
    with observed(tmp_path, "silent", "--arg", f"upstream=http://127.0.0.1:{unused}") as proxy:
        stack = discover(proxy.url)
    assert set(roles(stack)) == {proxy.port, unused}
    assert next(s for s in stack.services.values() if s.port == unused).name == f"pid:unknown:{unused}"


def test_the_dead_side_of_a_split_pair_has_its_role(tmp_path, unused):
    with (
        observed(tmp_path, "engine", "--arg", "prefill") as prefill,
        observed(tmp_path, "relay", "--upstream", prefill.port, "--arg", f"worker=http://127.0.0.1:{unused}") as router,
    ):
        stack = discover(router.url)
    assert roles(stack) == {router.port: "router", prefill.port: "prefill", unused: "decode"}


@pytest.mark.parametrize("option", ["otlp-endpoint", "cors-origin", "webhook"])
def test_a_dead_address_to_which_no_request_goes_is_no_service(tmp_path, option, unused):
    with observed(tmp_path, "silent", "--arg", f"{option}=http://127.0.0.1:{unused}") as proxy:
        assert len(discover(proxy.url).services) == 1


def test_an_engine_that_answers_calls_no_dead_address(tmp_path, unused):
    with observed(tmp_path, "engine", "--arg", f"peer=http://127.0.0.1:{unused}") as engine:
        assert len(discover(engine.url).services) == 1


def test_an_engine_alone_is_an_engine(tmp_path):
    with observed(tmp_path, "engine") as engine:
        (only_one,) = discover(engine.url + "/v1/chat/completions").services.values()
    assert (only_one.role, only_one.engine, only_one.url, only_one.upstream) == ("engine", "sglang", engine.url, ())


def test_a_dead_port_is_a_stack_of_one(unused):
    (dead,) = discover(f"http://127.0.0.1:{unused}").services.values()
    assert dead.name == f"pid:unknown:{unused}"


@pytest.mark.parametrize(
    "url",
    [
        "nonsense",
        "http://",
        "http://127.0.0.1:99999",
        "ftp://127.0.0.1:1",
        "http://a b:1",
        "http://:1",
        "http://[::1:1",
    ],
)
def test_what_is_no_url_is_refused(url):
    with pytest.raises(MisuseError):
        discover(url)


def test_a_password_in_the_url_is_refused_and_not_repeated():
    with pytest.raises(MisuseError) as caught:
        discover("http://me:hunter2@127.0.0.1:1")
    assert "hunter2" not in caught.value.problem


def test_a_port_that_is_no_part_of_the_chain_hears_nothing(tmp_path):
    heard = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as stranger, observed(tmp_path, "engine") as engine:
        threading.Thread(target=lambda: _accept(stranger, heard), daemon=True).start()
        discover(engine.url)
        assert not heard.is_set()


def _accept(listener, heard):
    with contextlib.suppress(OSError):
        listener.accept()
        heard.set()


def test_a_peer_of_an_engine_is_no_upstream(tmp_path):
    """decode holds a connection to another port of prefill, as for a KV link; neither becomes a relay for it."""
    code = (
        "import socket,subprocess,sys,time\n"
        "one=socket.create_connection(('127.0.0.1',int(sys.argv[1])))\n"
        "one.set_inheritable(True)\n"
        "import os; os.execv(sys.executable,[sys.executable,*sys.argv[2:]])\n"
    )
    log = tmp_path / "decode.log"
    with observed(tmp_path, "engine", "--arg", "prefill") as prefill, observed(tmp_path, "silent") as link:
        with log.open("w") as out:
            decode = subprocess.Popen(
                [sys.executable, "-c", code, str(link.port), str(SCRIPT), "engine", "--arg", "decode"],
                stdout=out,
                stderr=out,
            )
        try:
            while "listening" not in log.read_text():
                assert decode.poll() is None, log.read_text()
            port = int(log.read_text().split()[-1])
            with observed(
                tmp_path, "relay", "--upstream", prefill.port, "--arg", f"decode=http://127.0.0.1:{port}"
            ) as router:
                stack = discover(router.url)
        finally:
            decode.kill()
            decode.wait()
    assert roles(stack)[port] == "decode"
    assert roles(stack)[router.port] == "router"
    assert [service.upstream for service in stack.services.values() if service.port == port] == [()]


def test_says_what_to_do_when_nothing_looks_like_a_chain(tmp_path, monkeypatch):
    with observed(tmp_path, "hello") as web:
        only(monkeypatch, web)
        with pytest.raises(MisuseError) as caught:
            discover(None)
    assert "--stack" in caught.value.remedy
