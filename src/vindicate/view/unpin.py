"""What is pinned, and what became of it → lines for a terminal."""

from vindicate.operate.unpin import Engine, Pin, UnpinPlan
from vindicate.units import format_duration
from vindicate.view.watch import plain

__all__ = ["outcome_lines", "plan_lines"]


def plan_lines(plan: UnpinPlan) -> list[str]:
    """What each engine holds, which requests are to be aborted, and what that loses."""
    lines = [_engine(engine) for engine in plan.engines]
    lines += [_pin(pin) for pin in plan.pins]
    if any(pin.state == "pinned" for pin in plan.pins):
        lines.append("lost: each ends with an error at its client, and what it has computed so far is thrown away")
    lines += [f"not clear: {plain(text)}" for text in plan.unclear]
    return lines


def outcome_lines(plan: UnpinPlan) -> list[str]:
    """What became of each, as the engines tell it afterwards."""
    return [_pin(pin) for pin in plan.pins]


def _engine(engine: Engine) -> str:
    where = ", ".join(f"{stage} {n}" for stage, n in engine.stages.items())
    held = (
        "does not say what it holds"
        if engine.held is None
        else f"holds {engine.held}" + (f" ({where})" if where else "")
    )
    known = len(engine.log.alive) if engine.log is not None and engine.log.n_lines else None
    ids = "no ids known" if known is None else f"{known} ids known from its log"
    gate = ", stopped by a retracted request" if engine.gated else ""
    return f"{engine.service.name}: {held}{gate}" + (f"; {ids}" if engine.held != 0 else "")


def _pin(pin: Pin) -> str:
    age = "age unknown" if pin.age_s is None else f"{format_duration(pin.age_s)} old"
    rid = plain(pin.rid)
    match pin.state:
        case "pinned":
            return f"abort {rid}, {age}, at {' and '.join(pin.engines)}"
        case "gone":
            return f"gone: {rid}"
        case "held":
            return f"STILL HELD: {rid}: {plain(pin.because)}"
        case _:
            return f"not aborted: {rid}, {age}: {plain(pin.because)}"
