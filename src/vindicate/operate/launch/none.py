"""A launcher of kind `none` → what a person must do, and what is still missing until it is done."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from vindicate.errors import CannotError
from vindicate.operate.launch.command import Command
from vindicate.operate.running import identify
from vindicate.stack.model import Service, Stack
from vindicate.stack.process import live_readings, service_pids
from vindicate.units import shown

__all__ = ["Person"]


@dataclass(frozen=True, slots=True)
class Person:
    """A service that somebody starts and stops by other means; in a change it is asked for, and waited for."""

    stack: Stack
    service: Service

    def start(self) -> tuple[Command, ...]:
        """What is run, one after another; see `Launch`."""
        raise CannotError(
            f"{self.service.name}: the stack file names no launcher, so it cannot be started or stopped from here",
            remedy=f'start it yourself, or give services.{self.service.name} a launcher = {{ kind = "script", file = "…" }}',
        )

    def told(self) -> str:
        """How it is started and stopped, for the plan."""
        return "has no launcher: you will be asked to restart it yourself, and it is waited for"

    def what_to_do(self, wanted: Mapping[str, str | None]) -> str:
        """What is asked of the person, with the values it must come to hold, and those it holds now."""
        values = " and ".join(
            f"with {name} {'unset' if value is None else f'= {shown(value)}'}" for name, value in wanted.items()
        )
        lines = [
            f"{self.service.name}: YOUR TURN: stop it, and start it again{f' {values}' if values else ''}; it is waited for"
        ]
        for name in wanted:
            readings = live_readings(self.service, self.stack.knobs.get(name, name))
            held = ", ".join(f"{shown(item.value)} in pid {item.pid}" for item in readings if not item.problem)
            lines.append(
                f"  {name} is now {held or 'held by no process that can be read'}; it stands wherever you set it when you start it"
            )
        return "\n".join(lines)

    def still_missing(self, wanted: Mapping[str, str | None], *, since_uptime_s: float | None) -> str | None:
        """What keeps it from being as asked; ``None`` when every live process is younger than *since_uptime_s* and holds the values.

        Args:
            since_uptime_s: Seconds since boot; ``None`` asks for the values alone.
        """
        pids = service_pids(self.service)
        if not pids:
            return "it is not running"
        for pid in pids:
            found = identify(pid)
            if (
                found
                and since_uptime_s is not None
                and found.start_ticks / os.sysconf("SC_CLK_TCK") < since_uptime_s - 0.05
            ):
                return f"pid {pid} still runs as before"
        for name, value in wanted.items():
            for reading in live_readings(self.service, self.stack.knobs.get(name, name)):
                if reading.problem:
                    return f"{name} in pid {reading.pid}: {reading.problem}"
                if reading.value != value:
                    return f"{name} is {shown(reading.value)} in pid {reading.pid}, not {shown(value)}"
        return None
