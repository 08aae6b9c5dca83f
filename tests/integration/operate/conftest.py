"""A stack of tiny real services that is always taken down again."""

import pytest

from fakes.change_bench import Bench
from fakes.small_stack import write_small_stack
from vindicate.operate.services import bring_down


@pytest.fixture
def small_stack(tmp_path):
    """A function that writes a small stack; whatever was started from it is stopped at the end."""
    written = []

    def write(**options):
        stack = write_small_stack(tmp_path / "stack", **options)
        written.append(stack)
        return stack

    yield write
    for stack in written:
        bring_down(stack, tuple(stack.services), say=lambda _: None, by_hand=True)


@pytest.fixture
def bench(small_stack):
    made = []

    def make(**options):
        made.append(Bench(small_stack(entry="worker", **options)))
        return made[-1]

    yield make
    for item in made:
        item.ledger.close()
