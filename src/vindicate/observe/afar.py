"""Other hosts, named by their ssh destination → one Capture each of the same window, without installing anything there.

`sampler` is sent to ``python3 -`` over ssh. It answers with the kernel's own bytes, which are decoded here. Its clock is set
against ours by the quickest of its lines: it can seem late by as long as that one took, a fraction of a millisecond to some.
"""

import base64
import contextlib
import json
import shlex
import subprocess
import tempfile
import threading
import time
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from importlib import resources
from pathlib import Path
from typing import IO, Any

from vindicate.errors import MisuseError
from vindicate.observe.account import SocketAccount
from vindicate.observe.capture_file import without_secrets
from vindicate.record.observation import Address, Capture, Listener, ProcessFacts, ProcessSample
from vindicate.redact import redact_text
from vindicate.stack.http import OwnSockets
from vindicate.stack.namespaces import namespace_of
from vindicate.stack.sockets import EndedSockets, InodeOwners, table_of_proc
from vindicate.wire.sockdiag import AF_INET, AF_INET6, DumpReader, SockDiagError, SocketTable, joined, request

__all__ = ["LATE_S", "Afar", "seen_from_afar"]

_STEP_S, LATE_S = 0.25, 3.0  # LATE_S: how long after the window the last lines may take
_MOST_LINE, _MOST_BYTES = 32_000_000, 512_000_000


class _ToldOwners(InodeOwners):
    """Holders as the other host told them."""

    def tell(self, holders: Mapping[str, Sequence[int]]) -> None:
        self._owners.update({int(inode): tuple(pids) for inode, pids in holders.items()})

    def resolve(self, inodes: Iterable[int]) -> None:
        """Nothing more is known than was told."""

    def resolve_among(self, inodes: Iterable[int], pids: set[int]) -> None:
        """Nothing more is known than was told."""


@dataclass(slots=True)
class _Told:
    """The look that is being taken in; what `SocketAccount` reads in place of our own kernel."""

    table: SocketTable | None = None
    ended: EndedSockets = field(default_factory=EndedSockets)

    def dump(self, ports: Iterable[int] = ()) -> SocketTable:
        """The sockets of that look."""
        del ports
        assert self.table is not None
        return self.table


class Afar:
    """One other host: started with `start`, read to the end with `wait`; its lines with our time of their arrival are in *lines*."""

    def __init__(self, destination: str, *, ssh: str, window_s: float, ports: Iterable[int]) -> None:
        if destination.startswith("-") or not destination.strip() or any(sign.isspace() for sign in destination):
            raise MisuseError(f"--host {destination!r} is no ssh destination", remedy="try: --host user@name")
        self.destination = destination
        self.name = destination.rpartition("@")[2]
        self.ports = tuple(sorted(set(ports)))
        self.window_s = window_s
        self.lines: list[tuple[float, dict[str, Any]]] = []
        self.problem = ""
        self.command = [*shlex.split(ssh), "-o", "BatchMode=yes", "-o", "ConnectTimeout=5", destination, "python3 -"]
        self._errors: IO[bytes] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._reader = threading.Thread(target=self._read, name=f"afar {self.name}", daemon=True)

    def start(self) -> None:
        """Begin to look there.

        Raises:
            MisuseError: There is no such ssh program.
        """
        errors = tempfile.TemporaryFile()  # noqa: SIM115 closed in `wait`
        try:
            self._process = subprocess.Popen(
                self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, start_new_session=True
            )
        except OSError as error:
            errors.close()
            raise MisuseError(
                f"{self.command[0]}: cannot be run: {error.strerror}",
                remedy="install ssh, or name another program with --ssh",
            ) from error
        self._errors = errors
        self._reader.start()

    def _read(self) -> None:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        families = (AF_INET, AF_INET6)
        told = {
            "requests": [base64.b64encode(request(family, ports=self.ports)).decode() for family in families],
            "plain": [base64.b64encode(request(family)).decode() for family in families],
            "window_s": self.window_s,
            "step_s": _STEP_S,
        }
        script = resources.files("vindicate.observe").joinpath("sampler.py").read_bytes()
        with contextlib.suppress(OSError):
            process.stdin.write(f"TOLD = {told!r}\n".encode() + script)
        with contextlib.suppress(OSError):
            process.stdin.close()
        total = 0
        while line := process.stdout.readline(_MOST_LINE):
            total += len(line)
            if total > _MOST_BYTES:
                self.problem = "it had more sockets to tell of than are read"
                return
            with contextlib.suppress(ValueError):
                found = json.loads(line)
                if isinstance(found, dict):
                    self.lines.append((time.monotonic(), found))

    def wait(self, until: float) -> None:
        """Take in what still comes, until the monotonic time *until*; then end what was started here."""
        process, errors = self._process, self._errors
        if process is None or errors is None or errors.closed:
            return
        self._reader.join(max(0.0, until - time.monotonic()))
        with contextlib.suppress(OSError):
            process.kill()
        process.wait()
        self._reader.join(1.0)  # it ends with the pipe
        if process.stdout is not None and not self._reader.is_alive():
            process.stdout.close()
        errors.seek(0)
        said = redact_text(errors.read(4000).decode(errors="replace")).strip().splitlines()
        errors.close()
        if not any("dumps" in line or "proc" in line for _, line in self.lines):
            self.problem = self.problem or (said[-1] if said else "it gave no answer in time")


def seen_from_afar(own: Capture, hosts: Sequence[Afar]) -> tuple[Capture, ...]:
    """*own*, this host's capture of the same window, and one of each of *hosts*; one that told nothing is a blind spot, in words."""
    began = time.monotonic() - (datetime.now().astimezone() - datetime.fromisoformat(own.started_at)).total_seconds()
    ours = OwnSockets()
    for connection in own.connections:
        if connection.ours:
            ours.add(connection.local, connection.remote)
    told, blind = [], []
    for host in hosts:
        if host.problem:
            blind.append(
                f"{host.name} could not be looked at: {host.problem}; try: {shlex.join(host.command[:-1])} python3 -V"
            )
            continue
        if _hello(host).get("hello") == _here():
            blind.append(f"{host.name} is this host itself: it was seen from here already")
            continue
        told.append(_capture_of(host, own, ours, began))
    seen = {one.name for capture in told for one in capture.services if not one.remote}
    kept = tuple(line for line in own.blind if not any(line.startswith(f"{name} is on another host") for name in seen))
    return (replace(own, blind=(*kept, *blind)), *told)


def _capture_of(host: Afar, own: Capture, ours: OwnSockets, began: float) -> Capture:
    """One host's own capture."""
    offset = min(at - float(line["t"]) for at, line in host.lines if isinstance(line.get("t"), int | float))
    hello = _hello(host)
    addresses = set(hello.get("addresses", ()))
    source, owners = _Told(), _ToldOwners()
    source.ended.close()  # of this host
    account = SocketAccount(host.ports, set, own=ours, started=began, inside=source, owners=owners)
    processes: dict[int, list[tuple[float, list[Any]]]] = {}
    n_unread = 0
    for _, line in host.lines:
        t_s = float(line.get("t", 0.0)) + offset - began
        owners.tell(line.get("holders", {}))
        for pid, facts in line.get("processes", {}).items():
            processes.setdefault(int(pid), []).append((round(t_s, 3), facts))
        try:
            source.table = _table(line)
        except (SockDiagError, ValueError, zlib.error):
            n_unread += 1
            continue
        if source.table is not None and 0 <= t_s <= own.window_s + 1.0:
            account.look(round(t_s, 4))
    listeners = account.listeners()
    services = tuple(
        replace(seen, pids=_holders_at(listeners, seen.address) if here else (), remote=not here)
        for seen in own.services
        if not seen.client
        for here in [_is_there(seen.address, addresses)]
    )
    tick_s = 1 / float(hello.get("hz") or 100)
    hidden = [one.name for one in services if not one.remote and not one.pids]
    notes = (
        *(
            f"the processes of {name} belong to another user there: their other sockets were not seen"
            for name in hidden
        ),
        *(("some of its lines could not be read",) if n_unread else ()),
        *(() if account.counted else ("its kernel answers no sock_diag: only states and queues were seen",)),
        *((f"its bytes are ordered {hello['order']}-endian",) if hello.get("order") == "big" else ()),
    )
    return without_secrets(
        Capture(
            schema=own.schema,
            host=host.name,
            started_at=own.started_at,
            window_s=own.window_s,
            entry=own.entry,
            services=services,
            connections=account.connections(),
            listeners=listeners,
            processes=tuple(_facts(pid, looks, tick_s) for pid, looks in processes.items()),
            blind=notes,
            n_looks=account.n_looks,
        )
    )


def _here() -> str:
    """What this host says of itself in the same way."""
    with contextlib.suppress(OSError):
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text(encoding='ascii').strip()}/{namespace_of('self')}"
    return "unknown"


def _hello(host: Afar) -> dict[str, Any]:
    """What it said of itself at first."""
    return next((line for _, line in host.lines if "hello" in line), {})


def _table(line: Mapping[str, Any]) -> SocketTable | None:
    if "dumps" in line:
        tables = []
        for dump in line["dumps"]:
            reader = DumpReader()
            reader.feed(zlib.decompress(base64.b64decode(dump)))
            tables.append(reader.table())
        return joined(tables)
    if "proc" in line:
        tcp, tcp6 = line["proc"]
        return table_of_proc(str(tcp), str(tcp6))
    return None


def _is_there(address: Address | None, addresses: set[str]) -> bool:
    return (
        address is not None
        and address.host in addresses
        and not address.host.startswith("127.")
        and address.host != "::1"
    )


def _holders_at(listeners: Iterable[Listener], address: Address | None) -> tuple[int, ...]:
    return tuple(
        dict.fromkeys(
            pid for one in listeners if address is not None and one.local.port == address.port for pid in one.pids
        )
    )


def _facts(pid: int, looks: Sequence[tuple[float, list[Any]]], tick_s: float) -> ProcessFacts:
    return ProcessFacts(
        pid=pid,
        ppid=int(looks[0][1][0]),
        name=str(looks[0][1][1])[:200],
        argv=(),
        started_at="",
        samples=tuple(
            ProcessSample(t_s=t_s, state=str(facts[2]), cpu_s=float(facts[3]) * tick_s, n_threads=int(facts[4]))
            for t_s, facts in looks
        ),
    )
