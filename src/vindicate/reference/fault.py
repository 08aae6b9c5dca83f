"""``--fault NAME[:ARG]`` and ``--fault-after N`` → what an engine or a router does wrong, and from which request on.

They are for tests and rehearsals, and quiet: no log line, metric or endpoint names them.
"""

from dataclasses import dataclass
from typing import Final

from vindicate.errors import MisuseError

__all__ = ["FAULTS", "Fault", "describe_faults", "read_fault"]

# role → name → (its argument when none is given, what it does)
FAULTS: Final = {
    "decode": {
        "stall_mid_stream": (8, "the engine stops stepping for good once a later request has ARG tokens; HTTP goes on"),
        "stall_each": (8, "every later request gets ARG tokens and then no more; the others go on"),
        "no_end": (0, "sends every token and the finish reason, and never the end of the response"),
        "slow": (4, "every step takes ARG times as long"),
    },
    "prefill": {
        "inflight_parked": (0, "computes the KV of later requests and never sends it"),
    },
    "router": {
        "hold": (0, "reads later requests and never forwards them; ARG = --fault-after"),
        "dual_dispatch_join": (0, "loses the decode leg of later requests and waits for the prefill leg"),
    },
}


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault that shows from request number *after* + 1 on; *name* is ``""`` for none."""

    name: str = ""
    argument: float = 0
    after: int = 0

    def hits(self, name: str, number: int) -> bool:
        """Whether fault *name* is on for request *number* (the first one is 1)."""
        return self.name == name and number > self.after


def read_fault(text: str | None, after: int, role: str) -> Fault:
    """Understand the two options.

    Raises:
        MisuseError: *role* has no such fault, or its argument is no number.
    """
    if text is None:
        return Fault()
    name, colon, argument = text.partition(":")
    if name not in FAULTS[role]:
        raise MisuseError(
            f"--fault is {name!r}, and {role} has no such fault", remedy=f"one of: {', '.join(FAULTS[role])}"
        )
    try:
        value = float(argument) if colon else float(FAULTS[role][name][0])
    except ValueError:
        value = -1.0
    if value < 0 or (name == "slow" and value == 0):
        raise MisuseError(f"--fault {name} has the argument {argument!r}", remedy=f"try: --fault {name}:8")
    return Fault(name, value, int(value) if name == "hold" and colon else after)


def describe_faults(role: str) -> str:
    """One line a fault, for ``--help``."""
    return "\n".join(f"  {name}[:{argument}]  {what}" for name, (argument, what) in FAULTS[role].items())
