"""A real stack as a `Bench`: edits its start scripts, restarts what restarts together, reads values back, drives load."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from vindicate.clock import Clock, SystemClock
from vindicate.errors import CannotError, EngineError, MisuseError
from vindicate.experiment.covariates import cache_counts, hit_share, said_of_itself, watch_cards
from vindicate.experiment.journal import Before, KeptFile
from vindicate.experiment.price import warm_up_requests
from vindicate.experiment.run import Drive
from vindicate.load.plan import LoadPlan
from vindicate.load.run import run_load_blocking
from vindicate.operate.files import swap
from vindicate.operate.holder import Holder, holder_of
from vindicate.operate.services import READY_S, bring_down, restart
from vindicate.operate.status import live_readings, look_at
from vindicate.record.experiment import Design, Start
from vindicate.stack.file import read_stack
from vindicate.stack.model import Knob, Service, Stack
from vindicate.units import shown

__all__ = ["StackBench", "present_value", "require_editable", "require_path"]

PATH_S = 90.0  # a router may need several health checks before it trusts a worker again
Say = Callable[[str], None]


def require_editable(stack: Stack, knob: Knob) -> dict[str, Holder]:
    """Where *knob* stands for every service that holds it, by service.

    Raises:
        MisuseError: One of the services is started by a person or by systemd, or the file is not there.
        CannotError: Knobs of that kind cannot be changed where that launcher keeps them.
    """
    holders = {}
    for name in knob.services:
        launcher = stack.service(name).launcher
        if launcher.kind in ("none", "systemd"):
            raise MisuseError(
                f"{stack.file}: services.{name} has a launcher of kind {launcher.kind!r}, where an experiment cannot set a knob yet",
                remedy='give it launcher = { kind = "script", file = "…" }',
            )
        holders[name] = holder_of(stack, stack.service(name), knob)
    return holders


def present_value(stack: Stack, knob: Knob) -> str | None:
    """What the scripts set *knob* to now; ``None`` when they do not.

    Raises:
        MisuseError: They cannot be read, or set different values.
    """
    found = {name: holder.read().value for name, holder in require_editable(stack, knob).items()}
    if len(set(found.values())) > 1:
        shown = ", ".join(f"{name} {'unset' if value is None else repr(value)}" for name, value in found.items())
        raise MisuseError(
            f"{knob.name} differs between the services that must hold one value: {shown}",
            remedy=f"make them equal first: vindicate apply {knob.name}=VALUE",
        )
    return next(iter(found.values()))


def require_path(stack: Stack, design: Design) -> None:
    """What the load goes through and no start will restart must be up before the first one.

    Raises:
        MisuseError: A service between the entry and the knob is down or unwell.
    """
    if design.url != stack.service(stack.entry).url:
        return
    for name in stack.path_from(stack.entry):
        if name not in design.restarted and (stand := look_at(stack, stack.service(name))).state != "ready":
            raise MisuseError(
                f"{name} is {stand.state} ({stand.detail}), and the load goes through it",
                remedy=f"try: vindicate stack up --stack {stack.file}",
            )


class StackBench:
    """Drives one stack through one design; a start that is not healthy after *ready_s* has failed."""

    ready_s = READY_S

    def __init__(self, stack: Stack, design: Design, *, say: Say, clock: Clock | None = None) -> None:
        self.stack = stack
        self.design = design
        self.knob = stack.knob(design.knob)
        self.holders = require_editable(stack, self.knob)
        self.say = say
        self.clock = clock or SystemClock()
        self.pids: frozenset[str] = frozenset()

    def look(self) -> Before:
        """Keep every script's bytes, and which services of the restart set are up."""
        return Before(
            files=tuple(KeptFile.of(path) for path in dict.fromkeys(it.path for it in self.holders.values()) if path),
            running=tuple(name for name in self.design.restarted if self._is_up(name)),
            value=present_value(self.stack, self.knob),
        )

    def start(self, before: Before, value: str | None) -> Start:
        """Write the arm's value into each script, restart the set, read it back in every process.

        Raises:
            EngineError: It did not start, or a process holds another value.
            CannotError: A script is not as the experiment left it, or something cannot be stopped or written.
        """
        for kept in before.files:
            self._write(kept, self._arm_bytes(kept, value))
        began = self.clock.monotonic()
        restart(self.stack, self.design.services, say=_quiet, timeout_s=self.ready_s, clock=self.clock)
        seen = self._read_back(value)
        self._wait_for_path()
        took_s = self.clock.monotonic() - began
        identity, covariates = said_of_itself(self._restarted())
        return Start(took_s=took_s, read_back=seen, identity=identity, covariates=covariates)

    def warm_up(self, level: int, seed: int) -> float | None:
        """One round of requests at *level*, not counted."""
        plan = self._plan(level, seed, requests=warm_up_requests(self.design.levels))
        run = run_load_blocking(plan, out=None)
        return run.levels[0].output_tok_per_s

    def drive(self, level: int, seed: int, out: Path) -> Drive:
        """One level, its raw rows under *out*."""
        counts = cache_counts(self._restarted())
        with watch_cards() as cards:
            run = run_load_blocking(self._plan(level, seed, requests=self.design.requests_per_level), out=out)
        self._read_back_again()
        return Drive(
            summary=run.levels[0],
            client_cpu_s=run.client_cpu_s,
            simulated=run.simulated,
            cache_hit_share=hit_share(counts, cache_counts(self._restarted())) if counts else None,
            sm_clock_mhz=cards.sm_clock_mhz,
            gpu_celsius=cards.celsius,
        )

    def put_back(self, before: Before) -> None:
        """The scripts' exact bytes, the processes that ran, on the value they had.

        Raises:
            CannotError: A script was changed by somebody else meanwhile (theirs is left alone), or a service stays down.
        """
        try:
            for kept in before.files:
                self._write(kept, kept.raw)
            if before.running:
                restart(self.stack, self.design.services, say=_quiet, clock=self.clock)
                self._read_back(before.value)
            idle = [name for name in self.design.restarted if name not in before.running]
            bring_down(self.stack, idle, say=_quiet, clock=self.clock)
        except (EngineError, CannotError) as error:
            raise CannotError(
                f"the stack could not be put back: {error.problem}",
                remedy=f"{error.remedy}; then: vindicate ab --put-back {self.design.id}",
            ) from error

    # ---- inside --------------------------------------------------------------------------------------------------

    def _wait_for_path(self) -> None:
        """Until one small request passes through everything: a router may take a while to trust restarted workers again."""
        deadline = self.clock.monotonic() + PATH_S
        probe = replace(self._plan(1, 0, requests=1), rounds=1, max_tokens=1, stall_after_s=PATH_S, deadline_s=PATH_S)
        while True:
            try:
                level = run_load_blocking(probe, out=None).levels[0]
                if level.completed:
                    return
                problem = ", ".join(level.errors) or "the request did not complete"
            except EngineError as error:
                problem = error.problem
            if self.clock.monotonic() > deadline:
                raise EngineError(
                    f"{self.design.url} did not answer within {PATH_S:g} s of the start: {problem}",
                    remedy=f"try: vindicate diagnose {self.design.url}",
                )
            self.clock.sleep(0.5)

    def _restarted(self) -> list[Service]:
        return [self.stack.service(name) for name in self.design.restarted]

    def _is_up(self, name: str) -> bool:
        return look_at(self.stack, self.stack.service(name)).state != "down"

    def _arm_bytes(self, kept: KeptFile, value: str | None) -> bytes:
        content: bytes | None = kept.raw
        for holder in self.holders.values():
            if str(holder.path) == kept.path:
                content = holder.edit(content, value)
        assert content is not None  # only a drop-in of systemd comes and goes
        return content

    def _write(self, kept: KeptFile, content: bytes) -> None:
        """Write one script, unless it holds neither what it held before nor what one of the arms put there."""
        path = Path(kept.path)
        try:
            now = path.read_bytes()
            ours = [kept.raw, *(self._arm_bytes(kept, self.design.value(arm)) for arm in ("a", "b"))]
            if now not in ours:
                raise CannotError(
                    f"{path} was changed by somebody else during the experiment; it is left alone",
                    remedy=f"its bytes from before are in {self.stack.home}/experiments/{self.design.id}/before.json",
                )
            if now != content:
                owner = path.stat()
                swap(path, content, mode=kept.mode, uid=owner.st_uid, gid=owner.st_gid)
            if self.stack.file is not None and path == self.stack.file.resolve():
                self.stack = read_stack(self.stack.file)  # it holds the knob itself
        except OSError as error:
            raise CannotError(
                f"{path} cannot be read: {error.strerror}", remedy="make it readable for this user"
            ) from error

    def _read_back(self, value: str | None) -> dict[str, str | None]:
        seen: dict[str, str | None] = {}
        for name in self.knob.services:
            readings = live_readings(self.stack.service(name), self.knob)
            if not readings:
                raise EngineError(
                    f"{name}: no process of it can be seen, so {self.knob.name} cannot be read back",
                    remedy="run this on its host, as its user or root",
                )
            for reading in readings:
                if reading.problem or reading.value != value:
                    found = reading.problem or f"holds {shown(reading.value)}"
                    raise EngineError(
                        f"{name}, pid {reading.pid}: {self.knob.name} should be {shown(value)}, and {found}",
                        remedy=f"see what sets it after the script does: vindicate knob show {self.knob.name}",
                    )
                seen[f"{name}/{reading.pid}"] = reading.value
        self.pids = frozenset(seen)
        return seen

    def _read_back_again(self) -> None:
        """A service that died and was started again by somebody else in mid-trial is not one start."""
        now = {
            f"{name}/{reading.pid}"
            for name in self.knob.services
            for reading in live_readings(self.stack.service(name), self.knob)
        }
        if not self.pids <= now:
            gone = ", ".join(sorted(self.pids - now))
            raise EngineError(f"{gone} died under load", remedy="read its log")

    def _plan(self, level: int, seed: int, *, requests: int) -> LoadPlan:
        return LoadPlan(
            url=self.design.url,
            model=self.design.model,
            levels=(level,),
            requests_per_level=requests,
            rounds=self.design.rounds,
            max_tokens=self.design.max_tokens,
            ignore_eos=self.design.ignore_eos,
            seed=seed,
            api_key_env=self.stack.service(self.stack.entry).api_key_env,
        )


def _quiet(_line: str) -> None:
    """Starts and stops are told by the experiment, one line a trial."""
