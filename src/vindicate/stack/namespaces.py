"""Network namespaces of this host, such as those of containers → which processes live in others, at what addresses, under what name.

All of it is read from /proc, which shows as much as the user may see; nothing is entered here.
"""

import contextlib
import ipaddress
import json
import os
import re
import socket
from collections.abc import Iterable
from pathlib import Path

__all__ = ["addresses_in", "container_name", "foreign_namespaces", "name_in", "namespace_of", "process_at"]

_LOCAL = re.compile(r"\|-- ([0-9.]+)\n\s+/32 host LOCAL")
_CONTAINER_ID = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
_DOCKER = Path("/var/lib/docker/containers")


def namespace_of(pid: int | str) -> int | None:
    """The number of the network namespace of a process; ``None`` when it may not be seen, or is gone."""
    try:
        return Path(f"/proc/{pid}/ns/net").stat().st_ino
    except OSError:
        return None


def foreign_namespaces(pids: Iterable[int] | None = None) -> dict[int, int]:
    """Namespaces other than our own in which *pids* live, or any process that can be seen; each with one such process."""
    own, found = namespace_of("self"), dict[int, int]()
    for pid in pids if pids is not None else sorted(int(name) for name in os.listdir("/proc") if name.isdigit()):
        namespace = namespace_of(pid)
        if namespace is not None and namespace != own:
            found.setdefault(namespace, pid)
    return found


def addresses_in(pid: int) -> frozenset[str]:
    """Addresses of the interfaces in the namespace of *pid*, loopback left out (/proc/PID/net/fib_trie and if_inet6)."""
    found = set[str]()
    with contextlib.suppress(OSError):
        found |= set(_LOCAL.findall(Path(f"/proc/{pid}/net/fib_trie").read_text(encoding="ascii")))
    with contextlib.suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/net/if_inet6").read_text(encoding="ascii").splitlines():
            found.add(socket.inet_ntop(socket.AF_INET6, bytes.fromhex(line.split()[0])))
    return frozenset(one for one in found if not ipaddress.ip_address(one).is_loopback)


def process_at(host: str) -> int | None:
    """A process of the namespace, other than our own, that has the numeric address *host*; ``None`` when none can be seen."""
    return next((pid for pid in foreign_namespaces().values() if host in addresses_in(pid)), None)


def container_name(pid: int) -> str | None:
    """What the container engine calls the container of *pid*, or the first letters of its id; ``None`` for a process in none.

    The id stands in the process's control group. Its name is read from docker's own file, where that may be read.
    """
    try:
        return name_in(Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None


def name_in(cgroup: str) -> str | None:
    """The container that a control group, as /proc/PID/cgroup says it, belongs to."""
    found = _CONTAINER_ID.search(cgroup)
    if found is None:
        return None
    with contextlib.suppress(OSError, ValueError, AttributeError):
        said = json.loads((_DOCKER / found[0] / "config.v2.json").read_bytes()).get("Name")
        if isinstance(said, str) and said.strip("/"):
            return said.strip("/")[:60]
    return found[0][:12]
