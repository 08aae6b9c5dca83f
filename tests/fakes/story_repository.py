"""A team's repository as the story left it: a script with its history and a backup, a plan with a table, and no ledger."""

import os
import shutil
import subprocess
from pathlib import Path

KNOB = "SGLANG_SM120_MMA_TARGET_CTAS"
STACK = f"""[stack]
name = "dsv4"
[services.decode]
role = "decode"
url = "http://127.0.0.1:1"
launcher = {{ kind = "script", file = "serve_decode.sh" }}
[services.proxy]
role = "proxy"
url = "http://127.0.0.1:2"
upstream = ["decode"]
[knobs.{KNOB}]
services = ["decode"]
default = "256"
"""
SCRIPT = "#!/usr/bin/env bash\nexport OMP_NUM_THREADS=8\nexport {knob}={value}\nexec python -m server\n"
PLAN = f"""# Performance plan (2026-11-02)

## {KNOB}: 256 → 512

One start per arm.

| Concurrency | tok/s (256) | tok/s (512) | change |
|------------:|------------:|------------:|-------:|
| C64         |      2310.4 |      2606.1 | +12.8 % |
| C80         |      2702.0 |      2734.4 | +1.2 %  |
| C96         |      2800.0 |      2959.6 | +5.7 %  |

Reverted to 256 because multi-turn agent sessions hang after a few rounds.
"""


def git(folder: Path, *arguments: str, date: str = "2026-11-01T10:00:00Z") -> None:
    """Run git in *folder* as Ann, at *date*."""
    who = {
        name: value
        for role in ("AUTHOR", "COMMITTER")
        for name, value in (
            (f"GIT_{role}_NAME", "Ann"),
            (f"GIT_{role}_EMAIL", "a@example.org"),
            (f"GIT_{role}_DATE", date),
        )
    }
    subprocess.run(
        ["git", "-c", "init.defaultBranch=main", *arguments],
        cwd=folder,
        check=True,
        capture_output=True,
        env={**os.environ, **who, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull},
    )


def write_script(folder: Path, value: str, name: str = "serve_decode.sh") -> Path:
    """The start script with *value*."""
    path = folder / name
    path.write_text(SCRIPT.format(knob=KNOB, value=value))
    return path


def story_repository(folder: Path) -> Path:
    """Make it: raised to 512 on 2 November, set back on the 20th with a backup and a sentence in the plan."""
    folder.mkdir(parents=True, exist_ok=True)
    git(folder, "init")
    (folder / "vindicate.toml").write_text(STACK)
    script = write_script(folder, "256")
    commit(folder, "serve script", "2026-11-01T10:00:00Z")
    write_script(folder, "512")
    commit(folder, "decode: 512 target CTAs", "2026-11-02T10:00:00Z")
    shutil.copy2(script, folder / "serve_decode.sh.bak")
    write_script(folder, "256")
    commit(folder, "set target CTAs back", "2026-11-20T10:00:00Z")
    (folder / "PLAN.md").write_text(PLAN)
    commit(folder, "amend the plan", "2026-11-20T11:00:00Z")
    return folder


def commit(folder: Path, message: str, date: str) -> None:
    """Commit everything."""
    git(folder, "add", "-A")
    git(folder, "commit", "-m", message, date=date)
