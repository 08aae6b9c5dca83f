"""Words of a command line and a stack → the design they ask for, or what is wrong with them."""

import re
from dataclasses import dataclass

from vindicate.clock import Clock, iso
from vindicate.errors import MisuseError
from vindicate.experiment.bench import present_value, require_editable
from vindicate.experiment.design import RULES, alphas, balanced_order, check_plan, default_looks
from vindicate.experiment.metric import require_metric
from vindicate.record.experiment import Design
from vindicate.redact import is_secret_name, redact_text
from vindicate.stack.model import Stack

__all__ = ["Question", "ask_about_itself", "parse_numbers", "parse_question", "parse_share", "plan_design"]

FORM = "try: KNOB=256..512; an empty side is the empty string, --unset-a or --unset-b leaves the knob unset in that arm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One knob and the two values it is to be compared at; ``None`` is unset."""

    knob: str
    a: str | None
    b: str | None


def parse_question(text: str, *, unset_a: bool = False, unset_b: bool = False) -> Question:
    """Read ``KNOB=A..B``.

    Raises:
        MisuseError: It has another form, an unset side also has a value, or both arms are the same.

    Example:
        >>> parse_question("K=256..512").b
        '512'
    """
    knob, equals, values = text.partition("=")
    if not equals or not knob or values.count("..") != 1 or "..." in values:
        raise MisuseError(f"{text!r} is no question about a knob", remedy=FORM)
    a, _, b = values.partition("..")
    for side, value, unset in (("a", a, unset_a), ("b", b, unset_b)):
        if unset and value:
            raise MisuseError(f"arm {side} of {text!r} has the value {value!r} and is to be unset", remedy=FORM)
    question = Question(knob=knob, a=None if unset_a else a, b=None if unset_b else b)
    if question.a == question.b:
        raise MisuseError(f"both arms of {text!r} are the same", remedy=f"try: vindicate ab --aa {knob}")
    return question


def ask_about_itself(stack: Stack, knob: str | None) -> Question:
    """An arm against itself: *knob*, or the stack file's first, at its present value.

    Raises:
        MisuseError: No knob is declared, or its present value cannot be read.
    """
    name = knob or next(iter(stack.knobs), None)
    if name is None:
        raise MisuseError(
            f"{stack.file} declares no knob", remedy='declare one: [knobs.NAME] with services = ["decode"], say'
        )
    if "=" in name:
        raise MisuseError(f"--aa takes the name of a knob, not {name!r}", remedy="try: vindicate ab --aa KNOB")
    declared = stack.knob(name)
    value = present_value(stack, declared)
    return Question(knob=declared.name, a=value, b=value)


def parse_numbers(text: str, option: str) -> tuple[int, ...]:
    """Read ``48,64,80``.

    Raises:
        MisuseError: It is no list of whole numbers.
    """
    if not re.fullmatch(r"\d{1,9}(,\d{1,9})*", text, re.ASCII):
        raise MisuseError(
            f"{option} is {text!r}", remedy=f"whole numbers with commas, for example {option} 48,64,80,96"
        )
    return tuple(int(word) for word in text.split(","))


def parse_share(text: str) -> float:
    """Read a margin, ``3%`` or ``3``, as a share.

    Raises:
        MisuseError: It is no number of per cent between 0 and 50.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*%?", text.strip(), re.ASCII)
    if match is None or not 0 < float(match[1]) <= 50:
        raise MisuseError(f"--margin is {text!r}", remedy="a number of per cent above 0 and up to 50, for example 3%")
    return float(match[1]) / 100


def plan_design(
    stack: Stack,
    question: Question,
    *,
    experiment: str,
    url: str | None,
    model: str | None,
    levels: tuple[int, ...],
    primary: int | None,
    blocks: int,
    looks: tuple[int, ...] | None,
    margin: float,
    metric: str,
    seed: int,
    requests_per_level: int | None,
    rounds: int,
    max_tokens: int,
    ignore_eos: bool,
    clock: Clock,
) -> Design:
    """Fix everything a verdict depends on.

    Raises:
        MisuseError: The knob is not declared or cannot be edited, or the plan cannot be judged.
    """
    knob = stack.knob(question.knob)
    require_editable(stack, knob)
    for value in (question.a, question.b):
        if is_secret_name(knob.name) or (value and redact_text(value) != value):
            raise MisuseError(
                f"{knob.name} looks like a secret, and experiments keep none", remedy="compare another knob"
            )
    looks = looks or default_looks(blocks)
    check_plan(blocks, looks, levels, primary)
    order, balanced = balanced_order(blocks, looks, seed)
    arms = [
        f"{side} {'unset' if value is None else repr(value)}" for side, value in (("a", question.a), ("b", question.b))
    ]
    return Design(
        id=experiment,
        question=f"{knob.name}: {arms[1]} over {arms[0]}, {metric}",
        knob=knob.name,
        a=question.a,
        b=question.b,
        services=knob.services,
        restarted=stack.restart_set(knob.services),
        url=url or stack.service(stack.entry).url,
        levels=levels,
        primary=primary,
        metric=require_metric(metric),
        margin=margin,
        blocks=blocks,
        looks=looks,
        alpha=alphas(looks),
        seed=seed,
        order=order,
        order_adjusted=balanced,
        requests_per_level=requests_per_level or 4 * max(levels),
        rounds=rounds,
        max_tokens=max_tokens,
        ignore_eos=ignore_eos,
        model=model,
        rules=RULES,
        registered_at=iso(clock.now()),
    )
