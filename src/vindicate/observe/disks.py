"""A process → a folder in which it works or writes and whose disk has no room left."""

import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ["full_disk"]

_NO_ROOM_BYTES = 1 << 20
_LOCAL = frozenset(
    {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "tmpfs", "overlay"}
)  # asking a dead NFS would hang us
_MOST_FILES = 256


def full_disk(pid: int) -> str | None:
    """The first such folder: its working directory, that of a file which it has open for writing, or `/tmp`; ``None``: all have room.

    A disk has no room when less than 1 MiB is free for users. Only local file systems are asked.
    """
    mounts = _local_mounts(pid)
    for folder in dict.fromkeys(_folders(pid)):
        at = max((mount for mount in mounts if _holds(mount, folder)), key=len, default=None)
        if at is None or mounts[at] not in _LOCAL:
            continue
        try:
            room = os.statvfs(f"/proc/{pid}/root{folder}")
        except OSError:
            continue
        if room.f_blocks and not room.f_flag & os.ST_RDONLY and room.f_bavail * room.f_frsize < _NO_ROOM_BYTES:
            return folder
    return None


def _local_mounts(pid: int) -> dict[str, str]:
    """Mount point → type of file system, as *pid* sees them (proc_pid_mounts(5); the last one mounted at a point counts)."""
    try:
        with open(f"/proc/{pid}/mounts", encoding="utf-8", errors="replace") as file:
            rows = [line.split() for line in file]
    except OSError:
        return {}
    return {words[1].encode().decode("unicode_escape", errors="replace"): words[2] for words in rows if len(words) > 2}


def _holds(mount: str, folder: str) -> bool:
    return folder == mount or folder.startswith(mount.rstrip("/") + "/")


def _folders(pid: int) -> Iterator[str]:
    try:
        yield os.readlink(f"/proc/{pid}/cwd")
        descriptors = os.listdir(f"/proc/{pid}/fd")[:_MOST_FILES]
    except OSError:
        descriptors = []
    for name in descriptors:
        try:
            where = os.readlink(f"/proc/{pid}/fd/{name}")
            if where.startswith("/") and _writes(pid, name):
                yield str(Path(where).parent)
        except OSError:
            continue
    yield "/tmp"  # noqa: S108 where programs put what they buffer, nothing of ours


def _writes(pid: int, name: str) -> bool:
    with open(f"/proc/{pid}/fdinfo/{name}", encoding="ascii", errors="replace") as file:
        flags = next((line.split()[1] for line in file if line.startswith("flags:")), "0")
    return bool(int(flags, 8) & (os.O_WRONLY | os.O_RDWR))
