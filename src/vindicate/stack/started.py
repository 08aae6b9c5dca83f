"""A live process → how it was started, as far as this host shows it: script, unit, log, cards, bootstrap port, settings."""

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

from vindicate.redact import is_secret_name, redact_text
from vindicate.stack.named import argv_of

__all__ = ["Started", "started_by"]

# Variables that steer engines, routers and their libraries; all others are nobody's business.
_SETTING = re.compile(
    r"(SGLANG|SGL|VLLM|NCCL|UCX|NIXL|MC|MOONCAKE|NVSHMEM|FLASHINFER|TORCH|PYTORCH|TRITON|LLAMA|GGML|OMP|DYN)_[A-Z0-9_]+"
)
_NO_SETTING = re.compile(r"_(HOME|DIR|PATH|CACHE|PORT|HOST|ADDR|ADDRESS|ID)$")
_MAX_SCRIPTS, _SCRIPT_LIMIT = 200, 200_000
_PLAIN_WORD = re.compile(r"[A-Za-z0-9_.:/=,@+-]+")


@dataclass(frozen=True, slots=True)
class Started:
    """How a service came to run. *script*: the one start script whose text holds its whole command line; *settings*: variables
    that it holds, secret values blanked; *lines*: the line of the script that sets one."""  # noqa: D205, D209 the sentence is one

    script: Path | None = None
    unit: str | None = None
    log: Path | None = None
    gpus: tuple[int, ...] = ()
    bootstrap_port: int | None = None
    settings: tuple[tuple[str, str], ...] = ()
    lines: tuple[tuple[str, int], ...] = ()


def started_by(pid: int) -> Started:
    """Look at one process and the folder it works in; what cannot be read is left out."""
    argv, environment = argv_of(pid), _environment(pid)
    settings = tuple(
        (name, redact_text(value))
        for name, value in sorted(environment.items())
        if _SETTING.fullmatch(name) and not _NO_SETTING.search(name) and not is_secret_name(name)
    )
    cards = environment.get("CUDA_VISIBLE_DEVICES", "").split(",")
    script = _script(pid, argv)
    return Started(
        script=script,
        unit=_unit(pid),
        log=_log(pid),
        gpus=tuple(int(card) for card in cards) if all(card.strip().isdigit() for card in cards) else (),
        bootstrap_port=_number_after(argv, ("--bootstrap-port", "--disaggregation-bootstrap-port")),
        settings=settings,
        lines=tuple(_lines_that_set(script, [name for name, _ in settings])) if script is not None else (),
    )


def _environment(pid: int) -> dict[str, str]:
    try:
        return psutil.Process(pid).environ()
    except psutil.Error:
        return {}


def _script(pid: int, argv: list[str]) -> Path | None:
    """A shell that is its parent names it; where the shell has become the service, it is sought in the working folder."""
    try:
        process = psutil.Process(pid)
        parent, folder = process.parent(), Path(process.cwd())
        said = parent.cmdline()[1:2] if parent is not None and parent.name() in ("bash", "sh", "dash") else []
        if said and Path(parent.cwd() if parent is not None else "", said[0]).is_file():
            return Path(parent.cwd() if parent is not None else "", said[0])
        files = sorted(folder.glob("*.sh"))[:_MAX_SCRIPTS]
        found = [file for file in files if _holds(file, argv[1:])]
    except (psutil.Error, OSError):
        return None
    return found[0] if len(found) == 1 else None


def _holds(file: Path, words: list[str]) -> bool:
    """Whether each of *words* stands in the script; those that a shell would have made of something else cannot."""
    if not words or file.stat().st_size > _SCRIPT_LIMIT:
        return False
    written = set(re.split(r"[\s\"'\\]+", file.read_text(encoding="utf-8", errors="replace")))
    return all(word in written for word in words if _PLAIN_WORD.fullmatch(word))


def _lines_that_set(script: Path, names: Iterable[str]) -> Iterable[tuple[str, int]]:
    try:
        lines = script.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    for name in names:
        setting = re.compile(rf"\s*(export\s+)?{re.escape(name)}=")
        numbers = [number for number, line in enumerate(lines, 1) if setting.match(line)]
        if numbers:
            yield name, numbers[-1]


def _unit(pid: int) -> str | None:
    """Its systemd unit, or the container's scope."""
    try:
        text = Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    found = re.findall(r"([^/\n]+\.service|docker-[0-9a-f]{12}|libpod-[0-9a-f]{12}|cri-containerd-[0-9a-f]{12})", text)
    return found[-1] if found else None


def _log(pid: int) -> Path | None:
    try:
        target = Path(os.readlink(f"/proc/{pid}/fd/1"))
    except OSError:
        return None
    return target if target.is_absolute() and not target.is_relative_to("/dev") and target.is_file() else None


def _number_after(argv: list[str], options: tuple[str, ...]) -> int | None:
    for index, word in enumerate(argv):
        option, equals, value = word.partition("=")
        text = value if equals else next(iter(argv[index + 1 :]), "")
        if option in options and text.isdigit():
            return int(text)
    return None
