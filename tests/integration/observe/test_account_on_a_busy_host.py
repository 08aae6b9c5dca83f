"""The account where most sockets are strangers': the kernel is asked for the chain's ports, and nothing of the chain is lost."""

import contextlib
import os
import socket
import time

import pytest

from vindicate.observe import account as room
from vindicate.observe.account import SocketAccount
from vindicate.stack.http import OwnSockets
from vindicate.stack.sockets import dump_table, has_sock_diag

pytestmark = pytest.mark.skipif(not has_sock_diag(), reason="the kernel does not answer sock_diag here")


@contextlib.contextmanager
def connected(host="127.0.0.1"):
    """A listener's port, and both ends of a connection to it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection((host, port)) as client, listener.accept()[0] as server:
            yield port, client, server


@pytest.fixture
def asked(monkeypatch):
    """What the kernel was asked for, look by look, on a host that counts as busy from the first stranger on."""
    calls = []

    def dump(ports=()):
        calls.append(set(ports))
        return dump_table(ports)

    monkeypatch.setattr(room, "dump_table", dump)
    monkeypatch.setattr(room, "_FEW_STRANGERS", -1)
    return calls


def test_follows_what_a_process_of_the_chain_holds_beside_the_chains_ports(asked):
    with connected() as (port, client, _), connected() as (elsewhere, other, _):
        looks = SocketAccount([port], lambda: {os.getpid()}, own=OwnSockets())
        for _ in range(3):
            looks.look()
            client.sendall(b"x" * 10)
            other.sendall(b"y" * 10)
        looks.look()
        looks.close()
    assert asked[0] == set()
    assert all({port, elsewhere} <= ports for ports in asked[1:])
    found = {one.remote.port: one for one in looks.connections() if one.remote.port in (port, elsewhere)}
    assert set(found) == {port, elsewhere}
    assert [(one.closed, one.pids, one.samples[-1].tx) for one in found.values()] == [(False, (os.getpid(),), 30)] * 2


def test_without_processes_only_the_chains_ports_are_asked_for_and_all_again_after_a_second(asked, monkeypatch):
    monkeypatch.setattr(room, "_ALL_EVERY_S", 0.0)
    with connected("127.0.0.1") as (port, _, _), connected() as (elsewhere, _, _):
        looks = SocketAccount([port], set, own=OwnSockets())
        looks.look()
        looks.look()
        assert asked == [set(), set()]
        monkeypatch.setattr(room, "_ALL_EVERY_S", 60.0)
        looks.look()
        looks.close()
    assert asked[-1] == {port}
    ports = {one.remote.port for one in looks.connections()} | {one.local.port for one in looks.connections()}
    assert port in ports
    assert elsewhere not in ports


def test_a_connection_to_an_address_that_is_mapped_into_ipv6_has_two_ends_that_match():
    with socket.socket(socket.AF_INET6) as listener:
        try:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            listener.bind(("::", 0))
        except OSError:
            pytest.skip("no IPv6 here")
        listener.listen()
        port = listener.getsockname()[1]
        looks = SocketAccount([port], set, own=OwnSockets())
        with socket.create_connection(("127.0.0.1", port)), listener.accept()[0]:
            looks.look()
        looks.close()
    ends = {(one.local, one.remote) for one in looks.connections()}
    assert len(ends) == 2
    assert {(remote, local) for local, remote in ends} == ends


def test_one_costly_look_is_not_taken_for_what_looks_cost(monkeypatch):
    dear = iter([0.0, 0.0, 0.06, 0.0, 0.06, 0.06, 0.06])

    def dump(ports=()):
        until = time.thread_time() + next(dear)
        while time.thread_time() < until:
            pass
        return dump_table(ports)

    monkeypatch.setattr(room, "dump_table", dump)
    looks = SocketAccount([1], set, own=OwnSockets())
    costs = []
    for _ in range(7):
        looks.look()
        costs.append(looks.look_cost_s)
    looks.close()
    assert max(costs[:6]) < 0.06 <= costs[6]


def test_a_port_with_nothing_but_time_wait_left_does_not_look_like_a_kernel_that_counts_nothing(monkeypatch):
    with connected() as (port, client, server):
        client.close()  # the end that closes first keeps TIME_WAIT
        server.close()
    monkeypatch.setattr(room, "dump_table", lambda ports=(): dump_table((port,)))
    with contextlib.closing(SocketAccount([port], set, own=OwnSockets())) as account:
        account.look()
        assert account.n_time_wait == 1
        assert account.counted
