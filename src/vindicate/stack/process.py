"""A service → its live processes and the knob values they really hold, read from /proc; nothing but reading."""

import ipaddress
import os
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import psutil

from vindicate.clock import iso
from vindicate.errors import MisuseError
from vindicate.stack.model import Service

__all__ = [
    "KnobReading",
    "LiveValue",
    "is_local",
    "listening_pids",
    "live_readings",
    "process_tree",
    "read_knob",
    "service_pids",
    "started_at",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobReading:
    """What one live process holds for one environment variable.

    Attributes:
        value: Its value; ``""`` is empty, ``None`` is unset (or unknown, see *problem*).
        problem: Why it could not be read, else ``None``.
    """

    pid: int
    name: str
    value: str | None
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveValue:
    """What the live processes hold: *known* only when they could all be read and agree; *note* says what is odd."""

    value: str | None
    known: bool
    note: str = ""


def is_local(host: str) -> bool:
    """Whether *host*, a name or a numeric address, is an address of this machine (by its interfaces; names: localhost only)."""
    if host in ("localhost", ""):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    if address.is_loopback or address.is_unspecified:
        return True
    return any(
        str(address) == entry.address.split("%")[0] for entries in psutil.net_if_addrs().values() for entry in entries
    )


def listening_pids(port: int, host: str = "") -> tuple[int, ...]:
    """Processes of this host that hold a listening TCP socket on *port*; those of other users are seen only by root.

    Args:
        host: With a numeric address, only sockets that take connections of its family.

    Cost:
        One pass over the descriptors of all processes of this user.
    """
    inodes = set[str]()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            words = line.split()
            address, _, number = words[1].rpartition(":")
            if words[3] == "0A" and int(number, 16) == port and _takes(address, host):
                inodes.add(words[9])
    return _holders({f"socket:[{inode}]" for inode in inodes}) if inodes else ()


def _takes(listening: str, host: str) -> bool:
    """Whether a listener at *listening* (hexadecimal, as /proc/net/tcp and tcp6 print it) takes connections to *host*."""
    sixth = len(listening) > 8
    both = listening == "0" * 32
    mapped = listening.startswith("0" * 16 + "FFFF0000")
    if ":" in host:
        return sixth and not mapped
    numeric = host.replace(".", "").isdigit()
    return not numeric or not sixth or both or mapped


def _holders(links: set[str]) -> tuple[int, ...]:
    found = []
    for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdigit()):
        try:
            descriptors = os.listdir(f"/proc/{pid}/fd")
        except OSError:
            continue
        for descriptor in descriptors:
            try:
                if os.readlink(f"/proc/{pid}/fd/{descriptor}") in links:
                    found.append(pid)
                    break
            except OSError:
                continue
    return tuple(found)


def service_pids(service: Service) -> tuple[int, ...]:
    """The processes of *service* on this host: by `pid`, `pidfile` or `match` of the stack file, else by its listening port.

    Raises:
        MisuseError: Its pidfile is there and holds no number.
    """
    if service.pid is not None:
        return _alive([service.pid])
    if service.pidfile is not None:
        try:
            text = service.pidfile.read_text(encoding="ascii", errors="replace").strip()
        except OSError:
            return ()
        if not text.isdigit():
            raise MisuseError(
                f"{service.pidfile} holds {text[:40]!r}, and should hold a pid",
                remedy=f"mend pidfile of services.{service.name}",
            )
        return _alive([int(text)])
    if service.match is not None:
        return matching_pids(service.match)
    return listening_pids(service.port, service.host) if is_local(service.host) else ()


def matching_pids(match: str) -> tuple[int, ...]:
    """Processes whose command line holds *match*, ourselves and our ancestors excepted."""
    ours = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    found = []
    for process in psutil.process_iter(["pid", "cmdline"]):
        words = process.info["cmdline"] or []
        if process.pid not in ours and match in " ".join(words):
            found.append(process.pid)
    return tuple(sorted(found))


def _alive(pids: Iterable[int]) -> tuple[int, ...]:
    found = []
    for pid in pids:
        try:
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                found.append(pid)
        except psutil.Error:
            continue  # it ended, just now or before
    return tuple(found)


def process_tree(pids: Iterable[int]) -> tuple[int, ...]:
    """*pids* and all their descendants that still live, oldest first."""
    found: dict[int, float] = {}
    for pid in pids:
        try:
            root = psutil.Process(pid)
            for process in [root, *root.children(recursive=True)]:
                found[process.pid] = process.create_time()
        except psutil.Error:
            continue
    return tuple(sorted(found, key=lambda pid: (found[pid], pid)))


def started_at(pid: int) -> str | None:
    """When the process began, as ISO 8601 UTC; ``None`` when it is gone."""
    try:
        return iso(datetime.fromtimestamp(psutil.Process(pid).create_time(), UTC))
    except psutil.Error:
        return None


def read_knob(pid: int, name: str) -> KnobReading:
    """Read one environment variable of a live process, as it was at its exec.

    An engine that rewrites its process title overwrites this area (SGLang's schedulers, vLLM's workers do): then the
    value of the nearest ancestor whose environment is whole is taken, since it was inherited from there.
    """
    here: int | None = pid
    while here is not None and here > 1:
        try:
            raw = Path(f"/proc/{here}/environ").read_bytes()
        except PermissionError:
            return KnobReading(
                pid=pid,
                name=name,
                value=None,
                problem=f"no permission to read /proc/{here}/environ; run as its user or root",
            )
        except OSError:
            return KnobReading(pid=pid, name=name, value=None, problem=f"process {here} is gone")
        pairs = [item.partition(b"=") for item in raw.split(b"\0") if item]
        if pairs and all(equals for _, equals, _ in pairs) and any(key == b"PATH" for key, _, _ in pairs):
            value = next((value.decode(errors="replace") for key, _, value in pairs if key == name.encode()), None)
            return KnobReading(pid=pid, name=name, value=value)
        try:
            here = psutil.Process(here).ppid()
        except psutil.Error:
            here = None
    return KnobReading(
        pid=pid, name=name, value=None, problem="its environment was overwritten, and no parent's is whole"
    )


def live_readings(service: Service, name: str) -> tuple[KnobReading, ...]:
    """What every live process of the service holds: its own, and all below them.

    Raises:
        MisuseError: Its pidfile is there and holds no number.
    """
    readings = [read_knob(pid, name) for pid in process_tree(service_pids(service))]
    return tuple(reading for reading in readings if not (reading.problem or "").endswith("is gone"))
