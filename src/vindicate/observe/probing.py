"""A Stack and a budget of tokens → the probes of one window: what to send when, to whom, and for how many tokens."""

import asyncio
import contextlib
import time
from dataclasses import dataclass, field

from vindicate.observe.probe import Pair, Target, probe, probe_pair, targets_of
from vindicate.record.observation import ProbeResult, Scrape
from vindicate.stack.http import OwnSockets
from vindicate.stack.model import Service, Stack

__all__ = ["GRACE_S", "Probing"]

GRACE_S = 4.0  # how long after the window the last answers may take
_MODELS_WAIT_S = 2.5
_MIN_RETRY_S = 1.5
_MAX_REPEATS = 4
_INTERLEAVE_S = 0.15
_ENTRY_AGAIN = 2  # what spoils every second or third request lets one probe pass
_QUICK_S = 2.0


@dataclass(slots=True)
class Probing:
    """The probes of a recording that *began* at that monotonic time; whatever cuts `run` short leaves the results there were.

    Attributes:
        tokens: Most tokens that all probes together may ask for.
        scrapes: What has been read so far; names of models and bootstrap ports are taken from it.
        models_said: Set when every service has been asked for its models.
        busy: Probes are on their way.
        left: Tokens that may still be asked for.
    """

    stack: Stack
    tokens: int
    deadline_s: float
    window_s: float
    began: float
    own: OwnSockets
    scrapes: list[Scrape]
    results: list[ProbeResult] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    models_said: asyncio.Event = field(default_factory=asyncio.Event)
    busy: bool = False
    left: int = 0

    async def run(self) -> None:
        """Probe every target at once, a third into the window, so that the sockets show it; a failed one once more."""
        await asyncio.sleep(max(0.0, min(self.window_s / 3, 5.0) - (time.monotonic() - self.began)))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_MODELS_WAIT_S):
                await self.models_said.wait()
        whole, pairs = await asyncio.to_thread(targets_of, self.stack, self._bootstrap_ports())
        chosen: list[Target | Pair] = [*whole]
        chosen = [*chosen, *pairs][: max(1, self.tokens // 2)]
        if len(chosen) < len(whole) + len(pairs):
            self.notes.append(
                f"{len(whole) + len(pairs) - len(chosen)} probes were left out: the budget is {self.tokens} tokens"
            )
        roles = {service.role for service in self.stack.services.values()}
        if {"prefill", "decode"} <= roles and not pairs:
            self.notes.append(
                "prefill and decode were not probed as a pair past their router: the bootstrap port of prefill is not known, or "
                "what a vLLM may be asked without its router is not to be seen from its command line"
            )
        again = self._repeats(whole, self.tokens - 2 * len(chosen))
        # Half of them may be sent once more. Prefill alone has but one token to give.
        short = [target for target in chosen if target.service.role == "prefill"]
        full = len(chosen) - len(short)
        each = max(1, min(8, (self.tokens - len(again) - 2 * len(short)) // max(1, full + -(-full // 2))))
        self.left = self.tokens - len(again)
        self.busy = True
        await asyncio.gather(
            *(self._probe_one(target, 1 if target in short else each) for target in chosen),
            self._interleave(again),
        )
        self.busy = False

    def _repeats(self, whole: list[Target], tokens_left: int) -> list[Target]:
        """The relay that chooses among workers of one role, several times: a fault of one choice in k shows in some only."""
        roles = self.stack.services
        for target in reversed(whole):
            below = [roles[name].role for name in target.service.upstream]
            choices = max((below.count(role) for role in below), default=0)
            if choices > 1:
                return [target] * max(0, min(choices + 2, _MAX_REPEATS, tokens_left))
        return []

    async def _interleave(self, again: list[Target]) -> None:
        """Send *again* one shortly after the other, for one token each, none waiting for the one before."""

        async def one(number: int, target: Target) -> None:
            await asyncio.sleep((number + 1) * _INTERLEAVE_S)
            await self._send(target, 1, min(self.deadline_s, self._left_s()))

        await asyncio.gather(*(one(number, target) for number, target in enumerate(again)))

    async def _probe_one(self, target: Target | Pair, max_tokens: int) -> None:
        """Send one; once more when it failed quickly. One that came back whole and soon from the entry is followed by small ones."""
        deadline_s = min(self.deadline_s, self._left_s())
        self.left -= max_tokens
        first = await self._send(target, max_tokens, deadline_s)
        # One that ran into its deadline has had its time; a second one would only have less.
        quick = first is not None and first.error is not None and first.total_s < deadline_s / 2
        if quick and self._left_s() >= _MIN_RETRY_S and self.left >= max_tokens:
            self.left -= max_tokens
            await self._send(target, max_tokens, min(self.deadline_s, self._left_s()))
        relay = target.service.name == self.stack.entry and bool(target.service.upstream)
        if (
            relay
            and isinstance(target, Target)
            and first is not None
            and first.terminated
            and first.total_s <= _QUICK_S
        ):
            more = max(0, min(_ENTRY_AGAIN, self.left))
            self.left -= more
            await self._interleave([target] * more)

    def _left_s(self) -> float:
        return max(0.1, self.window_s + GRACE_S - 0.5 - (time.monotonic() - self.began))

    async def _send(self, target: Target | Pair, max_tokens: int, deadline_s: float) -> ProbeResult | None:
        model = self._model_of(target.service) or "default"
        made: ProbeResult | None
        if isinstance(target, Target):
            made = await probe(
                target, model=model, max_tokens=max_tokens, deadline_s=deadline_s, began=self.began, own=self.own
            )
        else:
            made = await probe_pair(
                target, model=model, max_tokens=max_tokens, deadline_s=deadline_s, began=self.began, own=self.own
            )
        if made is not None:
            self.results.append(made)
        return made

    def _model_of(self, service: Service) -> str | None:
        """The model that *service* offers, else the next service below it, else anybody's."""
        said = {seen.service: seen.facts.get("model") for seen in self.scrapes if seen.kind == "models"}
        order = [*self.stack.path_from(service.name), *said]
        return next((str(said[name]) for name in order if said.get(name)), None)

    def _bootstrap_ports(self) -> dict[str, int | None]:
        ports = {}
        for seen in self.scrapes:
            port = seen.facts.get("disaggregation_bootstrap_port") if seen.kind == "info" else None
            if isinstance(port, int | float):
                ports[seen.service] = int(port)
        return dict(ports)
