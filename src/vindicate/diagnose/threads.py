"""Stacks of Python processes, twice → a pool of threads that is used up, and what threads stood at the same place both times."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from vindicate.diagnose.rule import Clue, Scene, count
from vindicate.record.observation import ThreadStack

__all__ = ["FullPool", "full_pool", "stood_still"]

_POOL = "_worker (concurrent/futures/thread.py"
_LOOP = ("run_forever (asyncio/", "run_forever (uvloop")
_LOOP_WAITS = ("select (selectors.py", "poll (", "run_forever")
_LOOKUP = ("getaddrinfo (", "gethostbyname (")
_PLACES = 3


@dataclass(frozen=True, slots=True)
class FullPool:
    """A pool whose *n_threads* were all at work at both looks; *places* says where, a few of them; *looks_up*: in name lookups."""

    pid: int
    n_threads: int
    places: tuple[str, ...]
    looks_up: bool


def full_pool(scene: Scene, service: str) -> FullPool | None:
    """The pool of threads of a process of *service* of which none was free; a pool of one thread is a worker of its own."""
    for pid, first, second in _twice(scene, service):
        pools = [[_job(one) for one in look if _is_worker(one)] for look in (first, second)]
        if min(map(len, pools)) > 1 and all(job is not None for pool in pools for job in pool):
            jobs = [job for job in pools[1] if job is not None]
            return FullPool(
                pid,
                len(jobs),
                tuple(dict.fromkeys(jobs))[:_PLACES],
                any(frame.startswith(_LOOKUP) for one in second if _is_worker(one) for frame in one.frames),
            )
    return None


def stood_still(scene: Scene) -> Iterator[Clue]:
    """Threads that stood at one place at both looks, those apart that wait for work; said, and held against nobody."""
    names = [*scene.chain.order, *(client.name for client in scene.chain.clients)]
    for name in names:
        for pid, first, second in _twice(scene, name):
            before = {one.name: one.frames[:_PLACES] for one in first}
            same = [
                one
                for one in second
                if one.frames and before.get(one.name) == one.frames[:_PLACES] and _is_at_work(one)
            ]
            if same:
                places = dict.fromkeys(one.frames[0] for one in same)
                yield Clue(
                    service=name,
                    kind="process",
                    direction="neutral",
                    text=f"{count(len(same), 'thread')} of process {pid} stood at the same place in two looks at its stacks: {', '.join([*places][:_PLACES])}",
                    measured={"pid": pid, "threads": len(same)},
                )


def _twice(scene: Scene, service: str) -> Iterator[tuple[int, Sequence[ThreadStack], Sequence[ThreadStack]]]:
    """First and last look at each process of *service*."""
    for pid, owner in scene.chain.owner_of.items():
        looks = sorted((one for one in scene.capture.stacks if one.pid == pid), key=lambda one: one.t_s)
        if owner == service and len(looks) > 1:
            yield pid, looks[0].threads, looks[-1].threads


def _is_worker(thread: ThreadStack) -> bool:
    return any(frame.startswith(_POOL) for frame in thread.frames)


def _job(thread: ThreadStack) -> str | None:
    """What a worker of a pool is at; ``None``: it waits for work, which is done in C at the bottom of the worker's own loop."""
    inner = thread.frames[: next(i for i, frame in enumerate(thread.frames) if frame.startswith(_POOL))]
    return next((frame for frame in inner if not frame.startswith("_WorkItem.run")), inner[0]) if inner else None


def _is_at_work(thread: ThreadStack) -> bool:
    """Whether it is neither a worker without work nor a loop that waits for events."""
    if _is_worker(thread):
        return _job(thread) is not None
    waits = any(name in thread.frames[0] for name in _LOOP_WAITS)
    loops = any(name in frame for frame in thread.frames for name in _LOOP)
    return not (loops and waits) and not thread.frames[0].startswith(("wait (", "Condition.wait (", "Event.wait ("))
