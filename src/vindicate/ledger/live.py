"""A stack → the value of a knob that its live processes really hold."""

from vindicate.errors import MisuseError
from vindicate.stack.model import Stack
from vindicate.stack.process import KnobReading, LiveValue, live_readings
from vindicate.units import shown

__all__ = ["live_value", "readings_by_service"]


def readings_by_service(stack: Stack, knob: str) -> dict[str, tuple[KnobReading, ...]]:
    """What every live process of every service that must hold *knob* holds, by service; a dead service has none."""
    if stack.knob(knob).kind != "env":
        return {}
    found: dict[str, tuple[KnobReading, ...]] = {}
    for service in stack.knob(knob).services:
        try:
            found[service] = live_readings(stack.service(service), knob)
        except MisuseError as error:
            found[service] = (KnobReading(pid=0, name=knob, value=None, problem=error.problem),)
    return found


def live_value(stack: Stack, knob: str) -> LiveValue:
    """The one value that all live processes hold; not known when one cannot be read, none lives, or they differ."""
    if knob not in stack.knobs:
        return LiveValue(value=None, known=False, note=f"{knob} is not declared in {stack.file}")
    if stack.knob(knob).kind != "env":
        return LiveValue(value=None, known=False, note="an argument, not an environment variable; it was not read")
    readings = readings_by_service(stack, knob)
    dead = [service for service, of_service in readings.items() if not of_service]
    if dead:
        return LiveValue(value=None, known=False, note=f"no live process of {', '.join(dead)} was found")
    all_of_them = [reading for of_service in readings.values() for reading in of_service]
    problem = next((reading.problem for reading in all_of_them if reading.problem), None)
    if problem:
        return LiveValue(value=None, known=False, note=problem)
    values = {reading.value for reading in all_of_them}
    if len(values) > 1:
        held = ", ".join(f"{shown(r.value)} in {r.pid}" for r in all_of_them)
        return LiveValue(value=None, known=False, note=f"processes differ: {held}")
    return LiveValue(value=values.pop(), known=True)
