"""Facts for tests of the ledger, made by hand: one claim, one revert that rests on it, and what is said of them."""

from vindicate.ledger.store import kind_of
from vindicate.record.ledger import Change, ChangeStep, Claim, ClaimEvent, Fact, Justification


def facts(*bodies, at=None):
    """Facts one second apart, in this order."""
    return [
        Fact(
            seq=number,
            kind=kind_of(body),
            happened_at=at or f"2026-05-01T10:00:{number:02d}.000000Z",
            recorded_at=f"2026-05-01T10:00:{number:02d}.000000Z",
            by="ann",
            body=body,
        )
        for number, body in enumerate(bodies, start=1)
    ]


def revert(name="C1", from_value="512", to_value="256", **more):
    return Change(
        id=name, kind="revert", knob="K_K", services=("decode",), from_value=from_value, to_value=to_value, **more
    )


def done(name="C1"):
    return ChangeStep(change=name, state="done")


def says(claim, status):
    return ClaimEvent(claim=claim, status=status, reason="because")


H1, H3 = Claim(id="H1", text="it hangs"), Claim(id="H3", text="it runs out of memory")
ON_H1 = Justification(change="C1", claims=("H1",))
ON_H3 = Justification(change="C1", claims=("H3",))
