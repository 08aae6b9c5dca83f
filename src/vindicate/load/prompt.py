"""A seed and a session's number → its rounds: what is planted in each, what is asked, what a good answer holds."""

import random
from collections.abc import Iterator

from vindicate.load.plan import LoadPlan, Turn

__all__ = ["cancel_point", "session_random", "turns"]


def session_random(seed: int, level: int, session: int) -> random.Random:
    """The source of chance of one session; the same whatever the others do."""
    return random.Random(f"{seed}/{level}/{session}")  # noqa: S311 planted values, no secrets


def turns(plan: LoadPlan, chance: random.Random, session: int) -> Iterator[Turn]:
    """The rounds of one session, from the plan's file or planted.

    Each planted round states a fresh value and asks for one of an *earlier* round, so that an engine that lost the
    history cannot answer; the first asks for its own.
    """
    if plan.sessions:
        yield from plan.sessions[session % len(plan.sessions)]
        return
    planted: list[tuple[str, str]] = []
    for _ in range(plan.rounds):
        key, value = f"KEY-{chance.getrandbits(32):08x}", f"VAL-{chance.getrandbits(32):08x}"
        asked, expected = chance.choice(planted) if planted else (key, value)
        planted.append((key, value))
        yield Turn(f"The value of {key} is {value}. What is the value of {asked}? Answer with the value.", expected)


def cancel_point(plan: LoadPlan, chance: random.Random) -> int | None:
    """After how many tokens the client abandons this stream; ``None`` for most."""
    if chance.random() >= plan.cancel_share:
        return None
    return chance.randint(1, max(1, min(8, plan.max_tokens // 2)))
