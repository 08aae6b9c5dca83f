"""A directory → the reference stack in it, as a team would have written it: one start script a service, and a stack file."""

import contextlib
import os
import random
import re
import shlex
import shutil
import socket
import sys
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from vindicate.errors import CannotError, MisuseError

__all__ = ["DEVICES", "KNOB", "ROUTERS", "write_reference_stack"]

KNOB: Final = "SGLANG_SM120_MMA_TARGET_CTAS"
ROUTERS: Final = ("builtin", "sglang-router", "smg")
DEVICES: Final = ("simulated:rtx-pro-6000", "simulated:h200", "cpu")
_HOST: Final = "127.0.0.1"
_MARK: Final = "# Written by: vindicate stack init --reference"
# Below the range from which the kernel takes ports for outgoing connections, so that none of those gets in the way.
_PORTS: Final = range(20_000, 32_000)
_KNOB_VALUE: Final = re.compile(r"[A-Za-z0-9_.,:/@%+=-]*")


def write_reference_stack(
    directory: Path,
    *,
    device: str = "simulated:rtx-pro-6000",
    knob_value: str | None = "256",
    router: str = "builtin",
    proxy: bool = False,
    proxy_fault: str = "proxy.connector_starvation",
) -> Path:
    """Write start scripts for prefill, decode and router, and a stack file that declares them; nothing is started.

    Args:
        directory: Made when it is not there. Files of an earlier stack are replaced, other people's files never.
        knob_value: What the decode script exports as `KNOB`; `None` leaves the line out.
        router: One of `ROUTERS`; all but ``builtin`` are programs of others, found beside this Python or on the PATH.
        proxy: Put a proxy of the rehearsal kind, with *proxy_fault*, in front, and make it the entry.

    Returns:
        The stack file.

    Raises:
        MisuseError: An argument cannot be, or a file in the way was not written by this function; nothing was written.
        CannotError: The directory cannot be written, no ports are free, or the device needs what is not installed.
    """
    if device not in DEVICES:
        raise MisuseError(f"there is no device {device!r}", remedy=f"one of: {', '.join(DEVICES)}")
    if device == "cpu" and find_spec("numba") is None:
        raise CannotError(
            "--device cpu compiles its kernel with numba, which is not installed",
            remedy="pip install 'vindicate[cpu]', or take --device simulated:rtx-pro-6000",
        )
    program = _router_program(router)
    if knob_value is not None and not _KNOB_VALUE.fullmatch(knob_value):
        raise MisuseError(f"{knob_value!r} cannot stand unquoted in a script", remedy=f"try: {KNOB}=256")
    ports = dict(zip(("prefill", "bootstrap", "decode", "router", "proxy", "figures"), _free_ports(6), strict=True))
    files = {
        "serve_prefill.sh": _prefill_script(ports, device),
        "serve_decode.sh": _decode_script(ports, device, knob_value),
        "serve_router.sh": _router_script(ports) if program is None else _foreign_router_script(program, ports),
    }
    if proxy:
        files["serve_proxy.sh"] = _proxy_script(ports, proxy_fault)
    files["vindicate.toml"] = _stack_file(ports, device, proxy=proxy, router=router)
    _write(directory, files)
    return directory / "vindicate.toml"


def _router_program(router: str) -> str | None:
    """Where the program of *router* is; ``None`` for our own."""
    if router == "builtin":
        return None
    if router not in ROUTERS:
        raise MisuseError(f"there is no router {router!r}", remedy=f"one of: {', '.join(ROUTERS)}")
    beside = str(Path(sys.executable).parent)
    program = shutil.which(router, path=os.pathsep.join([beside, os.environ.get("PATH", os.defpath)]))
    if program is None:
        raise CannotError(
            f"{router} is not installed: there is none beside this Python and none on the PATH",
            remedy=f"pip install {router}, or take --router builtin",
        )
    return program


def _write(directory: Path, files: Mapping[str, str]) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name in files:
            path = directory / name
            if path.exists() and _MARK not in path.read_text(encoding="utf-8", errors="replace"):
                raise MisuseError(
                    f"{path} is in the way, and was not written by this command; nothing was written",
                    remedy="name an empty directory, or move that file",
                )
        _put_in_place(directory, files)
    except OSError as error:
        raise CannotError(
            f"{error.filename or directory} cannot be written: {error.strerror}", remedy="name a directory that you own"
        ) from error


def _put_in_place(directory: Path, files: Mapping[str, str]) -> None:
    """Write all beside their places first, so that a full disk leaves the earlier stack whole; the stack file comes last."""
    parts: list[tuple[Path, Path]] = []
    try:
        for name, text in files.items():
            part = directory / f".{name}.part"
            parts.append((part, directory / name))
            part.write_text(text, encoding="utf-8")
            part.chmod(0o755 if name.endswith(".sh") else 0o644)
        for part, path in parts:
            part.replace(path)
    finally:
        for part, _ in parts:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)


def _free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now; taken at random, so that two stacks written at once hardly meet."""
    free: list[int] = []
    for port in random.SystemRandom().sample(_PORTS, 500):
        with socket.socket() as probe:
            try:
                probe.bind((_HOST, port))
            except OSError:
                continue
        free.append(port)
        if len(free) == count:
            return free
    raise CannotError(
        f"no {count} free ports between {_PORTS.start} and {_PORTS.stop}", remedy="see what listens: ss -ltn"
    )


def _script(about: str, settings: Iterable[str], module: str | None, arguments: Iterable[str]) -> str:
    """A start script: comments, settings, and an `exec`, so that the service is the script's own process.

    Args:
        module: Of ours; ``None`` runs the router that the settings name.
    """
    command = " \\\n  ".join(['exec "$ROUTER" launch' if module is None else f'exec "$PYTHON" -m {module}', *arguments])
    return "\n".join(
        [
            "#!/usr/bin/env bash",
            _MARK,
            *(f"# {line}" for line in about.splitlines()),
            "set -euo pipefail",
            "",
            *([] if module is None else [f"PYTHON={shlex.quote(sys.executable)}", ""]),
            *settings,
            command,
            "",
        ]
    )


def _cards(device: str, numbers: str) -> list[str]:
    if device == "cpu":
        return []
    return [
        "# The cards are simulated; on a real host this line would choose them.",
        f"export CUDA_VISIBLE_DEVICES={numbers}",
        "",
    ]


def _prefill_script(ports: Mapping[str, int], device: str) -> str:
    return _script(
        "Prefill: computes the KV of prompts, and hands it to decode over the bootstrap port.",
        _cards(device, "0,1,2,3"),
        "vindicate.reference prefill",
        [
            f"--host {_HOST}",
            f"--port {ports['prefill']}",
            f"--bootstrap-port {ports['bootstrap']}",
            f"--device {device}",
            "--log-requests",
        ],
    )


def _decode_script(ports: Mapping[str, int], device: str, knob_value: str | None) -> str:
    knob = [] if knob_value is None else [f"export {KNOB}={knob_value}"]
    return _script(
        "Decode: pulls the KV from prefill, and generates.",
        [
            *_cards(device, "4,5,6,7"),
            "# How many thread blocks the split-K decode kernel aims for; the engine takes 256 when this is unset.",
            *knob,
            "",
        ],
        "vindicate.reference decode",
        [f"--host {_HOST}", f"--port {ports['decode']}", f"--device {device}", "--log-requests"],
    )


def _router_script(ports: Mapping[str, int]) -> str:
    return _script(
        "Router: sends every request to prefill and decode at once, and relays decode's answer.",
        [],
        "vindicate.reference router",
        [
            f"--host {_HOST}",
            f"--port {ports['router']}",
            f"--prefill http://{_HOST}:{ports['prefill']} {ports['bootstrap']}",
            f"--decode http://{_HOST}:{ports['decode']}",
        ],
    )


def _foreign_router_script(program: str, ports: Mapping[str, int]) -> str:
    """The flags that sglang-router 0.3 and smg 1.13 share; both look for their workers every second, so that the stack is soon ready."""
    return _script(
        "Router: a program of others, which sends every request to prefill and decode at once.",
        [f"ROUTER={shlex.quote(program)}", ""],
        None,
        [
            f"--host {_HOST}",
            f"--port {ports['router']}",
            "--pd-disaggregation",
            f"--prefill http://{_HOST}:{ports['prefill']} {ports['bootstrap']}",
            f"--decode http://{_HOST}:{ports['decode']}",
            "--policy round_robin",
            f"--prometheus-host {_HOST}",
            f"--prometheus-port {ports['figures']}",
            "--worker-startup-check-interval 1",
            "--health-check-interval-secs 5",
        ],
    )


def _proxy_script(ports: Mapping[str, int], fault: str) -> str:
    return _script(
        "Proxy: what the clients call; it stands for the one that the users run themselves.",
        [],
        "vindicate rehearse proxy",
        [
            f"--listen {_HOST}:{ports['proxy']}",
            f"--upstream http://{_HOST}:{ports['router']}",
            f"--fault {shlex.quote(fault)}",
        ],
    )


def _stack_file(ports: Mapping[str, int], device: str, *, proxy: bool, router: str) -> str:
    entry = "proxy" if proxy else "router"
    front = _PROXY_TABLE.format(host=_HOST, **ports) if proxy else ""
    clients = _CLIENT_TABLE if proxy else ""
    on_cpu = device == "cpu"
    cards = ("", "") if on_cpu else ("gpus           = [0, 1, 2, 3]\n", "gpus         = [4, 5, 6, 7]\n")
    return f"{_MARK}\n" + _STACK_FILE.format(
        host=_HOST,
        on="this machine's CPU" if on_cpu else "simulated cards",
        prefill_cards=cards[0],
        decode_cards=cards[1],
        entry=entry,
        entry_port=ports[entry],
        front=front,
        clients=clients,
        knob=KNOB,
        engine="reference" if router == "builtin" else router,
        page="" if router == "builtin" else f'metrics  = "http://{_HOST}:{ports["figures"]}/metrics"\n',
        **ports,
    )


_STACK_FILE: Final = """\
# The reference stack: prefill, decode and router as real processes on {on}.
# Start it: vindicate stack up        Ask it: curl http://{host}:{entry_port}/v1/models

[stack]
name  = "reference"
entry = "{entry}"                        # the service that clients call
{front}
[services.router]
role     = "router"
engine   = "{engine}"
url      = "http://{host}:{router}"
{page}upstream = ["prefill", "decode"]
launcher = {{ kind = "script", file = "serve_router.sh", log = "router.log" }}

[services.prefill]
role           = "prefill"
engine         = "reference"
url            = "http://{host}:{prefill}"
bootstrap_port = {bootstrap}                # where decode pulls the KV
{prefill_cards}launcher       = {{ kind = "script", file = "serve_prefill.sh", log = "prefill.log" }}
restart_with   = ["decode"]              # the two hold each other's connections: never one without the other

[services.decode]
role         = "decode"
engine       = "reference"
url          = "http://{host}:{decode}"
{decode_cards}launcher     = {{ kind = "script", file = "serve_decode.sh", log = "decode.log" }}
restart_with = ["prefill"]

[knobs.{knob}]
services = ["decode"]                    # every service that must hold the same value
kind     = "env"
default  = "256"                         # what the engine takes when it is unset
{clients}"""

_PROXY_TABLE: Final = """
[services.proxy]
role     = "proxy"
engine   = "generic"
url      = "http://{host}:{proxy}"
upstream = ["router"]
launcher = {{ kind = "script", file = "serve_proxy.sh", log = "proxy.log" }}
"""

_CLIENT_TABLE: Final = """
[clients.harness]
match = "vindicate load"                 # processes whose command line holds this
"""
