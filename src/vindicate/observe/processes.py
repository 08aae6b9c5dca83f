"""Looks at the processes of the chain, about once a second → ProcessFacts; a process that ends is recorded, not an error."""

import os
import resource
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import psutil

from vindicate.observe.cgroup import Cgroup, cgroup_of
from vindicate.observe.disks import full_disk
from vindicate.record.observation import ProcessFacts, ProcessSample
from vindicate.redact import redact_argv, redact_text
from vindicate.stack.arguments import read_flag
from vindicate.stack.model import Knob
from vindicate.stack.process import KnobReading, read_knob, started_at

__all__ = ["ProcessWatch"]

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_ARGV_WORDS, _WORD_LIMIT, _SAMPLE_LIMIT = 64, 200, 120


@dataclass(slots=True)
class _Seen:
    facts: ProcessFacts
    group: Cgroup
    periods: tuple[int, int] | None
    samples: list[ProcessSample] = field(default_factory=list)
    ended: bool = False

    def throttled_pct(self) -> float | None:
        """Since it is followed; ``None`` without a quota, or without a period in between."""
        now = self.group.periods()
        if self.periods is None or now is None or now[0] <= self.periods[0]:
            return None
        return round(100 * (now[1] - self.periods[1]) / (now[0] - self.periods[0]), 1)


class ProcessWatch:
    """Follows processes by pid; *knobs* are all that is read of an environment, and only of pids given with them; a bare name is a variable."""

    def __init__(self, began: float) -> None:
        self.began = began
        self._seen: dict[int, _Seen] = {}

    def add(self, pids: Iterable[int], knobs: Iterable[Knob | str] = ()) -> None:
        """Follow *pids* from now on; those known already are left as they are."""
        names, together = tuple(knobs), tuple(pids)
        for pid in together:
            if pid not in self._seen:
                facts = _facts(pid, names, together)
                if facts is not None:
                    group = cgroup_of(pid)
                    self._seen[pid] = _Seen(facts, group, group.periods())

    def pids(self) -> set[int]:
        """All that are followed."""
        return set(self._seen)

    def look(self) -> None:
        """Sample each once; mark those that are gone."""
        t_s = round(time.monotonic() - self.began, 4)
        for pid, seen in self._seen.items():
            if seen.ended or len(seen.samples) >= _SAMPLE_LIMIT:
                continue
            sample = _sample(pid, t_s, seen.group)
            if sample is None or sample.state in ("Z", "X"):
                seen.ended = True
            if sample is not None:
                seen.samples.append(sample)

    def facts(self) -> tuple[ProcessFacts, ...]:
        """What was seen, by pid."""
        return tuple(
            replace(
                seen.facts,
                samples=tuple(seen.samples),
                ended=seen.ended,
                throttled_pct=seen.throttled_pct(),
                full_disk=None if seen.ended else full_disk(pid),
            )
            for pid, seen in sorted(self._seen.items())
        )


def _facts(pid: int, knobs: tuple[Knob | str, ...], service: tuple[int, ...]) -> ProcessFacts | None:
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            ppid, name = process.ppid(), process.name()
            argv = [] if process.status() == psutil.STATUS_ZOMBIE else process.cmdline()
    except psutil.NoSuchProcess:
        return None
    except psutil.AccessDenied:
        ppid, name, argv = 0, "", []
    readings: Mapping[str, str | None] = {}
    readable = os.access(f"/proc/{pid}/fd", os.R_OK)
    if readable:
        found = [_reading(pid, knob, service) for knob in knobs]
        readings = {one.name: None if one.value is None else redact_text(one.value) for one in found if not one.problem}
    return ProcessFacts(
        pid=pid,
        ppid=ppid,
        name=name[:_WORD_LIMIT],
        argv=tuple(word[:_WORD_LIMIT] for word in redact_argv(argv)[:_ARGV_WORDS]),
        started_at=started_at(pid) or "",
        fd_limit=_fd_limit(pid),
        readable=readable,
        knobs=dict(readings),
    )


def _reading(pid: int, knob: Knob | str, service: tuple[int, ...]) -> KnobReading:
    if isinstance(knob, str):
        return read_knob(pid, knob, within=service)
    return (
        read_flag(pid, knob.name, within=service) if knob.kind == "arg" else read_knob(pid, knob.name, within=service)
    )


def _fd_limit(pid: int) -> int | None:
    try:
        soft, _ = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    except (OSError, ValueError):
        return None
    return None if soft == resource.RLIM_INFINITY else soft


def _sample(pid: int, t_s: float, group: Cgroup) -> ProcessSample | None:
    """From /proc/PID/stat (proc(5): words 3, 14, 15, 20 and 24), schedstat and fd."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            words = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    try:
        with open(f"/proc/{pid}/schedstat", encoding="ascii") as file:
            delay: float | None = int(file.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        delay = None
    try:
        n_fds: int | None = len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        n_fds = None
    return ProcessSample(
        t_s=t_s,
        state=words[0],
        cpu_s=(int(words[11]) + int(words[12])) / _TICKS_PER_S,
        n_threads=int(words[17]),
        n_fds=n_fds,
        rss_bytes=int(words[21]) * resource.getpagesize(),
        run_delay_s=delay,
        frozen=group.frozen(),
    )
