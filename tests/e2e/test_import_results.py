import json
import os
import subprocess
import sys


def vindicate(folder, *arguments):
    return subprocess.run(
        [sys.executable, "-m", "vindicate", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "VINDICATE_STACK": ""},
    )


def test_results_of_a_benchmark_tool_are_imported_once_and_can_be_read_again(tmp_path):
    for arm, tokens in ((256, 1000.0), (512, 1128.0)):
        line = {
            "backend": "sglang",
            "max_concurrency": 64,
            "completed": 500,
            "output_throughput": tokens,
            "request_rate": float("inf"),
        }
        (tmp_path / f"ctas{arm}.jsonl").write_text(json.dumps(line) + "\n")
    command = (
        "evidence",
        "import",
        "ctas256.jsonl",
        "ctas512.jsonl",
        "--ledger",
        "ledger.db",
        "--knob",
        "A_KNOB=256..512",
        "--yes",
    )

    first = vindicate(tmp_path, *command, "--json")
    again = vindicate(tmp_path, *command)
    without = vindicate(tmp_path, *command[:4], "--ledger", "ledger.db", "--yes")

    assert first.returncode == 0, first.stderr
    (item,) = json.loads(first.stdout)["recorded"]
    assert (item["id"], item["effects"][0]["gain_pct"], item["effects"][0]["grade"]) == ("E1", 12.8, "D")
    assert "guessed: " in first.stderr
    assert "recorded already as E1" in again.stderr
    assert without.returncode == 2
    assert "--knob NAME=A..B" in without.stderr
