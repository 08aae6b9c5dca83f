"""Idle connections that are used again after the other side has closed them: the request dies at once, unanswered."""

from collections.abc import Iterator

from vindicate.diagnose.link import Link
from vindicate.diagnose.rule import Against, Clue, Scene, count

__all__ = ["reuses"]

MECHANISM = "keepalive.race"
_IDLE_S = 0.5
_AT_ONCE_S = 0.3
_ERROR_BYTES = 700


def reuses(scene: Scene) -> Iterator[Clue]:
    """Clues to relays that keep connections longer than the service behind them does."""
    for name in scene.chain.order:
        if not scene.chain.is_relay(name):
            continue
        node = scene.account.nodes[name]
        died = [(link, idle) for link in node.up if (idle := _died_on_reuse(link)) is not None]
        if not died:
            continue
        idles = [idle for _, idle in died]
        callee = died[0][0].callee
        measured: dict[str, str | float | int | bool | None] = {
            "died": len(died),
            "idle_least_s": round(min(idles), 2),
            "idle_most_s": round(max(idles), 2),
        }
        against = Against(name, MECHANISM)
        yield against(
            "socket",
            0.6 if len(died) > 1 else 0.4,
            f"{name} sent {count(len(died), 'request')} on connections to {callee} that had been idle for {min(idles):.1f} s or more, and they ended at once without a byte of answer",
            **measured,
        )
        failed = _failed(scene, name, [link.last_seen for link, _ in died])
        if failed:
            yield against(
                "conservation",
                0.6 if failed > 1 else 0.5,
                f"the callers of {name} got {count(failed, 'answer')} of an error's size at these moments, and {callee} gave none",
                small_answers=failed,
                answers_from_below=0,
            )
        good = [p for p in scene.ladder.good if p.target == callee]
        if good:
            yield against(
                "probe",
                0.45,
                f"a request on a fresh connection straight to {callee} was complete in {good[0].total_s:.1f} s",
                total_s=round(good[0].total_s, 2),
            )


def _died_on_reuse(link: Link) -> float | None:
    """How long it had been idle when the request was sent that ended it; ``None``: it ended otherwise, or not at all.

    The kernel's last word on a socket has the ages of its last bytes: a request after the last answer byte, and then the end.
    """
    if link.client is None or not link.client.closed or link.ours:
        return None
    last = next((s for s in reversed(link.client.samples) if s.last_tx_age_s is not None), None)
    if last is None or last.last_tx_age_s is None or last.last_rx_age_s is None or last.rx == 0:
        return None
    idle = last.last_rx_age_s - last.last_tx_age_s
    return idle if idle >= _IDLE_S and last.last_tx_age_s <= _AT_ONCE_S and last.state == "CLOSE" else None


def _failed(scene: Scene, name: str, moments: list[float]) -> int:
    """Answers of an error's size that callers got at about these moments."""
    node = scene.account.nodes[name]
    answers = [(t, n) for link in (*node.down, *node.own) for t, n in link.rises]
    return sum(any(abs(t - moment) <= 0.6 and n < _ERROR_BYTES for t, n in answers) for moment in moments)
