"""A running small stack with its ledger, for tests of changes: in this process, in one that dies, or on the command line."""

import os
import signal
import subprocess
import sys

from vindicate.ledger.state import Book
from vindicate.ledger.store import Ledger
from vindicate.operate import journal
from vindicate.operate.begin import grounds_for, numbered, with_baseline
from vindicate.operate.change import Operation
from vindicate.operate.plan import plan_edits
from vindicate.operate.services import bring_up
from vindicate.operate.status import live_readings


def quiet(_line):
    pass


# The program, killed as by kill -9 at the place that its first argument names.
DIES_AT = """
import os, signal, sys
from vindicate.cli import main
from vindicate.operate.change import Operation
place = sys.argv.pop(1)
begin = Operation.__init__
def begin_to_die(self, *words, **more):
    begin(self, *words, **more)
    self.at_step = lambda here: here == place and os.kill(os.getpid(), signal.SIGKILL)
Operation.__init__ = begin_to_die
main()
"""


class Bench:
    """A running small stack with its ledger."""

    def __init__(self, stack):
        self.stack = stack
        self.script = stack.service("worker").launcher.file
        self.before = self.script.read_bytes() if self.script else None  # what is kept elsewhere has no script
        self.ledger = Ledger.open(stack.home / "ledger.db")
        bring_up(stack, ("worker", "helper"), say=quiet)

    @property
    def book(self):
        return Book.from_facts(self.ledger.facts())

    @property
    def live(self):
        return {reading.value for reading in live_readings(self.stack.service("worker"), "KNOB")}

    def state(self, change):
        return self.book.change(change).state

    def change(self, kind="apply", because=(), timeout_s=15.0, at_step=quiet, say=quiet, **wanted):
        plan = plan_edits(self.stack, kind, wanted, ids=["C1"] * len(wanted))
        plan, _ = with_baseline(self.stack, numbered(self.ledger, plan))
        more = grounds_for(self.book, plan, because)
        progress = journal.begin(self.ledger, plan, reason="", undoes={}, more=more)
        operation = Operation(self.stack, self.ledger, progress, say, timeout_s, at_step)
        operation.go_on()
        return operation

    def change_and_die(self, die_at, **wanted):
        """Carry a change out in a process of its own that is killed with SIGKILL at *die_at*."""
        child = os.fork()
        if child == 0:
            self.ledger = Ledger.open(self.stack.home / "ledger.db")
            try:
                self.change(at_step=lambda place: place == die_at and os.kill(os.getpid(), signal.SIGKILL), **wanted)
            finally:
                os._exit(1)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status)
        assert os.WTERMSIG(status) == signal.SIGKILL

    def cli(self, *words, die_at=None, expect=None):
        program = ["-c", DIES_AT, die_at] if die_at else ["-m", "vindicate"]
        done = subprocess.run(
            [sys.executable, *program, *words, "--stack", str(self.stack.file)],
            capture_output=True, text=True, timeout=50, check=False,
        )  # fmt: skip
        if expect is not None:
            assert done.returncode == expect, done.stdout + done.stderr
        return done
