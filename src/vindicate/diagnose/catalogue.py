"""The mechanisms that a diagnosis can name: how each looks from outside, what it is confused with, what to do about it."""

from dataclasses import dataclass

__all__ = ["CATALOGUE", "Mechanism", "mechanism_named", "remedy_for"]


@dataclass(frozen=True, slots=True)
class Mechanism:
    """One kind of fault.

    Attributes:
        layer: Where it sits; ``any``: the role of the service that has it.
        headline: What it does, to follow "X is at fault:".
        looks: What one sees from outside.
        confused_with: What looks alike, and what tells them apart.
        remedy: What to do next.
    """

    name: str
    layer: str
    headline: str
    looks: str
    confused_with: str
    remedy: str


_ENTRIES = (
    Mechanism(
        "proxy.connector_starvation",
        "proxy",
        "its upstream connection pool has run dry, so requests wait inside it and never reach the service below",
        "callers are owed answers, no request leaves for upstream; upstream connections stand pinned at a constant, or there are none",
        "a slow router (requests would arrive there); a client's own pool (then the proxy has no request); a proxy at capacity (streams move and finish)",
        "restart the proxy alone to free the callers; then make it release its upstream response on every path and bound its wait for a slot",
    ),
    Mechanism(
        "proxy.slow_to_pass_on",
        "proxy",
        "requests wait inside it for seconds before it asks anybody below, and then are answered at once",
        "it owes answers while it has no request under way upstream; through it a request takes seconds, past it none",
        "a slow engine (then the request is with the engine); a queue at its limit (then others of its requests are under way)",
        "take its stacks twice (py-spy dump): a small pool of threads that is used up (proxy.dns_threadpool), a lock, or a busy event loop",
    ),
    Mechanism(
        "proxy.dns_threadpool",
        "proxy",
        "all threads of its pool are taken by blocking calls, so requests wait for a name lookup or another of them before they are sent",
        "as proxy.slow_to_pass_on, and both looks at its stacks show every thread of a pool at work (seen with py-spy only)",
        "a slow engine (then the request is with the engine); a name server that is out (then lookups are slow from every process)",
        "give name lookups a pool of their own, an asynchronous resolver or a cache; keep connections alive; take blocking work off that pool",
    ),
    Mechanism(
        "proxy.waits_for_another",
        "proxy",
        "it asks a service outside this chain before it passes some requests on, and gets no answer",
        "some requests stay in it while later ones pass; when they came it asked an address that is not declared, which is silent",
        "a queue (then none passes another); a client that sends less than it announced (then it asks nobody)",
        "see what that address is (a guard, a lookup, a log?) and why it is silent; put a deadline on it, and declare it in the stack file",
    ),
    Mechanism(
        "gateway.h2_stream_cap",
        "gateway",
        "it lets only so many exchanges through at a time, and the others wait in it though there is room below",
        "the same number of answers flows all the while, further requests get no byte, and past it they are answered at once",
        "an engine at its limit (then past it they wait too); a starved pool (then its upstream connections stand silent)",
        "raise its limit of concurrent streams (HTTP/2: those that the upstream advertises), or let it open more connections",
    ),
    Mechanism(
        "proxy.drop_stream",
        "proxy",
        "it stops passing a stream on in the middle",
        "more answer bytes come in from upstream than go out; past it the same request is complete",
        "an engine that stalls (then nothing comes in from upstream either)",
        "restart it; look at what its relay task does when a write fails",
    ),
    Mechanism(
        "proxy.holds_response",
        "proxy",
        "it got the request through, and keeps the answer back",
        "the request leaves for upstream, which answers; nothing comes back through it",
        "buffering (then all comes at once, late)",
        "switch response buffering off, or restart it",
    ),
    Mechanism(
        "proxy.sse_buffering",
        "proxy",
        "it collects the stream and passes it on in blocks",
        "chunks arrive in bursts through it and singly past it",
        "a slow prefill (then past it the first token is late too)",
        "switch response buffering off for text/event-stream",
    ),
    Mechanism(
        "proxy.sse_reframing",
        "proxy",
        "it damages the framing of the stream",
        "events come back malformed through it and whole past it",
        "a parser fault in the client (then the bytes are whole)",
        "compare raw bytes through and past it; update or bypass it",
    ),
    Mechanism(
        "proxy.body_truncation",
        "proxy",
        "it cuts large request bodies",
        "small requests pass, large ones are rejected as malformed; straight to the router they pass",
        "the model's context limit (then the engine says so, in tokens)",
        "raise its body limit",
    ),
    Mechanism(
        "proxy.poisoned_pooled_connection",
        "proxy",
        "it hands out connections that went bad while idle, and fails the request at once",
        "requests after a pause are answered at once by the relay itself, upstream sees none of them; the next one passes",
        "a real time-out (then it takes its time); a keep-alive race (then the request leaves and the connection dies)",
        "update its HTTP client library; switch reuse of upstream connections off until then",
    ),
    Mechanism(
        "proxy.ephemeral_port_churn",
        "proxy",
        "it opens a connection upstream for each request and has used up the ports of the host",
        "TIME_WAIT towards one service near the size of the port range; each connection carries one request; heals in a minute of quiet",
        "a pool that leaks (then it never heals); a limit of open files (then other connections fail too)",
        "let it keep its upstream connections alive in a shared pool",
    ),
    Mechanism(
        "proxy.cuts_streams",
        "proxy",
        "it ends streams before their end",
        "streams break off through it and are whole past it",
        "an engine that dies (then its process is new)",
        "look up its time limits and its log at the moment of a cut",
    ),
    Mechanism(
        "proxy.answers_errors",
        "proxy",
        "it answers with errors what the services below it answer well",
        "5xx through it, complete past it",
        "errors that it only passes on",
        "read its log for the first error",
    ),
    Mechanism(
        "stream.missing_done_masked_by_heartbeat",
        "gateway",
        "it passes every token on and never the end of the stream",
        "finish reason seen, terminator missing; heartbeats may keep the connection busy",
        "a decode that never ends its responses (then past it the end is missing too)",
        "make it forward [DONE] and the end of the body; clients: treat finish_reason as the end",
    ),
    Mechanism(
        "gateway.total_timeout",
        "gateway",
        "it cuts every exchange at a constant age",
        "cuts at one round duration while tokens flow",
        "an idle time-out (then a silence comes first)",
        "raise its total time-out",
    ),
    Mechanism(
        "gateway.idle_timeout_before_first_byte",
        "gateway",
        "it gives up on answers whose first byte is late",
        "requests fail if and only if their first token takes longer than a constant",
        "a rejected key (then it fails at once)",
        "raise its time-out before the first byte",
    ),
    Mechanism(
        "router.hold",
        "router",
        "it takes requests and hands none to a worker",
        "requests come in and none leaves; the pair behind it answers when asked directly",
        "workers that do not answer (then they owe the router); a queue at capacity (then workers are busy)",
        "restart the router alone; look up its queue, permits and worker list",
    ),
    Mechanism(
        "router.permit_leak",
        "router",
        "it refuses or parks requests though nothing is active",
        "429 or waiting with idle workers",
        "overload (then workers are busy)",
        "restart the router alone; hold permits from acquisition to the end of the body",
    ),
    Mechanism(
        "router.ghost_endpoint",
        "router",
        "it tries to reach a worker that is not there",
        "connections of it stay in SYN_SENT",
        "a hung worker (it accepts)",
        "take the address out of its worker list",
    ),
    Mechanism(
        "router.dual_dispatch_join",
        "router",
        "it asked prefill only, lost the decode leg, and waits for a pair that can never meet",
        "prefill is owed to the router, decode never heard of the request; the pair probe passes",
        "a stuck KV transfer (then both know the request)",
        "cancel the sibling leg when one dispatch fails; restart the router to free the callers",
    ),
    Mechanism(
        "router.prefill_failure_swallowed",
        "router",
        "its prefill leg failed, and it lets the decode leg wait for ever",
        "decode is owed to the router, prefill holds nothing; the pair probe passes",
        "a stuck KV transfer (then prefill holds it in flight)",
        "end the decode leg when the prefill leg fails",
    ),
    Mechanism(
        "router.cancel_not_propagated",
        "router",
        "it goes on reading answers whose callers have left",
        "upstream streams flow to it and nobody is connected to it",
        "a zombie in the engine (then the router holds no socket)",
        "close the upstream exchange when the caller leaves",
    ),
    Mechanism(
        "decode.stall_mid_stream",
        "decode",
        "it began to answer and stopped giving tokens",
        "relays passed on all they got; nothing comes from it any more though it has requests",
        "a slow decode (then tokens still move); a stale gauge (then nobody waits)",
        "keep its stacks (py-spy dump, twice, 5 s apart) and its log, then restart it with what must be restarted together",
    ),
    Mechanism(
        "decode.no_end",
        "decode",
        "it gives every token and never the end of the response",
        "finish reason without terminator straight from it; it is idle while clients wait",
        "idle connections kept alive (then a probe ends); a relay that drops the end (then past it the end comes)",
        "keep its log, restart it; look at what ends its HTTP response after the last token",
    ),
    Mechanism(
        "decode.no_first_token",
        "decode",
        "it takes requests and gives no first token",
        "requests reach it and it never begins to answer",
        "a long prefill; a stuck prefill (then it waits for KV)",
        "keep its stacks and queues (/v1/loads), then restart it",
    ),
    Mechanism(
        "prefill.inflight_parked",
        "prefill",
        "it has computed the KV and never sends it",
        "the same requests stay in its inflight queue, decode waits in transfer, its counters stand still",
        "a decode without memory (then requests wait in bootstrap)",
        "abort the parked requests on both sides; restart prefill and decode together",
    ),
    Mechanism(
        "prefill.no_first_token",
        "prefill",
        "it takes requests and never finishes their prefill",
        "prefill owes the router, decode waits for KV",
        "a long prompt (then its counters move)",
        "keep its stacks, then restart prefill and decode together",
    ),
    Mechanism(
        "prefill.pp_divergence_after_abort_storm",
        "prefill",
        "its ranks disagree about their queues and wait for one another for ever",
        "the figures that each rank gives of its queues differ and stay so; no counter moves; most often after many cancellations at once",
        "a broken fabric (then all ranks stand in the same operation); ranks that differ for a moment (then they move)",
        "keep the stacks of all its ranks, then restart prefill and decode together; cancel fewer requests at once",
    ),
    Mechanism(
        "decode.prealloc_wedge_after_retraction",
        "decode",
        "it threw requests out of its KV pool and never lets them in again",
        "a constant number in prealloc, in the middle of their answers, with the pool free and prefill idle; retractions before",
        "a full pool (then usage is high); missing KV (then prefill holds them in flight)",
        "abort these requests on both sides; restart decode with what must be restarted together; take a larger pool or fewer requests",
    ),
    Mechanism(
        "decode.retraction_collapse",
        "decode",
        "it crawls: its KV pool is full, and it throws requests out and computes them again",
        "tokens still come, many times slower than before; pool nearly full; retractions or preemptions within the window",
        "a stop (then no counter moves); a slow model (then it was slow before, and nothing is thrown out)",
        "admit fewer requests at once, or give it a larger KV pool; no restart is needed",
    ),
    Mechanism(
        "engine.unservable_head_of_line",
        "engine",
        "a request too large for its KV pool stands at the head of its queue, and all others wait behind it",
        "requests wait, nothing runs, the pool is empty; the oldest request is far larger than the others",
        "a paused engine (then it says so); blocks held for remote KV (then usage is above 0)",
        "cancel the large request and see the queue drain; limit the length of prompts to what the pool holds",
    ),
    Mechanism(
        "engine.paused",
        "engine",
        "it is paused, and takes no step until somebody continues it",
        "/ready answers 503 while /health is green, or it says that it sleeps; requests wait",
        "a stuck scheduler (then it does not say that it is paused)",
        "find out who paused it; continue it (SGLang: POST /continue_generation; vLLM: POST /resume or /wake_up)",
    ),
    Mechanism(
        "engine.collective_deadlock",
        "engine",
        "its ranks wait for one another: all spin, none makes a token",
        "requests run at a constant number, no counter moves, several worker processes want the CPU all the time; a GPU is busy and cold",
        "a heavy prefill (then power and memory traffic are high, and prompt tokens move); a stuck scheduler (then nothing spins)",
        "keep the stacks of all its ranks (py-spy dump, twice), look at GPU power and memory traffic, then restart it",
    ),
    Mechanism(
        "engine.detokenizer_is_victim",
        "engine",
        "its scheduler is stuck; its health check blames the detokenizer, which only waits for it",
        "health 503 or a log line that names the detokenizer, which idles, while the scheduler holds requests and gives nothing",
        "a detokenizer at fault (then it uses CPU while the scheduler's counters move)",
        "keep the scheduler's stacks, not the detokenizer's, then restart it",
    ),
    Mechanism(
        "engine.zombie_after_disconnect",
        "engine",
        "it goes on computing for callers that have left, and their slots are taken",
        "more requests run than it has connections for; token counters rise and no answer leaves",
        "a relay that does not pass a cancellation on (then it still holds the connection); real load",
        "abort the running requests by id, or restart it; look at what its front end does when a caller leaves",
    ),
    Mechanism(
        "engine.tokenizer_blocks_loop",
        "engine",
        "it prepares large prompts on the loop that serves all others, and stops answering meanwhile",
        "small pages and probes are slow at times, while its own token intervals are as ever and large prompts come in",
        "a long prefill on the device (then pages come at once and token intervals grow); a busy host (then all are slow)",
        "tokenize off the event loop or in more processes; bound the size of prompts",
    ),
    Mechanism(
        "engine.watchdog_kill_after_idle",
        "engine",
        "its own watchdog ended it after a step that did not come back",
        "the process is gone, and its log ends with a watchdog's time-out",
        "the kernel's out-of-memory killer (then the kernel's log says so); a gateway's time-out (then the process lives)",
        "find what blocked the step (a peer flow lost while idle?); raising the watchdog only lengthens the outage",
    ),
    Mechanism(
        "kv.session_blacklist",
        "transfer",
        "it sends no KV to one decode any more, which works with every other prefill",
        "of all pairs exactly one fails, in one direction, and stays so",
        "a dead decode (then it fails with every prefill); a broken network (then several pairs fail)",
        "restart either end of the pair; let the sender try a failed peer again after a while",
    ),
    Mechanism(
        "kv.remote_wait_without_timeout",
        "transfer",
        "it waits without a deadline for KV that nobody is going to send",
        "requests wait for KV on decode and prefill holds none of them; the pool stays taken",
        "a slow transfer (then prefill holds them in flight); an unservable request (then usage is 0)",
        "abort the waiting requests on decode; put a deadline on the receive and free its blocks",
    ),
    Mechanism(
        "engine.false_green_health",
        "engine",
        "its health endpoint is green while the worker behind it runs no instruction",
        "health 200, a worker process stopped or dead, no token",
        "an idle engine (then a probe is answered)",
        "see why the worker stands, then restart the engine; base health on progress",
    ),
    Mechanism(
        "service.down",
        "any",
        "it is not running",
        "nothing listens on its port, connections are refused",
        "a wrong URL in the stack file (then a process of it listens elsewhere)",
        "read the end of its log, then start it again; with a stack file: vindicate stack restart {service}",
    ),
    Mechanism(
        "service.not_listening",
        "any",
        "its process is there and does not listen on the declared port",
        "connections are refused, the process lives",
        "a dead service",
        "wait if it is still loading; else compare the port in its script with the stack file",
    ),
    Mechanism(
        "service.stopped",
        "any",
        "its process is stopped and runs no instruction",
        "state T, nothing answered",
        "a busy process (then it uses CPU)",
        "find out who stopped it; kill -CONT it (a container: docker unpause), or restart it",
    ),
    Mechanism(
        "service.not_accepting",
        "any",
        "it does not take connections from its accept queue",
        "its accept queue stands, nothing is answered",
        "overload (then the queue comes and goes)",
        "its event loop is blocked: keep its stacks, then restart it",
    ),
    Mechanism(
        "service.crash_loop",
        "any",
        "it dies soon after each start and is started again and again",
        "several processes listen on its port one after another; requests pass between two deaths, and streams are cut at each",
        "one restart (then one process follows another once); workers that share a port (then they listen side by side)",
        "read the end of its log before the last start; stop what starts it again until the reason is known",
    ),
    Mechanism(
        "service.certificate_expired",
        "any",
        "its certificate has run out, so that nobody who checks it gets a connection",
        "TLS handshakes with it fail for the date of its certificate; with dates left out of account they succeed",
        "a certificate of an authority that is not known here (then its date is right); a host whose clock is wrong (then all certificates fail)",
        "renew its certificate and load it; see what should have renewed it",
    ),
    Mechanism(
        "service.out_of_descriptors",
        "any",
        "it has as many files and sockets open as it may, so it can neither take nor open a connection",
        "its open file descriptors stand at its limit (ulimit -n); connections wait in its accept queue, or it opens none upstream",
        "a blocked event loop (then descriptors are to spare); used-up ports (then other services of the host fail too)",
        "restart it; then look for what it never closes, and only then raise its limit (ulimit -n, LimitNOFILE)",
    ),
    Mechanism(
        "service.out_of_memory",
        "any",
        "the kernel ended it for want of memory",
        "its process is gone within the window in which the kernel counted an out-of-memory kill",
        "a crash (then the kernel counts no kill); a watchdog (then its log says so)",
        "see what took the memory (journalctl -k, dmesg) before it is started again; give it, or its control group, more, or its neighbours less",
    ),
    Mechanism(
        "host.disk_full",
        "host",
        "the disk that it writes to has no room left",
        "it fails while less than 1 MiB is free where it works or writes, and past it all is well",
        "a service that fails for itself (then its disk has room)",
        "make room there; then see whether it goes on by itself or must be restarted",
    ),
    Mechanism(
        "service.not_ready",
        "any",
        "it says itself that it is not ready",
        "health 503, errors for requests",
        "a fault further down (then that is not ready either)",
        "read its log: it may still load, drain, or have lost its workers",
    ),
    Mechanism(
        "service.answers_errors",
        "any",
        "it answers requests with errors",
        "5xx straight from it",
        "errors that it only passes on",
        "read its log for the first error",
    ),
    Mechanism(
        "router.breaker_open",
        "router",
        "its circuit breaker keeps workers out that answer, so it has none to choose",
        "5xx from it at once, its breaker state open, its worker list and health green; straight, the workers answer",
        "workers that fail (then straight they fail too)",
        "wait for the breaker to close or restart the router; see which errors opened it, and count those of one leg against that leg only",
    ),
    Mechanism(
        "router.load_counter_leak",
        "router",
        "it counts work at a worker that has none, and sends everything to another",
        "its count for an idle worker never falls to 0; requests queue at that worker's fellow",
        "a hot prefix (then its counts are true); too few workers (then all are busy)",
        "restart the router alone; let go of the count on every path, cancels too, and compare it with what workers report",
    ),
    Mechanism(
        "metrics.negative_delta",
        "metrics",
        "they count below zero",
        "a gauge of requests is negative, the process is the same",
        "a restart (then the process is new and counters begin again)",
        "disregard the figure; find the path that counts one request down twice",
    ),
    Mechanism(
        "metrics.multiprocess_exposition",
        "metrics",
        "several processes answer for one service, each with figures of its own, or one that is gone still counts",
        "at rest scrapes disagree; counters fall and come back; series of dead processes stand",
        "a restart (then counters fall once and the process is new); load that comes and goes (counters never fall)",
        "disregard the figures; add the processes' figures up in one place, and clean up when one ends",
    ),
    Mechanism(
        "metrics.stale_after_mass_abort",
        "metrics",
        "its gauges show work that is long gone",
        "gauges constant, counters flat, a probe passes",
        "a stall (then somebody waits and a probe fails)",
        "age out gauges whose counters do not move",
    ),
    Mechanism(
        "client.not_reading",
        "client",
        "it does not read the answers that come to it, and everything behind it waits",
        "answer bytes lie unread at the client and it takes none for seconds; in the end the service before it cannot send",
        "a slow reader (it takes bytes now and then); a proxy that holds answers back (then they never reach the client)",
        "see what its reading thread does (py-spy dump); read each stream to its end, or close it",
    ),
    Mechanism(
        "client.half_closed_ignored",
        "client",
        "the other side has closed its connection, and it goes on waiting on it",
        "CLOSE_WAIT at the client that ages, closed in the middle of an exchange; the chain is idle and a fresh request passes",
        "a pool with idle connections that the server closed (then the close came after an idle time); a path that forgets (then ESTABLISHED)",
        "restart the client to free it; treat the end of a stream before its last event as an error, and set a read time-out",
    ),
    Mechanism(
        "client.pool_slot_leak",
        "client",
        "the slots of its own connection pool are used up, so that its requests never leave it",
        "a client that hangs with no connection, or only dead ones; no request of its is on the wire; a fresh process passes at once",
        "a starved proxy (then the client's requests stand at the proxy); an idle client (then nobody says that it hangs)",
        "restart the client; close each response on every path, errors too, and bound the wait for a slot",
    ),
    Mechanism(
        "client.waits_inside",
        "client",
        "it waits for something inside itself: the chain has no request of its",
        "a client that is said to hang and sent nothing in the whole window; a fresh process passes at once",
        "a pool that has leaked its slots (the stacks tell); an agent that waits for a tool",
        "take its stacks (py-spy dump, twice, 5 s apart): they say whether it waits for a pool, a lock, DNS or a tool",
    ),
    Mechanism(
        "net.half_open_nat",
        "network",
        "the path to it has forgotten connections that were idle: answers are sent into silence",
        "the service sends again and again and hears nothing, the client's end stands open; fresh connections work",
        "a client that does not read (then its window is closed); a client host that is gone (then nothing of it works)",
        "switch TCP keep-alive on with an idle time below the path's limit, stream with heartbeats, or set a deadline and ask again",
    ),
    Mechanism(
        "retry.amplification",
        "client",
        "it gives up and asks again while its earlier copies are still worked on, so that they multiply",
        "requests of one size given up at a constant age and sent again; more under way below than anybody waits for",
        "organic load (sizes differ, nobody gives up); a client that cancels and whose cancels are passed on (then nothing is left behind)",
        "retry at one place only, with a budget; pass cancels and deadlines on; make the inner time-out shorter than the outer",
    ),
    Mechanism(
        "request.endless_generation",
        "request",
        "it asked for an answer that has no end in sight; tokens flow, it is no stall",
        "one answer runs at a normal rate far beyond any usual length",
        "a long answer (it ends); a stall (then no token flows); blanks under a grammar (engine.grammar_whitespace_loop: the text tells, byte counts do not)",
        "set max_tokens; stream the same request and look at its text: a phrase again and again, or only blanks where a schema is asked for",
    ),
    Mechanism(
        "keepalive.race",
        "router",
        "it sends requests on idle connections that the service behind it has closed or is about to close",
        "requests on a connection that was idle die at once without an answer; fresh connections work",
        "an engine that crashes (then all connections end and its process is new); a path that forgets (then silence, no reset)",
        "make its idle time shorter than the server's keep-alive, or ask again on a fresh connection when no byte was received",
    ),
    Mechanism(
        "unknown",
        "any",
        "it stalls requests in a way that the catalogue does not name",
        "",
        "",
        "keep its stacks and its log before any restart",
    ),
)

_FAMILIES = {
    "stall_mid_stream": "decode.stall_mid_stream",
    "no_end": "decode.no_end",
    "no_first_token": "decode.no_first_token",
    "drop_stream": "proxy.drop_stream",
    "holds_response": "proxy.holds_response",
    "cuts_streams": "proxy.cuts_streams",
    "answers_errors": "service.answers_errors",
    "malformed_stream": "proxy.sse_reframing",
}
_KIN = {
    "engine": ("stall_mid_stream", "no_end", "no_first_token", "cuts_streams", "answers_errors", "malformed_stream"),
    "decode": ("cuts_streams", "answers_errors", "malformed_stream"),
    "prefill": ("cuts_streams", "answers_errors", "malformed_stream"),
    "router": ("drop_stream", "holds_response", "cuts_streams", "answers_errors"),
    "gateway": ("drop_stream", "holds_response", "cuts_streams", "answers_errors"),
}


def _catalogue() -> dict[str, Mechanism]:
    """The entries, and for each other role the same kind of fault under its own name."""
    named = {entry.name: entry for entry in _ENTRIES}
    for role, kinds in _KIN.items():
        for kind in kinds:
            like = named[_FAMILIES[kind]]
            name = f"{role}.{kind}"
            named.setdefault(name, Mechanism(name, role, like.headline, like.looks, like.confused_with, like.remedy))
    return dict(sorted(named.items()))


CATALOGUE = _catalogue()


def mechanism_named(name: str) -> Mechanism:
    """The entry of that name, or that of ``unknown``."""
    return CATALOGUE.get(name, CATALOGUE["unknown"])


def remedy_for(mechanism: str, service: str, *, in_stack: bool) -> str:
    """What to do about *service*; commands that need a stack file only where there is one."""
    remedy = mechanism_named(mechanism).remedy
    return (remedy if in_stack else remedy.partition("; with a stack file:")[0]).replace("{service}", service)
