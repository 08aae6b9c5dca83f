"""A relay that holds some requests while later ones pass through it and are answered: no queue would do that."""

from collections.abc import Iterator

from vindicate.diagnose.account import NodeAccount
from vindicate.diagnose.delay import exchanges
from vindicate.diagnose.hold import upstream_seen
from vindicate.diagnose.link import Link
from vindicate.diagnose.rule import Against, Clue, Scene, count, oldest

__all__ = ["overtaken"]

_WAITED_S = 5.0
_LATER_S = 1.0
_SAME_MOMENT_S = 1.5
_PASSED = 3


def overtaken(scene: Scene) -> Iterator[Clue]:
    """Clues to relays whose held requests were overtaken."""
    for name in scene.chain.order:
        node = scene.account.nodes[name]
        if not scene.chain.is_relay(name) or not node.visible or not upstream_seen(scene, node) or scene.seldom_looked:
            continue
        held = tuple(link for link in node.held if link.is_open and link.waited_s >= _WAITED_S)
        passed = _answered_later(node, held)
        if held and passed >= _PASSED:
            yield from _held_alone(scene, name, held, passed)


def _answered_later(node: NodeAccount, held: tuple[Link, ...]) -> int:
    """How many requests came after all of *held*, and have an answer."""
    since = max((link.asked_at or 0.0 for link in held), default=0.0) + _LATER_S
    others = (link for link in node.down if link not in held)
    return sum(one.asked > since and one.first is not None for link in others for one in exchanges(link))


def _held_alone(scene: Scene, name: str, held: tuple[Link, ...], passed: int) -> Iterator[Clue]:
    text = (
        f"{count(len(held), 'request')} waited in {name} for up to {oldest(held):.0f} s and went no further, while {passed} that came later "
        "passed through it and were answered: it is no queue"
    )
    measured = {"held": len(held), "passed_later": passed, "oldest_s": oldest(held)}
    elsewhere = _asked_elsewhere(scene, name, held)
    if 2 * len(elsewhere) < len(held):
        # A relay also waits for the rest of a request of which less came than was announced: from outside that looks the same.
        why = "; it waits for something of its own, or for the rest of a request that its client does not send"
        yield Against(name)("wait-for", 0.7, text + why, **measured)
        return
    against = Against(name, "proxy.waits_for_another")
    yield against("wait-for", 0.6, text, **measured)
    yield against(
        "socket",
        0.6,
        f"when they came it asked {elsewhere[0].callee}, which is no service of this chain, and {count(len(elsewhere), 'answer')} of it "
        "never came",
        asked=len(elsewhere),
        address=elsewhere[0].callee,
    )


def _asked_elsewhere(scene: Scene, name: str, held: tuple[Link, ...]) -> list[Link]:
    """Its connections to others than services of the chain that were asked when *held* came, and have no answer either."""
    found = []
    for link in scene.account.links:
        if link.caller != name or link.callee in scene.chain.services or link.state not in ("owed", "connecting"):
            continue
        since = link.began_at if link.asked_at is None else link.asked_at
        if any(-0.3 <= since - (one.asked_at or 0.0) <= _SAME_MOMENT_S for one in held):
            found.append(link)
    return found
