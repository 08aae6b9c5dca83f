"""A ledger, start scripts and live processes that do not agree on a knob → the changes that nobody recorded, as proposals."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vindicate.cli.opening import Desk
    from vindicate.ledger.discover import Proposal
    from vindicate.ledger.state import Book

__all__ = ["drift_found"]


def drift_found(desk: "Desk", book: "Book", found: Sequence["Proposal"]) -> "tuple[list[Proposal], list[str]]":
    """The changes that live processes show and the ledger does not, and a line for each thing that says otherwise.

    A script that says otherwise while the processes agree with the ledger is told, and is no change yet: it would take
    hold at the next start.

    Args:
        found: Proposals from other traces; a change among them is not proposed again.
    """
    from vindicate.cli.knob import knob_state
    from vindicate.ledger.discover import unrecorded

    told, _ = unrecorded(book, found)
    proposals: list[Proposal] = []
    lines: list[str] = []
    for name in desk.known_knobs(book):
        state = knob_state(desk, book, name)
        if not state.drift:
            continue
        lines += [f"drift  {name}: {line}" for line in state.drift]
        held = {value for of in state.live.values() for value in of.values()}
        live = next(iter(held)) if len(held) == 1 else state.ledger
        if not state.in_ledger:
            continue
        if live == state.ledger:
            lines.append(f"       what a script says takes hold at the next start; by the ledger: {_apply(name, live)}")
        elif not any((it.knob, it.from_value, it.to_value) == (name, state.ledger, live) for it in told):
            proposals.append(_proposal(desk, name, state.ledger, live, len(found) + len(proposals) + 1))
    return proposals, lines


def _apply(knob: str, value: str | None) -> str:
    return f"vindicate apply --unset {knob}" if value is None else f"vindicate apply {knob}={value}"


def _proposal(desk: "Desk", knob: str, before: str | None, after: str | None, number: int) -> "Proposal":
    from vindicate.clock import utc_now
    from vindicate.ledger.discover import Proposal
    from vindicate.ledger.live import readings_by_service
    from vindicate.ledger.sighting import Quote
    from vindicate.stack.process import started_at
    from vindicate.units import shown

    assert desk.stack is not None  # live values come from a stack only
    declared = desk.stack.knob(knob)
    pids = [reading.pid for of in readings_by_service(desk.stack, knob).values() for reading in of]
    starts = {pid: started_at(pid) or utc_now() for pid in pids}
    return Proposal(
        id=f"P{number}",
        kind="revert" if after in (None, declared.default) else "apply",
        knob=knob,
        services=declared.services,
        from_value=before,
        to_value=after,
        happened_at=max(starts.values()),
        quotes=tuple(
            Quote(
                file=f"/proc/{pid}/{'environ' if declared.kind == 'env' else 'cmdline'}",
                line=1,
                date=at,
                by="unknown",
                text=f"{knob} is {shown(after)}",
            )
            for pid, at in starts.items()
        ),
    )
