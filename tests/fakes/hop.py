"""A small HTTP relay with blocking sockets and habits from a file: `hop.py FILE`, a JSON object with listen, upstream, and

`idle_s`: close a caller's connection that was idle for so long; `trust`: use pooled upstream connections without a look.
It always reads an upstream answer to its end, whoever has left.
"""

import contextlib
import json
import socket
import socketserver
import sys
import threading
import time


def read_head(file):
    """First line and headers; an empty line when the peer has closed."""
    first = file.readline()
    headers = {}
    while (line := file.readline()).strip():
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.lower()] = value.strip()
    return first, headers


class Upstream:
    """One connection to the service above which nothing is known but its address."""

    def __init__(self, address):
        self.socket = socket.create_connection(address, timeout=60)
        self.file = self.socket.makefile("rb")

    def ask(self, first, body):
        self.socket.sendall(first + b"Host: up\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    def answer(self):
        """Pieces of the answer as they come, framed as they are; the first one is the head."""
        first, headers = read_head(self.file)
        if not first:
            raise ConnectionError("closed")
        lines = [first, *(f"{k}: {v}\r\n".encode() for k, v in headers.items()), b"\r\n"]
        yield b"".join(lines)
        if headers.get("transfer-encoding") == "chunked":
            while True:
                size = self.file.readline()
                if not size:
                    raise ConnectionError("cut")
                yield size + self.file.read(int(size, 16) + 2)
                if int(size, 16) == 0:
                    return
        else:
            yield self.file.read(int(headers.get("content-length", 0)))

    def close(self):
        self.file.close()
        self.socket.close()


class Hop(socketserver.ThreadingTCPServer):
    daemon_threads = allow_reuse_address = True
    request_queue_size = 64

    def __init__(self, habits):
        self.habits = habits
        self.pool = []
        self.lock = threading.Lock()
        super().__init__(tuple(habits["listen"]), Caller)


class Caller(socketserver.StreamRequestHandler):
    def handle(self):
        habits = self.server.habits
        with contextlib.suppress(OSError):
            while True:
                self.connection.settimeout(habits.get("idle_s"))
                first, headers = read_head(self.rfile)
                if not first:
                    return
                body = self.rfile.read(int(headers.get("content-length", 0)))
                self.connection.settimeout(None)
                self.relay(first, body)

    def relay(self, first, body):
        server, trust = self.server, self.server.habits.get("trust")
        with server.lock:
            up = server.pool.pop() if trust and server.pool else None
        started = False
        try:
            up = up or Upstream(tuple(server.habits["upstream"]))
            up.ask(first, body)
            for piece in up.answer():
                started = True
                with contextlib.suppress(
                    OSError
                ):  # the caller may have left; the answer is read to its end all the same
                    self.wfile.write(piece)
        except OSError:
            if up is not None:
                up.close()
            if started:
                raise
            text = b'{"error": "bad gateway"}'
            self.wfile.write(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: %d\r\n\r\n" % len(text) + text)
            return
        if trust:
            with server.lock:
                server.pool.append(up)
        else:
            up.close()


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        wanted = json.load(file)
    hop = Hop(wanted)
    threading.Thread(target=hop.serve_forever, daemon=True).start()
    time.sleep(wanted.get("lifetime_s", 120))
