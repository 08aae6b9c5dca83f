"""A stack, or a capture of it → the value of a knob that its live processes really hold."""

from vindicate.errors import MisuseError
from vindicate.record.observation import Capture
from vindicate.stack.model import Stack
from vindicate.stack.process import KnobReading, LiveValue, live_readings, why_unseen
from vindicate.units import shown

__all__ = ["coherence", "held_in", "live_value", "readings_by_service"]


def readings_by_service(stack: Stack, knob: str) -> dict[str, tuple[KnobReading, ...]]:
    """What every live process of every service that must hold *knob* holds, by service; a dead service has none."""
    found: dict[str, tuple[KnobReading, ...]] = {}
    for service in stack.knob(knob).services:
        try:
            found[service] = live_readings(stack.service(service), stack.knob(knob))
        except MisuseError as error:
            found[service] = (KnobReading(pid=0, name=knob, value=None, problem=error.problem),)
    return found


def live_value(stack: Stack, knob: str) -> LiveValue:
    """The one value that all live processes hold; not known when one cannot be read, none lives, or they differ."""
    if knob not in stack.knobs:
        return LiveValue(value=None, known=False, note=f"{knob} is not declared in {stack.file}")
    readings = readings_by_service(stack, knob)
    unseen = next((service for service, of_service in readings.items() if not of_service), None)
    if unseen is not None:
        return LiveValue(value=None, known=False, note=f"{unseen}: {why_unseen(stack.service(unseen))}")
    all_of_them = [reading for of_service in readings.values() for reading in of_service]
    problem = next((reading.problem for reading in all_of_them if reading.problem), None)
    if problem:
        return LiveValue(value=None, known=False, note=problem)
    values = {reading.value for reading in all_of_them}
    if len(values) > 1:
        held = ", ".join(f"{shown(r.value)} in {r.pid}" for r in all_of_them)
        return LiveValue(value=None, known=False, note=f"processes differ: {held}")
    return LiveValue(value=values.pop(), known=True)


def coherence(stack: Stack, knob: str) -> str:
    """Which services must hold one value of *knob*, which one each holds now where they differ, and what restarts together.

    Empty for a knob of one service that restarts alone, and for one that the stack file does not declare.
    """
    if knob not in stack.knobs:
        return ""
    services = stack.knobs[knob].services
    together = stack.restart_set(services)
    if len(together) < 2:
        return ""
    held = {
        service: " and ".join(dict.fromkeys(shown(reading.value) for reading in readings if not reading.problem))
        for service, readings in readings_by_service(stack, knob).items()
    }
    told = {service: value for service, value in held.items() if value}
    line = f"{', '.join(services)} must hold one value" if len(services) > 1 else ""
    if len(set(told.values())) > 1:
        line += ", and do not: " + ", ".join(f"{service} holds {value}" for service, value in told.items())
    restart = f"restart together: {', '.join(together)}"
    return f"{line}; {restart}" if line else restart


def held_in(capture: Capture) -> dict[str, str | None]:
    """The value of each knob that every process which must hold it had during *capture*; a knob that is not known so is left out."""
    processes = {process.pid: process for process in capture.processes}
    found: dict[str, set[str | None]] = {}
    unknown: set[str] = set()
    for service in capture.services:
        for knob in service.knobs:
            holders = [processes[pid].knobs for pid in service.pids if pid in processes]
            if not holders or any(knob not in held for held in holders):
                unknown.add(knob)
            found.setdefault(knob, set()).update(held[knob] for held in holders if knob in held)
    return {knob: next(iter(values)) for knob, values in found.items() if len(values) == 1 and knob not in unknown}
