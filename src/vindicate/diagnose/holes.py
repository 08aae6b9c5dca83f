"""Clues → the same, less those that take for absent what was only not seen: a sum needs all its terms."""

from collections.abc import Iterable
from dataclasses import replace

from vindicate.diagnose.account import NodeAccount
from vindicate.diagnose.rule import Clue, Scene

__all__ = ["without_holes"]


def without_holes(scene: Scene, clues: Iterable[Clue]) -> list[Clue]:
    """What did not pass at a service accuses nobody where some of its connections were not seen or gave no byte counts."""
    holed = {name for name, node in scene.account.nodes.items() if not (_counted(node) and _callers_seen(scene, node))}
    return [
        replace(clue, direction="neutral", strength=0.0)
        if clue.kind in ("conservation", "wait-for") and clue.direction == "implicates" and clue.service in holed
        else clue
        for clue in clues
    ]


def _counted(node: NodeAccount) -> bool:
    """Whether all is counted that carried anything; the kernel keeps no counts of what is in TIME_WAIT, nor where no handshake was."""
    return all(link.counted or link.state in ("closed", "connecting") for link in (*node.down, *node.own, *node.up))


def _callers_seen(scene: Scene, node: NodeAccount) -> bool:
    """Whether a connection to the service would have been seen, at its own end or at its callers': not in another network namespace."""
    service = scene.chain.services[node.name]
    port = service.address.port if service.address else None
    callers = [other for other in scene.chain.services.values() if node.name in other.upstream]
    return (
        any(link.server is not None for link in (*node.down, *node.own))
        or any(listener.local.port == port for listener in scene.capture.listeners)
        or (bool(callers) and all(caller.pids for caller in callers))
    )
