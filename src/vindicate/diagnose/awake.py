"""A relay that keeps streams awake whose answers are over: small signs of life of its own making, and never the end."""

from collections.abc import Iterator

from vindicate.diagnose.account import NodeAccount
from vindicate.diagnose.clients import callers_of
from vindicate.diagnose.link import HEARTBEAT_BYTES, Link
from vindicate.diagnose.rule import Against, Clue, Scene, count
from vindicate.record.observation import ProbeResult

__all__ = ["ends_withheld", "kept_awake"]

MECHANISM = "stream.missing_done_masked_by_heartbeat"
_BEATS, _SPAN_S = 3, 3.0
_SAME_BYTES = 16  # an id or a date may have some letters more


def ends_withheld(scene: Scene) -> Iterator[Clue]:
    """Clues to relays that never give the end of streams whose answers came to them whole."""
    for name in scene.chain.order:
        node = scene.account.nodes[name]
        beating = _beating(node)
        if not scene.chain.is_relay(name) or not node.visible or not _of_its_own(node, beating):
            continue
        against = Against(name, MECHANISM)
        probe = next((p for p in scene.ladder.bad_at(name) if p.error == "no_end"), None)
        hung = {caller.name for caller in callers_of(scene) if caller.said_to_hang}
        if probe is None and not (
            scene.engines_idle(name) and beating and all(link.caller in hung for link in beating)
        ):
            continue
        if probe is not None and name not in scene.ladder.suspects:  # others of ours came through whole
            if not _came_whole(scene, node, probe):
                continue
            yield against(
                "probe",
                0.6,
                f"the answer to a request of ours came to {name} whole, and {name} never gave its end; others it passed on whole",
                "our probe",
                response_bytes_in=node.came_for(probe),
                tokens=probe.n_tokens,
            )
        total = sum(link.response_delta for link in beating)
        yield against(
            "conservation",
            0.55,
            f"{name} sent {total} bytes in tiny pieces on {count(len(beating), 'stream')} all the while, and for them nothing came in from upstream",
            streams=len(beating),
            heartbeat_bytes=total,
        )
        if probe is None:
            yield against(
                "counter",
                0.6,
                f"the engines below {name} have nothing in work, and the client whose streams these are hangs, by its user's word",
                in_work=0,
            )


def kept_awake(scene: Scene) -> str | None:
    """Streams that get signs of life and no more, while nobody below the relay is at work for them; in words."""
    for name in scene.chain.order:
        node = scene.account.nodes[name]
        beating = _beating(node)
        if scene.chain.is_relay(name) and node.visible and _of_its_own(node, beating):
            return (
                f"{count(len(beating), 'stream')} of {name} got nothing but small signs of life, of its own making: what they wait for is "
                "not on its way; either their ends were kept back, or they are no answers of models"
            )
    return None


def _beating(node: NodeAccount) -> tuple[Link, ...]:
    """Callers' streams that were asked for before the window and got tiny pieces all through it."""
    return tuple(
        link
        for link in node.down
        if link.is_open
        and not link.asks
        and len(link.rises) >= _BEATS
        and link.rises[-1][0] - link.rises[0][0] >= _SPAN_S
        and all(n < HEARTBEAT_BYTES for _, n in link.rises)
    )


def _of_its_own(node: NodeAccount, beating: tuple[Link, ...]) -> bool:
    """Whether *beating* are more than what is awaited or flows upstream for callers: their signs of life came from nowhere below."""
    if not beating or not node.up:
        return False
    others = [link for link in node.down if link.rises and link not in beating]
    at_work = [link for link in node.up if link.state in ("owed", "moving", "young", "uploading", "connecting")]
    beats_in = [link for link in node.up if len(link.rises) >= _BEATS and link.state == "open" and not link.asks]
    own = sum(link.response_delta for link in node.own)
    spare = sum(link.response_delta for link in node.up) - own - sum(link.response_delta for link in others)
    return len(at_work) + len(beats_in) <= len(others) and 2 * spare < sum(link.response_delta for link in beating)


def _came_whole(scene: Scene, node: NodeAccount, probe: ProbeResult) -> bool:
    """Whether as much came in for *probe* as for one of as many tokens that was given whole."""
    wholes = [node.came_for(p) for p in scene.ladder.good if p.target == node.name and p.n_tokens == probe.n_tokens]
    wholes += [
        p.response_bytes
        for p in scene.ladder.good
        if p.target in scene.chain.services[node.name].upstream and p.n_tokens == probe.n_tokens and not p.compressed
    ]
    return bool(wholes) and node.came_for(probe) >= min(wholes) - _SAME_BYTES
