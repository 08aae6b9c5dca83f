"""A process → its control groups: whether they are frozen (`docker pause`), and how often their CPU quota held it back.

Files of cgroup v2 and v1 as in the kernel's Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/freezer-subsystem.rst.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Cgroup", "cgroup_of"]

_ROOT = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class Cgroup:
    """Files of the groups that a process is in; ``None`` where there is none, or it is out of sight."""

    events: Path | None = None
    freezer: Path | None = None
    cpu: Path | None = None

    def frozen(self) -> bool:
        """Whether no process of the group runs until somebody thaws it."""
        if self.events is not None and _figures(self.events).get("frozen") == 1:
            return True
        return self.freezer is not None and _text(self.freezer).strip() == "FROZEN"

    def periods(self) -> tuple[int, int] | None:
        """CPU periods so far, and those in which the quota was used up before their end; ``None`` without a quota."""
        figures = {} if self.cpu is None else _figures(self.cpu)
        n_periods = figures.get("nr_periods", 0)
        return (n_periods, figures.get("nr_throttled", 0)) if n_periods else None


def cgroup_of(pid: int) -> Cgroup:
    """The groups of *pid*, from `/proc/PID/cgroup`; empty where they cannot be seen."""
    paths = {}
    for line in _text(Path(f"/proc/{pid}/cgroup")).splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        for controller in controllers.split(","):
            paths[controller] = path.lstrip("/")
    unified = paths.get("")
    roots = () if unified is None else (_ROOT / unified, _ROOT / "unified" / unified)
    return Cgroup(
        events=_first(root / "cgroup.events" for root in roots),
        freezer=_first([_ROOT / "freezer" / paths["freezer"] / "freezer.state"] if "freezer" in paths else ()),
        cpu=_first(
            [*(root / "cpu.stat" for root in roots), *([_ROOT / "cpu" / paths["cpu"] / "cpu.stat"] if "cpu" in paths else ())]
        ),
    )  # fmt: skip


def _first(paths: Iterable[Path]) -> Path | None:
    return next((path for path in paths if path.is_file()), None)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""


def _figures(path: Path) -> dict[str, int]:
    """Lines of ``NAME NUMBER``."""
    pairs = (line.split() for line in _text(path).splitlines())
    return {words[0]: int(words[1]) for words in pairs if len(words) == 2 and words[1].isdecimal()}
