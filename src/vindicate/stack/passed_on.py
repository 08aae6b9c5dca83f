"""A relay and a few requests of ours of different sizes → the addresses to which it passed them on.

Each request carries a header of another random length. What hands it on sends just so many bytes more or less to its
upstream; a database, a collector or a stranger's client, called at the same moment, does not.
"""

import asyncio
import json
import random

from vindicate.record.observation import Address
from vindicate.stack.ask import ASK_S, BODY_LIMIT
from vindicate.stack.calls import HostCalls
from vindicate.stack.http import OwnSockets, exchange
from vindicate.stack.sockets import EndedSockets, dump_sockets, raw_sockets

__all__ = ["handed_on", "passed_on"]

_HEADER = "X-Vindicate-Padding"
_ROUNDS, _ENOUGH = 7, 3  # two upstreams that take turns are each seen three times
_PADS = range(1000, 5000)
_SAME_BYTES = 8  # a forwarded request differs from ours by its own headers, and by the same ones each time
_MOST_ADDED = 2000
_QUICK_S = 1.0  # in a longer round too much else is sent
_SETTLE_S = 0.02
_LOOKS_AFTER = 8
_Sent = dict[tuple[Address, Address], int]


async def passed_on(url: str, calls: HostCalls, pids: set[int]) -> set[Address]:
    """Whom the service at *url*, of the processes *pids*, hands a GET to; empty when it answers by itself or not in time.

    A connection that other processes are known to hold is theirs. That of a short connection is not told by the kernel:
    those of a relay further down are in the answer too.
    """
    ended, own = EndedSockets(), OwnSockets()
    extra: dict[Address, list[tuple[int, int]]] = {}  # the round, and how many bytes more than ours
    try:
        for number, pad in enumerate(random.sample(_PADS, _ROUNDS), 1):
            before = _sent(calls, pids, ended, own)
            answer = await exchange(
                f"{url}/v1/models",
                deadline_s=ASK_S,
                limit_bytes=BODY_LIMIT,
                headers={_HEADER: f"{random.getrandbits(8 * pad):x}"[:pad].ljust(pad, "0")},
                own=own,
            )
            if answer.status is None or answer.total_s > _QUICK_S:
                break
            await asyncio.sleep(_SETTLE_S)
            for ends, sent in _sent(calls, pids, ended, own).items():
                added = sent - before.get(ends, 0) - pad
                if 0 < added < _MOST_ADDED:
                    extra.setdefault(ends[1], []).append((number, added))
            if number == _ENOUGH and (not extra or any(_alike(seen) >= _ENOUGH for seen in extra.values())):
                break
    finally:
        ended.close()
    return {address for address, seen in extra.items() if _alike(seen) >= _ENOUGH}


async def handed_on(url: str, calls: HostCalls, pids: set[int]) -> set[Address]:
    """Whom the service hands a small chat for one token to, also when nobody answers it; only on connections that *pids* are seen to hold.

    One request will do, where more of them might add to a stall: of thousands of sizes it has one, and nobody else sends that
    many bytes on these processes' connections within a second. Its text holds the size, as not every router passes headers on;
    a row of dashes is few tokens.
    """
    ended, own, pad = EndedSockets(), OwnSockets(), random.choice(_PADS)  # noqa: S311 a size, no secret
    found = set[Address]()
    before = _sent(calls, pids, ended, own, held=True)
    chat = {"messages": [{"role": "user", "content": f"Say one word. {'-' * pad}"}], "max_tokens": 1, "stream": True}
    asking = asyncio.ensure_future(
        exchange(
            f"{url}/v1/chat/completions", method="POST", body=json.dumps({"model": "default", **chat}).encode(),
            headers={"Content-Type": "application/json"}, deadline_s=ASK_S, limit_bytes=BODY_LIMIT, own=own,
        )
    )  # fmt: skip
    try:
        last = _LOOKS_AFTER
        while last:
            await asyncio.sleep(_SETTLE_S)
            now = _sent(calls, pids, ended, own, held=True)
            found |= {ends[1] for ends, sent in now.items() if 0 < sent - before.get(ends, 0) - pad < _MOST_ADDED}
            last -= bool(found) or asking.done()  # its other leg may follow
    finally:
        ended.close()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    return found


def _sent(calls: HostCalls, pids: set[int], ended: EndedSockets, own: OwnSockets, *, held: bool = False) -> _Sent:
    """Bytes that each connection has sent that *pids* may have opened, or are seen to have (*held*), ended ones since the last call included."""
    now = dump_sockets()
    calls.owners.resolve(one.inode for one in now if one.local.port not in calls.listening)
    found: _Sent = {}
    for one in [*now, *raw_sockets(ended.drain())]:
        holders = calls.owners[one.inode]
        theirs = pids.isdisjoint(holders) and (held or bool(holders))
        ends = (one.local, one.remote)
        if one.tx is not None and one.local.port not in calls.listening and not theirs and ends not in own:
            found[ends] = one.tx
    return found


def _alike(seen: list[tuple[int, int]]) -> int:
    """In how many rounds the same number of bytes was added, but for a few, at most."""
    return max(len({number for number, other in seen if abs(one - other) <= _SAME_BYTES}) for _, one in seen)
