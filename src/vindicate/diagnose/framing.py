"""A relay that spoils the form of a stream: it passes on in blocks what came singly, or loses and damages events on the way."""

from collections.abc import Iterator
from itertools import accumulate, pairwise
from statistics import median

from vindicate.diagnose.account import NodeAccount
from vindicate.diagnose.link import ANSWER_BYTES, Link
from vindicate.diagnose.rule import Against, Clue, Scene, count
from vindicate.record.observation import ProbeResult

__all__ = ["misframings"]

_BUFFERS, _REFRAMES = "proxy.sse_buffering", "proxy.sse_reframing"
_MIN_SPREAD_S = 0.12  # below this one late wake-up of a busy relay gathers the whole answer of a probe
_KEPT_BYTES = 4096
_MIN_WAIT_S = 1.2


def misframings(scene: Scene) -> Iterator[Clue]:
    """Clues to relays through which a stream loses its rhythm or its form, compared with the same stream past them."""
    for name in scene.chain.order:
        if scene.chain.is_relay(name):
            node = scene.account.nodes[name]
            yield from _in_blocks(scene, node)
            yield from _damaged(scene, node)


def _below(scene: Scene, name: str) -> list[ProbeResult]:
    """Complete streams of ours past *name*: from the services it calls, else from any further down."""
    past = [p for p in scene.ladder.good if name not in p.covers and p.n_tokens > 0]
    near = [p for p in past if p.target in scene.chain.services[name].upstream]
    return near or past


# ---- in blocks -------------------------------------------------------------------------------------------------------


def _in_blocks(scene: Scene, node: NodeAccount) -> Iterator[Clue]:
    lumps, streams = _lumps(node.down), _streams(node.up)
    shown = _lumped_probe(scene, node.name)
    against = Against(node.name, _BUFFERS)
    if shown is not None:
        through, past = shown
        yield against(
            "probe",
            0.65,
            f"through {node.name} a short stream of ours came in {count(len(through.gaps_s) + 1, 'block')} after {through.first_byte_s:.2f} s; "
            f"past it it began after {past.first_byte_s:.2f} s and came in {len(past.gaps_s) + 1} pieces over {sum(past.gaps_s):.2f} s",
            first_byte_through_s=round(through.first_byte_s or 0.0, 3),
            first_byte_past_s=round(past.first_byte_s or 0.0, 3),
            pieces_past=len(past.gaps_s) + 1,
        )
    if not node.visible or len(lumps) < 2 or len(streams) < 2 or _streams(node.down):
        return
    # Whoever asked for no stream gets his answer in one block, however the relay fetches it.
    wait, kept = median(lumps), _most_kept(node) if _in_parts(node.down) else 0
    if kept >= _KEPT_BYTES:
        yield against(
            "conservation",
            0.55,
            f"at times {kept} answer bytes had come to {node.name} and not left it",
            bytes_kept=kept,
        )
    yield against(
        "socket",
        0.6 if shown is not None or kept >= _KEPT_BYTES else 0.3,
        f"upstream {count(len(streams), 'answer')} flowed to {node.name} in many pieces; its callers got theirs in blocks, silent for {wait:.1f} s before each",
        streams_upstream=len(streams),
        blocks_to_callers=len(lumps),
        silence_s=round(wait, 2),
    )


def _in_parts(links: tuple[Link, ...]) -> bool:
    """Whether an answer was begun, with its head at least, and then came on in a large block after a silence."""
    return any(
        later - earlier >= _MIN_WAIT_S and n >= _KEPT_BYTES
        for link in links
        for _, rises in _answers(link)
        for (earlier, _), (later, n) in pairwise(rises)
    )


def _most_kept(node: NodeAccount) -> int:
    """By how much what came in from upstream and what went out drew apart within the window, at most."""
    moves = sorted(
        [(t, n) for link in node.up for t, n in link.rises]
        + [(t, -n) for link in (*node.down, *node.own) for t, n in link.rises]
    )
    kept = list(accumulate((n for _, n in moves), initial=0))
    lowest = accumulate(kept, min)
    return max((now - least for now, least in zip(kept, lowest, strict=True)), default=0)


def _lumped_probe(scene: Scene, name: str) -> tuple[ProbeResult, ProbeResult] | None:
    """A stream of ours that came through *name* all at once, and one past it that came piece by piece."""
    for through in (p for p in scene.ladder.good if p.target == name and p.first_byte_s is not None and p.n_tokens > 2):
        span = sum(through.gaps_s)
        for past in _below(scene, name):
            spread = sum(past.gaps_s)
            pieces = sum(gap >= 0.005 for gap in past.gaps_s)
            early = (past.first_byte_s or 0.0) + 0.6 * spread < (through.first_byte_s or 0.0)
            if spread >= _MIN_SPREAD_S and pieces >= 3 and span <= 0.25 * spread and early:
                return through, past
    return None


def _answers(link: Link) -> Iterator[tuple[float, list[tuple[float, int]]]]:
    """Each request on *link*, one of before the window included, and the rises of its answer; bytes of its very moment end the answer before it."""
    first = link.asks[0][0] if link.asks else float("inf")
    if (
        link.began_at < 1.0
        and link.asked_at is not None
        and (before := [(t, n) for t, n in link.rises if t <= first + 0.005])
    ):
        yield link.began_at, before
    for number, (at, _) in enumerate(link.asks):
        until = link.asks[number + 1][0] if number + 1 < len(link.asks) else float("inf")
        yield at, [(t, n) for t, n in link.rises if at + 0.005 < t <= until + 0.005]


def _lumps(links: tuple[Link, ...]) -> list[float]:
    """Silences before answers, or parts of answers, that came at one go."""
    found = []
    for link in links:
        if link.unsent_response or link.unread_response:
            continue  # a slow reader
        for at, rises in _answers(link):
            times = [at, *(t for t, _ in rises)]
            gaps = [b - a for a, b in pairwise(times)]
            if rises and min(gaps) >= _MIN_WAIT_S and min(n for _, n in rises) >= ANSWER_BYTES:
                found += gaps
    return found


def _streams(links: tuple[Link, ...]) -> list[Link]:
    """Links with an answer that came in four pieces or more, one soon after the other."""
    found = []
    for link in links:
        for _, rises in _answers(link):
            times = [t for t, _ in rises]
            if len(times) >= 4 and times[-1] - times[0] >= 0.5 and median(
                b - a for a, b in pairwise(times)
            ) < _MIN_WAIT_S:  # fmt: skip
                found.append(link)
                break
    return found


# ---- lost and damaged ------------------------------------------------------------------------------------------------


def _damaged(scene: Scene, node: NodeAccount) -> Iterator[Clue]:
    """Events or characters that a stream has past the relay and lacks through it, though its body ends in good form."""
    name = node.name
    through = [p for p in scene.capture.probes if p.target == name and p.status == 200 and p.body_complete]
    past = _below(scene, name)
    if not through or not past or any(p.n_replaced for p in past):
        return
    lost = [p for p in through if p.n_tokens == 0 and past[0].n_tokens > 0 and not p.terminated]
    split = [p for p in through if p.n_replaced > 0]
    against = Against(name, _REFRAMES)
    if lost and len(lost) == len(through):
        yield against(
            "probe",
            0.75,
            f"a stream of ours ended in good form through {name} with {count(lost[0].n_events, 'event')}; past it it had {past[0].n_events}",
            events_through=lost[0].n_events,
            events_past=past[0].n_events,
        )
        yield against(
            "conservation",
            0.6,
            f"through {name} came {lost[0].response_bytes} bytes, head included, of an answer that is {past[0].response_bytes} bytes past it, and it called that the end",
            bytes_through=lost[0].response_bytes,
            bytes_past=past[0].response_bytes,
        )
        return
    if split and len(split) == len(through):
        yield against(
            "probe",
            0.7,
            f"through {name} a stream of ours held {count(split[0].n_replaced, 'replacement character')} (U+FFFD), past it none: characters are decoded in halves",
            replaced_through=split[0].n_replaced,
            replaced_past=0,
        )
