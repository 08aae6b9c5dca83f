"""Every kind of broken answer, as benchmarks/broken_streams.py plays them, at once."""

import asyncio
import importlib.util
import sys
from pathlib import Path

PATH = Path(__file__).parents[3] / "benchmarks/broken_streams.py"


def test_every_kind_of_broken_answer_is_counted_as_what_it_is():
    spec = importlib.util.spec_from_file_location("broken_streams", PATH)
    play = sys.modules["broken_streams"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(play)
    verdicts = asyncio.run(play.measure(requests=20, concurrency=2, every=10))
    assert len(verdicts) >= 25
    assert {verdict.name: verdict.problems for verdict in verdicts if verdict.problems} == {}
