"""Captures of several hosts, or one → one capture that is judged as a whole."""

from collections.abc import Sequence
from dataclasses import replace

from vindicate.errors import MisuseError
from vindicate.record.observation import Capture, Connection, SeenService

__all__ = ["join_captures"]


def join_captures(captures: Sequence[Capture]) -> Capture:
    """Put captures of several hosts together by the names of services and the four numbers of connections.

    Ids and pids are made unique by the host they come from; a service counts as seen where any capture saw its processes.
    Times are taken as they are: the captures should have been started together.

    Raises:
        MisuseError: There is none, two are of one host, or they do not share a service.
    """
    if not captures:
        raise MisuseError("no capture was given", remedy="try: vindicate diagnose --replay FILE")
    first = captures[0]
    if len(captures) == 1:
        return first
    hosts = [capture.host for capture in captures]
    if len(set(hosts)) < len(hosts):
        raise MisuseError(
            f"two of the captures are of one host ({hosts[0]}), and one window is judged at a time",
            remedy="give one capture of each host, taken at the same time; or replay each alone",
        )
    parts = [_unique(capture, number) for number, capture in enumerate(captures)]
    services: dict[str, SeenService] = {}
    for part in parts:
        for seen in part.services:
            known = services.get(seen.name)
            if known is None:
                services[seen.name] = seen
            elif not known.client:
                local = seen if known.remote and not seen.remote else known
                services[seen.name] = replace(local, pids=known.pids + seen.pids, remote=known.remote and seen.remote)
    names = [{s.name for s in part.services} for part in parts]
    if not any(a & b for i, a in enumerate(names) for b in names[:i]):
        raise MisuseError(
            f"the captures of {' and '.join(hosts)} share no service", remedy="take them with the same stack file"
        )
    return replace(
        first,
        host=" + ".join(hosts),
        services=tuple(services.values()),
        connections=tuple(c for part in parts for c in part.connections),
        listeners=tuple(x for part in parts for x in part.listeners),
        scrapes=tuple(x for part in parts for x in part.scrapes),
        probes=tuple(x for part in parts for x in part.probes),
        processes=tuple(x for part in parts for x in part.processes),
        log_lines=tuple(x for part in parts for x in part.log_lines),
        stacks=tuple(x for part in parts for x in part.stacks),
        cards=tuple(x for part in parts for x in part.cards),
        blind=tuple(f"{part.host}: {text}" for part in parts for text in part.blind),
    )


def _unique(capture: Capture, number: int) -> Capture:
    """The capture with pids that no other host's can equal, and connection ids of its own."""
    shift = number << 32

    def moved(pids: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(pid + shift for pid in pids)

    def connection(c: Connection) -> Connection:
        return replace(c, id=f"h{number}:{c.id}", pids=moved(c.pids))

    return replace(
        capture,
        services=tuple(replace(s, pids=moved(s.pids)) for s in capture.services),
        connections=tuple(connection(c) for c in capture.connections),
        listeners=tuple(replace(x, pids=moved(x.pids)) for x in capture.listeners),
        processes=tuple(replace(p, pid=p.pid + shift, ppid=p.ppid + shift) for p in capture.processes),
        stacks=tuple(replace(x, pid=x.pid + shift) for x in capture.stacks),
        cards=tuple(replace(x, pids=moved(x.pids)) for x in capture.cards),
    )
