"""A relay that answers by itself what it should have handed on: what tells the answered from the passed names the reason.

Large ones: it limits bodies. Those after a pause: what it keeps between requests has gone bad. All, while every port towards
one service is in TIME_WAIT: it opens a connection for each request.
"""

from collections.abc import Callable, Iterator, Sequence

from vindicate.diagnose.account import NodeAccount
from vindicate.diagnose.exchange import Asked, asked_of, end_of
from vindicate.diagnose.rule import Against, Clue, Scene, count
from vindicate.record.observation import ProbeResult

__all__ = ["refusals"]

_CUTS_BODIES, _POISONED, _CHURN = (
    "proxy.body_truncation",
    "proxy.poisoned_pooled_connection",
    "proxy.ephemeral_port_churn",
)
_SHORT_BYTES = 1500
_LARGE_BYTES = 8192
_AT_ONCE_S = 0.1
_SOON_S = 1.5
_PAUSE_S = 0.5
_PORTS_USED_UP = 0.8
_CUT_TO = 0.2


def refusals(scene: Scene) -> Iterator[Clue]:
    """Clues to relays that answer in the place of the services below them."""
    for name in scene.chain.order:
        node = scene.account.nodes[name]
        if not scene.chain.is_relay(name) or not node.visible:
            continue
        yield from _churn(scene, node)
        if _calls_others(scene, name):
            continue  # what it did not hand on here may have gone there
        asked = [a for a in asked_of(node, scene.account.end) if a.waited_s is not None]
        against = list(_by_size(scene, node, asked))
        cut = _cut_above(scene, name) if against else None
        yield from against if cut is None else _cuts(*cut, refuser=name)
        yield from _after_pause(scene, node, asked)


def _calls_others(scene: Scene, name: str) -> bool:
    """Whether it has links with traffic to anything that is no service of the chain."""
    known = scene.chain.services
    return any(link.caller == name and link.callee not in known and link.request for link in scene.account.links)


def _parts(refused: Sequence[Asked], passed: Sequence[Asked], of: Callable[[Asked], float]) -> float | None:
    """The least value of *refused*, if it parts the two: of those passed at most a tenth lie at or above it."""
    bound = min(of(a) for a in refused)
    return bound if sum(of(a) >= bound for a in passed) <= 0.1 * len(passed) else None


def _by_size(scene: Scene, node: NodeAccount, asked: list[Asked]) -> Iterator[Clue]:
    refused = [
        a
        for a in asked
        if a.size >= _LARGE_BYTES and a.lacks and a.answer <= _SHORT_BYTES and (a.waited_s or 0.0) <= _SOON_S
    ]
    passed = [a for a in asked if not a.lacks]
    if len(refused) < 3 or len(passed) < 3:
        return
    bound = _parts(refused, passed, lambda a: a.size)
    if bound is None or max(a.size for a in passed) < _LARGE_BYTES / 4:
        return
    name, came, left = node.name, sum(a.size for a in refused), sum(a.handed_on for a in refused)
    against = Against(name, _CUTS_BODIES)
    yield against(
        "conservation",
        0.65,
        f"{count(len(refused), 'large request')} brought {came} bytes to {name}, and {left} left it for any service below at their time",
        requests=len(refused),
        request_bytes_in=came,
        request_bytes_out=left,
    )
    yield against(
        "socket",
        0.55,
        f"every request of {int(bound)} bytes or more was turned away at once with a short answer; {count(len(passed), 'smaller one')} passed whole",
        smallest_refused_bytes=int(bound),
        passed=len(passed),
        largest_passed_bytes=int(max((a.size for a in passed if a.size < bound), default=0)),
    )
    through = _good_at(scene, name)
    if through is not None:
        yield against(
            "probe",
            0.3,
            f"a request of {through.request_bytes} bytes passes {name} and is complete",
            request_bytes=through.request_bytes,
        )


def _cut_above(scene: Scene, name: str) -> tuple[str, list[Asked]] | None:
    """A relay that calls *name* and passes large requests on in part: who turns the rest away does right."""
    for above, service in scene.chain.services.items():
        if name in service.upstream and scene.chain.is_relay(above):
            asked = asked_of(scene.account.nodes[above], scene.account.end)
            cut = [a for a in asked if a.size >= _LARGE_BYTES and a.lacks and a.handed_on >= _CUT_TO * a.size]
            if len(cut) >= 3:
                return above, cut
    return None


def _cuts(name: str, cut: list[Asked], *, refuser: str) -> Iterator[Clue]:
    against, came, left = Against(name, _CUTS_BODIES), sum(a.size for a in cut), sum(a.handed_on for a in cut)
    yield against(
        "conservation",
        0.65,
        f"{count(len(cut), 'large request')} brought {came} bytes to {name}, and {left} of them went on",
        requests=len(cut),
        request_bytes_in=came,
        request_bytes_out=left,
    )
    yield against(
        "socket",
        0.55,
        f"what went on of them ends at {max(a.handed_on for a in cut)} bytes at most, and {refuser} turned it away at once",
        largest_passed_bytes=max(a.handed_on for a in cut),
    )


def _good_at(scene: Scene, name: str) -> ProbeResult | None:
    return next((p for p in scene.ladder.good if p.target == name), None)


def _after_pause(scene: Scene, node: NodeAccount, asked: list[Asked]) -> Iterator[Clue]:
    """Requests like others on the same connections, answered at once by the relay, only where nothing had gone upstream for a while."""
    passed = [a for a in asked if a.at_once >= 0.7 * a.size]
    sizes = [a.size for a in passed]
    fine = {a.link for a in passed}
    if not sizes:
        return
    refused = [
        a
        for a in asked
        if a.at_once < 0.3 * a.size
        and a.answer <= _SHORT_BYTES
        and (a.waited_s or 0.0) <= _AT_ONCE_S
        and a.link in fine  # not somebody's health check
        and 0.7 * min(sizes) <= a.size <= 1.4 * max(sizes)
    ]
    # One that was refused took the bad connection away: who comes next proves nothing, however long the pause.
    passed = [a for a in passed if not any(a.at - a.idle_s < r.at < a.at for r in refused)]
    late = _instant_time_out(scene, node.name)
    if len(refused) < 2 or len(passed) < 2:
        return
    bound = _parts(refused, passed, lambda a: a.idle_s)
    if bound is None or bound < _PAUSE_S or bound == float("inf"):
        return
    name = node.name
    against = Against(name, _POISONED)
    yield against(
        "conservation",
        0.6,
        f"{name} answered {count(len(refused), 'request')} by itself at once: {sum(a.size for a in refused)} bytes came in and none of that size left it",
        requests=len(refused),
        request_bytes_in=sum(a.size for a in refused),
    )
    yield against(
        "socket",
        0.55,
        f"this met every request after {bound:.1f} s or more without traffic upstream, and none of the {len(passed)} others: "
        "what it keeps open between requests has gone bad",
        least_pause_s=round(bound, 2),
        passed=len(passed),
    )
    if late is not None:
        yield against(
            "probe",
            0.6,
            f"a request of ours through {name} was said to have timed out after {late.total_s:.3f} s; no time-out takes no time",
            error=late.error,
            total_s=round(late.total_s, 4),
        )


def _instant_time_out(scene: Scene, name: str) -> ProbeResult | None:
    return next(
        (
            p
            for p in scene.capture.probes
            if p.target == name
            and p.total_s <= _AT_ONCE_S
            and p.error is not None
            and p.error.startswith("http_5")
            and (p.status in (408, 504) or "timeout" in p.detail.lower() or "timed out" in p.detail.lower())
        ),
        None,
    )


def _churn(scene: Scene, node: NodeAccount) -> Iterator[Clue]:
    """Nearly every port towards one service in TIME_WAIT, from connections that served one request each and that the relay closed."""
    host, name = scene.capture.host_facts, node.name
    ends = [end for link in node.up if (end := end_of(link))]
    for below in scene.chain.services[name].upstream:
        where = scene.chain.services[below].address
        waiting = (host.time_wait_to or {}).get(f"{where.host}:{where.port}", 0) if where else 0
        if not host.ephemeral_ports or waiting < _PORTS_USED_UP * host.ephemeral_ports:
            continue
        against = Against(name, _CHURN)
        yield against(
            "host",
            0.6,
            f"{waiting} of the {host.ephemeral_ports} ports that this host can use towards {below} are in TIME_WAIT",
            time_wait=waiting,
            ports=host.ephemeral_ports,
        )
        own = [end for end in ends if end.link.callee == below]
        kept = [
            link for link in node.up if link.callee == below and link.is_open and sum(n > 40 for _, n in link.asks) > 1
        ]
        if own and not kept and all(end.by != "service" for end in own):
            yield against(
                "socket",
                0.5,
                f"{name} opened {count(len(own), 'connection')} to {below} in the window, closed each after its request, and used none twice",
                connections=len(own),
                used_twice=0,
            )
        failed = [
            p
            for p in scene.capture.probes
            if p.target == name and p.total_s <= 1.0 and (p.error or "").startswith("http_5")
        ]
        cannot = [p for p in scene.capture.probes if p.target == below and p.error == "unreachable"]
        if failed or cannot:
            yield against(
                "probe",
                0.5,
                f"no new connection to {below} comes about: a request through {name} failed at once"
                if failed
                else f"this host can open no new connection to {below}, though it listens",
                failed_through=len(failed),
                cannot_connect=len(cannot),
            )
