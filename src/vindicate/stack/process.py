"""A service → its live processes and the knob values they really hold, read from /proc; nothing but reading."""

import ipaddress
import os
import pwd
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import psutil

from vindicate.clock import iso
from vindicate.errors import CannotError, MisuseError
from vindicate.stack.keeper import container_pids, is_port_proxy
from vindicate.stack.model import Knob, Service
from vindicate.stack.namespaces import process_at

__all__ = [
    "KnobReading",
    "LiveValue",
    "is_local",
    "listening_pids",
    "listening_users",
    "live_readings",
    "process_tree",
    "read_environment",
    "read_knob",
    "service_pids",
    "started_at",
    "why_unseen",
]

_ENTRY = re.compile(rb"[^=\s]+=")


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobReading:
    """What one live process holds for one environment variable, or flag of its command line.

    Attributes:
        value: Its value; ``""`` is empty, ``None`` is unset (or unknown, see *problem*).
        problem: Why it could not be read, else ``None``.
        where: Where a flag was read, which may be the command line of the process that started it.
    """

    pid: int
    name: str
    value: str | None
    problem: str | None = None
    where: str = ""

    @property
    def elsewhere(self) -> str:
        """Where it was read, when that is not the process's own environment or command line."""
        return "" if self.where == f"/proc/{self.pid}/cmdline" else self.where


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
    inodes = {inode for inode, _ in _listeners(port, host, "/proc/net")}
    return _holders({f"socket:[{inode}]" for inode in inodes}) if inodes else ()


def listening_users(port: int, host: str = "") -> tuple[str, ...]:
    """Names of the users who listen on *port* on this host, also those whose processes cannot be seen."""
    names = set[str]()
    for _, uid in _listeners(port, host, "/proc/net"):
        try:
            names.add(pwd.getpwuid(uid).pw_name)
        except KeyError:
            names.add(f"with the number {uid}")
    return tuple(sorted(names))


def _listeners(port: int, host: str, folder: str) -> list[tuple[str, int]]:
    """Inode and user number of every listening socket on *port*: fields 10 and 8 of tcp and tcp6 in a /proc/…/net."""
    found = []
    for table in ("tcp", "tcp6"):
        try:
            lines = Path(folder, table).read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            words = line.split()
            address, _, number = words[1].rpartition(":")
            if words[3] == "0A" and int(number, 16) == port and _takes(address, host):
                found.append((words[9], int(words[7])))
    return found


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

    A published port of a container is held by a forwarder, or by nobody; then its engine is asked for the processes.

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
    listening = listening_pids(service.port, service.host) if is_local(service.host) else _pids_inside(service)
    if service.launcher.kind in ("docker", "compose") and all(is_port_proxy(pid) for pid in listening):
        with suppress(CannotError, MisuseError):  # then nothing of it can be seen from here
            return _alive(container_pids(service))
    return listening


def _pids_inside(service: Service) -> tuple[int, ...]:
    """Processes of this host that listen at the service's numeric address in another network namespace, as containers do."""
    inside = process_at(service.host)
    if inside is None:
        return ()
    return _holders({f"socket:[{inode}]" for inode, _ in _listeners(service.port, service.host, f"/proc/{inside}/net")})


def why_unseen(service: Service) -> str:
    """Why no process of *service* was found: somebody whose processes cannot be looked into listens there, or nobody does."""
    users = listening_users(service.port) if is_local(service.host) else ()
    if users:
        return f"a process of user {' or '.join(users)}, which cannot be looked into from here; look as that user or as root"
    return "no live process"


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


def read_environment(pid: int) -> dict[bytes, bytes] | None:
    """The environment of a live process as it was at its exec; ``None`` when the process has written over it since.

    Programs that change their process title write it over this area, and fill the rest with NULs (SGLang's schedulers and
    vLLM's workers do).

    Raises:
        OSError: It is gone, or of another user.
    """
    raw = Path(f"/proc/{pid}/environ").read_bytes()
    if not raw:  # started with nothing, or ending: then its command line is gone too
        return {} if Path(f"/proc/{pid}/cmdline").read_bytes() else None
    items = raw.removesuffix(b"\0").split(b"\0")
    if not raw.endswith(b"\0") or not all(_ENTRY.match(item) for item in items):
        return None
    pairs = [item.partition(b"=") for item in items]
    return {name: value for name, _, value in reversed(pairs)}  # the first of two of one name is what getenv(3) gives


def read_knob(pid: int, name: str, *, within: Iterable[int] = ()) -> KnobReading:
    """Read one environment variable of a live process, as it was at its exec.

    Where it has written over its environment, the value of the nearest whole ancestor is taken, since it was inherited
    from there.

    Args:
        within: The processes of its service; no ancestor beside these is asked, for what started the service may hold
            another value.
    """
    here: int | None = pid
    service = {pid, *within}
    while here in service:
        try:
            found = read_environment(here)
        except PermissionError:
            return KnobReading(
                pid=pid,
                name=name,
                value=None,
                problem=f"no permission to read /proc/{here}/environ; run as its user or root",
            )
        except OSError:
            return KnobReading(pid=pid, name=name, value=None, problem=f"process {here} is gone")
        if found is not None:
            value = found.get(name.encode())
            return KnobReading(pid=pid, name=name, value=None if value is None else value.decode(errors="replace"))
        try:
            here = psutil.Process(here).ppid()
        except psutil.Error:
            here = None
    return KnobReading(
        pid=pid,
        name=name,
        value=None,
        problem="it has written over its environment, and no process of the service above it is whole",
    )


def live_readings(service: Service, knob: Knob | str) -> tuple[KnobReading, ...]:
    """What every live process of the service holds: its own, and all below them; of a flag, those that listen.

    Args:
        knob: A bare name is an environment variable.

    Raises:
        MisuseError: Its pidfile is there and holds no number.
    """
    if isinstance(knob, Knob) and knob.kind == "arg":
        from vindicate.stack.arguments import argument_readings

        return argument_readings(service, knob.name)
    name = knob.name if isinstance(knob, Knob) else knob
    pids = process_tree(service_pids(service))
    readings = [read_knob(pid, name, within=pids) for pid in pids]
    return tuple(reading for reading in readings if not (reading.problem or "").endswith("is gone"))
