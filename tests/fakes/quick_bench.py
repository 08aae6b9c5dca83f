"""A bench on real scripts and processes, with made-up load; run as a program it goes on with the experiment in the folder given."""

import os
import random
import signal
import sys
from pathlib import Path

from fakes.bench import FakeBench
from vindicate.clock import SystemClock
from vindicate.experiment.bench import StackBench
from vindicate.experiment.journal import Journal
from vindicate.experiment.run import run_experiment
from vindicate.operate.status import live_readings
from vindicate.stack.file import read_stack


class QuickBench(StackBench):
    """Real starts, invented load; *stop_at* ends the process by Ctrl-C in that drive."""

    stop_at = 0
    drives = 0

    def _wait_for_path(self):
        pass

    def warm_up(self, level, seed):
        return 100.0

    def drive(self, level, seed, out):
        self.drives += 1
        if self.drives == self.stop_at:
            os.kill(os.getpid(), signal.SIGINT)
        fake = FakeBench({}, seed=seed)
        fake.value, fake.shift = "x", 0.1 * (self._value() == "512") + random.Random(seed + self.drives).gauss(0, 0.01)
        self._read_back_again()
        return fake.drive(level, seed, out)

    def _value(self):
        return live_readings(self.stack.service("worker"), "KNOB")[0].value


def main(stack_file, experiment):
    stack = read_stack(Path(stack_file))
    journal = Journal.find(stack.home, experiment)
    design = journal.design()
    bench = QuickBench(stack, design, say=print)
    run_experiment(design, bench, journal, clock=SystemClock(), say=lambda line: print(line, flush=True))


if __name__ == "__main__":
    main(*sys.argv[1:])
