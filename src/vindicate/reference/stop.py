"""Tokens, one by one → the text that may be sent, which ends before the first stop string; pure."""

from dataclasses import dataclass

__all__ = ["StopStrings"]


@dataclass(slots=True, eq=False)
class StopStrings:
    """Watches a text for *stops*; holds back an end of it that could be the beginning of one."""

    stops: tuple[str, ...] = ()
    held: str = ""

    def passes(self, token: str) -> tuple[str, str | None]:
        """What may be sent now that *token* has come, and the stop string that the text has reached, if it has."""
        text = self.held + token
        reached = [(at, stop) for stop in self.stops if (at := text.find(stop)) >= 0]
        if reached:
            at, stop = min(reached)
            self.held = ""
            return text[:at], stop
        longest = max((len(stop) for stop in self.stops), default=1) - 1
        n_held = next((n for n in range(min(longest, len(text)), 0, -1) if self._begins(text[-n:])), 0)
        self.held = text[len(text) - n_held :]
        return text[: len(text) - n_held], None

    def rest(self) -> str:
        """What was held back, once nothing more comes."""
        rest, self.held = self.held, ""
        return rest

    def _begins(self, end: str) -> bool:
        return any(stop.startswith(end) for stop in self.stops)
