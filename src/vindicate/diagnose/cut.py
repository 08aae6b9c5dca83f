"""A relay that counts seconds: it cuts every exchange at one age, after one silence, or gives up on answers whose first byte is late."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import median

from vindicate.diagnose.account import NodeAccount
from vindicate.diagnose.exchange import End, end_of
from vindicate.diagnose.ladder import fault_class
from vindicate.diagnose.rule import Against, Clue, Scene, count

__all__ = ["cuts"]

_TOTAL, _FIRST = "gateway.total_timeout", "gateway.idle_timeout_before_first_byte"
_MIN_AGE_S = 1.0
_MIN_SILENCE_S, _LATE_LOOK_S = 0.8, 0.4
_ENOUGH = 3
_REFUSAL_BYTES = 1500


def cuts(scene: Scene) -> Iterator[Clue]:
    """Clues to relays that end exchanges by the clock."""
    for name in scene.chain.order:
        if scene.chain.is_relay(name):
            yield from _at_one_age(scene, scene.account.nodes[name])
            yield from _before_first_byte(scene, scene.account.nodes[name])
            yield from _after_silence(scene, scene.account.nodes[name])


def _constant(ages: Sequence[float]) -> bool:
    """Whether *ages* are one configured constant: all but a tenth within 3 % (0.1 s at least) of their median."""
    middle = median(ages)
    near = sum(abs(age - middle) <= max(0.1, 0.03 * middle) for age in ages)
    return middle >= _MIN_AGE_S and near >= 0.9 * len(ages)


def _gap(end: End) -> float:
    """The usual silence between two looks at which bytes had come; a stream in flow ends within two of them."""
    times = [t for t, _ in end.link.rises]
    return median(b - a for a, b in pairwise(times)) if len(times) > 2 else 1.0


def _at_one_age(scene: Scene, node: NodeAccount) -> Iterator[Clue]:
    """Callers' connections that the relay closed first in mid-answer, all at one age, and with them the ones upstream, which still flowed."""
    down = [end for link in node.down if (end := end_of(link)) and end.by == "service" and len(link.rises) > 1]
    up = [end for link in node.up if (end := end_of(link)) and len(link.rises) > 1]
    pairs = []
    for end in down:
        mates = [u for u in up if -0.1 <= u.asked_at - end.asked_at <= 0.5 and abs(u.age_s - end.age_s) <= 0.5]
        if mates and end.answered_at is not None:
            up.remove(mates[0])
            pairs.append((end, mates[0]))
    own = [pair for pair in pairs if pair[1].by == "caller"]
    if len(own) < _ENOUGH or len(own) < 0.8 * len(pairs) or not _constant([end.age_s for end, _ in own]):
        return
    flowed = [
        u for _, u in own if u.answered_at is not None and u.link.last_seen - u.answered_at <= max(0.6, 2 * _gap(u))
    ]
    if len(flowed) < 0.8 * len(own) or not _closes_only_to_cut(scene, node):
        return
    age = round(median(end.age_s for end, _ in own), 2)
    older = [
        link
        for link in node.down_in("moving")
        if link.asked_at is not None and scene.account.end - link.asked_at > age * 1.1 + 0.3
    ]
    if older:
        return
    against = Against(node.name, _TOTAL)
    yield against(
        "socket",
        0.65,
        f"{node.name} itself closed {count(len(own), 'connection')} of callers in mid-answer, each {age:g} s after its request",
        cut=len(own),
        age_s=age,
        spread_s=round(_spread(own), 3),
    )
    yield against(
        "conservation",
        0.6,
        f"upstream {count(len(flowed), 'answer')} of these came on until {node.name} closed them too; no service below had ended one",
        flowing_upstream=len(flowed),
        closed_by_upstream=0,
    )


def _spread(pairs: list[tuple[End, End]]) -> float:
    ages = [end.age_s for end, _ in pairs]
    return max(ages) - min(ages)


def _closes_only_to_cut(scene: Scene, node: NodeAccount) -> bool:
    """Whether, after a whole answer of ours, the relay did not close its connection upstream first, as it did with those cut.

    One that keeps no connections closes them after whole answers too, and answers of one length then end at one age.
    """
    for p in scene.ladder.good:
        if p.target != node.name:
            continue
        for link in node.up:
            if any(p.t_s - 0.1 <= t <= p.t_s + 0.5 and n >= p.request_bytes // 2 for t, n in link.asks):
                end = end_of(link)
                if end is None or end.by == "service" or link.last_seen > p.t_s + p.total_s + 1.0:
                    return True
    return False


def _after_silence(scene: Scene, node: NodeAccount) -> Iterator[Clue]:
    """Both sides of exchanges that the relay closed first, each after the same silence upstream, which a probe of ours met too.

    A relay that closes idle connections does so after one silence as well: that ours was cut in mid-answer tells them apart.
    """
    cut = next((p for p in scene.ladder.bad_at(node.name) if fault_class(p) == "cut" and p.first_byte_s), None)
    if cut is None:
        return
    silence = cut.total_s - (cut.first_byte_s or 0.0) - sum(cut.gaps_s)
    if silence < _MIN_SILENCE_S:
        return
    down = [end for link in node.down if (end := end_of(link)) and end.by == "service" and end.answered_at is not None]
    up = [end for link in node.up if (end := end_of(link)) and end.by == "caller" and end.answered_at is not None]
    both = []
    for end in down:
        mate = next((u for u in up if -0.1 <= u.asked_at - end.asked_at <= 0.5 and _near(_silence(u), silence)), None)
        if mate is not None:
            up.remove(mate)
            both.append(mate)
    longer = [b - a for link in node.up for (a, _), (b, _) in pairwise(link.rises) if b - a > silence + _LATE_LOOK_S]
    if len(both) < _ENOUGH or len(both) < 0.8 * len(down) or longer:
        return
    role = scene.chain.role(node.name)
    yield Against(node.name, f"{role if role in ('gateway', 'router') else 'proxy'}.cuts_streams")(
        "socket",
        0.6,
        f"{node.name} itself closed {count(len(both), 'connection')} of callers and the one upstream with it, each after {silence:.1f} s "
        "of silence; no silence upstream that was longer has been seen to end",
        closed=len(both),
        silence_s=round(silence, 2),
    )


def _silence(end: End) -> float:
    return end.link.last_seen - (end.answered_at or 0.0)


def _near(silence: float, of_probe: float) -> bool:
    """Whether it is the same, given that an end is seen at the look after it."""
    return -0.15 <= silence - of_probe <= _LATE_LOOK_S


def _before_first_byte(scene: Scene, node: NodeAccount) -> Iterator[Clue]:
    """Requests upstream that the relay gave up at one age without a byte of answer, and answers of its own to the callers."""
    ends = [end for link in node.up if (end := end_of(link)) and link.response == 0 and end.by == "caller"]
    told = [end for end in ends if _told(node, end)]
    ages = [end.age_s for end in told]
    probe = _probe_at(scene, node)
    if len(told) < _ENOUGH or not _constant(ages):
        return
    age = round(median(ages), 2)
    longest = _longest_wait(node)
    proof = probe is not None and abs(probe[0] - age) <= 0.3
    if not proof and not (0.5 * age <= longest <= age + 0.3 and _works(scene, node)):
        return  # what it gave up on may have been a service that hangs
    against = Against(node.name, _FIRST)
    yield against(
        "socket",
        0.6,
        f"{node.name} gave up {count(len(told), 'request')} upstream, each after {age:g} s without a byte; the longest wait it allowed an answer was {longest:.1f} s",
        given_up=len(told),
        age_s=age,
        longest_answered_s=round(longest, 2),
    )
    yield against(
        "conservation",
        0.6,
        f"the callers of {count(len(told), 'request')} were answered by {node.name} itself: upstream no byte of answer had come",
        answered_by_itself=len(told),
        response_bytes_in=0,
    )
    if probe is not None and proof:
        through, past = probe
        yield against(
            "probe",
            0.75,
            f"a small request through {node.name} was given up after {through:.1f} s; past it its first byte came after {past:.1f} s and it was complete",
            through_s=round(through, 2),
            first_byte_past_s=round(past, 2),
        )


def _told(node: NodeAccount, end: End) -> bool:
    """Whether a caller who had got nothing for the age of *end* was given a short answer at about its end."""
    for link in node.down:
        for t, n in link.rises:
            silent = not any(t - end.age_s + 0.3 < other < t - 0.05 for other, _ in link.rises)
            if n <= _REFUSAL_BYTES and silent and abs(end.link.last_seen - t) <= 0.6:
                return True
    return False


def _longest_wait(node: NodeAccount) -> float:
    """The longest that an answer upstream was waited for and came."""
    waits = [0.0]
    for link in node.up:
        for number, (at, _) in enumerate(link.asks):
            until = link.asks[number + 1][0] if number + 1 < len(link.asks) else float("inf")
            first = next((t for t, _ in link.rises if at + 0.005 < t < until), None)
            if first is not None:
                waits.append(first - at)
    return max(waits)


def _works(scene: Scene, node: NodeAccount) -> bool:
    """Whether the services below are shown to answer: probes past the relay are good and its other answers flow."""
    return node.flows(scene.account.end) and any(node.name not in p.covers for p in scene.ladder.good)


def _probe_at(scene: Scene, node: NodeAccount) -> tuple[float, float] | None:
    """When a request of ours was given up by the relay, and when the same had its first byte past it, which was later."""
    through = [
        p
        for p in scene.capture.probes
        if p.target == node.name
        and p.n_tokens == 0
        and p.total_s >= _MIN_AGE_S
        and fault_class(p) in ("denied", "errors", "cut", "busy")
    ]
    past = [p for p in scene.ladder.good if node.name not in p.covers and p.first_byte_s is not None]
    if not through or not past:
        return None
    first = max(p.first_byte_s or 0.0 for p in past)
    took = min(p.total_s for p in through)
    return (took, first) if first > took + 0.1 else None
