"""The reference stack's workers behind routers that others wrote: 64 streams, every answer complete and right."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PEERS = Path(__file__).parents[2] / ".venv-peers" / "bin"


@pytest.mark.timeout(120)
@pytest.mark.parametrize("router", ["sglang-router", "smg"])
def test_serves_64_streams_behind_a_router_that_none_of_us_wrote(tmp_path, router):
    env = os.environ | {"PATH": f"{PEERS}:{os.environ['PATH']}"}

    def vindicate(*words):
        command = [sys.executable, "-m", "vindicate", *words]
        return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=60)

    made = vindicate("stack", "init", "--reference", ".", "--router", router)
    assert made.returncode == 0, made.stderr
    assert f"{PEERS}/{router}" in (tmp_path / "serve_router.sh").read_text()
    try:
        up = vindicate("stack", "up")
        assert up.returncode == 0, up.stderr
        load = vindicate(
            "load", "--concurrency", "64", "--requests", "128", "--rounds", "2", "--max-tokens", "32", "--json"
        )
        level = json.loads(load.stdout)["levels"][0]
        assert (level["completed"], level["recall_asked"] > 0, level["recall_failed"]) == (128, True, 0), load.stderr
    finally:
        down = vindicate("stack", "down")
    assert down.returncode == 0, down.stderr
