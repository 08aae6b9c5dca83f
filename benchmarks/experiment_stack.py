"""One campaign of `vindicate ab` over a whole reference stack and HTTP: is what it finds what the simulated device gains?

    python benchmarks/experiment_stack.py [--levels 48,64,80,96] [--max-tokens 256] [--blocks 3]

Writes a reference stack with the simulated RTX PRO 6000 into a temporary folder, starts it, measures SGLANG_SM120_MMA_TARGET_CTAS=256..512
with real restarts, and stops it again. About 35 minutes with the defaults. The answers must be long (`--ignore-eos`): while a stream
is in prefill the decode batch is one short of the level, and a batch of 62 cuts its work into other waves than one of 64 does. What
a closed loop without noise gains at that length is printed beside the device's own gain, from experiment_campaigns.py.

Bar: within 2 points of the device's own gain at every level. Exit code 1: missed.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import experiment_campaigns as virtual

WITHIN = 2.0


def vindicate(*words: object, folder: Path, keep: bool = False) -> str:
    """Run one verb in *folder*; its standard output."""
    command = [sys.executable, "-m", "vindicate", *map(str, words)]
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode not in (0, 1) and not keep:
        sys.exit(f"vindicate {' '.join(map(str, words))} ended with {done.returncode}")
    return done.stdout


def main() -> int:
    """Measure and judge."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--levels", default="48,64,80,96")
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--blocks", type=int, default=3)
    parser.add_argument("--requests", type=int, help="a level; default: twice the highest")
    parser.add_argument("--seed", type=int, default=3)
    options = parser.parse_args()
    levels = [int(level) for level in options.levels.split(",")]
    virtual.MAX_TOKENS = options.max_tokens
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        vindicate("stack", "init", "--reference", folder, folder=folder)
        try:
            vindicate("stack", "up", folder=folder)
            told = vindicate(
                *("ab", f"{virtual.KNOB}=256..512", "--levels", options.levels, "--blocks", options.blocks),
                *("--requests-per-level", options.requests or 2 * max(levels), "--max-tokens", options.max_tokens),
                *("--ignore-eos", "--seed", options.seed, "--yes", "--json"),
                folder=folder,
            )
        finally:
            vindicate("stack", "down", folder=folder, keep=True)
    effects = {item["level"]: item for item in json.loads(told)["effects"]}
    print(f"{'level':>6}  {'measured':>9}  {'interval':>18}  {'closed loop':>12}  device's own   (simulated)")
    missed = []
    for level in levels:
        item, own = effects[level], virtual.true_gain_pct(level, 256, 512)
        loop = 100 * (virtual.throughput(level, 512) / virtual.throughput(level, 256) - 1)
        if item["gain_pct"] is None:
            print(f"{level:>6}  {item['verdict']}: {item['reason']}")
            missed.append(str(level))
            continue
        interval = f"{item['lo_pct']:+.1f} to {item['hi_pct']:+.1f}"
        print(f"{level:>6}  {item['gain_pct']:>+8.2f}%  {interval:>18}  {loop:>+11.2f}%  {own:>+11.2f}%")
        if abs(item["gain_pct"] - own) > WITHIN:
            missed.append(str(level))
    print(f"missed at {', '.join(missed)}" if missed else "every bar is met")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
