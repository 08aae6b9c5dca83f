"""A scene → those who call the chain from outside: their links, their processes, and what a user said of them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from vindicate.diagnose.link import Link
from vindicate.diagnose.rule import Scene
from vindicate.record.observation import ProcessFacts, SocketSample

__all__ = ["STANDS_S", "Caller", "callers_of", "since_when"]

STANDS_S = 4.0  # what is so for a shorter time may pass
_SLEEPS_BELOW = 0.05  # share of one core


@dataclass(frozen=True, slots=True)
class Caller:
    """One client, with its links to the whole chain."""

    name: str
    said_to_hang: bool = False
    links: tuple[Link, ...] = ()
    processes: tuple[ProcessFacts, ...] = ()

    @property
    def under_way(self) -> tuple[Link, ...]:
        """Links on which a request was under way at some time of the window."""
        busy = ("owed", "moving", "uploading", "young", "connecting")
        return tuple(link for link in self.links if link.state in busy or link.asks or link.rises)

    @property
    def cpu_share(self) -> float | None:
        """CPU used over the window, in cores; ``None``: not seen."""
        shares = [
            (p.samples[-1].cpu_s - p.samples[0].cpu_s) / span
            for p in self.processes
            if len(p.samples) > 1 and (span := p.samples[-1].t_s - p.samples[0].t_s) > 0
        ]
        return sum(shares) if shares else None

    @property
    def asleep(self) -> bool:
        """Whether its processes were seen all the time, and did nothing."""
        share = self.cpu_share
        return share is not None and share < _SLEEPS_BELOW and not any(p.ended for p in self.processes)

    @property
    def n_threads(self) -> int:
        """Threads of all its processes."""
        return sum(p.samples[-1].n_threads for p in self.processes if p.samples)


def callers_of(scene: Scene) -> Iterator[Caller]:
    """Every client that was declared, named or connected; of other hosts, one a host."""
    clients = {client.name: client for client in scene.chain.clients}
    by_host = {c.address.host: c.name for c in clients.values() if c.address is not None and c.remote}
    links: dict[str, list[Link]] = {name: [] for name in clients}
    for link in scene.account.links:
        if link.ours or link.caller in scene.chain.services or link.callee not in scene.chain.services:
            continue
        name = link.caller or (by_host.get(link.server.remote.host) if link.server is not None else None)
        if name is not None:
            links.setdefault(name, []).append(link)
    for name, its in links.items():
        yield Caller(
            name=name,
            said_to_hang=name in clients and clients[name].said_to_hang,
            links=tuple(its),
            processes=scene.processes(name),
        )


def since_when(samples: Sequence[SocketSample], holds: Callable[[SocketSample], bool]) -> float | None:
    """Since when *holds* is true without a break, up to the last sample; ``None``: it is not true there."""
    since = None
    for sample in reversed(samples):
        if not holds(sample):
            break
        since = sample.t_s
    return since
