"""Writes a stack of tiny real services into a folder, for tests of operate."""

import socket
import sys
from pathlib import Path

from vindicate.stack.file import read_stack

SERVICE = Path(__file__).with_name("service.py")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def write_small_stack(
    folder: Path,
    *,
    value: str | None = "256",
    worker: str = "",
    front: str = "",
    execs: bool = True,
    entry: str = "front",
    before: str = "",
    knobs: str = "",
):
    """`front` calls `worker` and `helper`; `worker` holds KNOB and restarts together with `helper`.

    knobs: more of the stack file. worker, front: more arguments for those services. before: a line before the worker's start; `other.sh` sets KNOB=999.
    """
    folder.mkdir(parents=True, exist_ok=True)
    ports = {name: free_port() for name in ("helper", "worker", "front")}
    export = f"export KNOB={value}\n" if value is not None else ""
    extra = {"helper": "", "worker": worker, "front": front}
    (folder / "other.sh").write_text("export KNOB=999\n")
    for name, port in ports.items():
        start = f"{'exec ' if execs else ''}{sys.executable} {SERVICE} {port} {extra[name]}\n"
        (folder / f"{name}.sh").write_text(
            f"#!/bin/bash\n# starts {name}\nset -e\n\nexport OTHER='left alone'  # kept\n{export + before if name == 'worker' else ''}\n{start}"
        )
    (folder / "vindicate.toml").write_text(
        '[stack]\nname = "small"\nentry = "'
        + entry
        + '"\n'
        + "".join(
            f'[services.{name}]\nrole = "{role}"\nurl = "http://127.0.0.1:{ports[name]}"\n'
            f'launcher = {{ kind = "script", file = "{name}.sh", log = "{name}.log" }}\n{more}\n'
            for name, role, more in (
                ("front", "router", 'upstream = ["worker", "helper"]'),
                ("worker", "engine", 'restart_with = ["helper"]'),
                ("helper", "prefill", ""),
            )
        )
        + '[knobs.KNOB]\nservices = ["worker"]\ndefault = "256"\n'
        + knobs
    )
    return read_stack(folder / "vindicate.toml")
