"""A service → whether it is well: what its health path answers, and who holds its port."""

import asyncio
import http
import socket
from dataclasses import dataclass

import psutil

from vindicate.clock import Clock, SystemClock
from vindicate.redact import redact_argv
from vindicate.stack.http import exchange
from vindicate.stack.model import Service
from vindicate.stack.process import is_local, listening_pids

__all__ = ["PATIENT_S", "Health", "check_health", "describe_pid", "place_of", "port_is_taken", "wait_for_health"]

# SGLang's /health generates a token: it takes a second when idle, and up to 20 under load. Nothing is stopped, undone or
# restarted because of an answer that is merely slower than the 2 s that a look at the stack waits.
PATIENT_S = 20.0
_SILENT = ("connect_timeout", "no_headers", "no_first_byte", "stalled")


@dataclass(frozen=True, slots=True)
class Health:
    """*good* when the health path answered 200; *detail* says what came instead."""

    good: bool
    detail: str


def check_health(service: Service, *, timeout_s: float = 2.0) -> Health:
    """Ask the health path once. Only the status counts; the body is not read. Not to be called inside an event loop."""
    url = service.url + service.health
    answer = asyncio.run(exchange(url, deadline_s=timeout_s, headers=service.auth(), on_body=lambda _at, _piece: True))
    if answer.status is not None:
        return Health(good=answer.status == http.HTTPStatus.OK, detail=f"{service.health} answers {answer.status}")
    if answer.error == "refused":
        return Health(good=False, detail="refuses connections")
    if answer.error in _SILENT:
        return Health(good=False, detail=f"{service.health} gave no answer in {timeout_s:g} s")
    return Health(good=False, detail=f"{service.health} gave no HTTP answer ({answer.error})")


def wait_for_health(service: Service, *, within_s: float, clock: Clock | None = None) -> Health:
    """Ask until it is well, nobody listens there any more, or the time is over: one missed answer is no dead service."""
    clock = clock or SystemClock()
    deadline = clock.monotonic() + within_s
    while True:
        left_s = deadline - clock.monotonic()
        health = check_health(service, timeout_s=max(0.1, min(PATIENT_S, left_s)))
        gone = is_local(service.host) and not health.good and not port_is_taken(service)[0]
        if health.good or gone or clock.monotonic() >= deadline:
            return health
        clock.sleep(0.25)


def port_is_taken(service: Service) -> tuple[bool, tuple[int, ...]]:
    """Whether something listens on the service's port here, and the pids that can be seen to hold it."""
    if not is_local(service.host):
        return False, ()
    holders = listening_pids(service.port)
    if holders:
        return True, holders
    try:
        socket.create_connection((service.host, service.port), timeout=1.0).close()
    except OSError:
        return False, ()
    return True, ()


def describe_pid(pid: int) -> str:
    """``pid 4711 (python -m http.server)``, redacted and short."""
    try:
        command = " ".join(redact_argv(psutil.Process(pid).cmdline()))[:80]
    except psutil.Error:
        command = "gone"
    return f"pid {pid} ({command})"


def place_of(pid: int) -> str:
    """``pid 4711, in tmux``: where a person who looks for it would find it, as far as its ancestors tell."""
    try:
        above = [parent.name() for parent in psutil.Process(pid).parents()]
    except psutil.Error:
        above = []
    terminal = next(
        (word for name in above for word in ("tmux", "screen", "sshd") if name.lower().startswith(word)), None
    )
    return f"pid {pid}, in {terminal}" if terminal else f"pid {pid}"
