"""A LoadPlan → requests to a server, a record of each, and a LoadSummary; every run ends."""

import asyncio
import resource
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import msgspec

from vindicate.clock import utc_now
from vindicate.errors import EngineError
from vindicate.load.exchange import Exchange, Limits
from vindicate.load.keep import Keeper
from vindicate.load.model import first_model
from vindicate.load.plan import LoadPlan, server_url
from vindicate.load.prompt import cancel_point, session_random, turns
from vindicate.load.summary import summarise
from vindicate.record.load import LevelSummary, LoadSummary, RequestRecord
from vindicate.redact import redact_text

__all__ = ["Progress", "run_load", "run_load_blocking"]

_CONNECT_S = 10.0
_AFTER_FAILURE_S = 0.2


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is; *note* is set once when something must be said."""

    level: int
    requests: int
    completed: int
    broken: int
    running: int
    elapsed_s: float
    note: str | None = None


OnProgress = Callable[[Progress], None]


def run_load_blocking(plan: LoadPlan, *, out: Path | None = None, on_progress: OnProgress | None = None) -> LoadSummary:
    """Run *plan* in an event loop of its own; see :func:`run_load`."""
    return asyncio.run(run_load(plan, out=out, on_progress=on_progress))


async def run_load(plan: LoadPlan, *, out: Path | None = None, on_progress: OnProgress | None = None) -> LoadSummary:
    """Drive every level of *plan* and sum up.

    With *out*, `requests.jsonl` grows as requests end and `summary.json` is written after each level, and once more
    when the run is cancelled; then the cancellation goes on.

    Raises:
        MisuseError: *out* already holds a run, or the key's variable is not set.
        CannotError: *out* cannot be written.
        EngineError: The server refuses connections from the start, or does not say which model it serves.
    """
    plan = replace(plan, url=server_url(plan.url), seed=secrets.randbits(32) if plan.seed is None else plan.seed)
    key = plan.api_key()
    await _must_accept(plan.url)
    # Connections are ours to limit nowhere: a pool bound in the client would be the very fault we look for.
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=4.0)
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S)
    headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
    if key is not None:
        headers["Authorization"] = f"Bearer {key}"
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, headers=headers) as http:
        if plan.model is None:
            shown = redact_text(plan.url)
            remedy = f"try: vindicate diagnose {shown}, or name the model with --model"
            found = await first_model(plan.url, headers=headers, deadline_s=_CONNECT_S, remedy=remedy)
            plan = replace(plan, model=found)
        with Keeper(out) as keeper:
            return await _Run(plan, http, keeper, on_progress).levels()


async def _must_accept(url: str) -> None:
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        async with asyncio.timeout(_CONNECT_S):
            _, writer = await asyncio.open_connection(parts.hostname, port)
    except (OSError, TimeoutError) as error:
        reason = "connection refused" if isinstance(error, ConnectionRefusedError) else str(error) or "no connection"
        raise EngineError(
            f"{redact_text(url)} does not take connections: {reason}",
            remedy=f"try: vindicate diagnose {redact_text(url)}",
        ) from error
    writer.close()


class _Run:
    """One run: its levels one after another, and what is to be said of them."""

    def __init__(
        self, plan: LoadPlan, http: aiohttp.ClientSession, keeper: Keeper, on_progress: OnProgress | None
    ) -> None:
        self.plan, self.http, self.keeper = plan, http, keeper
        self.report = on_progress or (lambda _: None)
        self.started_at, self.epoch, self.cpu = utc_now(), time.monotonic(), _cpu_s()
        self.done: list[LevelSummary] = []
        self.simulated = False

    async def levels(self) -> LoadSummary:
        summary = self._summary(ended_early="nothing was sent yet")
        self.keeper.summary(summary)
        for size in self.plan.levels:
            level = _Level(self, size)
            try:
                await level.run()
            except asyncio.CancelledError:
                self._close(level)
                self.keeper.summary(self._summary(ended_early="interrupted"))
                raise
            self._close(level)
            summary = self._summary(ended_early=level.gave_up)
            self.keeper.summary(summary)
            if level.gave_up is not None:
                break
        return summary

    def _close(self, level: "_Level") -> None:
        self.done.append(summarise(level.size, time.monotonic() - level.began, level.records))
        self.simulated = self.simulated or level.simulated

    def _summary(self, *, ended_early: str | None) -> LoadSummary:
        return LoadSummary(
            schema="vindicate.load/1",
            url=redact_text(self.plan.url),
            model=self.plan.model or "",
            started_at=self.started_at,
            levels=tuple(self.done),
            client_cpu_s=round(_cpu_s() - self.cpu, 3),
            complete=ended_early is None,
            simulated=self.simulated,
            seed=self.plan.seed,
            ended_early=ended_early,
            out=str(self.keeper.folder) if self.keeper.folder is not None else None,
        )


@dataclass(slots=True)
class _Level:
    """*size* slots, each playing one session after another until the budget is spent."""

    of: _Run
    size: int
    records: list[RequestRecord] = field(default_factory=list)
    gave_up: str | None = None
    simulated: bool = False
    began: float = field(default_factory=time.monotonic)
    _left: int | None = None
    _sessions: int = 0
    _running: int = 0
    _good: int = 0
    _silent_in_a_row: int = 0

    async def run(self) -> None:
        self._left = self.of.plan.budget(self.size)
        slots = self.size if self._left is None else min(self.size, self._left)
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(slots):
                    group.create_task(self._slot())
        except BaseExceptionGroup as several:
            raise several.exceptions[0] from several

    def _may_send(self) -> bool:
        duration = self.of.plan.duration_s
        in_time = duration is None or time.monotonic() - self.began < duration
        return in_time and self.gave_up is None and (self._left is None or self._left > 0)

    async def _slot(self) -> None:
        while self._may_send():
            number, self._sessions = self._sessions, self._sessions + 1
            if not await self._session(number):
                # A server that fails at once is not to be hammered.
                await asyncio.sleep(_AFTER_FAILURE_S)

    async def _session(self, number: int) -> bool:
        """Play one session until it is over, broken, or the budget is spent; whether nothing broke."""
        plan = self.of.plan
        chance = session_random(plan.seed or 0, self.size, number)
        messages: list[dict[str, str]] = []
        for count, turn in enumerate(turns(plan, chance, number), 1):
            if not self._may_send():
                return True
            if self._left is not None:
                self._left -= 1
            messages.append({"role": "user", "content": turn.say})
            exchange = Exchange(
                id=f"{plan.seed or 0:08x}-{self.size}-{number}-{count}",
                level=self.size,
                session=number,
                round=count,
                epoch=self.of.epoch,
                expected=turn.expect,
                limits=Limits(
                    stall_after_s=plan.stall_after_s,
                    deadline_s=plan.deadline_s,
                    max_tokens=plan.max_tokens,
                    cancel_after=cancel_point(plan, chance),
                ),
            )
            if not await self._send(exchange, messages):
                return False
            if exchange.stream.texts:
                messages.append({"role": "assistant", "content": exchange.stream.text})
        return True

    async def _send(self, exchange: Exchange, messages: list[dict[str, str]]) -> bool:
        plan = self.of.plan
        body = msgspec.json.encode(
            {
                "model": plan.model,
                "messages": messages,
                "max_tokens": plan.max_tokens,
                "temperature": 0,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        )
        self._running += 1
        try:
            await exchange.run(self.of.http, f"{plan.url}/v1/chat/completions", body)
        finally:
            self._running -= 1
            record = exchange.record()
            self.records.append(record)
            self.of.keeper.request(record)
            self.simulated = self.simulated or exchange.simulated
        self._judge(record)
        return record.outcome in ("completed", "cancelled")

    def _judge(self, record: RequestRecord) -> None:
        """Say how far we are, and stop a level whose every slot is silent."""
        note = None
        if record.outcome == "stalled":
            self._silent_in_a_row += 1
            if self._silent_in_a_row == self.size:
                note = f"the last {self.size} streams all stalled: as many as there are slots"
            if self._silent_in_a_row >= 2 * self.size and self.gave_up is None and self._left != 0:
                self.gave_up = note = (
                    f"{self._silent_in_a_row} streams in a row stalled at level {self.size}; no more are started"
                )
        else:
            self._silent_in_a_row = 0
        self._good += record.outcome in ("completed", "cancelled")
        self.of.report(
            Progress(
                level=self.size,
                requests=len(self.records),
                completed=self._good,
                broken=len(self.records) - self._good,
                running=self._running,
                elapsed_s=time.monotonic() - self.of.epoch,
                note=note,
            )
        )


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
