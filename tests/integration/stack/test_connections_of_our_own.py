"""Connections that we open are known as ours from the first packet, and a TLS handshake that fails says so."""

import asyncio
import contextlib
import socket
import threading

import pytest

from vindicate.stack.http import OwnSockets, exchange
from vindicate.stack.sockets import dump_sockets


@contextlib.contextmanager
def accepting(answer=b""):
    """A plain TCP server that reads once, answers *answer* and then waits."""
    taken = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve():
            with contextlib.suppress(OSError):
                while True:
                    one = listener.accept()[0]
                    taken.append(one)
                    if answer and one.recv(4096):
                        one.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        yield listener.getsockname()[1]
        for one in taken:
            one.close()


async def ours_while_waiting(port, url):
    own = OwnSockets()
    task = asyncio.create_task(exchange(url, deadline_s=2.0, own=own))
    pairs = []
    while not pairs:
        await asyncio.sleep(0.01)
        assert not task.done()
        pairs = [(one.local, one.remote) for one in dump_sockets([port]) if one.state in ("ESTABLISHED", "SYN_SENT")]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return [pair in own for pair in pairs]


def test_a_connection_whose_handshake_hangs_is_ours():
    with accepting() as port:
        assert all(asyncio.run(ours_while_waiting(port, f"https://127.0.0.1:{port}/")))


def test_a_connection_that_is_not_made_yet_is_ours():
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        port = full.getsockname()[1]
        held = [socket.socket() for _ in range(3)]
        for one in held:
            one.setblocking(False)
            one.connect_ex(("127.0.0.1", port))
        own = OwnSockets()

        async def knock():
            task = asyncio.create_task(exchange(f"http://127.0.0.1:{port}/", deadline_s=2.0, own=own))
            await asyncio.sleep(0.1)  # the queue is full: it stays in SYN_SENT, however long one waits
            mine = {one.getsockname()[1] for one in held}
            new = [one for one in dump_sockets([port]) if one.state == "SYN_SENT" and one.local.port not in mine]
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            return new

        assert [(one.local, one.remote) in own for one in asyncio.run(knock())] == [True]
        for one in held:
            one.close()


@pytest.mark.parametrize(
    ("answer", "error"), [(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", "tls"), (b"", "tls_timeout")]
)
def test_https_to_a_plain_port_fails_in_the_handshake(answer, error):
    with accepting(answer) as port:
        done = asyncio.run(exchange(f"https://127.0.0.1:{port}/", deadline_s=0.4))
    assert (done.error, done.status) == (error, None)
