"""A capture → the same without what no recorder can have seen: numbers that are none, looks out of order, one name twice."""

from dataclasses import replace
from itertools import pairwise
from math import isfinite

from vindicate.record.observation import Capture, Connection, SocketSample

__all__ = ["sane"]


def sane(capture: Capture) -> Capture:
    """What the rules may work with: every number finite, looks in order of time, every service once."""
    return replace(
        capture,
        window_s=capture.window_s if isfinite(capture.window_s) and capture.window_s > 0 else 0.0,
        services=tuple({(seen.name, seen.client): seen for seen in reversed(capture.services)}.values())[::-1],
        connections=tuple(_in_order(c) for c in capture.connections),
        scrapes=tuple(
            replace(s, values=tuple(m for m in s.values if isfinite(m.value)))
            if any(not isfinite(m.value) for m in s.values)
            else s
            for s in capture.scrapes
            if isfinite(s.t_s) and isfinite(s.took_s)
        ),
        probes=tuple(p for p in capture.probes if isfinite(p.t_s) and isfinite(p.total_s) and isfinite(p.deadline_s)),
    )


def _in_order(connection: Connection) -> Connection:
    looks = connection.samples
    if all(_possible(look) for look in looks) and all(a.t_s <= b.t_s for a, b in pairwise(looks)):
        return connection
    return replace(connection, samples=tuple(sorted(filter(_possible, looks), key=lambda look: look.t_s)))


def _possible(look: SocketSample) -> bool:
    ages = (look.last_rx_age_s, look.last_tx_age_s, look.last_ack_age_s)
    return isfinite(look.t_s) and all(age is None or isfinite(age) for age in ages)
