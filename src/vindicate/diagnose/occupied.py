"""Silent connections that a relay does not use again → answers that may have stalled, where no figures tell that they are over.

A process that relays takes an idle connection before it opens a new one. So when it opened a new one to a service while older
ones to it stood silent, those are in use as far as it knows: their answers stopped, or it lost them.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from vindicate.diagnose.link import Link
from vindicate.diagnose.rule import Clue, Scene, count

__all__ = ["Occupied", "occupied", "occupied_links"]

SILENT_S = 3.0


@dataclass(frozen=True, slots=True)
class Occupied:
    """Connections of *relay* to *service* with an answer begun, silent for *silent_s* seconds at least, and passed over."""

    relay: str
    service: str
    links: tuple[Link, ...]
    silent_s: float

    def __str__(self) -> str:
        """Say it in words."""
        n = len(self.links)
        return (
            f"{self.relay} opened a new connection to {self.service} though {count(n, 'older one')} stood silent: "
            f"no byte moved on {'it' if n == 1 else 'them'} for {self.silent_s:.0f} s, and {'it is' if n == 1 else 'they are'} still in use"
        )


def occupied(scene: Scene) -> Iterator[Occupied]:
    """Per pair of relay and service of which no figures tell whether its answers are over."""
    end = scene.account.end
    for relay in scene.chain.order:
        node = scene.account.nodes[relay]
        for service in scene.chain.services[relay].upstream:
            if scene.progress[service].gauges or service in scene.awaited:
                continue
            links = [link for link in node.up if link.callee == service]
            newest: dict[tuple[int, ...], float] = {}  # by process: each has connections of its own
            for link in links:
                if link.asks and link.client is not None and link.client.fresh and link.client.pids:
                    newest[link.client.pids] = max(link.asks[0][0], newest.get(link.client.pids, 0.0))
            silent = tuple(
                link
                for link in links
                if link.state == "open"
                and link.client is not None
                and link.answered_at is not None
                and link.answered_at < min(newest.get(link.client.pids, float("-inf")) - 0.5, end - SILENT_S)
            )
            if silent:
                yield Occupied(relay, service, silent, min(end - (link.answered_at or 0.0) for link in silent))


def occupied_links(scene: Scene) -> Iterator[Clue]:
    """What was seen of them: it accuses nobody, as either side may have lost them."""
    for found in occupied(scene):
        yield Clue(
            service=found.service,
            kind="socket",
            direction="neutral",
            text=str(found),
            measured={"silent": len(found.links), "silent_s": round(found.silent_s, 1)},
        )
