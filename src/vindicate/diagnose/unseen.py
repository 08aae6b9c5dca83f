"""What could not be seen, what would make it visible, and which observation would settle what is open."""

from collections.abc import Iterable, Iterator

from vindicate.diagnose.ladder import fault_class
from vindicate.diagnose.link import MIN_REQUEST_BYTES
from vindicate.diagnose.occupied import occupied
from vindicate.diagnose.rule import Scene, count, oldest
from vindicate.record.observation import ProbeResult

__all__ = ["blind_spots", "what_would_settle"]


def blind_spots(scene: Scene) -> Iterator[str]:
    """Sides of the chain that this capture does not show; those that the recorder named come first."""
    yield from scene.capture.blind
    said = " ".join(scene.capture.blind)
    for name in scene.chain.order:
        service = scene.chain.services[name]
        if name in said:
            continue
        if service.remote:
            yield f"{name} is on another host: only this host's side of its connections is seen; look from there too with --host user@NAME, or capture there and replay both"
        elif not service.pids and any(link.is_open for link in scene.account.nodes[name].down):
            yield f"the processes of {name} could not be seen, so its own connections are guessed; run as its user or as root"
        if name in scene.leaves and scene.progress[name].work == "unknown" and not scene.progress[name].gauges:
            yield f"{name} shows no metrics that say how many requests it works on"
        if service.url and service.url.startswith("https"):
            yield f"{name} speaks TLS: byte counts include its records, and streams inside HTTP/2 are hidden"
    if not scene.ladder.ran and not scene.capture.probes and "--no-probe" not in said:
        yield "no probe was sent: whether a fresh request passes is not known; leave --no-probe away"


def _longer(probe: ProbeResult) -> str:
    """The command that gives a request several times the patience that *probe* had: a probe may take most of a long window."""
    return f"vindicate diagnose --window {min(300, max(30, 10 * round(4 * probe.deadline_s / 10)))}s"


def _key_to_check(scene: Scene, probe: ProbeResult) -> str:
    """Whose key to look at: that of our probe, or the one that the relay sends on."""
    name, until = probe.target, probe.t_s + probe.total_s
    asked = [
        link.callee for link in scene.account.nodes[name].up if link.asked_between(probe.t_s, until, MIN_REQUEST_BYTES)
    ]
    if asked:
        return (
            f"{name} passed our request on to {asked[0]} and answered {probe.status}: compare the key that {name} sends on with the one "
            f"that {asked[0]} expects, and name ours as api_key_env of services.{name}"
        )
    return (
        f"{name} itself answered {probe.status}: name the variable of a key that it takes as api_key_env of services.{name}, "
        "so that a probe is let in, and compare it with the key that the clients send"
    )


def what_would_settle(scene: Scene, suspects: Iterable[str]) -> Iterator[str]:
    """The next observations, the cheapest first."""
    chosen = list(suspects)
    names = [name for name in chosen if name in scene.account.nodes]
    if not scene.ladder.ran and not scene.capture.probes:
        yield "send probes: run vindicate diagnose without --no-probe"
    for p in scene.ladder.unclear[:1]:
        if p.error in ("http_401", "http_403"):
            yield _key_to_check(scene, p)
        elif p.error == "certificate":
            yield f"the certificate of {p.target} is not trusted here ({p.detail[:80]}): name its authority in SSL_CERT_FILE and look again"
        elif p.error in ("tls", "tls_timeout"):
            yield f"the TLS handshake with {p.target} fails: if it speaks plain HTTP, its url begins with http://"
        elif p.error == "unresolved":
            yield f"check the host name of {p.target} (getent hosts NAME), or give its numeric address, and look again"
        elif fault_class(p) == "slow":
            yield f"look longer: the probe at {p.target} still got tokens at its deadline; {_longer(p)}"
    looks = scene.capture.n_looks
    if looks is not None and looks < scene.capture.window_s:
        yield "look again when the host is less busy, or longer: vindicate diagnose --window 60s"
    for found in occupied(scene):
        yield f"see whether the answers of {found.service} on {count(len(found.links), 'silent connection')} are over: let it show its metrics, or name the waiting process with --client-pid"
    waiting = [link for node in scene.account.nodes.values() for link in node.owed if link.is_open]
    late = [p for p in scene.ladder.bad if fault_class(p) in ("silent", "stalled") and p.target in scene.leaves]
    if late and not waiting:
        yield f"look longer, to tell slow from stopped: {late[0].target} left our request for {late[0].total_s:.0f} s; {_longer(late[0])}"
    if waiting:
        longer = max(30, round(3 * oldest(tuple(waiting)) / 10) * 10)
        yield f"look longer, to tell a long prefill from a stall: vindicate diagnose --window {min(longer, 300)}s"
    for name in names:
        if name in scene.chain.services and scene.chain.services[name].opaque:
            yield f"declare what {name} calls in a stack file (upstream), or look as root, so that it is followed"
        if name in scene.leaves and scene.progress[name].work == "unknown":
            yield f"let {name} show its metrics (in-work gauges and token counters) and look again"
        elif not scene.account.nodes[name].visible:
            yield f"look as the user of {name} or as root, so that its own connections are seen"
    for name in chosen:
        if name not in names:
            yield f"see what {name} waits for: its stacks (py-spy dump, twice, 5 s apart); if it hangs, name it with --client-pid and look again"
    if len(names) > 1:
        yield f"probe past each of {', '.join(names)} in turn: the first one that answers complete clears all below it"
    elif names:
        yield f"restart nothing yet; look again with --window 30s and see whether {names[0]} still owes the same requests"
    elif not waiting and not chosen and not any(p.error == "unresolved" for p in scene.ladder.unclear):
        yield "name the processes that hang with --client-pid, and look again with --window 30s"
