"""The words in which a launcher answers: a command to be run, and how a keeper says that a service stands."""

from dataclasses import dataclass
from pathlib import Path

__all__ = ["Command", "Stand"]


@dataclass(frozen=True, slots=True)
class Command:
    """An argument list, and the folder it is run in."""

    argv: tuple[str, ...]
    cwd: Path

    def __str__(self) -> str:
        import shlex

        from vindicate.redact import redact_argv

        return shlex.join(redact_argv(self.argv))


@dataclass(frozen=True, slots=True, kw_only=True)
class Stand:
    """What a keeper (systemd, docker, podman) says of a service.

    Attributes:
        pids: Processes that it keeps for it, the main one first, as numbered on this host.
        state: In the keeper's words.
        running: It runs, or is being started or stopped.
        over: Why it will not come up any more by itself; ``None`` while it may.
    """

    pids: tuple[int, ...]
    state: str
    running: bool
    over: str | None = None
