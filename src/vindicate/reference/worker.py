"""One engine as the router sees it: its health, its circuit breaker, what it is doing; and whose turn it is."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

__all__ = ["Worker", "pick"]

_OPEN_AFTER: Final = 10
_OPEN_S: Final = 60.0


@dataclass(slots=True, eq=False)
class Worker:
    """A prefill or a decode. *healthy* is `None` until the first check; the higher *turn*, the later it was picked."""

    role: str
    url: str
    bootstrap_port: int | None
    healthy: bool | None = None
    n_active: int = 0
    turn: int = 0
    n_failures: int = 0
    opened_at: float | None = None

    @contextmanager
    def active(self) -> Iterator[None]:
        """A request is with it."""
        self.n_active += 1
        try:
            yield
        finally:
            self.n_active -= 1

    def succeeded(self) -> None:
        """A request went well: the breaker closes."""
        self.n_failures = 0
        self.opened_at = None

    def failed(self, now: float) -> None:
        """A request failed with a 5xx or no answer; ten in a row open the breaker for a minute."""
        self.n_failures += 1
        if self.n_failures >= _OPEN_AFTER:
            self.opened_at = now

    def breaker(self, now: float) -> int:
        """0 closed, 1 open, 2 half open (the next request decides), as in ``smg_worker_cb_state``."""
        if self.opened_at is None:
            return 0
        return 1 if now - self.opened_at < _OPEN_S else 2


def pick(workers: Sequence[Worker], now: float) -> Worker | None:
    """The worker that was picked longest ago, of those that are not known to be down; `None` when there is none."""
    able = [worker for worker in workers if worker.healthy is not False and worker.breaker(now) != 1]
    if not able:
        return None
    worker = min(able, key=lambda each: each.turn)
    worker.turn = 1 + max(each.turn for each in workers)
    return worker
