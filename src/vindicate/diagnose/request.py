"""A request that asks for more than anybody waits for: one answer flows at a normal rate for very long. No stall at all.

From outside, the number of tokens so far tells endless from long. What the text says (blanks under a grammar, one phrase
again and again) does not show in byte counts.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from vindicate.diagnose.link import Link
from vindicate.diagnose.rule import Against, Clue, Scene

__all__ = ["requests"]

MECHANISM = "request.endless_generation"
ENDLESS_TOKENS = 65_536  # longer than the longest answers that models are asked for on purpose
LONG_TOKENS = 4096
_LEAST_BYTES_PER_TOKEN = 4.0


@dataclass(frozen=True, slots=True)
class _Long:
    """An answer that goes on: *tokens* so far, by the engine's counter or, if *counted* is false, by the size of our probe's."""

    link: Link
    age_s: float
    tokens: float
    rate: float
    counted: bool


def requests(scene: Scene) -> Iterator[Clue]:
    """Clues to requests whose answer is past any usual length, and a remark on those that are merely long."""
    for name in scene.leaves:
        if scene.chain.role(name) == "prefill":
            continue
        longest = max(_long(scene, name), key=lambda one: one.tokens, default=None)
        if longest is not None and longest.tokens >= LONG_TOKENS:
            yield from _clues(scene, name, longest)


def _long(scene: Scene, name: str) -> Iterator[_Long]:
    node, progress, end = scene.account.nodes[name], scene.progress[name], scene.account.end
    sizes = [p.response_bytes / p.n_tokens for p in scene.ladder.good if name in p.covers and p.n_tokens >= 2]
    flowing = node.down_in("moving")
    for link in flowing:
        span = end - link.rises[0][0]
        if link.asked_at is None or link.asks or span < 2.0 or not sizes:
            continue  # asked within the window: it is young, whatever it becomes
        age = end - link.asked_at
        per_token = max(
            1.0, *sizes
        )  # with the head in it: too large, so that tokens are rather under- than over-counted
        rate = link.response_delta / span / per_token
        yield _Long(link, age, min(rate * age, link.response / per_token), rate, counted=False)
    waiting = [link for link in node.down_in("owed") if link.waited_s >= end]  # not streamed: asked before the window
    running = progress.gauges.get("running")
    if len(waiting) == 1 and not flowing and running is not None and running.constant and running.last == 1:
        looks = running.values[-3:]
        span = looks[-1][0] - looks[0][0]
        if progress.work == "moving" and progress.live_delta and span > 0:
            rate, age = progress.live_delta / span, waiting[0].waited_s
            yield _Long(waiting[0], age, rate * age, rate, counted=True)


def _clues(scene: Scene, name: str, one: _Long) -> Iterator[Clue]:
    endless = one.tokens >= ENDLESS_TOKENS
    who = _asker(scene, one.link) or name
    what = "streamed" if not one.counted else "not streamed, so its caller sees nothing yet"
    text = (
        f"{name} gives one answer ({what}) for {one.age_s:.0f} s at {one.rate:.0f} tokens/s: about {one.tokens:,.0f} tokens so far, and they flow; "
        "it ends at its max_tokens"
    )
    yield Clue(
        service=who if endless else name,
        kind="socket" if not one.counted else "counter",
        direction="implicates" if endless else "neutral",
        layer="request" if endless else None,
        mechanism=MECHANISM if endless else None,
        strength=0.65 if endless else 0.0,
        text=text,
        measured={"tokens": round(one.tokens), "tokens_per_s": round(one.rate, 1), "age_s": round(one.age_s, 1)},
    )
    if not endless:
        return
    against = Against(who, MECHANISM, layer="request")
    if not one.counted and scene.progress[name].work == "moving":
        yield against(
            "counter",
            0.5,
            f"the token counters of {name} move: it is no stall",
            tokens_in_window=scene.progress[name].live_delta,
        )
    good = [p for p in scene.ladder.good if name in p.covers]
    if good:
        yield against(
            "probe",
            0.5,
            f"a request of ours to {good[0].target} was complete in {good[0].total_s:.1f} s meanwhile",
            total_s=round(good[0].total_s, 2),
        )


def _asker(scene: Scene, link: Link) -> str | None:
    """The client whose request at the entry came at the same moment as that of *link*."""
    entry = scene.chain.entry
    if entry is None or link.asked_at is None:
        return None
    near = [
        one
        for one in scene.account.nodes[entry].down
        if one.asked_at is not None and abs(one.asked_at - link.asked_at) <= 0.5 and one.caller is not None
    ]
    return min(near, key=lambda one: abs((one.asked_at or 0.0) - (link.asked_at or 0.0))).caller if near else None
