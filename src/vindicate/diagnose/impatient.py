"""A relay that gives up on large requests at a constant age, before their first byte, while its callers go on waiting."""

from collections.abc import Iterator, Sequence

from vindicate.diagnose.account import NodeAccount
from vindicate.diagnose.delay import exchanges
from vindicate.diagnose.link import Link
from vindicate.diagnose.retry import age_given_up, between_looks, is_constant, left_at, size_asked
from vindicate.diagnose.rule import Against, Clue, Scene, count

__all__ = ["impatient"]

_FEWEST, _FEWEST_WAITED_FOR = 3, 2
_AT_LEAST_S = 1.0
_LARGER_TIMES = 4  # than those that were answered: it is their length that makes them late


def impatient(scene: Scene) -> Iterator[Clue]:
    """Clues to relays whose patience is shorter than what some requests take."""
    apart_s = between_looks(scene)
    for name in scene.chain.order:
        node = scene.account.nodes[name]
        if not scene.chain.is_relay(name) or not node.visible:
            continue
        left = [link for link in node.up if link.gave_up and age_given_up(link) >= _AT_LEAST_S]
        ages = [age_given_up(link) for link in left]
        if len(left) < _FEWEST or not is_constant(ages, apart_s) or not _are_larger(node, left):
            continue
        waited_for = [link for link in left if _has_a_caller_still(node, link)]
        if len(waited_for) < _FEWEST_WAITED_FOR:
            continue
        against = Against(name, "gateway.idle_timeout_before_first_byte")
        age = sum(ages) / len(ages)
        yield against(
            "socket",
            0.65,
            f"{name} closed {count(len(left), 'exchange')} upstream at the same age ({age:.1f} s), before the first byte; all were far larger than "
            "those that it got an answer for",
            given_up=len(left),
            age_s=round(age, 2),
        )
        yield against(
            "wait-for",
            0.6,
            f"its own callers were still waiting when it gave up on {len(waited_for)} of them",
            still_waited_for=len(waited_for),
        )


def _are_larger(node: NodeAccount, left: Sequence[Link]) -> bool:
    answered = [one.size for link in node.up for one in exchanges(link) if one.first is not None]
    return bool(answered) and min(size_asked(link) for link in left) >= _LARGER_TIMES * max(answered)


def _has_a_caller_still(node: NodeAccount, given_up: Link) -> bool:
    """Whether a caller that asked before it, and for as much, was connected and without an answer a second after it was given up."""
    asked, gone = given_up.asked_at or 0.0, left_at(given_up)
    return any(_silent_until(link) > gone and link.last_seen >= gone + 1.0 for link in node.down) or any(
        one.asked <= asked + 0.3
        and (one.first is None or one.first > gone)
        and link.last_seen >= gone + 1.0
        and (one.size == 0 or 2 * one.size >= size_asked(given_up))
        for link in node.down
        for one in exchanges(link)
    )


def _silent_until(link: Link) -> float:
    """When the first byte came of a request that was there before the window, and of which none had come in it; 0 where none is known."""
    first = link.rises[0][0] if link.rises else 0.0
    known = link.asked_at is not None and (link.asked_at < 0 or not link.asks)  # then `exchanges` has it
    fresh = link.server is not None and link.server.fresh
    return first if not known and not fresh and (not link.asks or first <= link.asks[0][0]) else 0.0
