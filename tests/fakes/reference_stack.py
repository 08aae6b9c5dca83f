"""Starts prefill, decode and router as real processes for a test, and asks them."""

import asyncio
import contextlib
import json
import os
import random
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
from prometheus_client.parser import text_string_to_metric_families


@dataclass
class RunningStack:
    host: str
    ports: dict[str, int]
    processes: dict[str, subprocess.Popen]
    logs: Path

    def url(self, name: str) -> str:
        return f"http://{self.host}:{self.ports[name]}"

    def bootstrap(self, room: int, *, port: int | None = None) -> dict:
        return {"bootstrap_host": self.host, "bootstrap_port": port or self.ports["bootstrap"], "bootstrap_room": room}


@contextlib.contextmanager
def running_stack(logs: Path, *, env: dict | None = None, speed: float = 10, **options: list[str]):
    """Three processes, ready to serve; *options* are extra arguments by role. All are gone afterwards."""
    ports = free_ports("prefill", "bootstrap", "decode", "router")
    arguments = {
        "prefill": ["--bootstrap-port", str(ports["bootstrap"])],
        "decode": [],
        "router": [
            "--prefill", f"http://127.0.0.1:{ports['prefill']}", str(ports["bootstrap"]),
            "--decode", f"http://127.0.0.1:{ports['decode']}",
            "--health-check-interval-secs", "0.2",
        ],
    }  # fmt: skip
    environment = os.environ | {"VINDICATE_REFERENCE_SPEED": str(speed)} | (env or {})
    processes = {
        role: start(role, ports[role], [*words, *options.get(role, [])], logs / f"{role}.log", environment)
        for role, words in arguments.items()
    }
    stack = RunningStack("127.0.0.1", ports, processes, logs)
    try:
        until(lambda: status(stack.url("router") + "/readiness") == 200, "the router is ready")
        yield stack
    finally:
        for process in processes.values():
            process.kill()
        for process in processes.values():
            process.wait(10)


def start(role: str, port: int, words: list[str], log: Path, env: dict | None = None) -> subprocess.Popen:
    argv = [sys.executable, "-m", "vindicate.reference", role, "--port", str(port), *words]
    with log.open("wb") as out:
        return subprocess.Popen(argv, stdout=out, stderr=subprocess.STDOUT, env=env or dict(os.environ))


def free_ports(*names: str) -> dict[str, int]:
    """Ports below the range from which the kernel takes those of outgoing connections, so that none gets in the way."""
    free = []
    for port in random.SystemRandom().sample(range(10_000, 20_000), 200):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            free.append(port)
    return dict(zip(names, free, strict=False))


def until(holds, what: str, seconds: float = 15) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.02)


def get(url: str, headers: dict | None = None) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers or {}), timeout=5) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def status(url: str) -> int | None:
    try:
        return get(url)[0]
    except OSError:
        return None


def metric(url: str, name: str, **labels: str) -> float:
    """The sum of a metric over all label sets that hold *labels*."""
    page = get(url + "/metrics")[1].decode()
    return sum(
        sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


@dataclass
class Answer:
    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    text: str = ""
    n_tokens: int = 0
    finish: str | None = None
    usage: dict | None = None
    error: dict | None = None
    done: bool = False
    ended: bool = False
    body: str = ""


def chat(question: str, *, history: list | None = None, **fields) -> dict:
    messages = [*(history or []), {"role": "user", "content": question}]
    return {"model": "m", "stream": True, "messages": messages, **fields}


async def ask(
    url: str, body: dict, *, headers: dict | None = None, patience: float = 20, path="/v1/chat/completions", answer=None
) -> Answer:
    """Send *body* and read the answer to its end; what had come when *patience* ran out has `ended` false."""
    answer = answer or Answer()
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience), session.post(url + path, json=body, headers=headers) as got:
                answer.status, answer.headers = got.status, got.headers
                async for line in got.content:
                    _read(line.decode(), answer)
                answer.ended = True
    return answer


def ask_now(url: str, body: dict, **options) -> Answer:
    return asyncio.run(ask(url, body, **options))


def _read(line: str, answer: Answer) -> None:
    if not line.startswith("data: "):
        answer.body += line
    elif line.startswith("data: [DONE]"):
        answer.done = True
    else:
        data = json.loads(line[6:])
        answer.error = data.get("error", answer.error)
        answer.usage = data.get("usage") or answer.usage
        for choice in data.get("choices", []):
            text = choice["delta"].get("content", "") if "delta" in choice else choice["text"]
            answer.n_tokens += bool(text)
            answer.text += text
            answer.finish = choice["finish_reason"] or answer.finish
