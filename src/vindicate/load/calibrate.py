"""Concurrency levels → how wrong this client's clocks are at each, on this host and now, against a mock of known timing."""

import asyncio
import contextlib
import select
import subprocess
import sys
from collections.abc import Iterator, Sequence

from vindicate.errors import CannotError
from vindicate.load.mock import TOKENS
from vindicate.load.plan import LoadPlan, Turn
from vindicate.load.run import run_load_blocking
from vindicate.record.experiment import ClientError
from vindicate.stack.ask import read_json

__all__ = ["calibrate"]

_START_S = 20.0
_WAVES, _FEWEST = 3, 24


def calibrate(levels: Sequence[int]) -> tuple[ClientError, ...]:
    """Drive the mock at each level with the client that a campaign uses; about a second a level.

    Raises:
        CannotError: The mock does not start, or does not answer as it must.
    """
    with _mock() as url:
        return tuple(_error(url, level) for level in levels)


def _error(url: str, level: int) -> ClientError:
    requests = max(_WAVES * level, _FEWEST)
    plan = LoadPlan(
        url=url,
        model="mock",
        levels=(level,),
        requests_per_level=requests,
        rounds=1,
        max_tokens=TOKENS,
        seed=0,
        sessions=((Turn("word " * 64),),),
    )
    asyncio.run(read_json(f"{url}/stamps"))
    seen = run_load_blocking(plan).levels[0]
    true = asyncio.run(read_json(f"{url}/stamps"))
    pairs = [
        (mean, own)
        for mean, name in ((seen.ttft_ms.mean, "ttft_s"), (seen.itl_ms.mean, "gap_s"), (seen.e2e_ms.mean, "e2e_s"))
        if mean is not None and isinstance(own := true.get(name), float)
    ]
    if seen.completed != requests or true.get("requests") != requests or len(pairs) != 3:
        raise CannotError(
            f"calibration at {level}: {seen.completed} of {requests} requests completed against our own mock",
            remedy="see what else this host is doing, then try again; --no-calibration leaves the client's error unknown",
        )
    ttft, itl, e2e = (round(mean - 1000 * own, 4) for mean, own in pairs)
    return ClientError(level=level, requests=requests, ttft_ms=ttft, itl_ms=itl, e2e_ms=e2e)


@contextlib.contextmanager
def _mock() -> Iterator[str]:
    words = [sys.executable, "-m", "vindicate.load.mock"]
    child = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        readable, _, _ = select.select([child.stdout], [], [], _START_S)
        port = child.stdout.readline().strip() if readable else b""
        if not port.isdigit():
            raise CannotError(
                f"the server that the client calibrates itself against did not start within {_START_S:g} s",
                remedy="try: python -m vindicate.load.mock, which should print a port; --no-calibration goes without",
            )
        yield f"http://127.0.0.1:{int(port)}"
    finally:
        child.kill()
        child.wait()
        child.stdin.close()
        child.stdout.close()
