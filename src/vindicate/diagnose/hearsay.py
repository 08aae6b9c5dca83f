"""What a relay says of a service that it calls, in an error or in its own counts → clues that stand beside what was seen of that service."""

from collections.abc import Iterator

from vindicate.diagnose.chain import address_in
from vindicate.diagnose.dispatch import worker_figures
from vindicate.diagnose.ladder import fault_class
from vindicate.diagnose.rule import Clue, Scene

__all__ = ["hearsay"]

_ERRORS = ("worker_errors_total", "pd_prefill_errors_total", "pd_decode_errors_total")
_ENOUGH = 3


def hearsay(scene: Scene) -> Iterator[Clue]:
    """Clues to services of which a relay complains, and of which a probe of ours complains too."""
    yield from _named_in_an_error(scene)
    for name in scene.chain.order:
        if scene.chain.is_relay(name):
            yield from _counted(scene, name)


def _named_in_an_error(scene: Scene) -> Iterator[Clue]:
    """A relay that answers with an error and names in it the address of one service below: its own word of where it failed."""
    for p in scene.ladder.bad:
        if fault_class(p) != "errors":
            continue
        found = {scene.chain.callee_at(at) for word in p.detail.split() if (at := address_in(_url(word))) is not None}
        below = found & set(scene.chain.below(p.target)) & scene.ladder.suspects
        if len(below) == 1:
            name = str(below.pop())
            text = f"{p.target} answered our request with an error ({p.error}) that names {name} as where it failed"
            yield Clue(service=name, kind="log", strength=0.4, text=text, measured={"status": p.status})
            return


def _url(word: str) -> str | None:
    text = word.strip("\"'()[]{},;<>")
    return text if text.startswith(("http://", "https://")) else None


def _counted(scene: Scene, name: str) -> Iterator[Clue]:
    """By the relay's own count one worker alone gave errors in the window, and it gave one to us, straight."""
    looks = worker_figures(scene, name, _ERRORS)
    grown = {worker: counts[-1] - counts[0] for worker, counts in looks.items() if counts[-1] > counts[0]}
    if len(grown) != 1:
        return
    ((worker, n),) = grown.items()
    ours = [p for p in scene.ladder.bad if p.target == worker and fault_class(p) in ("errors", "cut")]
    if n >= _ENOUGH and ours and worker in scene.ladder.suspects:
        yield Clue(
            service=worker,
            kind="counter",
            strength=0.5,
            text=f"{name} counted {n:g} errors of {worker} in the window, and none of another worker",
            measured={"errors": n},
        )
