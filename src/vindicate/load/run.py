"""A LoadPlan → requests to a server, a record of each, and a LoadSummary; every run ends."""

import asyncio
import random
import resource
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from vindicate.clock import utc_now
from vindicate.load.connection import Pool
from vindicate.load.dialect import Message, request_of, stream_of
from vindicate.load.exchange import Exchange, Limits
from vindicate.load.keep import Keeper
from vindicate.load.lag import Lag
from vindicate.load.loop import new_loop
from vindicate.load.model import first_model
from vindicate.load.plan import LoadPlan, Turn, server_url
from vindicate.load.prompt import cancel_point, session_random, turns
from vindicate.load.schedule import arrival_times
from vindicate.load.server_count import generated_tokens
from vindicate.load.summary import doubts, summarise
from vindicate.record.load import LevelSummary, LoadSummary, RequestRecord
from vindicate.redact import redact_text

__all__ = ["SUSPICIOUS", "Progress", "run_load", "run_load_blocking"]

_CONNECT_S = 10.0
_AFTER_FAILURE_S = 0.2
_WARM_S = 1.0
_SILENT_IN_OPEN_LOOP = 32
SUSPICIOUS = 0.5


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
OnSilence = Callable[[], None]


def run_load_blocking(
    plan: LoadPlan,
    *,
    out: Path | None = None,
    on_progress: OnProgress | None = None,
    on_silence: OnSilence | None = None,
) -> LoadSummary:
    """Run *plan* in an event loop of its own; see :func:`run_load`."""
    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(run_load(plan, out=out, on_progress=on_progress, on_silence=on_silence))


async def run_load(
    plan: LoadPlan,
    *,
    out: Path | None = None,
    on_progress: OnProgress | None = None,
    on_silence: OnSilence | None = None,
) -> LoadSummary:
    """Drive every level of *plan* and sum up.

    Args:
        on_silence: Called once, when a stream has been silent for `SUSPICIOUS` of what makes it stalled: it is still there to be looked at.

    With *out*, `requests.jsonl` grows as requests end and `summary.json` is written after each level, and once more
    when the run is cancelled; then the cancellation goes on.

    Raises:
        MisuseError: *out* already holds a run, or the key's variable is not set.
        CannotError: *out* cannot be written.
        EngineError: The server refuses connections from the start, or does not say which model it serves.
    """
    plan = replace(plan, url=server_url(plan.url), seed=secrets.randbits(32) if plan.seed is None else plan.seed)
    key = plan.api_key()
    headers = {
        "Content-Type": "application/json",
        "Accept": "text/event-stream" if plan.streaming else "application/json",
    }
    if key is not None:
        headers["Authorization"] = f"Bearer {key}"
    pool = Pool(plan.url, headers)
    await pool.find(_CONNECT_S)
    try:
        if plan.model is None and plan.api != "generate":
            remedy = f"try: vindicate diagnose {redact_text(plan.url)}, or name the model with --model"
            found = await first_model(plan.url, headers=headers, deadline_s=_CONNECT_S, remedy=remedy)
            plan = replace(plan, model=found)
        with Keeper(out) as keeper:
            return await _Run(plan, pool, keeper, on_progress, on_silence).levels()
    finally:
        await pool.close()


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


class _Run:
    """One run: its levels one after another, and what is to be said of them."""

    def __init__(
        self, plan: LoadPlan, pool: Pool, keeper: Keeper, on_progress: OnProgress | None, on_silence: OnSilence | None
    ) -> None:
        self.plan, self.pool, self.keeper = plan, pool, keeper
        self.headers = pool.headers
        self.report = on_progress or (lambda _: None)
        self.on_silence = on_silence
        self.started_at, self.epoch, self.cpu = utc_now(), time.monotonic(), _cpu_s()
        self.done: list[LevelSummary] = []
        self.simulated = False

    async def levels(self) -> LoadSummary:
        summary = self._summary(ended_early="nothing was sent yet")
        self.keeper.summary(summary)
        for size in (0,) if self.plan.is_open else self.plan.levels:
            level = _Level(self, size)
            try:
                before = await generated_tokens(self.plan.url, self.headers)
                await level.run()
                if before is not None:
                    after = await generated_tokens(self.plan.url, self.headers)
                    level.server_tokens = round(after - before) if after is not None and after >= before else None
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
        found = summarise(
            level.size,
            (level.ended or time.monotonic()) - level.began,
            level.records,
            opens=self.plan.is_open,
            ramp_s=self.plan.ramp_s,
            slo_s=self.plan.slo_s,
        )
        found = replace(
            found,
            client_cpu_s=round(_cpu_s() - level.cpu, 3),
            client_lag_ms=level.lag.mean_ms,
            client_error_ms=self.plan.client_errors_ms.get(level.size),
            server_tokens=level.server_tokens,
        )
        found = replace(found, warnings=tuple(doubts(found)))
        self.done.append(found)
        self.simulated = self.simulated or level.simulated

    def _summary(self, *, ended_early: str | None) -> LoadSummary:
        return LoadSummary(
            schema="vindicate.load/1",
            url=redact_text(self.plan.url),
            model=redact_text(self.plan.model or ""),
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
    cpu: float = field(default_factory=_cpu_s)
    lag: Lag = field(default_factory=Lag)
    ended: float | None = None
    server_tokens: int | None = None
    _left: int | None = None
    _sessions: int = 0
    _running: int = 0
    _good: int = 0
    _silent_in_a_row: int = 0
    _open: set[Exchange] = field(default_factory=set)

    async def run(self) -> None:
        plan = self.of.plan
        self._left = plan.budget(self.size)
        slots = self.size if self._left is None else min(self.size, self._left)
        await self.of.pool.warm(slots, _WARM_S)
        self.began = time.monotonic()
        lag = asyncio.create_task(self.lag.watch())
        silence = asyncio.create_task(self._watch_for_silence())
        try:
            async with asyncio.TaskGroup() as group:
                if plan.is_open:
                    await self._arrive(group)
                else:
                    for slot in range(slots):
                        group.create_task(self._slot(plan.ramp_s * slot / slots))
        except BaseExceptionGroup as several:
            raise several.exceptions[0] from several
        finally:
            self.ended = time.monotonic()
            lag.cancel()
            silence.cancel()

    async def _watch_for_silence(self) -> None:
        suspicious_s = SUSPICIOUS * self.of.plan.stall_after_s
        while self.of.on_silence is not None:
            await asyncio.sleep(suspicious_s / 20)
            if any(exchange.silent_s >= suspicious_s for exchange in self._open):
                told, self.of.on_silence = self.of.on_silence, None
                told()

    async def _arrive(self, group: asyncio.TaskGroup) -> None:
        """Start each session when it is due, whatever became of the others."""
        plan = self.of.plan
        chance = random.Random(f"{plan.seed}/arrivals")  # noqa: S311 a schedule, no secret
        by_rate = arrival_times(
            plan.rate or 1.0, chance, arrivals=plan.arrivals, burst=plan.burst, ramp_s=plan.ramp_s
        )  # fmt: skip
        times = (line.due_s or 0.0 for line in plan.trace) if plan.trace else by_rate
        for number, at_s in enumerate(times):
            due = self.began + at_s
            if plan.duration_s is not None and at_s >= plan.duration_s:
                return
            while (wait := due - time.monotonic()) > 0 and self.gave_up is None:  # noqa: ASYNC110 it is a time that is waited for
                await asyncio.sleep(min(wait, 0.5))
            if self.gave_up is not None or (self._left is not None and self._left <= 0):
                return
            group.create_task(self._session(number, due))
            await asyncio.sleep(0)

    def _may_send(self) -> bool:
        duration = self.of.plan.duration_s
        in_time = duration is None or self.of.plan.is_open or time.monotonic() - self.began < duration
        return in_time and self.gave_up is None and (self._left is None or self._left > 0)

    async def _slot(self, after_s: float) -> None:
        await asyncio.sleep(after_s)
        while self._may_send():
            number, self._sessions = self._sessions, self._sessions + 1
            if not await self._session(number):
                # A server that fails at once is not to be hammered.
                await asyncio.sleep(_AFTER_FAILURE_S)

    async def _session(self, number: int, due: float | None = None) -> bool:
        """Play one session until it is over, broken, or the budget is spent; whether nothing broke."""
        plan = self.of.plan
        seed = plan.seed or 0
        chance = session_random(seed, self.size, number)
        line = plan.trace[number] if plan.trace else None
        told = turns(plan, chance, number) if line is None else (Turn(line.text(seed, number)),)
        max_tokens = line.output_length if line is not None and line.output_length is not None else plan.max_tokens
        messages: list[Message] = []
        for count, turn in enumerate(told, 1):
            if not self._may_send():
                return True
            if self._left is not None:
                self._left -= 1
            messages.append({"role": "user", "content": turn.say})
            exchange = Exchange(
                id=f"{seed:08x}-{self.size}-{number}-{count}",
                level=self.size,
                session=number,
                round=count,
                epoch=self.of.epoch,
                expected=turn.expect,
                due=due if count == 1 else None,
                streaming=plan.streaming,
                stream=stream_of(plan.api),
                limits=Limits(
                    stall_after_s=plan.stall_after_s,
                    deadline_s=plan.deadline_s,
                    connect_s=_CONNECT_S,
                    max_tokens=max_tokens,
                    cancel_after=cancel_point(plan, chance),
                ),
            )
            if not await self._send(exchange, messages):
                return False
            if exchange.stream.texts:
                messages.append({"role": "assistant", "content": exchange.stream.text})
        return True

    async def _send(self, exchange: Exchange, messages: list[Message]) -> bool:
        plan, max_tokens = self.of.plan, exchange.limits.max_tokens
        path, body = request_of(
            plan.api,
            plan.model,
            messages,
            max_tokens=max_tokens,
            streaming=plan.streaming,
            ignore_eos=plan.ignore_eos,
        )
        self._running += 1
        self._open.add(exchange)
        try:
            await exchange.run(self.of.pool, path, body)
        finally:
            self._running -= 1
            self._open.discard(exchange)
            record = exchange.record()
            self.records.append(record)
            self.of.keeper.request(record)
            self.simulated = self.simulated or exchange.simulated
        self._judge(record)
        return record.outcome in ("completed", "cancelled")

    def _judge(self, record: RequestRecord) -> None:
        """Say how far we are, and stop a level whose every slot is silent."""
        note, slots = None, self.size or _SILENT_IN_OPEN_LOOP
        if record.outcome == "stalled":
            self._silent_in_a_row += 1
            if self._silent_in_a_row == slots:
                note = f"the last {slots} streams all stalled"
            if self._silent_in_a_row >= 2 * slots and self.gave_up is None and self._left != 0:
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
