"""The GPUs of this host, about once a second → how busy, how warm and how clocked, and whose processes use them; nothing without NVML."""

import contextlib
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from vindicate.record.observation import CardFacts, CardSample

__all__ = ["CardWatch"]

_MOST_CARDS, _MOST_SAMPLES = 64, 120


class CardWatch:
    """Follows every card that NVML shows; `look` samples each once. Needs the extra `gpu` (nvidia-ml-py) and NVIDIA's driver."""

    def __init__(self, began: float) -> None:
        self.began = began
        self._cards: list[tuple[Any, CardFacts, list[CardSample]]] = []
        self._nvml: Any = None
        with contextlib.suppress(
            Exception
        ):  # no module, no driver, no card, no permission: then there is nothing to see
            import pynvml

            pynvml.nvmlInit()
            self._nvml = pynvml
            for index in range(min(_MOST_CARDS, pynvml.nvmlDeviceGetCount())):
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                self._cards.append((handle, self._facts(index, handle), []))

    def look(self) -> None:
        """Sample each card once."""
        for handle, _, samples in self._cards:
            if len(samples) < _MOST_SAMPLES:
                samples.append(self._sample(handle))

    def facts(self) -> tuple[CardFacts, ...]:
        """What was seen, by index."""
        return tuple(
            replace(facts, pids=self._pids(handle) or facts.pids, samples=tuple(samples))
            for handle, facts, samples in self._cards
        )

    def close(self) -> None:
        """Let go of the driver."""
        if self._nvml is not None:
            with contextlib.suppress(Exception):
                self._nvml.nvmlShutdown()

    def _facts(self, index: int, handle: Any) -> CardFacts:
        nvml = self._nvml
        name = _or_none(lambda: nvml.nvmlDeviceGetName(handle))
        return CardFacts(
            index=index,
            name=name.decode(errors="replace") if isinstance(name, bytes) else str(name or ""),
            pids=self._pids(handle),
            power_limit_w=_watts(lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle)),
            max_sm_mhz=_or_none(lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM)),
        )

    def _sample(self, handle: Any) -> CardSample:
        nvml = self._nvml
        used = _or_none(lambda: nvml.nvmlDeviceGetUtilizationRates(handle))
        return CardSample(
            t_s=round(time.monotonic() - self.began, 3),
            busy_pct=used.gpu if used is not None else None,
            memory_traffic_pct=used.memory if used is not None else None,
            power_w=_watts(lambda: nvml.nvmlDeviceGetPowerUsage(handle)),
            sm_mhz=_or_none(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
        )

    def _pids(self, handle: Any) -> tuple[int, ...]:
        """In this host's own numbers, except in a container with a pid namespace of its own: there NVML shows the host's."""
        running = _or_none(lambda: self._nvml.nvmlDeviceGetComputeRunningProcesses(handle))
        return tuple(sorted({int(one.pid) for one in running or ()}))


def _or_none(ask: Callable[[], Any]) -> Any:
    """What NVML answers; each card refuses some questions, and says so by an exception of its own."""
    try:
        return ask()
    except Exception:  # noqa: BLE001 NVMLError is known only where the module is
        return None


def _watts(ask: Callable[[], Any]) -> float | None:
    milliwatts = _or_none(ask)
    return None if milliwatts is None else round(milliwatts / 1000, 1)
