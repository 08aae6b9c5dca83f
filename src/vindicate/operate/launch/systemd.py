"""A launcher of kind `systemd` → systemctl, of the system or of the user, whichever manager knows the unit.

Written to the manual of systemd 252. It was tested with small stand-ins for `systemctl` and `journalctl` that really start
and stop processes, not under a real systemd.
"""

from dataclasses import dataclass
from pathlib import Path

from vindicate.errors import CannotError
from vindicate.operate.launch.command import Command, Stand
from vindicate.stack.keeper import kept_name, unit_properties
from vindicate.stack.model import Service, Stack
from vindicate.stack.process import process_tree

__all__ = ["Systemd"]

_CRASHES = 2  # restarts by systemd in one start of ours, after which it is not waited for any longer


@dataclass(frozen=True, slots=True)
class Systemd:
    """A unit; its processes belong to systemd and are only ever stopped by it."""

    stack: Stack
    service: Service

    def start(self) -> tuple[Command, ...]:
        """What is run, one after another; see `Launch`."""
        if self.service.launcher.user is not None:
            raise CannotError(
                f"services.{self.service.name}: a unit runs as the user that it names itself, and launcher.user is {self.service.launcher.user!r}",
                remedy="take user out of the launcher, and set User= in the unit",
            )
        ctl, found = unit_properties(self._unit)
        stale = found.get("NeedDaemonReload") == "yes"
        return (*(self.reload() if stale else ()), self._command(*ctl, "--no-ask-password", "start", "--", self._unit))

    def stop(self) -> tuple[Command, ...]:
        """What asks its keeper to stop it."""
        return (self._asked("--no-ask-password", "stop", "--", self._unit),)

    def kill(self) -> tuple[Command, ...]:
        """What makes its keeper end it at once."""
        return (self._asked("--no-ask-password", "kill", "--signal=SIGKILL", "--", self._unit),)

    def stand(self) -> Stand:
        """What its keeper says of it now."""
        _, found = unit_properties(self._unit)
        active, sub = found.get("ActiveState", ""), found.get("SubState", "")
        restarts = int(found.get("NRestarts") or 0)
        over = None
        if active in ("failed", "inactive"):
            over = f"{self._unit} is {active}/{sub}, result {found.get('Result') or 'unknown'}"
        elif restarts >= _CRASHES:
            over = f"{self._unit} ended {restarts} times since it was started, and systemd started it again each time"
        return Stand(
            pids=_pids(found), state=f"{active}/{sub}", running=active not in ("failed", "inactive"), over=over
        )  # fmt: skip

    def reload(self) -> tuple[Command, ...]:
        """What makes systemd read the unit's files again."""
        return (self._asked("--no-ask-password", "daemon-reload"),)

    def log(self) -> Command:
        """What shows the end of its log."""
        ctl, _ = unit_properties(self._unit)
        return self._command("journalctl", *ctl[1:], "-u", self._unit, "-n", "20", "--no-pager", "-o", "cat")

    def told(self) -> str:
        """How it is started and stopped, for the plan."""
        return f"is stopped and started by: {self._asked('restart', self._unit)}"

    @property
    def _unit(self) -> str:
        return kept_name(self.service)

    def _asked(self, *words: str) -> Command:
        ctl, _ = unit_properties(self._unit)
        return self._command(*ctl, *words)

    def _command(self, *argv: str) -> Command:
        return Command(argv, self.stack.home.parent)


def _pids(found: dict[str, str]) -> tuple[int, ...]:
    """The main process, what it started, and whatever else is in the unit's control group (cgroups(7))."""
    main = int(found.get("MainPID") or 0)
    pids = dict.fromkeys(process_tree([main]) if main else ())
    group = found.get("ControlGroup", "").strip("/")
    if group:
        for root in ("", "unified", "systemd"):  # one hierarchy, or several of which two may name it
            for listed in Path("/sys/fs/cgroup", root, group).glob("**/cgroup.procs"):
                try:
                    pids |= dict.fromkeys(int(line) for line in listed.read_text(encoding="ascii").split())
                except OSError:
                    continue
    return tuple(pids)
