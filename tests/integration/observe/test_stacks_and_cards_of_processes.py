"""py-spy on real processes, and the GPU driver's library by a stand-in: what is seen, and that nothing is harmed without them."""

import asyncio
import subprocess
import sys
import time
import types

import pytest

from vindicate.observe.cards import CardWatch
from vindicate.observe.stacks import StackWatch

POOL = """
import asyncio, threading, time
from concurrent.futures import ThreadPoolExecutor

def lookup():
    time.sleep(60)

async def main():
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(2))
    for _ in range(4):
        loop.run_in_executor(None, lookup)
    print("ready", flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.fixture
def pool():
    with subprocess.Popen([sys.executable, "-c", POOL], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        yield process
        process.kill()


def watched(*pids, window_s=1.5, program=None):
    watch = StackWatch(time.monotonic(), window_s)
    if program is not None:
        watch.program = program
    assert watch.program, "py-spy is a part of the development install"
    asyncio.run(watch.run(lambda: pids))
    if watch.notes and "may not look" in watch.notes[0]:
        pytest.skip(watch.notes[0])
    return watch


def test_sees_twice_what_every_thread_is_at(pool):
    watch = watched(pool.pid)
    assert [look.pid for look in watch.looks] == [pool.pid] * 2
    for look in watch.looks:
        busy = [one for one in look.threads if one.frames and one.frames[0].startswith("lookup (")]
        assert len(busy) == 2, look


def test_what_runs_no_python_or_is_gone_is_left_alone(pool):
    with subprocess.Popen(["sleep", "60"]) as other:
        pool.kill()
        pool.wait()
        watch = watched(other.pid, pool.pid)
        other.kill()
    assert (watch.looks, watch.notes) == ([], [])


@pytest.mark.parametrize("script", ["exec sleep 60", "echo '[[['", "exit 3", "printf '\\377\\376'"])
def test_a_py_spy_that_hangs_or_talks_nonsense_costs_its_deadline_at_most(pool, tmp_path, monkeypatch, script):
    monkeypatch.setattr("vindicate.observe.stacks._DEADLINE_S", 0.3)
    program = tmp_path / "py-spy"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    assert watched(pool.pid, program=str(program)).looks == []


def test_without_py_spy_nothing_is_looked_at(pool):
    watch = StackWatch(time.monotonic(), 1.0)
    watch.program = None
    asyncio.run(watch.run(lambda: [pool.pid]))
    assert watch.looks == []


class RefusedError(Exception):
    """As NVML's own."""


def driver(**changes):
    """A stand-in for nvidia-ml-py with two cards, the second of which tells its name alone."""

    def second_refuses(answer):
        def ask(handle, *_):
            if handle == 1:
                raise RefusedError
            return answer

        return ask

    made = types.SimpleNamespace(
        NVML_CLOCK_SM=1,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetName=lambda _: b"NVIDIA H200",
        nvmlDeviceGetUtilizationRates=second_refuses(types.SimpleNamespace(gpu=100, memory=2)),
        nvmlDeviceGetPowerUsage=second_refuses(131_400),
        nvmlDeviceGetEnforcedPowerLimit=second_refuses(700_000),
        nvmlDeviceGetClockInfo=second_refuses(1755),
        nvmlDeviceGetMaxClockInfo=second_refuses(1980),
        nvmlDeviceGetComputeRunningProcesses=second_refuses([types.SimpleNamespace(pid=42)]),
    )
    return types.SimpleNamespace(**{**vars(made), **changes})


def test_cards_are_sampled_and_what_one_refuses_is_unknown(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", driver())
    watch = CardWatch(time.monotonic())
    watch.look()
    first, second = watch.facts()
    assert (first.name, first.pids, first.power_limit_w, first.max_sm_mhz) == ("NVIDIA H200", (42,), 700.0, 1980)
    (sample,) = first.samples
    assert (sample.busy_pct, sample.memory_traffic_pct, sample.power_w, sample.sm_mhz) == (100, 2, 131.4, 1755)
    assert (second.pids, second.power_limit_w, second.samples[0].busy_pct) == ((), None, None)
    watch.close()


def test_without_a_driver_or_its_library_there_are_no_cards(monkeypatch):
    def no_driver():
        raise RefusedError

    for module in (None, driver(nvmlInit=no_driver)):
        monkeypatch.setitem(sys.modules, "pynvml", module)
        watch = CardWatch(time.monotonic())
        watch.look()
        assert watch.facts() == ()
        watch.close()
