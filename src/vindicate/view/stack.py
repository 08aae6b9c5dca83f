"""How services stand → lines for a terminal."""

from collections.abc import Sequence

from vindicate.operate.status import KnobStand, ServiceStand
from vindicate.units import shown

__all__ = ["stack_lines"]


def stack_lines(stands: Sequence[ServiceStand]) -> list[str]:
    """One line a service, one more for each knob it holds."""
    width = max((len(stand.name) for stand in stands), default=0)
    lines = []
    for stand in stands:
        pids = f"pid {', '.join(str(pid) for pid in stand.pids)}" if stand.pids else "no process seen"
        hand = ", started by hand" if stand.by_hand else ""
        detail = f"  ({stand.detail})" if stand.detail and (stand.state != "down" or stand.unseen) else ""
        lines.append(f"{stand.name:<{width}}  {stand.state:<9}  {stand.url}  {pids}{hand}{detail}")
        lines += [f"{'':<{width}}  {_knob_line(name, knob)}" for name, knob in stand.knobs.items()]
    return lines


def _knob_line(name: str, knob: KnobStand) -> str:
    seen = [
        f"{shown(value)} in pid {pid}" + (f" (by {knob.read_from[pid]})" if pid in knob.read_from else "")
        for pid, value in knob.live.items()
    ]
    live = ", ".join(seen + [f"not known in pid {pid}" for pid in knob.unread]) or knob.unseen
    script = f"script says {shown(knob.declared)}" if knob.declared_known else "script: not known"
    mark = "  DRIFT" if knob.drift else ""
    problem = f"  ({knob.problem})" if knob.problem else ""
    return f"{name}: {script}; live: {live}{mark}{problem}"
