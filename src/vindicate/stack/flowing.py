"""The sockets of a relay that answers our own requests by itself, looked at for a while → whose answers it hands to its callers.

What comes in on one of its connections goes out on another, as much and at the same times. A database, a collector or a
store gives it bytes too, and not those that its callers get. Where all stands still, the kernel still says when the last
bytes came on each connection, and when the last ones went: several that stopped at the same moments are pairs.
"""

import asyncio
from collections.abc import Iterable
from itertools import pairwise

from vindicate.record.observation import Address
from vindicate.stack.calls import HostCalls
from vindicate.stack.sockets import RawSocket, dump_sockets

__all__ = ["alike", "flowing_from", "stopped_together"]

_STEP_S, _LOOKS = 0.1, 25
_LEAST_STEPS, _LEAST_BYTES = 5, 400
_SAME_SHARE = 0.2  # framing and the relay's own heads
_OUT_OF_STEP = 2  # looks of a steady flow in which one side was a little earlier
_SAME_MOMENT_S, _MOMENTS, _STOPPED_S = 0.03, 3, 0.5
_SAME_TIMES = 3.0  # of all that connections carried, several exchanges each: what a store says is less, or more
_Seen = dict[int, int]  # bytes so far, by look


async def flowing_from(calls: HostCalls, port: int, pids: set[int]) -> set[Address]:
    """Where the answers come from that *pids*, which listen at *port*, pass on right now; empty when none flow.

    Cost:
        2.4 s of looking, or one look where answers stand still. Nothing is sent.
    """
    came: dict[tuple[Address, Address], _Seen] = {}
    went: dict[tuple[Address, Address], _Seen] = {}
    for look in range(_LOOKS):
        await asyncio.sleep(_STEP_S if look else 0)
        now = await asyncio.to_thread(dump_sockets)
        calls.owners.resolve(one.inode for one in now)
        theirs = [one for one in now if not pids.isdisjoint(calls.owners[one.inode])]
        inward = [one for one in theirs if one.local.port == port]
        outward = [one for one in theirs if one.local.port not in calls.listening]
        if not look and (found := stopped_together(outward, inward)):
            return found
        for one in (*inward, *outward):
            if one.rx is None or one.tx is None:
                continue
            if one.local.port == port:
                went.setdefault((one.local, one.remote), {})[look] = one.tx
            else:
                came.setdefault((one.local, one.remote), {})[look] = one.rx
    return {ends[1] for ends, seen in came.items() if any(alike(seen, out) for out in went.values())}


def stopped_together(outward: Iterable[RawSocket], inward: Iterable[RawSocket]) -> set[Address]:
    """Peers of *outward* connections whose last bytes went on, at that very moment, on connections of *inward*."""
    spare = [one for one in inward if one.tx and one.tx_age_s is not None and one.tx_age_s >= _STOPPED_S]
    pairs: dict[Address, list[tuple[RawSocket, RawSocket]]] = {}
    for up in outward:
        age = up.rx_age_s
        mate = next(
            (one for one in spare if age is not None and abs((one.tx_age_s or 0.0) - age) <= _SAME_MOMENT_S), None
        )
        if mate is not None:
            spare.remove(mate)
            pairs.setdefault(up.remote, []).append((up, mate))
    return {address for address, found in pairs.items() if _are_many(found) and _carried_as_much(found)}


def _are_many(pairs: list[tuple[RawSocket, RawSocket]]) -> bool:
    """Whether they stopped at enough moments that lie apart."""
    ages = sorted(up.rx_age_s or 0.0 for up, _ in pairs)
    return 1 + sum(b - a > 2 * _SAME_MOMENT_S for a, b in pairwise(ages)) >= _MOMENTS


def _carried_as_much(pairs: list[tuple[RawSocket, RawSocket]]) -> bool:
    came, went = sum(up.rx or 0 for up, _ in pairs), sum(down.tx or 0 for _, down in pairs)
    return came <= _SAME_TIMES * went and went <= _SAME_TIMES * came


def alike(came: _Seen, went: _Seen) -> bool:
    """Whether bytes of the same looks are those of one stream: as many, and together in flow and in pause."""
    both = sorted(came.keys() & went.keys())
    if len(both) < 2:
        return False
    total_in, total_out = (seen[both[-1]] - seen[both[0]] for seen in (came, went))
    if min(total_in, total_out) < _LEAST_BYTES or abs(total_in - total_out) > _SAME_SHARE * max(total_in, total_out):
        return False
    flows = [(came[b] > came[a], went[b] > went[a]) for a, b in pairwise(both)]
    return flows.count((True, True)) >= _LEAST_STEPS and sum(a != b for a, b in flows) <= _OUT_OF_STEP
