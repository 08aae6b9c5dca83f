"""This host's pressure over a window → HostFacts; what the kernel does not say stays ``None``."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from vindicate.record.observation import HostFacts

__all__ = ["HostMark", "host_facts", "mark_host"]


@dataclass(frozen=True, slots=True)
class HostMark:
    """Counters at one moment; two of them give what happened in between."""

    t_s: float
    stalled_us: dict[str, int]
    oom_kills: int | None


def mark_host(t_s: float) -> HostMark:
    """Read the counters that only mean something as a difference: PSI stall time (``some``, µs) and OOM kills."""
    stalled = {}
    for kind in ("cpu", "memory", "io"):
        for line in _lines(f"/proc/pressure/{kind}"):
            if line.startswith("some "):
                stalled[kind] = int(line.rpartition("total=")[2])
    kills = next((int(line.split()[1]) for line in _lines("/proc/vmstat") if line.startswith("oom_kill ")), None)
    return HostMark(t_s, stalled, kills)


def host_facts(first: HostMark, last: HostMark, *, home: Path) -> HostFacts:
    """What the host was like from *first* to *last*.

    Args:
        home: A path on the disk whose free space counts; it need not exist.
    """
    span_us = max(last.t_s - first.t_s, 1e-3) * 1e6

    def share(kind: str) -> float | None:
        if kind not in first.stalled_us or kind not in last.stalled_us:
            return None
        return round(min(100.0, 100 * (last.stalled_us[kind] - first.stalled_us[kind]) / span_us), 2)

    kills = None if first.oom_kills is None or last.oom_kills is None else last.oom_kills - first.oom_kills
    return HostFacts(
        cpu_pressure_pct=share("cpu"),
        memory_pressure_pct=share("memory"),
        io_pressure_pct=share("io"),
        load_1m=os.getloadavg()[0],
        n_cpus=os.cpu_count(),
        memory_available_bytes=_available(),
        disk_free_bytes=_free(home),
        ephemeral_ports=_ephemeral(),
        oom_kills=kills,
    )


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):
        return []


def _available() -> int | None:
    found = (line for line in _lines("/proc/meminfo") if line.startswith("MemAvailable:"))
    return next((int(line.split()[1]) * 1024 for line in found), None)


def _free(home: Path) -> int | None:
    for folder in (home, *home.parents):
        try:
            return shutil.disk_usage(folder).free
        except OSError:
            continue
    return None


def _ephemeral() -> int | None:
    words = " ".join(_lines("/proc/sys/net/ipv4/ip_local_port_range")).split()
    return int(words[1]) - int(words[0]) + 1 if len(words) == 2 else None
