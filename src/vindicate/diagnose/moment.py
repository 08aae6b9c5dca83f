"""What a watch sees, look by look → one sample each: states, rates, pins, who waits for whom, and a passive verdict now and then."""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from vindicate.diagnose.account import Account, NodeAccount, account_of
from vindicate.diagnose.chain import Chain, chain_of
from vindicate.diagnose.judge import judge
from vindicate.diagnose.pins import Look, pins_of
from vindicate.diagnose.progress import bare_name, progress_of
from vindicate.diagnose.sane import sane
from vindicate.record.observation import Capture, Connection, Scrape
from vindicate.record.watch import Owed, ServiceMoment, State, WatchSample

__all__ = ["JUDGE_FROM_S", "Seen", "Watching"]

SCHEMA = "vindicate.watch/1"
HISTORY_S = 300.0
JUDGE_EVERY_S = 5.0
JUDGE_FROM_S = 8.0  # a window shorter than that shows too little
RATE_S = 5.0
_FIRST_ANSWER_S = 3.0
_MOST_OWED = 20
_SENT_AGAIN = 10  # on a busy host some are, within one host too
_HANDOVER = ("bootstrap", "inflight", "prealloc", "transfer", "retracted")
_WORK = ("running", "waiting", "grammar", "paused", *_HANDOVER)
_ONE_OF_RANKS = ("tp_rank", "pp_rank", "moe_ep_rank")  # ranks that repeat the same requests
_TOKENS = ("realtime_tokens_total:decode", "tokens_predicted_total", "generation_tokens_total")
_ENDED = ("e2e_request_latency_seconds_count", "request_success_total", "num_requests_total")
_MOVING = (
    "realtime_tokens_total",
    "iteration_tokens_total_sum",
    "tokens_predicted_total",
    "inter_token_latency_seconds_count",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What is new since the look before.

    Attributes:
        t_s: Since the watch began.
        scrapes: Those that came meanwhile.
        listening: Services whose port somebody on this host listens on; *pids* by service.
        local: Services whose port would be seen if somebody listened there.
    """

    at: str
    t_s: float
    scrapes: tuple[Scrape, ...]
    listening: frozenset[str]
    local: frozenset[str]
    pids: Mapping[str, tuple[int, ...]]


@dataclass(slots=True)
class _Service:
    """What is remembered of one service."""

    looks: deque[Look] = field(default_factory=deque)
    totals: deque[tuple[float, dict[str, float]]] = field(default_factory=deque)
    last: Scrape | None = None
    state: State | None = None
    pids: tuple[int, ...] = ()
    gauges: dict[str, float] = field(default_factory=dict)

    def forget(self) -> None:
        """It began anew: its counters start again."""
        self.looks.clear()
        self.totals.clear()
        self.gauges = {}


@dataclass(frozen=True, slots=True)
class _Sockets:
    """The last capture, and what its sockets say."""

    capture: Capture
    chain: Chain
    account: Account


class Watching:
    """Turns one look after another into samples; remembers the last minutes.

    Attributes:
        bad: What was wrong, and when it was first seen: a fault in two diagnoses running, a service that was down, pinned requests.
    """

    def __init__(self) -> None:
        self._services: dict[str, _Service] = {}
        self._sockets: _Sockets | None = None
        self._judged_s = float("-inf")
        self._verdict: tuple[str, str | None, str | None, str] | None = None
        self._in_a_row = 0
        self.bad: dict[str, float] = {}
        self.n_judged = 0

    def add(self, seen: Seen, capture: Capture | None) -> WatchSample:
        """Take in what is new.

        Args:
            capture: The last seconds of the chain, when there is a new one; without it what its sockets said stays as it was.
        """
        if capture is not None:
            capture = sane(capture)
            chain = chain_of(capture)
            self._sockets = _Sockets(capture, chain, account_of(capture, chain))
            if capture.window_s >= JUDGE_FROM_S and seen.t_s - self._judged_s >= JUDGE_EVERY_S:
                self._judge(capture, seen.t_s)
        if self._sockets is None:
            return WatchSample(schema=SCHEMA, at=seen.at, t_s=round(seen.t_s, 2), services=())
        sockets = self._sockets
        for scrape in seen.scrapes:
            self._take(scrape, seen.t_s, sockets)
        news: list[str] = []
        services = tuple(self._moment(name, seen, sockets, news) for name in sockets.chain.order)
        for one in services:
            if one.state == "down":
                self.bad.setdefault(f"{one.name} was down", seen.t_s)
            if one.pins is not None and one.pins.verdict == "pinned":
                self.bad.setdefault(f"{one.name} held requests that are pinned", seen.t_s)
        verdict, guilty, mechanism, summary = self._verdict or (None, None, None, "")
        return WatchSample(
            schema=SCHEMA,
            at=seen.at,
            t_s=round(seen.t_s, 2),
            services=services,
            owed=_owed(sockets.account),
            verdict=verdict,
            guilty=guilty,
            mechanism=mechanism,
            summary=summary,
            lasting=self._in_a_row > 1,
            news=tuple(news),
        )

    def _judge(self, capture: Capture, t_s: float) -> None:
        diagnosis = judge(capture)
        before = self._verdict
        self._judged_s = t_s
        self.n_judged += 1
        self._verdict = (diagnosis.status, diagnosis.service, diagnosis.mechanism, diagnosis.summary)
        same = before is not None and before[:2] == self._verdict[:2]
        self._in_a_row = 0 if diagnosis.status != "fault" else self._in_a_row + 1 if same else 1
        if self._in_a_row > 1:
            self.bad.setdefault(diagnosis.summary, t_s)

    # ---- one service ---------------------------------------------------------------------------------------------

    def _take(self, scrape: Scrape, t_s: float, sockets: _Sockets) -> None:
        """Note what a service says of itself."""
        own = self._services.setdefault(scrape.service, _Service())
        own.last = scrape
        if scrape.error is not None or not (scrape.values or scrape.facts):
            return
        totals = _totals(scrape)
        if totals and own.totals and any(totals.get(name, n) < n for name, n in own.totals[-1][1].items()):
            own.forget()
        alone = replace(sockets.capture, scrapes=(scrape,), connections=(), probes=())
        read = progress_of(alone, sockets.chain).get(scrape.service)
        own.gauges |= {meaning: reading.last for meaning, reading in (read.gauges if read else {}).items()}
        if totals or not own.totals:
            own.totals.extend([(t_s, totals)] if totals else [])
            own.looks.append(
                Look(
                    t_s=t_s,
                    stages={name: own.gauges[name] for name in _WORK if name in own.gauges},
                    ended=_first(totals, *_ENDED),
                    stay_s=totals.get("e2e_request_latency_seconds_sum"),
                    aborted=totals.get("num_aborted_requests_total"),
                    moved=_first(totals, *_MOVING),
                )
            )
            while own.looks[0].t_s < t_s - HISTORY_S:
                own.looks.popleft()
            while own.totals and own.totals[0][0] < t_s - HISTORY_S:
                own.totals.popleft()

    def _moment(self, name: str, seen: Seen, sockets: _Sockets, news: list[str]) -> ServiceMoment:
        account = sockets.account
        own = self._services.setdefault(name, _Service())
        pids = seen.pids.get(name, ())
        state = _state(name, own.last, seen)
        restarted = bool(own.pids) and bool(pids) and not set(own.pids) & set(pids)
        if restarted:
            own.forget()
            news.append(f"{name} runs as another process: pid {pids[0]}, was {own.pids[0]}")
        if own.state not in (None, "unseen", state):
            news.append(f"{name} is {state}, was {own.state}")
        own.state, own.pids = state, pids or own.pids
        if state == "down":
            own.forget()
        node = account.nodes.get(name) or NodeAccount(name=name)
        gauges = own.gauges if state == "up" else {}
        ages = [link.waited_s for link in node.owed if link.state == "owed"]
        answered = sum(n for link in node.down for t, n in link.rises if t >= account.end - RATE_S)
        span_s = min(RATE_S, sockets.capture.window_s)
        return ServiceMoment(
            name=name,
            role=sockets.chain.role(name),
            state=state,
            pids=pids,
            running=gauges.get("running"),
            waiting=gauges.get("waiting"),
            handover=sum(gauges[s] for s in _HANDOVER if s in gauges) if any(s in gauges for s in _HANDOVER) else None,
            stages={stage: n for stage, n in gauges.items() if stage != "http"},
            tokens_per_s=_rate(own.totals, *_TOKENS),
            ended_per_s=_rate(own.totals, *_ENDED),
            streams=len(node.down_in("moving")),
            open_silent=len([link for link in node.down_in("open") if account.end - (link.answered_at or 0.0) >= 3.0]),
            answer_bytes_per_s=round(answered / span_s, 1) if span_s > 0 and node.visible else None,
            owed=len(ages),
            oldest_owed_s=round(max(ages), 1) if ages else None,
            pins=pins_of(own.looks) if state == "up" else None,
            restarted=restarted,
            errors=tuple(_socket_errors(node, sockets)),
        )  # fmt: skip


def _state(name: str, last: Scrape | None, seen: Seen) -> State:
    """Whether it is there: by what it answered last, and by who listens."""
    if last is None and name not in seen.listening and seen.t_s < _FIRST_ANSWER_S:
        return "unseen"
    if name in seen.local and name not in seen.listening and (last is None or last.status is None):
        return "down"
    if last is None:
        return "up" if name in seen.listening else "unseen"
    if last.status is not None:
        return "up"
    if last.error is not None and last.error.startswith("timeout"):
        return "silent"
    return "up" if name in seen.listening else "down"


def _owed(account: Account) -> tuple[Owed, ...]:
    links = sorted(
        (link for node in account.nodes.values() for link in node.owed if link.state == "owed"),
        key=lambda link: -link.waited_s,
    )
    return tuple(
        Owed(caller=link.caller or "unknown", callee=link.callee, age_s=round(link.waited_s, 1))
        for link in links[:_MOST_OWED]
    )


def _socket_errors(node: NodeAccount, sockets: _Sockets) -> Iterable[str]:
    """What should not be, at the callers' side of one service."""
    account = sockets.account
    left = [
        link
        for link in node.down_in("abandoned")
        if account.end - max(link.asked_at or 0.0, link.answered_at or 0.0) >= 3.0
    ]
    if left:
        yield f"{len(left)} left by the caller, and it has not noticed"
    gave_up = [
        link for link in node.down if link.gave_up and link.state == "closed" and link.last_seen >= account.end - RATE_S
    ]
    if gave_up:
        yield f"{len(gave_up)} closed without an answer, after {max(link.waited_s for link in gave_up):.1f} s"
    unread = sum(link.unread_request > 0 for link in node.down if link.is_open)
    if unread:
        yield f"{unread} with a request that it does not read"
    stopped = sum(link.unsent_response > 0 for link in node.down if link.is_open)
    if stopped:
        yield f"{stopped} with an answer that the caller does not take"
    again = sum(_sent_again(link.server, account.end - RATE_S) for link in node.down)
    if again >= _SENT_AGAIN:
        yield f"{again} segments sent again in {RATE_S:.0f} s"
    here = sockets.chain.services[node.name].address
    queue = max(
        (
            x.waiting[-1]
            for x in sockets.capture.listeners
            if here and x.local.port == here.port and x.waiting and min(x.waiting[-3:]) > 0
        ),
        default=0,
    )
    if queue:
        yield f"{queue} wait to be accepted"


def _sent_again(server: Connection | None, since_s: float) -> int:
    late = [sample.retransmits for sample in server.samples if sample.t_s >= since_s] if server is not None else []
    return late[-1] - late[0] if late else 0


# ---- counters ----------------------------------------------------------------------------------------------------


def _totals(scrape: Scrape) -> dict[str, float]:
    """Every counter of a page, over its label sets; ranks that repeat the same requests count once."""
    found: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    for metric in scrape.values:
        name = bare_name(metric.name)
        if not name.endswith(("_total", "_count", "_sum")):
            continue
        mode = dict(metric.labels).get("mode", "")
        name = f"{name}:{mode}" if name == "realtime_tokens_total" else name
        key = (name, tuple(pair for pair in metric.labels if pair[0] not in _ONE_OF_RANKS))
        found[key] = max(metric.value, found.get(key, metric.value))
    totals: dict[str, float] = {}
    for (name, _), value in found.items():
        totals[name] = totals.get(name, 0.0) + value
        if name.startswith("realtime_tokens_total:"):
            totals["realtime_tokens_total"] = totals.get("realtime_tokens_total", 0.0) + value
    return totals


def _first(totals: Mapping[str, float], *names: str) -> float | None:
    return next((totals[name] for name in names if name in totals), None)


def _rate(points: deque[tuple[float, dict[str, float]]], *names: str) -> float | None:
    """Growth a second over the last 5 s, of the first counter that is there."""
    if len(points) < 2:
        return None
    t_s, last = points[-1]
    name = next((name for name in names if name in last), None)
    since = next((p for p in points if p[0] >= t_s - RATE_S), None)
    if name is None or since is None or name not in since[1] or t_s <= since[0]:
        return None
    return round((last[name] - since[1][name]) / (t_s - since[0]), 2)
