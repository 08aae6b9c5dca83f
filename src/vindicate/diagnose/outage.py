"""Plain outages, looked for first: nothing listens, the process is gone or stopped, nobody accepts, it says that it is not ready."""

from collections.abc import Iterator

from vindicate.diagnose.chain import address_in, port_in, same_host
from vindicate.diagnose.ladder import fault_class
from vindicate.diagnose.rule import Against, Clue, Scene, count
from vindicate.record.observation import ONLY_ITS_DATE, Listener, Scrape, SeenService

__all__ = ["outages"]

SMALL_ANSWER_BYTES = 700
_LIVES = 3  # a restart makes two


def outages(scene: Scene) -> Iterator[Clue]:
    """Clues to services that are not there at all, or plainly unfit."""
    for name in scene.chain.order:
        service = scene.chain.services[name]
        loop = list(_crash_loop(scene, service))
        yield from loop or _down(scene, service)
        yield from _stopped(scene, service)
        yield from _not_accepting(scene, service)
        yield from _certificate(scene, service)
        yield from _failing(scene, service)


def _scrapes_at(scene: Scene, service: SeenService) -> list[Scrape]:
    """Scrapes of the service's own port; a metrics port of its own says nothing about requests."""
    port = service.address.port if service.address else None
    found = [s for s in scene.capture.scrapes if s.service == service.name and port_in(s.url) == port]
    return sorted(found, key=lambda s: s.t_s)


def _listeners(scene: Scene, service: SeenService) -> list[Listener]:
    where = service.address
    if where is None:
        return []
    return [
        listener
        for listener in scene.capture.listeners
        if listener.local.port == where.port
        and (same_host(listener.local.host, where.host) or where.host == "localhost")
        and not _other_family(listener.local.host, service.url)
    ]


def _other_family(listening: str, url: str | None) -> bool:
    """Whether *url* names an IPv4 address and the listener is bound to an IPv6 address, or the other way round."""
    address = address_in(url)
    host = address.host if address is not None else ""
    if listening == "::" or (":" not in host and not host.replace(".", "").isdigit()):
        return False
    return (":" in listening) != (":" in host)


def _down(scene: Scene, service: SeenService) -> Iterator[Clue]:
    name, mechanism = service.name, "service.down"
    looks = _scrapes_at(scene, service)
    refused = [s for s in looks if s.error == "refused"]
    knocks = [p for p in scene.capture.probes if p.target == name and p.error == "refused"]
    ended_late = bool(looks) and looks[-1].error == "refused"
    against = Against(name, mechanism, root=True)
    if (knocks or ended_late) and not any(s.status for s in looks[len(looks) - 1 :]):
        text = f"{name} refuses connections at {service.url}"
        yield against("probe", 0.75, text, refused=len(refused) + len(knocks))
    elif not refused:
        return
    processes = scene.processes(name)
    gone = processes and all(p.ended or (p.samples and p.samples[-1].state in "ZX") for p in processes)
    if gone:
        text = (
            f"its process {processes[0].pid} ended while we looked"
            if processes[0].ended
            else f"its process {processes[0].pid} is a zombie"
        )
        yield against("process", 0.7, text, pid=processes[0].pid)
    alive = bool(processes) and not gone
    if not service.remote and service.address and not _listeners(scene, service):
        port = service.address.port
        if alive:
            text = f"nothing listens on port {port}, though process {processes[0].pid} of {name} is there"
        else:
            text = f"nothing listens on port {port}, and no process of {name} was found"
        yield Clue(
            service=name,
            kind="socket",
            mechanism="service.not_listening" if alive else mechanism,
            strength=0.7,
            root=True,
            text=text,
            measured={"port": port, "listeners": 0},
        )


def _crash_loop(scene: Scene, service: SeenService) -> Iterator[Clue]:
    """One process after another listens on its port, each gone before the next: something starts it again and again."""
    where, looks = service.address, scene.capture.n_looks
    if where is None or looks is None:
        return
    lives = [one for one in _listeners(scene, service) if one.pids]
    in_turn = sum(len(one.waiting) for one in lives) <= looks  # workers that share a port are seen side by side
    if not in_turn or len({one.pids for one in lives}) < _LIVES:
        return
    against = Against(service.name, "service.crash_loop", root=True)
    pids = ", ".join(str(one.pids[0]) for one in lives[:6])
    yield against(
        "socket",
        0.7,
        f"{len(lives)} processes listened on port {where.port} one after another within {scene.capture.window_s:.0f} s: {pids}",
        lives=len(lives),
    )
    ended = [p for p in scene.processes(service.name) if p.ended]
    if ended:
        yield against("process", 0.6, f"its process {ended[0].pid} ended while we looked", pid=ended[0].pid)


def _stopped(scene: Scene, service: SeenService) -> Iterator[Clue]:
    processes = scene.processes(service.name)
    stopped = [p for p in processes if p.samples and all(s.state in "Tt" or s.frozen for s in p.samples[-3:])]
    if not stopped:
        return
    main = any(p.pid in service.pids for p in stopped)
    mechanism = "service.stopped" if main else "engine.false_green_health"
    who = "its process" if main else "its worker process"
    frozen = stopped[0].samples[-1].frozen
    how = "frozen by its control group, as docker pause does," if frozen else "stopped (state T)"
    against = Against(service.name, mechanism, root=True)
    yield against(
        "process",
        0.75,
        f"{who} {stopped[0].pid} is {how} and runs no instruction",
        pid=stopped[0].pid,
        state=stopped[0].samples[-1].state,
        frozen=frozen,
    )
    silent = [s for s in _scrapes_at(scene, service) if s.error and s.error.startswith("timeout")]
    bad = scene.ladder.worst_of(service.name)
    if silent or (bad is not None and not scene.ladder.proven(service.name)):
        text = (
            f"{service.name} does not answer: {silent[-1].error} at {silent[-1].kind}"
            if silent
            else f"a probe that must pass {service.name} failed"
        )
        yield against("probe", 0.7, text, timeouts=len(silent))


def _not_accepting(scene: Scene, service: SeenService) -> Iterator[Clue]:
    for listener in _listeners(scene, service):
        waiting = listener.waiting
        if len(waiting) < 3 or min(waiting[-max(3, len(waiting) // 2) :]) == 0:
            continue
        mechanism = "service.not_accepting"
        against = Against(service.name, mechanism, root=True)
        yield against(
            "queue",
            0.6,
            f"{count(waiting[-1], 'connection')} stood in its accept queue (room for {listener.backlog}) and were not taken",
            waiting=waiting[-1],
            backlog=listener.backlog,
        )
        late = [s for s in _scrapes_at(scene, service) if s.error and s.error.startswith("timeout")]
        silent = [p for p in scene.ladder.bad_at(service.name) if fault_class(p) == "silent"]
        if late or silent:
            yield against(
                "probe",
                0.7,
                f"{service.name} answers no request, not even one for its health",
                timeouts=len(late) + len(silent),
            )


def _certificate(scene: Scene, service: SeenService) -> Iterator[Clue]:
    """Its certificate has run out, or is not valid yet: nobody who checks it can open a connection."""
    name, mechanism = service.name, "service.certificate_expired"
    said = [p.detail for p in scene.capture.probes if p.target == name and p.error == "certificate"]
    said += [str(s.facts.get("certificate")) for s in _scrapes_at(scene, service) if s.error == "certificate"]
    dated = [text for text in said if "expired" in text or "not yet valid" in text]
    if not dated:
        return
    node = scene.account.nodes[name]
    if any(link.began_at > 0 and len(link.rises) >= 4 for link in node.down):  # its callers do not mind
        return
    against = Against(name, mechanism, root=True)
    why = dated[-1].removesuffix(ONLY_ITS_DATE)
    yield against("probe", 0.75, f"no TLS connection to {service.url} can be opened: {why}", attempts=len(dated))
    if any(text.endswith(ONLY_ITS_DATE) for text in dated):
        text = "asked again with dates left out of account, the same certificate was trusted by this host and for this name"
        yield against("host", 0.6, text)


def _failing(scene: Scene, service: SeenService) -> Iterator[Clue]:
    """Errors of its own: it is the deepest service that answers 5xx, and what is below it works or is not there."""
    name = service.name
    bad = [p for p in scene.ladder.bad_at(name) if fault_class(p) == "errors"]
    looks = [s for s in _scrapes_at(scene, service) if s.kind == "health"]
    sick = bool(looks) and looks[-1].status is not None and looks[-1].status >= 500
    if not bad and not sick:
        return
    if any(scene.ladder.bad_at(below) for below in scene.chain.below(name)) or name not in (
        scene.ladder.suspects or {name}
    ):
        return
    mechanism = "service.not_ready" if sick else "service.answers_errors"
    # 502, 503 and 504 are what a relay says of what it calls: unless that is known and works, the fault may lie there.
    says_of_others = any(p.status in (502, 503, 504) for p in bad) or (sick and looks[-1].status in (502, 503, 504))
    upstream_works = bool(service.upstream) and all(scene.ladder.proven(below) for below in service.upstream)
    own = upstream_works or not says_of_others or bool(scene.progress[name].gauges)
    own = own and not any(p.target == name for p in scene.ladder.good)  # at times it answers well: it is not unfit
    against = Against(name, mechanism)
    if bad:
        yield against(
            "probe",
            0.75 if own and (scene.ladder.suspects == {name} or sick) else 0.4,
            f"a small request straight to {name} was answered with {bad[0].status or bad[0].error}",
            status=bad[0].status,
        )
    if sick and looks[-1].status is not None:
        yield against(
            "process",
            0.6 if own else 0.3,
            f"its own health endpoint answers {looks[-1].status}",
            status=looks[-1].status,
        )
    answers = [n for link in scene.account.nodes[name].down for t, n in link.rises if link.asks]
    if bad and own and len(answers) >= 3 and max(answers) < SMALL_ANSWER_BYTES:
        yield against(
            "conservation",
            0.5,
            f"{len(answers)} answers that {name} gave to its callers in the window were {max(answers)} bytes or less, as an error is",
            answers=len(answers),
            largest_bytes=max(answers),
        )
