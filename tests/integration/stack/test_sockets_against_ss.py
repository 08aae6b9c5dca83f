"""Our reading of the kernel's sockets, with `ss` and the real byte counts as oracles."""

import os
import re
import shutil
import socket
import subprocess
import time

import pytest

from vindicate.stack import sockets
from vindicate.stack.sockets import EndedSockets, InodeOwners, dump_sockets, has_sock_diag, raw_sockets

pytestmark = pytest.mark.skipif(not has_sock_diag(), reason="the kernel does not answer sock_diag here")


@pytest.fixture(params=["127.0.0.1", "::1"])
def pair(request):
    """A listener and both ends of a connection to it, over each kind of address."""
    family = socket.AF_INET6 if ":" in request.param else socket.AF_INET
    try:
        listener = socket.create_server((request.param, 0), family=family, backlog=7)
    except OSError:
        pytest.skip(f"no {request.param} here")
    client = socket.create_connection(listener.getsockname()[:2])
    server, _ = listener.accept()
    yield listener, client, server
    for one in (client, server, listener):
        one.close()


def rows(port):
    return dump_sockets((port,))


def settled(port):
    """The sockets once everything that was sent is acknowledged; a bare ACK may be delayed by 40 ms."""
    deadline = time.monotonic() + 5
    while any((one.wqueue or one.state == "FIN_WAIT1") and one.state != "LISTEN" for one in rows(port)):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return rows(port)


def end(found, local_port):
    return next(one for one in found if one.local.port == local_port and one.state != "LISTEN")


def test_counts_payload_bytes_exactly_on_both_ends(pair):
    listener, client, server = pair
    client.sendall(b"x" * 1234)
    server.sendall(b"y" * 56)
    assert len(server.recv(1000)) == 1000
    port, away = listener.getsockname()[1], client.getsockname()[1]
    found = settled(port)
    ours, theirs = end(found, away), end(found, port)
    assert (ours.tx, ours.rx, ours.rqueue) == (1234, 56, 56)
    assert (theirs.rx, theirs.tx, theirs.rqueue) == (1234, 56, 234)
    assert ours.state == "ESTABLISHED"
    assert ours.local.host in ("127.0.0.1", "::1")


def test_neither_syn_nor_fin_is_counted_as_a_byte(pair):
    listener, client, server = pair
    client.sendall(b"x" * 10)
    server.sendall(b"y" * 20)
    server.recv(10)
    client.shutdown(socket.SHUT_WR)
    found = settled(listener.getsockname()[1])
    ours, theirs = end(found, client.getsockname()[1]), end(found, listener.getsockname()[1])
    assert (ours.state, theirs.state) == ("FIN_WAIT2", "CLOSE_WAIT")
    assert (ours.tx, ours.rx, theirs.rx, theirs.tx) == (10, 20, 10, 20)


def test_a_listener_shows_its_accept_queue_and_its_backlog(pair):
    listener, _, _ = pair
    waiting = [socket.create_connection(listener.getsockname()[:2]) for _ in range(3)]
    found = next(one for one in rows(listener.getsockname()[1]) if one.state == "LISTEN")
    assert (found.rqueue, found.wqueue) == (3, 7)
    for one in waiting:
        one.close()


@pytest.mark.skipif(shutil.which("ss") is None, reason="no ss here")
def test_agrees_with_ss_on_bytes_queues_and_inodes(pair):
    listener, client, server = pair
    client.sendall(b"a" * 5000)
    server.sendall(b"b" * 300)
    server.recv(100)
    port = listener.getsockname()[1]
    settled(port)
    text = subprocess.run(
        ["ss", "-tinaeHO", f"sport = :{port} or dport = :{port}"], capture_output=True, text=True, check=True
    ).stdout
    seen = {}
    for line in text.splitlines():
        words = line.split()
        if words[0] == "ESTAB":
            inode, received = re.search(r"ino:(\d+)", line)[1], re.search(r"bytes_received:(\d+)", line)
            seen[int(inode)] = (
                int(words[1]),
                int(words[2]),
                int(received[1]),
                int(re.search(r"bytes_sent:(\d+)", line)[1]),
            )
    ours = {one.inode: (one.rqueue, one.wqueue, one.rx, one.tx) for one in rows(port) if one.state == "ESTABLISHED"}
    assert len(ours) == 2
    assert ours == seen


def test_without_the_filter_the_same_sockets_are_there(pair):
    listener, _, _ = pair
    port = listener.getsockname()[1]
    every = [one for one in dump_sockets() if port in (one.local.port, one.remote.port)]
    assert sorted(every, key=lambda one: one.inode) == sorted(rows(port), key=lambda one: one.inode)


def test_proc_gives_the_same_ends_and_queues_and_says_that_it_knows_no_bytes(pair):
    listener, client, _ = pair
    client.sendall(b"z" * 42)
    port = listener.getsockname()[1]
    plain = [one for one in raw_sockets(sockets._proc_table()) if port in (one.local.port, one.remote.port)]
    exact = rows(port)
    shape = lambda one: (one.state, one.local, one.remote, one.inode, one.uid)  # noqa: E731
    assert sorted(map(shape, plain), key=str) == sorted(map(shape, exact), key=str)
    assert {(one.rx, one.tx) for one in plain} == {(None, None)}
    assert end(plain, port).rqueue == 42


def test_finds_who_holds_a_socket_and_looks_only_for_new_ones(pair, monkeypatch):
    _, client, server = pair
    inodes = {os.fstat(one.fileno()).st_ino for one in (client, server)}
    owners = InodeOwners()
    owners.resolve(inodes)
    assert {owners[inode] for inode in inodes} == {(os.getpid(),)}
    monkeypatch.setattr(os, "listdir", lambda _: pytest.fail("looked again for what is known"))
    owners.resolve(inodes)
    assert owners[1] == ()


def test_the_kernel_tells_the_last_counters_of_a_connection_that_lived_between_two_looks(pair):
    listener, _, _ = pair
    ended = EndedSockets()
    if not ended.open:
        pytest.skip("the kernel does not let this user listen for ended sockets")
    client = socket.create_connection(listener.getsockname()[:2])
    server, _ = listener.accept()
    away = client.getsockname()[1]
    client.sendall(b"q" * 700)
    server.recv(700)
    server.sendall(b"r" * 80)
    client.recv(80)
    client.close()
    server.close()
    wanted = {away, listener.getsockname()[1]}
    found, deadline = {}, time.monotonic() + 5
    while set(found) != wanted and time.monotonic() < deadline:  # the notice is written a moment after the end
        drained = raw_sockets(ended.drain())
        found |= {one.local.port: one for one in drained if away in (one.local.port, one.remote.port)}
    assert set(found) == wanted
    assert found[away].tx == 700
    ended.close()
    assert len(ended.drain()) == 0
