"""An event loop → how late it was: the client's own share in every stamp."""

import asyncio
import time

__all__ = ["Lag"]

_EVERY_S = 0.05


class Lag:
    """Wakes twenty times a second and notes how late it came."""

    def __init__(self) -> None:
        self._n = 0
        self._total_s = 0.0

    @property
    def mean_ms(self) -> float | None:
        """Mean lateness; ``None`` when nothing was measured. A timer's own grain, up to 1 ms, is part of it."""
        return round(1000 * self._total_s / self._n, 3) if self._n else None

    async def watch(self) -> None:
        """Measure until cancelled."""
        while True:
            began = time.monotonic()
            await asyncio.sleep(_EVERY_S)
            self._n += 1
            self._total_s += max(0.0, time.monotonic() - began - _EVERY_S)
