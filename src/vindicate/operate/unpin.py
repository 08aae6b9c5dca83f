"""A Stack → which requests are pinned in its engines, by their full ids; and those ids aborted, and read back to be gone.

An engine of SGLang's kind matches an id by prefix and answers 200 whatever it did (`/abort_request`): so an id is sent only whole, never
where it begins another's, and what came of it is read back. No engine lists its requests: their ids stand in its request log, if anywhere.
"""

import asyncio
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import msgspec
import psutil

from vindicate.diagnose.chain import chain_of
from vindicate.diagnose.progress import Progress, progress_of
from vindicate.observe.capture_file import SCHEMA
from vindicate.observe.scrape import scrape
from vindicate.record.observation import Capture, Scrape, SeenService
from vindicate.stack.http import exchange
from vindicate.stack.model import Service, Stack
from vindicate.stack.process import service_pids
from vindicate.wire.request_log import RequestLog, read_request_log

__all__ = ["Engine", "Pin", "UnpinPlan", "abort_pins", "find_pins", "plan_pins"]

WORKERS = ("prefill", "decode", "engine")
_HAS_ABORT = ("sglang", "reference", "generic")
_APART_S = 1.5  # between two looks at an engine, to see what moves
_DEADLINE_S = 2.5
_GONE_WITHIN_S = 10.0
_LOG_LIMIT = 256 << 20
_SHORT = 16  # an id as short as that may begin another's that is not known
_HANDOVER = ("bootstrap", "inflight", "prealloc", "transfer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One engine and what is known of the requests in it.

    Attributes:
        held: Requests that it says it holds; ``None``: it does not say. *floor*: at both looks. *stages*: where.
        moves: Tokens moved while it was looked at; ``None``: it does not say.
        log: Its request log; ``None`` where there is none to read. *whole*: nothing of it was left out.
    """

    service: Service
    held: int | None
    floor: int
    stages: dict[str, int]
    moves: bool | None
    log: RequestLog | None
    whole: bool = True

    @property
    def knows(self) -> bool:
        """Whether every request in it is known by its id, or it says that there is none."""
        logged = self.log is not None and self.log.n_lines > 0 and len(self.log.alive) >= self.floor
        return self.held == 0 or (logged and self.whole)

    @property
    def gated(self) -> bool:
        """Whether a retracted request stops every other one that waits for KV: aborts do not take effect there."""
        return self.stages.get("retracted", 0) > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """One request. *engines*: where it is to be aborted; *refused*: why it is not."""

    rid: str
    age_s: float | None
    engines: tuple[str, ...]
    state: Literal["pinned", "gone", "held", "refused"] = "pinned"
    because: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpinPlan:
    """What is pinned; *unclear* says what cannot be told from outside, *restart* which services only a restart frees."""

    pins: tuple[Pin, ...]
    engines: tuple[Engine, ...]
    unclear: tuple[str, ...] = ()
    restart: tuple[str, ...] = ()


def find_pins(stack: Stack, names: Sequence[str], *, older_than_s: float, rids: Sequence[str] = ()) -> UnpinPlan:
    """Look at all engines twice, and into their request logs. Reads only.

    Args:
        names: The engines whose requests are in question; what is pinned there is aborted wherever it is held.
        older_than_s: Older ones count as pinned, where they cannot be long answers.
        rids: These full ids, and no others, whatever their age.
    """
    engines = asyncio.run(_look([one for one in stack.services.values() if one.role in WORKERS]))
    return plan_pins(engines, names, time.time(), older_than_s=older_than_s, rids=rids)


def plan_pins(
    engines: tuple[Engine, ...], names: Sequence[str], now: float, *, older_than_s: float, rids: Sequence[str] = ()
) -> UnpinPlan:
    """Decide which requests are pinned, and which ids may be sent; *now* is Unix time. See `find_pins`. Pure."""
    if rids:
        chosen = {rid: _age(engines, rid, now) for rid in dict.fromkeys(rids)}
        pins = tuple(_checked(rid, age, engines, named=True) for rid, age in chosen.items())
        return UnpinPlan(pins=pins, engines=engines, restart=_gated(engines))
    found: dict[str, float] = {}
    unclear: list[str] = []
    for engine in (one for one in engines if one.service.name in names):
        old = _old(engine, now, older_than_s)
        problem = _why_unclear(engine, old, engines)
        if problem:
            unclear.append(f"{engine.service.name}: {problem}")
            continue
        found |= old
        if not engine.knows and engine.log is not None:
            unclear.append(
                f"{engine.service.name}: holds {engine.floor} and more, of which {len(engine.log.alive)} are known by their ids"
            )
    pins = tuple(_checked(rid, found[rid], engines) for rid in sorted(found, key=lambda rid: -found[rid]))
    return UnpinPlan(pins=pins, engines=engines, unclear=tuple(unclear), restart=_gated(engines))


def _old(engine: Engine, now: float, older_than_s: float) -> dict[str, float]:
    alive = engine.log.alive if engine.log is not None and engine.held != 0 else {}
    return {rid: now - at for rid, at in alive.items() if at is not None and now - at >= older_than_s}


def _why_unclear(engine: Engine, old: dict[str, float], engines: Sequence[Engine]) -> str:
    """Why nothing can be said of the requests in *engine*; empty where it can."""
    if engine.held == 0:
        return ""
    held = "does not say what it holds" if engine.held is None else f"holds {engine.held} requests"
    if engine.service.engine not in _HAS_ABORT:
        return f"{held}; {engine.service.engine} has no way to abort one from outside: it ends when its client closes the connection, or with a restart"
    if engine.log is None or engine.log.n_lines == 0:
        return f"{held}, and no engine lists their ids: they stand in its log only where it was started with --log-requests, and the stack file names that log"
    if engine.held is not None and len(old) > engine.held:
        return f"its log names {len(old)} old requests without an end, and it holds {engine.held}: some ends are missing in the log"
    if engine.service.role != "prefill" and engine.moves is not False and engine.stages.get("running", 1):
        elsewhere = {
            rid for other in engines if other.service.role == "prefill" and other.log for rid in other.log.alive
        }
        if long := [rid for rid in old if rid not in elsewhere]:
            return f"{len(long)} old requests may be long answers, as tokens move; to abort one all the same name it: --rid {long[0]}"
    return ""


def _checked(rid: str, age_s: float | None, engines: Sequence[Engine], *, named: bool = False) -> Pin:
    """Where *rid* is to be aborted, or why it is not."""
    able = [one for one in engines if one.service.engine in _HAS_ABORT and one.held != 0]
    there = [one for one in able if not one.knows or (one.log is not None and rid in one.log.alive)]
    names = tuple(one.service.name for one in there)
    known = {other for one in there if one.log is not None for other in one.log.alive}
    longer = sorted(other for other in known if other != rid and other.startswith(rid))
    gated = [one.service.name for one in there if one.gated]
    why = ""
    if not there:
        why = "no engine holds it"
    elif longer:
        why = f"it begins the id of another live request, {longer[0]}, which would be aborted too"
    elif len(rid) < _SHORT and not all(one.knows for one in there):
        why = f"it is short, and not all live ids are known: it may begin another's ({_SHORT} characters or more are safe)"
    elif gated and not named:  # one that is named may be the retracted one itself
        why = f"a retracted request stops {gated[0]} from acting on it: only a restart helps"
    return Pin(
        rid=rid,
        age_s=None if age_s is None else round(age_s, 1),
        engines=names,
        state="refused" if why else "pinned",
        because=why,
    )


def _age(engines: Sequence[Engine], rid: str, now: float) -> float | None:
    times = [at for one in engines if one.log is not None and (at := one.log.alive.get(rid)) is not None]
    return now - min(times) if times else None


def _gated(engines: Sequence[Engine]) -> tuple[str, ...]:
    return tuple(one.service.name for one in engines if one.gated)


# ---- looking -----------------------------------------------------------------------------------------------------


async def _look(services: Sequence[Service], *, apart_s: float = _APART_S) -> tuple[Engine, ...]:
    began = time.monotonic()
    scrapes: list[Scrape] = []
    for pause_s in (0.0, apart_s):
        await asyncio.sleep(pause_s)
        scrapes += await asyncio.gather(
            *(
                scrape(one, kind, began=began, deadline_s=_DEADLINE_S)
                for one in services
                for kind in ("metrics", "loads")
            )
        )
    seen = tuple(_node(one) for one in services)
    capture = Capture(
        schema=SCHEMA, host="", started_at="", window_s=_APART_S, entry=None, services=seen, scrapes=tuple(scrapes)
    )
    progress = progress_of(capture, chain_of(capture))
    return tuple(_engine(one, progress[one.name]) for one in services)


def _node(service: Service) -> SeenService:
    return SeenService(
        name=service.name, role=service.role, engine=service.engine, url=service.url, address=None, upstream=(), pids=()
    )


def _engine(service: Service, progress: Progress) -> Engine:
    stages = {
        name: int(reading.last) for name, reading in progress.gauges.items() if name != "http" and reading.last >= 1
    }
    held = progress.in_work_last
    log, whole = _request_log(service)
    moves = None if progress.work == "unknown" and progress.live_delta is None else progress.work == "moving"
    return Engine(
        service=service,
        held=None if held is None else int(held),
        floor=int(progress.in_work or 0),
        stages=stages,
        moves=moves,
        log=log,
        whole=whole,
    )


def _request_log(service: Service) -> tuple[RequestLog | None, bool]:
    """Its request log since its process began, at most the last 256 MB; and whether that was all."""
    path = service.launcher.log
    if path is None or not path.is_file():
        return None, False
    since = min((begun for pid in service_pids(service) if (begun := _begun(pid)) is not None), default=None)
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _LOG_LIMIT))
            return read_request_log(file, since=since), size <= _LOG_LIMIT
    except OSError:
        return None, False


def _begun(pid: int) -> float | None:
    try:
        return psutil.Process(pid).create_time() - 1.0  # the kernel's tick and a log's whole seconds
    except psutil.Error:
        return None


# ---- doing -------------------------------------------------------------------------------------------------------


def abort_pins(plan: UnpinPlan) -> UnpinPlan:
    """Abort what is pinned, engine by engine, and look until it is gone, for 10 s at most."""
    return asyncio.run(_abort(plan))


async def _abort(plan: UnpinPlan) -> UnpinPlan:
    services = {one.service.name: one.service for one in plan.engines}
    todo = [pin for pin in plan.pins if pin.state == "pinned"]
    problems: dict[str, list[str]] = {pin.rid: [] for pin in todo}
    for pin in todo:
        answers = [(name, await _send(services[name], pin.rid)) for name in pin.engines]
        problems[pin.rid] += [f"{name}: {problem}" for name, problem in answers if problem]
    deadline = time.monotonic() + _GONE_WITHIN_S
    while True:
        begun = time.monotonic()
        left = await _left(plan.engines, todo)
        if not any(left.values()) or time.monotonic() >= deadline:
            break
        await asyncio.sleep(max(0.25, 2 * (time.monotonic() - begun)))
    pins = tuple(_outcome(pin, left[pin.rid], problems[pin.rid]) if pin.rid in left else pin for pin in plan.pins)
    return replace(plan, pins=pins)


def _outcome(pin: Pin, left: Sequence[str], problems: Sequence[str]) -> Pin:
    if not left:
        return replace(pin, state="gone")
    return replace(
        pin,
        state="held",
        because="; ".join(problems) or f"{_GONE_WITHIN_S:.0f} s after the abort {' and '.join(left)} still held it",
    )


async def _left(engines: Sequence[Engine], pins: Sequence[Pin]) -> dict[str, list[str]]:
    """Of each pin, the engines that hold it still: by their log, else by how many they hold."""
    names = {name for pin in pins for name in pin.engines}
    before = {one.service.name: one for one in engines if one.service.name in names}
    after = {one.service.name: one for one in await _look([one.service for one in before.values()], apart_s=0.0)}
    left: dict[str, list[str]] = {pin.rid: [] for pin in pins}
    for name, now in after.items():
        sent = [pin.rid for pin in pins if name in pin.engines]
        if now.knows and now.log is not None and now.log.n_lines:
            still = [rid for rid in sent if rid in now.log.alive]
        else:
            was = before[name].held
            fewer = was is not None and now.held is not None and (now.held == 0 or was - now.held >= len(sent))
            still = [] if fewer else sent
        for rid in still:
            left[rid].append(name)
    return left


async def _send(service: Service, rid: str) -> str | None:
    """Ask one engine; what was wrong with its answer."""
    answer = await exchange(
        service.url + "/abort_request",
        deadline_s=_DEADLINE_S,
        method="POST",
        headers={"Content-Type": "application/json", **service.auth()},
        body=msgspec.json.encode({"rid": rid}),
    )
    if answer.error is not None or answer.status is None:
        return f"no answer to the abort ({answer.error})"
    if answer.status in (401, 403):
        return f"it refuses our key ({answer.status}): name the variable that holds it, api_key_env in the stack file"
    return None if answer.status == 200 else f"answers {answer.status} to the abort"
