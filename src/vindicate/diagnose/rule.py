"""What every rule works with: the scene that was recorded, and clues, each one a finding that may accuse somebody."""

from dataclasses import dataclass, field

from vindicate.diagnose.account import Account
from vindicate.diagnose.chain import Chain
from vindicate.diagnose.ladder import Ladder
from vindicate.diagnose.link import Link
from vindicate.diagnose.progress import Progress
from vindicate.record.diagnosis import Direction, FindingKind, Layer
from vindicate.record.observation import Capture, ProcessFacts

__all__ = ["TOO_SELDOM_PER_S", "Against", "Clue", "Scene", "count", "plural"]

TOO_SELDOM_PER_S = 1.0


@dataclass(frozen=True, slots=True)
class Scene:
    """A capture and what was computed from it; *awaited* is what relays say that they wait for, by service."""

    capture: Capture
    chain: Chain
    account: Account
    progress: dict[str, Progress]
    ladder: Ladder
    awaited: dict[str, float]

    @property
    def leaves(self) -> tuple[str, ...]:
        """Services that hand nothing on: the engines."""
        return tuple(name for name in self.chain.order if not self.chain.is_relay(name))

    @property
    def seldom_looked(self) -> bool:
        """Whether the sockets were looked at less than once a second: what flows and what stands then look the same."""
        looks = self.capture.n_looks
        return looks is not None and looks < self.capture.window_s * TOO_SELDOM_PER_S

    def engines_idle(self, below: str) -> bool:
        """Whether every engine under *below* says itself that it has nothing in work, and at least one says so."""
        works = [self.progress[name].work for name in self.chain.below(below) if name in self.leaves]
        return bool(works) and all(work == "idle" for work in works)

    def moves(self, service: str) -> bool:
        """Whether users' answers flow from *service*: bytes on its links or counters of its own."""
        node = self.account.nodes[service]
        return node.flows(self.account.end) or self.progress[service].work == "moving"

    def processes(self, service: str) -> tuple[ProcessFacts, ...]:
        """The recorded processes of *service*, descendants included."""
        return tuple(p for p in self.capture.processes if self.chain.owner_of.get(p.pid) == service)


@dataclass(frozen=True, slots=True, kw_only=True)
class Clue:
    """One thing seen. *strength* is how far it alone would convince, 0 to 1; kinds are taken as independent, clues of one kind not.

    Attributes:
        mechanism: What it accuses *service* of; ``None`` when it fits any mechanism there.
        basis: The one observation that it is read from, such as our own probe's silence: clues of one basis never count twice.
        root: It explains what others show further up, as a dead process does.
        layer: Where the fault sits, when that is not the role of *service*: ``client``, ``network``, ``request`` …
    """

    service: str
    kind: FindingKind
    text: str
    direction: Direction = "implicates"
    mechanism: str | None = None
    strength: float = 0.0
    root: bool = False
    layer: Layer | None = None
    basis: str | None = None
    measured: dict[str, str | float | int | bool | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Against:
    """What one rule holds against one service; each call of it is one clue, with its numbers as keywords."""

    service: str
    mechanism: str | None = None
    layer: Layer | None = None
    root: bool = False

    def __call__(
        self,
        kind: FindingKind,
        strength: float,
        text: str,
        basis: str | None = None,
        /,
        **measured: str | float | bool | None,
    ) -> Clue:
        """A clue of *kind*; see `Clue` for *strength* and *basis*."""
        return Clue(
            service=self.service, mechanism=self.mechanism, layer=self.layer, root=self.root,
            kind=kind, strength=strength, text=text, basis=basis, measured=dict(measured),
        )  # fmt: skip


def count(n: int, noun: str) -> str:
    """``1 request``, ``3 requests``."""
    return f"{n} {plural(n, noun)}"


def plural(n: int, noun: str) -> str:
    """The noun, with an s when there is more than one."""
    return noun if n == 1 else noun + "s"


def oldest(links: tuple[Link, ...]) -> float:
    """Longest wait among *links*, in seconds."""
    return round(max((link.waited_s for link in links), default=0.0), 1)
