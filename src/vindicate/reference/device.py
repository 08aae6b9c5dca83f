"""How much work there is → how long it takes, on a device that is simulated and says so."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from vindicate.errors import MisuseError
from vindicate.stats.waves import CARDS, Card, SplitMapping, step_factor

__all__ = ["DEFAULT_TARGET_CTAS", "KNOB", "SPEED", "Device", "SimulatedDevice", "make_device"]

KNOB: Final = "SGLANG_SM120_MMA_TARGET_CTAS"
DEFAULT_TARGET_CTAS: Final = 256
SPEED: Final = "VINDICATE_REFERENCE_SPEED"

_MAPPING: Final = SplitMapping("ceil", head_blocks=2, ctas_per_sm=1)
_KERNEL_SHARE: Final = 0.46
# Slow enough for 96 streams through client, proxy, router and decode on two cores: 60 ms a step alone, 98 ms with 96.
_STEP_S: Final = 0.060
_STEP_S_PER_REQUEST: Final = 0.0004
_PREFILL_S: Final = 0.010
_PREFILL_S_PER_TOKEN: Final = 2e-5


class Device(Protocol):
    """How long a step takes."""

    @property
    def name(self) -> str:
        """Such as ``simulated:h200``; every figure of a simulated device carries that word."""

    def prefill_s(self, n_tokens: int) -> float:
        """Seconds to compute the KV of *n_tokens* of prompt."""

    def step_s(self, batch: int) -> float:
        """Seconds for one decode step that gives each of *batch* requests one token."""

    def describe(self) -> Mapping[str, object]:
        """What `/server_info` says about it."""


@dataclass(frozen=True, slots=True)
class SimulatedDevice:
    """Takes the time that the wave model gives for *card*, slowed down; *speed* 2.0 is twice as fast."""

    card: Card
    target_ctas: int = DEFAULT_TARGET_CTAS
    speed: float = 1.0

    @property
    def name(self) -> str:
        """``simulated:`` and the card."""
        return f"simulated:{self.card.name}"

    def prefill_s(self, n_tokens: int) -> float:
        """A constant and a share for each token."""
        return (_PREFILL_S + _PREFILL_S_PER_TOKEN * n_tokens) / self.speed

    def step_s(self, batch: int) -> float:
        """A base that grows mildly with the batch, times what the knob makes of the kernel's share."""
        factor = step_factor(
            batch,
            self.target_ctas,
            _MAPPING,
            self.card.sms,
            against=DEFAULT_TARGET_CTAS,
            kernel_share=_KERNEL_SHARE,
        )
        return (_STEP_S + _STEP_S_PER_REQUEST * batch) * factor / self.speed

    def describe(self) -> Mapping[str, object]:
        """The card, the model behind its times, and that it is simulated."""
        return {
            "device": self.name,
            "simulated": True,
            "simulated_sms": self.card.sms,
            "simulated_mapping": _MAPPING.name,
            "simulated_kernel_share": _KERNEL_SHARE,
            "simulated_speed": self.speed,
        }


def make_device(name: str, *, has_knob: bool) -> SimulatedDevice:
    """The device of that name, with what the environment says about its speed and, for decode, its kernel's target.

    Raises:
        MisuseError: There is no such device, or a variable holds no number that can be.
    """
    kind, _, card = name.partition(":")
    if kind != "simulated" or card not in CARDS:
        known = ", ".join(f"simulated:{known}" for known in CARDS)
        raise MisuseError(f"--device is {name!r}", remedy=f"one of: {known}")
    return SimulatedDevice(CARDS[card], _target_ctas() if has_knob else DEFAULT_TARGET_CTAS, _speed())


def _target_ctas() -> int:
    text = os.environ.get(KNOB)
    if text is None:
        return DEFAULT_TARGET_CTAS
    if not text.isascii() or not text.isdecimal() or int(text) < 1:
        raise MisuseError(
            f"{KNOB} is {text!r}, and the kernel needs a whole number of thread blocks, 1 or more",
            remedy=f"export {KNOB}={DEFAULT_TARGET_CTAS}, or unset it",
        )
    return int(text)


def _speed() -> float:
    text = os.environ.get(SPEED, "1")
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not 0 < speed <= 1000:
        raise MisuseError(f"{SPEED} is {text!r}, and should be a number above 0, at most 1000", remedy=f"unset {SPEED}")
    return speed
