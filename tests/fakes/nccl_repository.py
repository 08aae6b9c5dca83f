"""The public story of NCCL_CUMEM_ENABLE=0 as one team's repository: two start scripts that must agree, and their commits."""

from pathlib import Path

from fakes.story_repository import commit, git

CUMEM = "NCCL_CUMEM_ENABLE"
STACK = f"""[stack]
name = "rl"
entry = "server"
[services.server]
role = "engine"
engine = "vllm"
url = "http://127.0.0.1:1"
launcher = {{ kind = "script", file = "serve.sh" }}
[services.trainer]
role = "engine"
url = "http://127.0.0.1:2"
launcher = {{ kind = "script", file = "train.sh" }}
[knobs.{CUMEM}]
services = ["server", "trainer"]
default = "1"
"""


def script(folder: Path, name: str, value: str | None) -> None:
    """Write *name*, which sets the knob to *value*, or does not."""
    line = "" if value is None else f"export {CUMEM}={value}\n"
    (folder / name).write_text(f"#!/usr/bin/env bash\nexport OMP_NUM_THREADS=8\n{line}exec python -m {name[:5]}\n")


def nccl_repository(folder: Path) -> Path:
    """Make it as it was in 2024: the server's override, and the trainer's copy of it two months later."""
    folder.mkdir(parents=True, exist_ok=True)
    git(folder, "init")
    (folder / "vindicate.toml").write_text(STACK)
    for name in ("serve.sh", "train.sh"):
        script(folder, name, None)
    commit(folder, "start scripts", "2024-03-01T10:00:00Z")
    script(folder, "serve.sh", "0")
    commit(
        folder, "serve: disable cuMem because CUDA-graph capture takes gigabytes more with it", "2024-05-20T10:00:00Z"
    )
    script(folder, "train.sh", "0")
    commit(folder, "train: disable cuMem, same as serve.sh", "2024-07-10T10:00:00Z")
    return folder


def restored_and_taken_back(folder: Path, step: int) -> None:
    """What the trainer's owners did in 2026: take the copy away (step 1), and set it again when that was unsafe (step 2)."""
    script(folder, "train.sh", None if step == 1 else "0")
    if step == 1:
        commit(folder, "train: drop the cuMem override, fixed in NCCL 2.22.3", "2026-04-02T10:00:00Z")
    else:
        commit(folder, "train: cuMem back to 0 because 70B configs run out of memory", "2026-05-05T10:00:00Z")
