"""A capture and dice → the same capture with evidence of one kind gone, as it goes where one may not look or looks too seldom."""

from dataclasses import fields, is_dataclass, replace

__all__ = ["LOSSES", "lose", "spoil"]


def lose(dice, capture, what):
    """*capture* without some of its evidence; what is left is as it was."""
    return LOSSES[what](dice, capture)


def _some(dice, items, keep=0.75):
    return tuple(item for item in items if dice.random() < keep)


def _items(what):
    return lambda dice, capture: replace(capture, **{what: _some(dice, getattr(capture, what))})


def _connections(change):
    def lost(dice, capture):
        return replace(capture, connections=tuple(change(dice, c) for c in capture.connections))

    return lost


def _fewer_looks(dice, c):
    return replace(c, samples=_some(dice, c.samples, 0.5) or c.samples[-1:])


def _no_counters(dice, c):
    gone = {"rx": 0, "tx": 0, "counted": False, "last_rx_age_s": None, "last_tx_age_s": None}
    return c if dice.random() < 0.6 else replace(c, samples=tuple(replace(s, **gone) for s in c.samples))


def _no_ages(dice, c):
    gone = {"last_rx_age_s": None, "last_tx_age_s": None, "last_ack_age_s": None}
    return c if dice.random() < 0.5 else replace(c, samples=tuple(replace(s, **gone) for s in c.samples))


def _short_ones(_dice, capture):
    """Connections that came and went between two looks; no other goes missing alone, as the kernel tells of all at once."""
    return replace(capture, connections=tuple(c for c in capture.connections if not c.closed or len(c.samples) > 8))


def _values(dice, capture):
    return replace(capture, scrapes=tuple(replace(s, values=_some(dice, s.values)) for s in capture.scrapes))


def _names(dice, capture):
    """Metrics that this version does not have: gone from every look."""
    gone = {m.name for s in capture.scrapes for m in s.values if dice.random() < 0.4}
    kept = [tuple(m for m in s.values if m.name not in gone) for s in capture.scrapes]
    return replace(capture, scrapes=tuple(replace(s, values=v) for s, v in zip(capture.scrapes, kept, strict=True)))


def _owners(dice, capture):
    """Processes of another user: their sockets are seen, but not whose they are."""
    hidden = {pid for s in capture.services if dice.random() < 0.4 for pid in s.pids}

    def left(pids):
        return tuple(pid for pid in pids if pid not in hidden)

    return replace(
        capture,
        services=tuple(replace(s, pids=left(s.pids)) for s in capture.services),
        connections=tuple(replace(c, pids=left(c.pids)) for c in capture.connections),
        listeners=tuple(replace(x, pids=left(x.pids)) for x in capture.listeners),
        processes=tuple(p for p in capture.processes if p.pid not in hidden),
    )


def _ends(dice, capture):
    """Sockets of a service that lives in a network of its own: its side of every connection is not seen."""
    hidden = {pid for s in capture.services if dice.random() < 0.4 for pid in s.pids}
    return replace(
        capture,
        connections=tuple(c for c in capture.connections if not hidden & set(c.pids)),
        listeners=tuple(x for x in capture.listeners if not hidden & set(x.pids)),
        services=tuple(replace(s, pids=tuple(pid for pid in s.pids if pid not in hidden)) for s in capture.services),
    )


LOSSES = {
    **{what: _items(what) for what in ("probes", "scrapes", "listeners", "processes", "services")},
    "short connections": _short_ones,
    "samples": _connections(_fewer_looks),
    "counters": _connections(_no_counters),
    "ages": _connections(_no_ages),
    "values": _values,
    "names": _names,
    "owners": _owners,
    "ends": _ends,
    "looks": lambda dice, capture: replace(capture, n_looks=dice.randrange(41)),
}


ODD_NUMBERS = (0, -1, 1, 2**63, -(2**63), 1e-9, 1e18, -1e18, float("nan"), float("inf"), float("-inf"))
ODD_TEXTS = (
    "",
    "CLOSE_WAIT",
    "SYN_SENT",
    "stalled",
    "no_end",
    "http_abc",
    "http://[",
    "router",
    "proxy",
    "decode",
    "\ud800",
    "ü" * 300,
)


def spoil(dice, thing, odds):
    """*thing*, a record or part of one, with odd values in some of its places; its types are kept."""
    if is_dataclass(thing):
        return replace(thing, **{f.name: spoil(dice, getattr(thing, f.name), odds) for f in fields(thing)})
    if isinstance(thing, tuple):
        items = [spoil(dice, item, odds) for item in thing]
        pair = len(items) == 2 and all(isinstance(item, str) for item in items)  # a label and its value
        if dice.random() < odds and items and not pair:
            items = dice.choice([[], items[::-1], items * 2, items[:1], items[1:], dice.sample(items, len(items))])
        return tuple(items)
    if isinstance(thing, dict):
        return {key: spoil(dice, value, odds) for key, value in thing.items() if dice.random() > odds}
    if dice.random() >= odds or thing is None:
        return thing
    if isinstance(thing, bool):
        return not thing
    if isinstance(thing, float):
        return float(dice.choice(ODD_NUMBERS))
    if isinstance(thing, int):
        return dice.choice([n for n in ODD_NUMBERS if isinstance(n, int)])
    return dice.choice(ODD_TEXTS)
