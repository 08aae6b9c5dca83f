"""`vindicate watch` on real processes that die, come back, move, flood and hang; and on a terminal that is no longer there."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import psutil
import pytest

from fakes.observed_start import observed, service, stack
from vindicate.clock import utc_now
from vindicate.diagnose.moment import Seen, Watching
from vindicate.observe import onlook
from vindicate.observe.onlook import onlooking

INTERVAL_S = 0.2


class Look:
    """A watch of *chain* from look to look."""

    def __init__(self, onlooker):
        self.onlooker, self.watching, self.began = onlooker, Watching(), time.monotonic()
        self.samples = []

    async def once(self):
        assert self.onlooker.failed() is None
        capture = await self.onlooker.capture()
        seen = Seen(
            at=utc_now(), t_s=time.monotonic() - self.began, scrapes=self.onlooker.take(), listening=self.onlooker.listening,
            local=self.onlooker.local, pids=self.onlooker.pids,
        )  # fmt: skip
        self.samples.append(self.watching.add(seen, capture))
        return self.samples[-1]

    async def until(self, holds, seconds=10.0):
        deadline = time.monotonic() + seconds
        while not holds(sample := await self.once()):
            assert time.monotonic() < deadline, sample
            await asyncio.sleep(0.1)
        return sample


@contextlib.asynccontextmanager
async def looking(chain, renew=lambda old: old):
    async with onlooking(chain, INTERVAL_S, renew) as onlooker:
        yield Look(onlooker)


def of(sample, name):
    return next(one for one in sample.services if one.name == name)


def test_follows_a_service_that_dies_and_comes_back(tmp_path):
    async def play():
        with contextlib.ExitStack() as first:
            engine = first.enter_context(observed(tmp_path, "engine"))
            async with looking(stack(service("engine", "engine", engine, engine="sglang"))) as look:
                sample = await look.until(lambda now: of(now, "engine").running == 1)
                assert (of(sample, "engine").state, of(sample, "engine").pids) == ("up", (engine.pid,))
                first.close()
                sample = await look.until(lambda now: of(now, "engine").state == "down")
                assert of(sample, "engine").running is None
                with observed(tmp_path, "engine", "--port", engine.port) as again:
                    sample = await look.until(
                        lambda now: of(now, "engine").state == "up" and of(now, "engine").pids == (again.pid,)
                    )
                    assert any("another process" in news for one in look.samples for news in one.news)
                    assert "engine was down" in look.watching.bad

    asyncio.run(play())


def test_follows_a_port_that_moved_and_goes_from_window_to_window(tmp_path, monkeypatch):
    monkeypatch.setattr(onlook, "WINDOW_S", 1.5)
    monkeypatch.setattr(onlook, "OVERLAP_S", 0.7)

    async def play():
        with observed(tmp_path, "engine") as old, observed(tmp_path, "engine") as new:
            moved = []
            chain = stack(service("engine", "engine", old, engine="sglang"))
            other = stack(service("engine", "engine", new, engine="sglang"))
            async with looking(chain, lambda _: other if moved else chain) as look:
                await look.until(lambda now: of(now, "engine").pids == (old.pid,))
                moved.append(True)
                sample = await look.until(lambda now: of(now, "engine").pids == (new.pid,))
                assert of(sample, "engine").state == "up"
                await asyncio.sleep(1.2)  # some windows later
                assert (await look.once()).services[0].running == 1
                assert len(look.onlooker._windows) <= 2

    asyncio.run(play())


def test_shows_how_long_a_caller_waits_across_windows(tmp_path, monkeypatch):
    monkeypatch.setattr(onlook, "WINDOW_S", 1.5)
    monkeypatch.setattr(onlook, "OVERLAP_S", 0.7)

    async def play():
        with observed(tmp_path, "silent") as engine:
            chain = stack(replace(service("engine", "engine", engine), metrics="http://127.0.0.1:9/metrics"))
            async with looking(chain) as look:
                _, writer = await asyncio.open_connection("127.0.0.1", engine.port)
                writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
                await look.until(lambda now: now.owed and now.owed[0].age_s >= 2.5)
                ages = [sample.owed[0].age_s for sample in look.samples if sample.owed]
                assert ages == sorted(ages)
                writer.close()

    asyncio.run(play())


# ---- the verb ----------------------------------------------------------------------------------------------------


@pytest.fixture
def chain(tmp_path):
    """An engine in a stack file."""
    with observed(tmp_path, "engine") as engine:
        (tmp_path / "vindicate.toml").write_text(
            f'[stack]\nname = "x"\nentry = "engine"\n[services.engine]\nrole = "engine"\nengine = "sglang"\nurl = "{engine.url}"\n'
        )
        yield tmp_path


def start(folder, *words, **more):
    with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
        return subprocess.Popen(
            [sys.executable, "-m", "vindicate", "watch", *words],
            cwd=folder, **{"stdout": out, "stderr": err, "stdin": subprocess.DEVNULL} | more,
        )  # fmt: skip


def wait_for_lines(file, n, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not file.exists() or file.read_bytes().count(b"\n") < n:
        assert time.monotonic() < deadline, file
        time.sleep(0.02)


def test_keeps_what_it_saw_when_it_is_killed_and_ends_well_on_ctrl_c(chain):
    kept = chain / "kept" / "watch.jsonl"
    process = start(chain, "--interval", "200ms", "--keep", "kept")
    wait_for_lines(kept, 3)
    process.kill()
    process.wait()
    whole = kept.read_bytes()
    kept.write_bytes(whole[:-20])  # the last line is torn
    process = start(chain, "--interval", "200ms", "--keep", "kept", "--json")
    wait_for_lines(chain / "out", 3)
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 0
    lines = kept.read_bytes().split(b"\n")
    n_torn = whole.count(b"\n") - 1
    assert all(json.loads(line)["schema"] == "vindicate.watch/1" for line in (*lines[:n_torn], *lines[n_torn + 1 : -1]))
    shown = [json.loads(line) for line in (chain / "out").read_text().splitlines()]
    assert shown[-1]["services"][0]["state"] == "up"
    assert len(lines) - 1 - n_torn - 1 >= len(shown)
    assert "watched for" in (chain / "err").read_text()


def test_ends_by_itself_when_nobody_reads_any_more(chain):
    process = start(chain, "--interval", "200ms", stdout=subprocess.PIPE)
    assert b"engine up run 1" in process.stdout.readline()
    process.stdout.close()
    assert process.wait(10) == 0
    assert "Traceback" not in (chain / "err").read_text()


def test_is_cheap_though_an_engine_gives_200_mb_of_metrics(tmp_path):
    with observed(tmp_path, "huge") as engine:
        (tmp_path / "vindicate.toml").write_text(
            f'[stack]\nname = "x"\nentry = "engine"\n[services.engine]\nrole = "engine"\nengine = "vllm"\nurl = "{engine.url}"\n'
        )
        process = start(tmp_path, "--interval", "200ms", "--json")
        wait_for_lines(tmp_path / "out", 1)
        used = psutil.Process(process.pid)
        before_s, began = sum(used.cpu_times()[:2]), time.monotonic()
        time.sleep(2.0)
        share = (sum(used.cpu_times()[:2]) - before_s) / (time.monotonic() - began)
        memory = used.memory_info().rss
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(10) == 0
        samples = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    assert samples[-1]["services"][0]["state"] == "up"
    assert (share < 0.3, memory < 400e6) == (True, True), (share, memory)
