"""Repositories in different hands, none of them ours: each a history of whole files, and what lies beside it uncommitted."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

__all__ = ["REPOSITORIES", "Repository", "Step", "build"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One commit: *files* are written whole, ``None`` deletes one."""

    date: str
    message: str
    files: Mapping[str, str | None]
    author: str = "Kim"


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """*loose* files lie in the work tree without being committed."""

    steps: Sequence[Step] = ()
    loose: Mapping[str, str] = field(default_factory=dict)


def build(repository: Repository, folder: Path) -> Path:
    """Make it in *folder*: the whole history in one process, which is what keeps a dozen of them cheap."""
    folder.mkdir(parents=True)
    if repository.steps:
        quiet = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
        for command, given in (
            (["init", "-q", "-b", "main"], b""),
            (["fast-import", "--quiet"], _stream(repository.steps)),
            (["reset", "-q", "--hard", "main"], b""),
        ):
            subprocess.run(["git", *command], cwd=folder, input=given, check=True, capture_output=True, env=quiet)
    for name, text in repository.loose.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(text.encode())
    return folder


def _stream(steps: Sequence[Step]) -> bytes:
    out = b""
    for step in steps:
        who = f"{step.author} <{step.author.lower()}@example.org> {int(datetime.fromisoformat(step.date).timestamp())} +0000"
        message = step.message.encode()
        out += (
            f"commit refs/heads/main\nauthor {who}\ncommitter {who}\ndata {len(message)}\n".encode() + message + b"\n"
        )
        for name, text in step.files.items():
            if text is None:
                out += f"D {name}\n".encode()
            else:
                out += f"M 100644 inline {name}\ndata {len(text.encode())}\n".encode() + text.encode() + b"\n"
        out += b"\n"
    return out


def _day(day: int) -> str:
    return f"2026-05-{day:02}T09:00:00+00:00"


def _compose(value: str, image: str = "serve:1") -> str:
    return f'services:\n  decode:\n    image: {image}\n    environment:\n      - "MAX_BATCH_TOKENS={value}"\n      - "HF_TOKEN=abc{value}"\n'


_COMPOSE = Repository(
    steps=[
        Step(date=_day(1), message="compose file", files={"docker-compose.yml": _compose("8192")}),
        Step(date=_day(3), message="batch 16384", files={"docker-compose.yml": _compose("16384")}, author="Noor"),
        Step(date=_day(4), message="new image", files={"docker-compose.yml": _compose("16384", "serve:2")}),
        Step(
            date=_day(9),
            message='Revert "batch 16384"\n\nThis takes back 1234abc because of OOM at startup.\n',
            files={"docker-compose.yml": _compose("8192", "serve:2")},
        ),
    ]
)

_UNIT = "[Service]\nExecStart=/opt/serve --port 30001\n"
_DROP_IN = Repository(
    steps=[
        Step(date=_day(1), message="units", files={"units/decode.service": _UNIT}),
        Step(
            date=_day(2),
            message="overlap scheduling for decode",
            files={
                "units/decode.service.d/20-overlap.conf": '[Service]\nEnvironment="ENABLE_OVERLAP_SCHEDULE=1" "OMP_NUM_THREADS=8"\n'
            },
        ),
        Step(
            date=_day(6),
            message="drop overlap again, suspect: sessions freeze under PD",
            files={"units/decode.service.d/20-overlap.conf": None},
        ),
    ]
)


def _values(ctas: str, *, tidy: bool = False) -> str:
    env = (
        f'  - name: DECODE_TARGET_CTAS\n    value: "{ctas}"\n'
        if not tidy
        else f"  - {{name: DECODE_TARGET_CTAS, value: {ctas}}}\n"
    )
    return f"image: serve\nenv:\n  - name: OMP_NUM_THREADS\n    value: 8\n{env}"


_HELM = Repository(
    steps=[
        Step(date=_day(1), message="chart", files={"chart/values.yaml": _values("256")}),
        Step(date=_day(2), message="512 CTAs: +12.8 % at 64", files={"chart/values.yaml": _values("512")}),
        Step(date=_day(3), message="one line an entry", files={"chart/values.yaml": _values("512", tidy=True)}),
        Step(
            date=_day(8),
            message="decode: back to 256 CTAs due to hangs in long sessions",
            files={"chart/values.yaml": _values("256", tidy=True)},
            author="Noor",
        ),
    ]
)


def _kustomize(value: str) -> str:
    return f"configMapGenerator:\n  - name: decode\n    literals:\n      - NCCL_CUMEM_ENABLE={value}\n"


_KUSTOMIZE = Repository(
    steps=[
        Step(date=_day(1), message="overlay", files={"overlays/prod/kustomization.yaml": _kustomize("1")}),
        Step(
            date=_day(5),
            message="prod: NCCL_CUMEM_ENABLE=0\n\nDisabled because of memory overhead in graph capture (NCCL 2.19).",
            files={"overlays/prod/kustomization.yaml": _kustomize("0")},
        ),
    ]
)


def _flags(size: str) -> str:
    return f"#!/bin/sh\n# --chunked-prefill-size 1 is only an example\nexec python -m server \\\n  --chunked-prefill-size {size} \\\n  --tp-size 4\n"


_FLAG = Repository(
    steps=[
        Step(date=_day(1), message="start script", files={"serve.sh": _flags("4096")}),
        Step(date=_day(2), message="bigger chunks", files={"serve.sh": _flags("8192")}),
        Step(
            date=_day(20),
            message="smaller chunks: the new cards have less memory",
            files={
                "serve.sh": _flags("4096"),
                "NOTES.md": "# DECODE_TARGET_CTAS\n\nReverted to 256 from 512 because sessions hang.\n",
            },
        ),
    ]
)

_ENV_FILE = "OMP_NUM_THREADS=8\nMAX_RUNNING_REQUESTS={}\n"
_WINDOWS = Repository(
    steps=[
        Step(date=_day(1), message="env", files={"decode.env": _ENV_FILE.format(64)}),
        Step(
            date=_day(2),
            message="from the other editor",
            files={"decode.env": _ENV_FILE.format(64).replace("\n", "\r\n")},
        ),
        Step(date=_day(3), message="128 running", files={"decode.env": _ENV_FILE.format(128).replace("\n", "\r\n")}),
        Step(
            date=_day(4),
            message="roll back to 64: p99 doubled",
            files={"decode.env": _ENV_FILE.format(64).replace("\n", "\r\n")},
        ),
    ]
)

_SCRIPT = "#!/bin/bash\nset -e\ncd /srv/model\nexport OMP_NUM_THREADS=8\nexport DECODE_TARGET_CTAS={}\nexec python -m server --port 30001\n"
_SQUASHED = Repository(
    steps=[
        Step(
            date=_day(30),
            message="import",
            files={
                "serve.sh": _SCRIPT.format(256),
                "serve.sh.bak": _SCRIPT.format(512),
                "PLAN.md": "# DECODE_TARGET_CTAS\n\nOn 2026-05-12 reverted from 512 to 256 because decode hangs.\n",
            },
        )
    ]
)

_MOVED = Repository(
    steps=[
        Step(date=_day(1), message="serve", files={"serve.sh": _SCRIPT.format(256)}),
        Step(date=_day(2), message="512", files={"serve.sh": _SCRIPT.format(512)}),
        Step(date=_day(3), message="move", files={"serve.sh": None, "deploy/decode/start.sh": _SCRIPT.format(512)}),
        Step(
            date=_day(4),
            message="quotes and a default",
            files={"deploy/decode/start.sh": _SCRIPT.format('"${DECODE_TARGET_CTAS:-512}"')},
        ),
        Step(
            date=_day(7),
            message="revert to 256 because of hangs",
            files={"deploy/decode/start.sh": _SCRIPT.format('"${DECODE_TARGET_CTAS:-256}"')},
        ),
    ]
)

_SWITCH = "export ENABLE_OVERLAP_SCHEDULE={}\nexport OMP_NUM_THREADS=8\n"
_DISABLED = Repository(
    steps=[
        Step(date=_day(1), message="env", files={"env.sh": _SWITCH.format(1)}),
        Step(date=_day(11), message="set it to 0", files={"env.sh": _SWITCH.format(0)}),
        Step(
            date=_day(12),
            message="notes",
            files={
                "docs/LOG.md": "# Log\n\n- 2026-05-11: disabled ENABLE_OVERLAP_SCHEDULE due to hang in the router\n"
            },
            author="Noor",
        ),
    ]
)

_TWICE = Repository(
    steps=[
        Step(date=_day(1), message="serve", files={"serve.sh": _SCRIPT.format(256)}),
        Step(date=_day(2), message="512", files={"serve.sh": _SCRIPT.format(512)}),
        Step(date=_day(4), message="256", files={"serve.sh": _SCRIPT.format(256)}),
        Step(date=_day(14), message="512, second try", files={"serve.sh": _SCRIPT.format(512)}),
        Step(
            date=_day(24),
            message="256",
            files={
                "serve.sh": _SCRIPT.format(256),
                "LOG.md": "# DECODE_TARGET_CTAS\n\n"
                "On 2026-05-04 we went back to 256 because the build was broken.\n"
                "On 2026-05-24 we went back to 256 because sessions hang.\n",
            },
        ),
    ]
)

_BACKUPS = Repository(
    loose={
        "serve.sh": _SCRIPT.format(256),
        "serve.sh.bak.20260502": _SCRIPT.format(256),
        "serve.sh.bak.20260509": _SCRIPT.format(512),
        "notes.md": "# Notes\n\nDECODE_TARGET_CTAS was rolled back to 256 after sessions froze.\n",
    }
)

_PAIR = "services:\n  prefill:\n    environment:\n      NCCL_CUMEM_ENABLE: {}\n  decode:\n    environment:\n      NCCL_CUMEM_ENABLE: {}\n"
_TWO_SERVICES = Repository(
    steps=[
        Step(date=_day(1), message="both", files={"compose.yaml": _PAIR.format(1, 1)}),
        Step(date=_day(2), message="prefill only", files={"compose.yaml": _PAIR.format(0, 1)}),
    ]
)

_INNOCENT = Repository(
    steps=[
        Step(date=_day(1), message="serve", files={"serve.sh": _SCRIPT.format(256), "key.env": "HF_API_TOKEN=aaa\n"}),
        Step(date=_day(2), message="reorder", files={"serve.sh": "#!/bin/bash\nexport DECODE_TARGET_CTAS='256' # default\nexport OMP_NUM_THREADS=8\nset -e\ncd /srv/model\nexec python -m server --port 30001\n"}),
        Step(date=_day(3), message="key", files={"key.env": "HF_API_TOKEN=bbb\n"}),
        Step(date=_day(4), message="back to the old key", files={"key.env": "HF_API_TOKEN=aaa\n"}),
        Step(date=_day(5), message="rewrite", files={"serve.sh": None, "start_decode.sh": "#!/bin/sh\nDECODE_TARGET_CTAS=256 exec ./engine\n"}),
        Step(date=_day(6), message="README", files={"README.md": "# Serve\n\nWe may go back to one host. The DECODE_TARGET_CTAS default is 256.\n\n```\nreverted DECODE_TARGET_CTAS from 512 to 256\n```\n"}),
    ]
)  # fmt: skip

REPOSITORIES = {
    "compose": _COMPOSE,
    "drop-in": _DROP_IN,
    "helm": _HELM,
    "kustomize": _KUSTOMIZE,
    "flag": _FLAG,
    "windows": _WINDOWS,
    "squashed": _SQUASHED,
    "moved": _MOVED,
    "disabled": _DISABLED,
    "twice": _TWICE,
    "backups": _BACKUPS,
    "two services": _TWO_SERVICES,
    "innocent": _INNOCENT,
}
