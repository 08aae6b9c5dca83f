"""A client with habits from a file: `agents.py FILE`, a JSON object with url, habit and its numbers. Blocking sockets, so that each step is sure.

Habits: `reads` (all), `ignores` (asks, never reads), `sips` (reads a little now and then), `sleeps` (swallows the end of a stream and
goes on waiting), `parks` (closes its connections and waits for a slot for ever), `keeps` (an idle pool that does not look),
`turns` (growing history, thinks between turns), `leaves` (gives up after limit_s, asks something else), `insists` (the same again).
"""

import contextlib
import json
import random
import socket
import sys
import threading
import time
from urllib.parse import urlsplit


class Agent:
    def __init__(self, plan):
        self.plan = plan
        self.where = urlsplit(plan["url"])
        self.history = []

    def connect(self):
        return socket.create_connection((self.where.hostname, self.where.port))

    def ask(self, one, *, words=30, text=None, tokens=None):
        self.history.append(
            {"role": "user", "content": text or " ".join(f"w{random.randrange(10**6)}" for _ in range(words))}
        )
        asked = {
            "model": "any",
            "messages": self.history,
            "stream": True,
            "max_tokens": tokens or self.plan.get("tokens", 16),
            "ignore_eos": True,
        }
        body = json.dumps(asked).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: any\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        one.sendall(head.encode() + body)

    def read(self, one):
        """All of one answer; false when the other side closed before its end."""
        seen = b""
        while not seen.endswith(b"0\r\n\r\n") and b'"error"' not in seen:
            got = one.recv(65536)
            if not got:
                return False
            seen = (seen + got)[-4096:]
        return True

    def reads(self):
        one = self.connect()
        while True:
            self.history.clear()
            self.ask(one)
            if not self.read(one):
                one = self.connect()
            time.sleep(self.plan.get("pause_s", 0))

    def ignores(self):
        one = self.connect()
        self.ask(one)
        time.sleep(3600)

    def sips(self):
        one = self.connect()
        self.ask(one)
        while one.recv(self.plan.get("sip", 400)):
            time.sleep(0.5)
        time.sleep(3600)

    def sleeps(self):
        one = self.connect()
        self.ask(one)
        self.read(one)
        threading.Event().wait()  # a queue that nobody will fill

    def parks(self):
        one = self.connect()
        self.ask(one)
        self.read(one)
        one.close()
        threading.Semaphore(0).acquire()

    def keeps(self):
        one = self.connect()
        self.ask(one)
        self.read(one)
        threading.Event().wait()
        one.close()

    def turns(self):
        one = self.connect()
        while True:
            self.ask(one)
            if not self.read(one):
                one = self.connect()
            self.history.append({"role": "assistant", "content": "yes " * 20})
            time.sleep(random.uniform(2, 8))

    def leaves(self, text=None):
        while True:
            self.history.clear()
            with contextlib.suppress(OSError), self.connect() as one:
                one.settimeout(self.plan["limit_s"])
                self.ask(one, words=random.randrange(20, 90), text=text)
                self.read(one)
            time.sleep(0.3)

    def insists(self):
        self.leaves(" ".join(f"w{random.randrange(10**6)}" for _ in range(50)))


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        wanted = json.load(file)
    for _ in range(wanted.get("n", 4)):
        threading.Thread(target=getattr(Agent(wanted), wanted["habit"]), daemon=True).start()
    time.sleep(120)
