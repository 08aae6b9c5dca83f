"""A planned change → done: backed up, written, restarted together, read back, checked, watched; or undone, with the reason."""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from vindicate.errors import CannotError, EngineError, LedgerError, UndoneError, VindicateError
from vindicate.ledger.state import Book
from vindicate.ledger.store import Ledger
from vindicate.load.plan import LoadPlan
from vindicate.load.run import run_load_blocking
from vindicate.operate import files, journal
from vindicate.operate.answers import SETTLE_S, AnswerError, compare_answers, wait_for_answer
from vindicate.operate.health import wait_for_health
from vindicate.operate.journal import Progress
from vindicate.operate.kept import ask
from vindicate.operate.launch import keeper_of
from vindicate.operate.plan import ChangePlan, FileEdit, KnobEdit
from vindicate.operate.running import identify
from vindicate.operate.services import READY_S, bring_down, bring_up, restart
from vindicate.operate.status import live_readings
from vindicate.operate.watch import watch_change
from vindicate.record.ledger import Body, ChangeState
from vindicate.stack.file import read_stack
from vindicate.stack.model import Stack
from vindicate.units import shown

__all__ = ["Operation", "operation_on"]

Say = Callable[[str], None]
_LOAD_STREAMS, _LOAD_REQUESTS, _LOAD_STALL_S = 4, 8, 20.0


@dataclass(slots=True)
class Operation:
    """Carries one change out, or back. Every step is announced in the ledger before it is done and recorded after.

    Attributes:
        at_step: Called with ``STATE:before`` and ``STATE:after`` around each step's doing.
        told: What came of it, for a person.
    """

    stack: Stack
    ledger: Ledger
    progress: Progress
    say: Say
    timeout_s: float = READY_S
    at_step: Callable[[str], None] = lambda _place: None
    told: list[str] = field(default_factory=list)

    # ---- on ------------------------------------------------------------------------------------------------------

    def go_on(self) -> None:
        """Do all steps that are still to do; when one fails, undo the change.

        Raises:
            UndoneError: A step failed, and everything is as it was before.
            CannotError: A step failed, and undoing did too; it can be tried again with the command in the remedy.
            LedgerError: A step could not be recorded; the change stands half done, with its services up.
            BaseException: Whatever else came, Ctrl-C say, as it came; the change stands half done and can be finished or undone.
        """
        with self._told_how_to_finish():
            try:
                for state, intent, step in self._left():
                    self._step(state, intent, step)
            except LedgerError:  # no step is at fault, and undoing could not be recorded either
                raise
            except VindicateError as error:
                self._undo_because(error)

    def left(self) -> list[str]:
        """The steps that are still to do, in words."""
        return [intent for _, intent, _ in self._left()]

    def _left(self) -> Iterator[tuple[ChangeState, str, Callable[[], tuple[str, dict[str, object], list[Body]]]]]:
        plan = self.progress.plan
        steps: list[tuple[ChangeState, str, Callable[[], tuple[str, dict[str, object], list[Body]]]]] = [
            ("backed_up", "copy each script beside itself", self._back_up),
            ("written", "write the new value", self._write),
            ("restarted", f"restart together: {', '.join(plan.together)}", self._restart),
            ("read_back", "read the value back from every live process", self._read_back),
            ("checked", "check health, answers, and a short load", self._check),
        ]
        if plan.watch is not None:
            steps.append(("watching", "watch it", lambda: (plan.watch.why if plan.watch else "", {}, [])))
        steps.append(("done", "finish", self._finish))
        names = [state for state, _, _ in steps]
        first = names.index(self.progress.state) + 1 if self.progress.state in names else 0
        if first > names.index("restarted") and not self._holds():
            first = names.index("restarted")  # something died or was restarted since: its state no longer stands
        yield from steps[first:]

    def _step(
        self, state: ChangeState, intent: str, step: Callable[[], tuple[str, dict[str, object], list[Body]]]
    ) -> None:
        self.progress = journal.announce(self.ledger, self.progress, state, intent)
        self.at_step(f"{state}:before")
        detail, data, more = step()
        self.at_step(f"{state}:after")
        self.progress = journal.reach(self.ledger, self.progress, state, detail, data=data, more=more)
        self.say(f"{state}: {detail}")

    def _back_up(self) -> tuple[str, dict[str, object], list[Body]]:
        for file in self.progress.plan.files:
            files.back_up(file)
        names = ", ".join(Path(file.backup).name for file in self.progress.plan.files)
        return names or "no file changes", {}, []

    def _write(self) -> tuple[str, dict[str, object], list[Body]]:
        for file in self.progress.plan.files:
            files.write_edit(file, self.progress.plan.edits, self.stack)
        self._reload()
        written = ", ".join(f"{edit.knob}={shown(edit.after)}" for edit in self.progress.plan.edits)
        return written, {}, []

    def _restart(self) -> tuple[str, dict[str, object], list[Body]]:
        together, began = self.progress.plan.together, time.clock_gettime(time.CLOCK_BOOTTIME)
        asked = self._asked({edit.knob: edit.after for edit in self.progress.plan.edits})
        restart(self.stack, together, say=self.say, timeout_s=self.timeout_s, by_person=asked)
        took_s = round(time.clock_gettime(time.CLOCK_BOOTTIME) - began, 1)
        data: dict[str, object] = {"uptime_s": began, "restarted": list(together), "took_s": took_s}
        return f"{', '.join(together)} in {took_s} s", data, []

    def _read_back(self) -> tuple[str, dict[str, object], list[Body]]:
        seen = [
            self._require_live(edit, edit.after, since=self.progress.since_uptime_s)
            for edit in self.progress.plan.edits
        ]
        return "; ".join(seen), {}, []

    def _check(self) -> tuple[str, dict[str, object], list[Body]]:
        plan = self.progress.plan
        self._require_healthy(
            [*plan.together, *([plan.baseline.service] if plan.baseline else [])], "after the restart"
        )
        if plan.baseline is None:
            reached = wait_for_answer(self.stack)
            if not reached.good and reached.service in plan.together:
                raise EngineError(reached.text, remedy="vindicate diagnose")
            return f"healthy; {reached.text}; answers were not compared, since nobody answered before", {}, []
        compared = self._settled()
        self._short_load(plan.baseline.service, recall=any(item.recalled for item in plan.baseline.answers))
        self._read_back()
        return f"healthy; {compared}; {_LOAD_REQUESTS} requests in {_LOAD_STREAMS} streams ended well", {}, []

    def _settled(self) -> str:
        """Compare answers, giving a router time to see its workers again; a wrong answer is wrong at once."""
        baseline = self.progress.plan.baseline
        assert baseline is not None
        deadline = time.monotonic() + SETTLE_S
        while True:
            try:
                return compare_answers(self.stack, baseline)
            except AnswerError:
                raise
            except EngineError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.5)

    def _short_load(self, service: str, *, recall: bool) -> None:
        target = self.stack.service(service)
        plan = LoadPlan(
            url=target.url, levels=(_LOAD_STREAMS,), requests_per_level=_LOAD_REQUESTS, rounds=2, max_tokens=16,
            stall_after_s=_LOAD_STALL_S, deadline_s=60.0, seed=7, api_key_env=target.api_key_env,
        )  # fmt: skip
        level = run_load_blocking(plan).levels[0]
        broken = level.failed + level.stalled + level.truncated
        if broken or (recall and level.recall_failed):
            raise EngineError(
                f"{service}: of {level.requests} requests of a short load {level.failed} failed, {level.stalled} stalled, "
                f"{level.truncated} were truncated, {level.recall_failed} lost their context",
                remedy="vindicate diagnose",
            )

    def _finish(self) -> tuple[str, dict[str, object], list[Body]]:
        watch = self.progress.plan.watch
        if watch is None:
            self.told += self._edited_meanwhile()
            return "; ".join(self.told) or "nothing is left to do", {}, []
        outcome = watch_change(self.stack, self.ledger, self.progress.plan, watch, say=self.say)
        if outcome.symptom is not None:
            try:
                self.ledger.append_all(outcome.facts)
            except LedgerError as error:  # the symptom weighs more: undo it all the same
                self.say(f"the symptom is not on record: {error.problem}")
            raise EngineError(f"under watch: {outcome.symptom}", remedy="vindicate diagnose")
        self._require_healthy(self.progress.plan.together, "after the watch")
        self._read_back()
        self.told += [outcome.text, *self._edited_meanwhile()]
        return "; ".join(self.told), {}, list(outcome.facts)

    def _edited_meanwhile(self) -> list[str]:
        """What somebody else did to the scripts since they were written, where the values were left as they are to be."""
        notes = (files.edited_since(file, self.progress.plan.edits, self.stack) for file in self.progress.plan.files)
        return [note for note in notes if note]

    # ---- back ----------------------------------------------------------------------------------------------------

    def roll_back(self, reason: str) -> str:
        """Put scripts and processes back as they were before the change, as far as any step had begun.

        Returns:
            What was done, in a line.

        Raises:
            CannotError: Somebody edited a script since, or a service does not come up; the change is then ``failed``,
                and rolling back can be tried again.
            LedgerError: What was done could not be recorded.
        """
        with self._told_how_to_finish():
            return self._roll_back(reason)

    def _roll_back(self, reason: str) -> str:
        try:
            done = self._back(reason)
        except VindicateError as error:
            self._end_the_outage()
            self.progress = journal.reach(
                self.ledger, self.progress, "failed", f"{reason}; undoing failed: {error.problem}"
            )
            for file in _edited_since(self.progress.plan):
                self.say("\n".join(files.difference(file)[:20]))
            raise CannotError(
                f"{reason}; and undoing it failed: {error.problem}",
                remedy=f"{error.remedy}; then: vindicate change rollback {self.progress.plan.ids[0]}",
            ) from error
        self.say(f"undone: {done}")
        self.progress = journal.reach(self.ledger, self.progress, "rolled_back", f"{reason}; {done}")
        return done

    def _back(self, reason: str) -> str:
        plan, announced = self.progress.plan, self.progress.announced
        if "written" not in announced:
            return "nothing had been written"
        self.say(f"undoing: {reason}")
        if "restarted" not in announced:
            changed = [file.path for file in plan.files if files.put_back(file)]
            self._reload()
            return f"put back {', '.join(changed)}" if changed else "the scripts were as before"
        for file in plan.files:
            files.put_back(file)
        self._reload()
        began = time.clock_gettime(time.CLOCK_BOOTTIME)
        if not plan.was_up:
            bring_down(self.stack, plan.together, say=self.say)
            return "the scripts are as before, and the services are stopped, as they were"
        asked = self._asked({edit.knob: edit.before for edit in plan.edits})
        restart(self.stack, plan.together, say=self.say, timeout_s=self.timeout_s, by_person=asked, all_new=False)
        seen = [
            self._require_live(edit, edit.before, since=began, or_as=edit.was_live, undoing=True) for edit in plan.edits
        ]
        return f"the scripts are as before, and live again: {'; '.join(seen)}; {wait_for_answer(self.stack).text}"

    def _reload(self) -> None:
        """Read the stack file again when it holds a knob, and make what keeps the services read edited files again."""
        file = self.stack.file
        if file is not None and any(Path(edit.path) == file.resolve() for edit in self.progress.plan.files):
            self.stack = read_stack(file)
        for name in dict.fromkeys(name for edit in self.progress.plan.edits for name in edit.services):
            if keeper := keeper_of(self.stack, self.stack.service(name)):
                ask(keeper.reload())

    def _asked(self, values: Mapping[str, str | None]) -> dict[str, dict[str, str | None]]:
        """The knob values that each service must come to hold, where a person restarts it."""
        edits, together = self.progress.plan.edits, self.progress.plan.together
        return {name: {edit.knob: values[edit.knob] for edit in edits if name in edit.services} for name in together}

    def _end_the_outage(self) -> None:
        """Start what ran before on a script that is somebody else's by now: theirs is better than no service."""
        plan = self.progress.plan
        if "restarted" in self.progress.announced and _edited_since(plan):
            try:
                bring_up(self.stack, plan.was_up, say=self.say, timeout_s=self.timeout_s)
            except VindicateError as error:
                self.say(f"not running now: {error.problem}")

    def _undo_because(self, error: VindicateError) -> None:
        done = self._roll_back(error.problem)
        raise UndoneError(
            f"{error.problem}; the change was undone: {done}",
            remedy=f"see: vindicate change show {self.progress.plan.ids[0]}; {error.remedy}",
        ) from error

    # ---- looking -------------------------------------------------------------------------------------------------

    def _holds(self) -> bool:
        try:
            self._read_back()
            self._require_healthy(self.progress.plan.together, "any more")
        except VindicateError:
            return False
        return True

    def _require_healthy(self, names: Iterable[str], when: str) -> None:
        """Insist that each is well, with time for a slow answer.

        Raises:
            EngineError: One is not, or nobody listens there.
        """
        for name in dict.fromkeys(names):
            health = wait_for_health(self.stack.service(name), within_s=SETTLE_S)
            if not health.good:
                raise EngineError(f"{name}: not healthy {when}: {health.detail}", remedy="vindicate stack status")

    def _require_live(
        self,
        edit: KnobEdit,
        value: str | None,
        *,
        since: float | None,
        or_as: tuple[str | None, ...] = (),
        undoing: bool = False,
    ) -> str:
        """Insist that every live process of every holder has *value*, or one of *or_as*, and began after *since* (seconds since boot).

        Args:
            undoing: What a person starts may have been left running, where it holds the value.

        Raises:
            EngineError: One has another value, cannot be read, is older, or there is none.
        """
        seen = []
        for name in edit.services:
            service = self.stack.service(name)
            readings = live_readings(service, self.stack.knob(edit.knob))
            where, may_rest = f"{name}: {edit.knob}", undoing and service.launcher.kind == "none"
            if not readings:
                raise EngineError(
                    f"{where} cannot be read back: no live process was found", remedy="vindicate stack status"
                )
            for reading in readings:
                if reading.problem:
                    raise EngineError(
                        f"{where} cannot be read back from pid {reading.pid}: {reading.problem}",
                        remedy="vindicate stack status",
                    )
                if reading.value not in (value, *or_as):
                    raise EngineError(
                        f"{where} is {shown(reading.value)} in pid {reading.pid}, and should be {shown(value)}",
                        remedy=f"look at what else sets it in {service.launcher.file or f'what starts {name}'}",
                    )
                if since is not None and not may_rest and _is_older(reading.pid, since):
                    raise EngineError(
                        f"{where}: pid {reading.pid} is older than the change", remedy="vindicate stack status"
                    )
            told = {reading.elsewhere for reading in readings if reading.elsewhere}
            by = f" (by {', '.join(sorted(told))})" if told else ""
            pids = ", ".join(str(reading.pid) for reading in readings)
            seen.append(f"{edit.knob}={shown(readings[0].value)} in {name} pid {pids}{by}")
        return "; ".join(seen)

    @contextmanager
    def _told_how_to_finish(self) -> Iterator[None]:
        """Whatever breaks off, the last line names the commands that go on from here, or back."""
        change = self.progress.plan.ids[0]
        try:
            yield
        except UndoneError:
            raise
        except BaseException as error:
            state = self.progress.state
            what = "interrupted" if isinstance(error, KeyboardInterrupt) else f"stopped by {type(error).__name__}"
            finish = f"finish it: vindicate change resume {change}   or " if state not in journal.FINAL else ""
            self.say(
                f"{what}; {change} stands half done ({state}). {finish}undo it: vindicate change rollback {change}"
            )
            raise


def _edited_since(plan: ChangePlan) -> list[FileEdit]:
    """Scripts that are neither as before the change nor as it wrote them."""
    return [file for file in plan.files if files.current(file) not in (file.sha_before, file.sha_after)]


def _is_older(pid: int, uptime_s: float) -> bool:
    """Whether the process began before that moment; ticks are 10 ms."""
    found = identify(pid)
    return found is not None and found.start_ticks / os.sysconf("SC_CLK_TCK") < uptime_s - 0.05


def operation_on(
    stack: Stack, ledger: Ledger, book: Book, change: str, *, say: Say, timeout_s: float = READY_S
) -> Operation:
    """Take up a change where its journal stands.

    Raises:
        MisuseError: There is no such change, or it has no journal.
    """
    return Operation(stack, ledger, journal.progress_of(book, change), say, timeout_s)
