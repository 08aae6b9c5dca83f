"""An engine that breaks connections off before their answers are whole: what its callers' sockets say beside a probe of ours that it cut."""

from collections.abc import Iterator

from vindicate.diagnose.exchange import end_of
from vindicate.diagnose.ladder import fault_class
from vindicate.diagnose.rule import Against, Clue, Scene, count

__all__ = ["broken_off"]

_ENOUGH = 3


def broken_off(scene: Scene) -> Iterator[Clue]:
    """Clues to engines that cut a probe straight at them, and that close their callers' connections first.

    One that closes after each whole answer closes first too: so the cut of ours must have broken HTTP itself.
    """
    for name in scene.leaves:
        cut = [p for p in scene.ladder.bad_at(name) if fault_class(p) == "cut"]
        if not cut or name not in scene.ladder.suspects or any(p.body_complete for p in cut):
            continue
        ends = [end for link in scene.account.nodes[name].down if (end := end_of(link))]
        closed = [end for end in ends if end.by != "caller"]
        if len(closed) < _ENOUGH or len(closed) < 0.8 * len(ends):
            continue
        unanswered = sum(end.answered_at is None for end in closed)
        without = f", {unanswered} of them without a byte of answer" if unanswered else ""
        role = scene.chain.role(name)
        yield Against(name, f"{role if role in ('prefill', 'decode') else 'engine'}.cuts_streams")(
            "socket",
            0.4,
            f"of {count(len(ends), 'connection')} of its callers that ended, {name} itself ended {len(closed)}{without}",
            ended=len(ends),
            by_itself=len(closed),
            unanswered=unanswered,
        )
