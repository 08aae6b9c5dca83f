"""A process may end between two looks at it."""

import os

import psutil

from vindicate.stack.model import Service
from vindicate.stack.process import service_pids


def test_a_process_that_ends_while_it_is_looked_at_is_not_there(monkeypatch):
    def gone(process):
        raise psutil.NoSuchProcess(process.pid)

    service = Service(
        name="a",
        role="engine",
        engine="generic",
        url="http://127.0.0.1:1",
        metrics="",
        health="/health",
        pid=os.getpid(),
    )
    assert service_pids(service) == (os.getpid(),)
    monkeypatch.setattr(psutil.Process, "status", gone)
    assert service_pids(service) == ()
