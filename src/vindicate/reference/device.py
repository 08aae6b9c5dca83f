"""How much work there is → how long it takes: on this machine's CPU, or on a card that is simulated and says so."""

import asyncio
import logging
import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from vindicate.errors import CannotError, MisuseError
from vindicate.stats.waves import CARDS, Card, SplitMapping, step_factor

if TYPE_CHECKING:
    from vindicate.reference.split_k import SplitK

__all__ = ["DEFAULT_TARGET_CTAS", "KNOB", "SPEED", "CpuDevice", "Device", "SimulatedDevice", "make_device"]

_LOG = logging.getLogger("vindicate.reference")
ResultT = TypeVar("ResultT")

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
    """What a step is computed on, and how long it takes."""

    @property
    def name(self) -> str:
        """Such as ``simulated:h200``; every figure of a simulated device carries that word."""

    def prefill_s(self, n_tokens: int) -> float:
        """Seconds to compute the KV of *n_tokens* of prompt."""

    def step_s(self, batch: int, slowdown: float = 1.0) -> float:
        """Seconds to let pass before a decode step for *batch* requests, so that it takes *slowdown* times its own time."""

    async def compute(self, work: Callable[[], ResultT]) -> ResultT:
        """What *work* gives; all that the model does goes through here, one piece after another."""

    def later(self, work: Callable[[], None]) -> None:
        """Do *work* after what is under way; nobody waits for it."""

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

    def step_s(self, batch: int, slowdown: float = 1.0) -> float:
        """A base that grows mildly with the batch, times what the knob makes of the kernel's share."""
        factor = step_factor(
            batch,
            self.target_ctas,
            _MAPPING,
            self.card.sms,
            against=DEFAULT_TARGET_CTAS,
            kernel_share=_KERNEL_SHARE,
        )
        return (_STEP_S + _STEP_S_PER_REQUEST * batch) * factor / self.speed * slowdown

    async def compute(self, work: Callable[[], ResultT]) -> ResultT:
        """At once: its shortcut takes microseconds."""
        return work()

    def later(self, work: Callable[[], None]) -> None:
        """At once."""
        work()

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


class CpuDevice:
    """This machine's CPU: a step takes what it takes, on a thread beside the event loop.

    Args:
        kernel: Decode's attention; `None` for prefill, which has no use for one.
    """

    def __init__(self, kernel: "SplitK | None" = None) -> None:
        self.kernel = kernel
        self._thread = ThreadPoolExecutor(1, "device")
        self._took_s = 0.0

    @property
    def name(self) -> str:
        """``cpu``."""
        return "cpu"

    def prefill_s(self, n_tokens: int) -> float:  # noqa: ARG002 a card that is simulated has to know
        """Nothing beyond the computing."""
        return 0.0

    def step_s(self, batch: int, slowdown: float = 1.0) -> float:  # noqa: ARG002 a card that is simulated has to know
        """Nothing beyond the computing, unless it is to be slower than it is: then so much more than the step before took."""
        return self._took_s * (slowdown - 1)

    async def compute(self, work: Callable[[], ResultT]) -> ResultT:
        """On the device's thread.

        Cancelled:
            Work that has begun goes on to its end there.
        """
        return await asyncio.wrap_future(self._thread.submit(self._timed, work))

    def later(self, work: Callable[[], None]) -> None:
        """On the device's thread, after what it is at."""
        self._thread.submit(work).add_done_callback(_say_failure)

    def describe(self) -> Mapping[str, object]:
        """That nothing is simulated; for decode, how the kernel cuts its work up."""
        facts: dict[str, object] = {"device": self.name, "simulated": False}
        if self.kernel is not None:
            facts |= {
                "split_k_target_ctas": self.kernel.target_ctas,
                "split_k_mapping": self.kernel.rule,
                "split_k_workers": self.kernel.workers,
            }
        return facts

    def _timed(self, work: Callable[[], ResultT]) -> ResultT:
        started = time.perf_counter()
        try:
            return work()
        finally:
            self._took_s = time.perf_counter() - started


def _say_failure(future: Future[None]) -> None:
    if not future.cancelled() and (error := future.exception()) is not None:
        _LOG.error("on the device's thread: %s", error, exc_info=error)


def make_device(name: str, *, has_knob: bool) -> SimulatedDevice | CpuDevice:
    """The device of that name, with what the environment says about its speed and, for decode, its kernel's target.

    Raises:
        MisuseError: There is no such device, or a variable holds no number that can be.
        CannotError: The device needs numba, and it is not installed.
    """
    if name == "cpu":
        return CpuDevice(_kernel() if has_knob else None)
    kind, _, card = name.partition(":")
    if kind != "simulated" or card not in CARDS:
        known = ", ".join(f"simulated:{known}" for known in CARDS)
        raise MisuseError(f"--device is {name!r}", remedy=f"one of: cpu, {known}")
    return SimulatedDevice(CARDS[card], _target_ctas() if has_knob else DEFAULT_TARGET_CTAS, _speed())


def _kernel() -> "SplitK":
    target = _target_ctas()
    try:
        from vindicate.reference.split_k import SplitK
    except ImportError as error:
        raise CannotError(
            f"--device cpu compiles its kernel with numba, which cannot be imported: {error}",
            remedy="pip install 'vindicate[cpu]', or take --device simulated:rtx-pro-6000",
        ) from error
    kernel = SplitK(target)
    kernel.warm_up()
    return kernel


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
