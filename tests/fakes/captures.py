"""Builds captures by hand: a chain, links with what they carried, probes and scrapes, as the recorder would have seen them."""

import itertools
from dataclasses import replace

from vindicate.record.observation import (
    Address,
    Capture,
    Connection,
    Listener,
    MetricValue,
    ProbeResult,
    ProcessFacts,
    ProcessSample,
    Scrape,
    SeenService,
    SocketSample,
)

KNOB = "SGLANG_SM120_MMA_TARGET_CTAS"
PORTS = {"proxy": 4000, "router": 8000, "prefill": 30000, "decode": 30001, "engine": 30002}
PIDS = {"client": 900, "proxy": 10, "router": 20, "prefill": 30, "decode": 40, "engine": 50, "us": 999}
PD = {"proxy": ("router",), "router": ("prefill", "decode"), "prefill": (), "decode": ()}
PLAIN = {"proxy": ("engine",), "engine": ()}
TIMES = tuple(i * 0.25 for i in range(41))
SOME = 500  # bytes of a request
END = 10.0


class Scenery:
    """A capture under construction; everything is visible and nobody listens badly until it is said."""

    def __init__(self, upstream=PD, *, listening=None):
        self.upstream = upstream
        self.number = itertools.count(1)
        self.connections, self.probes, self.scrapes, self.processes = [], [], [], []
        self.hidden, self.roles = set(), {}
        self.listening = set(upstream) if listening is None else set(listening)
        self.accept = {}

    # ---- links ----
    def link(
        self,
        caller,
        callee,
        timeline,
        *,
        ours=False,
        closed=False,
        unread=0,
        server_unread=0,
        client_state="ESTABLISHED",
        server_state="ESTABLISHED",
        before=None,
        hidden_caller=False,
    ):
        """*timeline*: t → (request bytes, response bytes) from then on; *before*: (asked, answered) ages at 0 for what came earlier."""
        n = next(self.number)
        server, client = Address("127.0.0.1", PORTS[callee]), Address("127.0.0.1", 40000 + n)
        asked, answered = (
            (None, None) if before is None else (-before[0], -before[1] if before[1] is not None else None)
        )
        server_samples, client_samples = [], []
        request, response = timeline.get(0.0, (0, 0)) if before is not None else (0, 0)
        first = min(timeline)
        for t in TIMES:
            if t < first:
                continue
            at = max(moment for moment in timeline if moment <= t)
            if timeline[at][0] > request:
                asked = at
            if timeline[at][1] > response:
                answered = at
            request, response = timeline[at]
            ask_age = t - asked if asked is not None else t - first
            answer_age = t - answered if answered is not None else t - first
            server_samples.append(
                SocketSample(
                    t_s=t,
                    state=server_state,
                    rx=request,
                    tx=response,
                    unread=server_unread,
                    unsent=0,
                    last_rx_age_s=ask_age,
                    last_tx_age_s=answer_age,
                )
            )
            client_samples.append(
                SocketSample(
                    t_s=t,
                    state=client_state,
                    rx=response,
                    tx=request,
                    unread=unread,
                    unsent=0,
                    last_rx_age_s=answer_age,
                    last_tx_age_s=ask_age,
                )
            )
        if closed:
            server_samples, client_samples = server_samples[:closed], client_samples[:closed]
        pids = () if callee in self.hidden else (PIDS[callee],)
        self.connections.append(
            Connection(
                id=f"s{n}",
                local=server,
                remote=client,
                pids=pids,
                samples=tuple(server_samples),
                closed=bool(closed),
                fresh=first > 0,
                ours=ours,
            )
        )
        owner = () if caller in self.hidden or hidden_caller else (PIDS[caller],)
        if caller not in self.hidden:
            self.connections.append(
                Connection(
                    id=f"c{n}",
                    local=client,
                    remote=server,
                    pids=owner,
                    samples=tuple(client_samples),
                    closed=bool(closed),
                    fresh=first > 0,
                    ours=ours,
                )
            )
        return self

    def links(self, n, *args, **kwargs):
        for _ in range(n):
            self.link(*args, **kwargs)
        return self

    def waiting(self, n, caller, callee, *, since=30.0):
        """Requests that came *since* seconds before the window and have no byte of answer."""
        return self.links(n, caller, callee, {0.0: (SOME, 0)}, before=(since, None))

    def silent(self, n, caller, callee, *, since=30.0, unread=0):
        """Answers that were begun and stand still, or are over: from outside the same."""
        return self.links(n, caller, callee, {0.0: (SOME, 6000)}, before=(since + 5, since), unread=unread)

    def streaming(self, n, caller, callee, *, step=0.25, size=240, until=END):
        """Answers that flow."""
        moments = [i * step for i in range(int(until / step) + 1)]
        return self.links(
            n, caller, callee, {t: (SOME, 500 + size * i) for i, t in enumerate(moments)}, before=(3.0, 0.1)
        )

    def rounds(self, n, caller, callee, *, period=2.0):
        """Round after round on one connection: ask, stream, ask again at once."""
        timeline, request, response = {}, 0, 0
        for start in [i * period for i in range(int(END / period))]:
            request += SOME
            timeline[start] = (request, response)
            for k in range(1, 5):
                response += 300
                timeline[start + k * period / 5] = (request, response)
        return self.links(n, caller, callee, timeline)

    # ---- probes ----
    def probe(
        self, target, error=None, *, t=3.5, total=None, tokens=5, worked=True, legs=None, covers=None, request=400
    ):
        total = (
            (8.0 if error in ("no_headers", "no_first_byte", "stalled", "no_end") else 0.4) if total is None else total
        )
        pair = target == "decode"
        covers = covers or (("decode", "prefill") if pair else (target, *self.below(target)))
        gone = {"no_headers", "no_first_byte", "refused", "connect_timeout"}
        self.probes.append(
            ProbeResult(
                target=target, shape="pd_pair" if pair else "chat", covers=covers, t_s=t, total_s=total, deadline_s=8.0,
                connect_s=None if error == "refused" else 0.001, first_byte_s=None if error in gone else 0.1,
                status=None if error in gone else int(error[5:]) if error and error.startswith("http_") else 200,
                n_events=0 if error in gone else 8, n_tokens=0 if error in gone else tokens,
                finish_reason="length" if error in (None, "no_end") else None, terminated=error is None, error=error,
                gaps_s=() if error in gone else (0.05, 0.05, 0.05), request_bytes=request,
                response_bytes=0 if error in gone else 1300, legs=legs or {},
            )
        )  # fmt: skip
        if error != "refused":
            answer = 0 if error in gone else 1300
            timeline = {t: (request, 0), t + 0.25: (request, answer)} if answer else {t: (request, 0)}
            self.link(
                "us", target, timeline, ours=True, closed=False if error in ("no_headers", "stalled", "no_end") else 4
            )
        return self

    def below(self, name):
        found = []
        todo = list(self.upstream.get(name, ()))
        while todo:
            here = todo.pop(0)
            if here not in found:
                found.append(here)
                todo.extend(self.upstream[here])
        return tuple(found)

    def forwarded(self, *path, answered=False, t=3.5):
        """A probe's request on its way below its target: on each hop, with or without an answer."""
        for caller, callee in itertools.pairwise(path):
            self.link(
                caller,
                callee,
                {t: (SOME, 0), t + 0.25: (SOME, 1300 if answered else 0)} if answered else {t: (SOME, 0)},
            )
        return self

    # ---- scrapes ----
    def figures(self, service, *, running=0.0, waiting=0.0, http=0.0, tokens=0.0, prefix="sglang:", **queues):
        """Four scrapes; a pair or list is the gauge over time, *tokens* what the live counter gains between two of them."""

        def at(value, i):
            return value[min(i, len(value) - 1)] if isinstance(value, (list, tuple)) else value

        for i, t in enumerate((0.1, 3.3, 6.6, 9.7)):
            values = [
                MetricValue(name=f"{prefix}num_running_reqs", labels=(), value=at(running, i)),
                MetricValue(name=f"{prefix}num_queue_reqs", labels=(), value=at(waiting, i)),
                MetricValue(name=f"{prefix}inter_token_latency_seconds_count", labels=(), value=1000 + tokens * i),
                MetricValue(
                    name=f"{prefix}http_requests_active",
                    labels=(("endpoint", "/v1/chat/completions"),),
                    value=at(http, i),
                ),
            ]
            values += [
                MetricValue(name=f"{prefix}num_{name}_queue_reqs", labels=(), value=at(value, i))
                for name, value in queues.items()
            ]
            self.scrapes.append(
                Scrape(
                    service=service,
                    kind="metrics",
                    url=f"http://127.0.0.1:{PORTS[service]}/metrics",
                    t_s=t,
                    took_s=0.01,
                    status=200,
                    values=tuple(values),
                )
            )
        return self

    def awaiting(self, relay, service, n):
        """The relay's own count of answers that it awaits from *service*, at every look."""
        worker = (("worker", f"http://127.0.0.1:{PORTS[service]}"),)
        values = (MetricValue(name="smg_worker_requests_active", labels=worker, value=float(n)),)
        for t in (0.1, 3.3, 6.6, 9.7):
            self.scrapes.append(
                Scrape(
                    service=relay,
                    kind="metrics",
                    url="http://127.0.0.1:29000/metrics",
                    t_s=t,
                    took_s=0.01,
                    status=200,
                    values=values,
                )
            )
        return self

    def health(self, service, status=200, error=None, *, t=6.6):
        self.scrapes.append(
            Scrape(
                service=service,
                kind="health",
                url=f"http://127.0.0.1:{PORTS[service]}/health",
                t_s=t,
                took_s=0.01,
                status=status,
                error=error,
            )
        )
        return self

    def idle_engines(self):
        return self.figures("prefill").figures("decode")

    def dead(self, name, *, seen_to_end=False):
        self.listening.discard(name)
        self.health(name, None, "refused", t=0.1).health(name, None, "refused")
        if seen_to_end:
            self.processes.append(ProcessFacts(pid=PIDS[name], ppid=1, name=name, argv=(), started_at="", ended=True))
        return self

    def process(self, name, state, *, pid=None, ppid=1):
        samples = tuple(ProcessSample(t_s=t, state=state, cpu_s=1.0, n_threads=1) for t in (0.0, 3.0, 6.0, 9.0))
        self.processes.append(
            ProcessFacts(pid=pid or PIDS[name], ppid=ppid, name=name, argv=(), started_at="", samples=samples)
        )
        return self

    # ---- the result ----
    def capture(self, **changes):
        entry = next(iter(self.upstream))
        gone = set(self.upstream) - self.listening
        services = [
            SeenService(
                name=name, role=self.roles.get(name, name), engine="sglang", url=f"http://127.0.0.1:{PORTS[name]}", address=Address("127.0.0.1", PORTS[name]),
                upstream=upstream, pids=() if name in self.hidden or name in gone else (PIDS[name],), knobs={KNOB: "512"} if name == "decode" else {},
            )
            for name, upstream in self.upstream.items()
        ]  # fmt: skip
        services.append(
            SeenService(
                name="harness",
                role="client",
                engine="generic",
                url=None,
                address=None,
                upstream=(entry,),
                pids=(PIDS["client"],),
                client=True,
            )
        )
        listeners = tuple(
            Listener(
                local=Address("127.0.0.1", PORTS[name]),
                pids=(PIDS[name],),
                backlog=128,
                waiting=self.accept.get(name, (0, 0, 0, 0)),
            )
            for name in self.upstream
            if name in self.listening
        )
        made = Capture(
            schema="vindicate.capture/1", host="h", started_at="2026-01-01T00:00:00.000000Z", window_s=END, entry=entry, services=tuple(services),
            connections=tuple(self.connections), listeners=listeners, scrapes=tuple(self.scrapes), probes=tuple(self.probes), processes=tuple(self.processes),
        )  # fmt: skip
        return replace(made, **changes)
