"""Writes the small stack with its worker kept by systemd, docker or compose, or started by a person; see keeper.py."""

import json
import os
import sys

from fakes import keeper
from fakes.small_stack import SERVICE, free_port, write_small_stack
from vindicate.stack.file import read_stack


class KeptStack:
    """*kind*: systemd | docker | docker-run | docker-attached | compose | none; *worker*: more arguments for it."""

    def __init__(self, folder, monkeypatch, kind, *, worker="", unit="", before=()):
        self.home = folder / "keeper"
        keeper.install(folder / "bin", self.home)
        monkeypatch.setenv("PATH", f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}")
        stack = write_small_stack(folder / "stack", entry="worker")
        port = stack.service("worker").port
        self.argv = [
            sys.executable,
            str(SERVICE),
            str(free_port() if kind == "docker-bridge" else port),
            *worker.split(),
        ]
        self.ports = port, int(self.argv[2])
        launcher = getattr(self, f"_{kind.replace('-', '_')}")(folder / "stack", unit, before)
        text = stack.file.read_text().replace('{ kind = "script", file = "worker.sh", log = "worker.log" }', launcher)
        stack.file.write_text(text)
        self.stack = read_stack(stack.file)
        self.file = stack.file

    def calls(self, program=None):
        return keeper.calls(self.home, program)

    def _systemd(self, _folder, unit, before):
        self.unit = self.home / "system" / "small-worker.service"
        self.unit.write_text(
            f'[Unit]\nDescription=worker\n\n[Service]\nEnvironment=OTHER=x "KNOB=256"\nExecStart={" ".join(self.argv)}\n{unit}'
        )
        for name, text in before:
            (self.home / "system" / "small-worker.service.d").mkdir(exist_ok=True)
            (self.home / "system" / "small-worker.service.d" / name).write_text(text)
        self.drop_in = self.home / "system" / "small-worker.service.d" / "vindicate-KNOB.conf"
        return '{ kind = "systemd", unit = "small-worker" }'

    def _run_script(self, folder, options):
        (folder / "run.sh").write_text(
            f"#!/bin/bash\nset -e\ndocker run {options} --name small -e KNOB=256 image {' '.join(self.argv)}\n"
        )
        return '{ kind = "docker", container = "small", file = "run.sh" }'

    def _docker(self, folder, *_):
        (self.home / "kept" / "small.json").write_text(
            json.dumps(
                {
                    "argv": self.argv,
                    "env": {"KNOB": "256"},
                    "rm": False,
                    "pid": 0,
                    "code": 0,
                    "stopping": True,
                    "restarts": 0,
                }
            )
        )
        return '{ kind = "docker", container = "small" }'

    def _docker_run(self, folder, *_):
        return self._run_script(folder, "-d")

    def _docker_bridge(self, folder, *_):  # the service's port is held by a forwarder, not by the container
        return self._run_script(folder, "-d")

    def _docker_attached(self, folder, *_):
        return self._run_script(folder, "--rm")

    def _compose(self, folder, *_):
        service = {"image": "image", "command": self.argv, "environment": {"KNOB": "256"}}
        (folder / "compose.yaml").write_text(json.dumps({"services": {"web": service}}))
        return '{ kind = "compose", file = "compose.yaml", container = "web" }'

    def _none(self, *_):
        return '{ kind = "none" }'
