"""A live process → the versions of the libraries that it really has in memory, found without asking anyone; nothing but reading.

The files mapped into a process lead to its site-packages, whose ``*.dist-info`` folders name versions. A library that is not
mapped from there is not told of, nor is one that was installed anew after the process began: that is not what it runs.
"""

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import psutil

__all__ = ["card_versions", "library_versions", "mapped_files", "versions_in"]

_SO = {"libnccl": ("nccl", "nvidia_nccl_cu"), "libcudart": ("cuda", "nvidia_cuda_runtime_cu")}
_SO_NAME = re.compile(r"(?P<library>lib\w+?)(?:-[0-9a-f]{8})?\.so(?:\.(?P<version>\d+(?:\.\d+)*))?")
_DISTRIBUTION = re.compile(r"(?P<name>[A-Za-z0-9_.]+)-(?P<version>[^-/]+)\.dist-info")
_PACKAGES = ("torch", "vllm", "sglang", "sgl_kernel", "flashinfer_python", "triton", "tensorrt_llm")
_HOME = re.compile(r"(.*/(?:site|dist)-packages)/")


def mapped_files(maps: str) -> list[str]:
    """The files that the text of ``/proc/PID/maps`` names, each once; a file that was replaced keeps its ``(deleted)``."""
    parts = (line.split(None, 5) for line in maps.splitlines())
    return list(dict.fromkeys(words[5].rstrip() for words in parts if len(words) == 6 and words[5].startswith("/")))


def versions_in(files: Iterable[str], installed: Mapping[str, Mapping[str, str]]) -> dict[str, str | None]:
    """What a process has in memory, by name; ``None`` for a library whose file was replaced since.

    Args:
        files: As `mapped_files` gives them.
        installed: By site-packages folder, the version of each distribution in it, by its name in the form of dist-info.
    """
    found: dict[str, str | None] = {}
    for folder in installed:
        found |= {
            name.removesuffix("_python"): installed[folder][name] for name in _PACKAGES if name in installed[folder]
        }
    for path in files:
        gone = path.endswith(" (deleted)")
        match = _SO_NAME.fullmatch(path.removesuffix(" (deleted)").rpartition("/")[2])
        if match is None or match["library"] not in _SO:
            continue
        field, distribution = _SO[match["library"]]
        home = _HOME.match(path)
        there = installed.get(home[1], {}) if home else {}
        version = next((version for name, version in there.items() if name.startswith(distribution)), None)
        full = match["version"] if (match["version"] or "").count(".") >= 2 else None  # libnccl.so.2 tells no version
        if gone or full or version:
            found[field] = None if gone else full or version
    return found


def library_versions(pid: int) -> dict[str, str | None]:
    """The versions of the libraries in the memory of *pid*; ``None`` for one that cannot be told; empty without permission."""
    try:
        files = mapped_files(Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace"))
        began = psutil.Process(pid).create_time()
    except (OSError, psutil.Error):
        return {}
    homes = dict.fromkeys(match[1] for path in files if (match := _HOME.match(path)))
    installed: dict[str, dict[str, str]] = {}
    late: set[str] = set()
    for home in homes:
        installed[home] = {}
        for entry in _entries(f"/proc/{pid}/root{home}"):
            match = _DISTRIBUTION.fullmatch(entry.name)
            if match:
                installed[home][match["name"].lower()] = match["version"]
                late |= {match["name"].lower()} if entry.stat().st_mtime > began else set()
    told = versions_in(files, installed)
    fresh = {name.removesuffix("_python") for name in late}
    fresh |= {field for field, prefix in _SO.values() if any(name.startswith(prefix) for name in late)}
    return {name: None if name in fresh else version for name, version in told.items()}


def card_versions() -> dict[str, str]:
    """The driver in this kernel and the model of its cards, where all are of one; nothing without an NVIDIA driver."""
    found = {}
    try:
        driver = re.search(r"Kernel Module(?: for \S+)?\s+(\d+(?:\.\d+)+)", Path("/proc/driver/nvidia/version").read_text(encoding="utf-8", errors="replace"))  # fmt: skip
        cards = {
            match[1].strip()
            for path in Path("/proc/driver/nvidia/gpus").glob("*/information")
            if (
                match := re.search(r"^Model:\s*(.+)$", path.read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
            )
        }
    except OSError:
        return {}
    if driver:
        found["driver"] = driver[1]
    if len(cards) == 1:
        found["gpu"] = cards.pop()
    return found


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if entry.name.endswith(".dist-info")]
    except OSError:
        return []
