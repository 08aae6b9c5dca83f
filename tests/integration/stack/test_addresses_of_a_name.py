"""A name with several addresses is reached at the one where somebody listens."""

import asyncio
import socket

import pytest

from vindicate.stack import http


async def _ask(port):
    return await http.exchange(f"http://somewhere.test:{port}/", deadline_s=5)


async def _answered(found, monkeypatch):
    async def serve(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        await writer.drain()
        writer.close()

    def known(_host, port, *_):
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in found]

    monkeypatch.setattr(http, "getaddrinfo", known)
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        return await _ask(server.sockets[0].getsockname()[1])


def test_tries_the_second_address_when_nobody_listens_at_the_first(monkeypatch):
    done = asyncio.run(_answered(["127.0.0.9", "127.0.0.1"], monkeypatch))
    assert (done.error, done.status, done.body) == (None, 200, b"ok")


@pytest.mark.parametrize("found", [["127.0.0.9"], ["127.0.0.9", "127.0.0.8"]])
def test_says_refused_when_nobody_listens_at_any(found, monkeypatch):
    assert asyncio.run(_answered(found, monkeypatch)).error == "refused"
