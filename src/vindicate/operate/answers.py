"""A stack → answers to a few fixed prompts, greedy; asked before and after a change, they must be the same and right."""

import asyncio
import hashlib
import http
import time
from dataclasses import dataclass

import msgspec

from vindicate.errors import EngineError
from vindicate.load.model import first_model
from vindicate.operate.plan import Answered, Baseline
from vindicate.operate.services import is_there
from vindicate.redact import redact_text
from vindicate.stack.http import exchange
from vindicate.stack.model import Service, Stack
from vindicate.units import format_duration

__all__ = ["SETTLE_S", "AnswerError", "Reached", "asked_after", "compare_answers", "take_baseline", "wait_for_answer"]

SETTLE_S = 30.0  # a router takes a while to see a restarted worker again, and an engine under load to say it is well

_PLANTED = "The value of KEY-00c0ffee is VAL-5eed1234."
_RIGHT = "VAL-5eed1234"
_ASK = "What is the value of KEY-00c0ffee? Answer with the value."
_PROMPTS: tuple[list[dict[str, str]], ...] = (
    [{"role": "user", "content": f"{_PLANTED} {_ASK}"}],
    [
        {"role": "user", "content": f"{_PLANTED} Keep it in mind."},
        {"role": "assistant", "content": "I will."},
        {"role": "user", "content": _ASK},
    ],
    [{"role": "user", "content": "Name the days of the week in order."}],
)
_RECALLS = (True, True, False)
_DEADLINE_S = 20.0
_FIRST_DEADLINE_S = 10.0
_MAX_TOKENS = 16
_ENTRY_ROLES = ("proxy", "gateway", "router", "engine")


class AnswerError(EngineError):
    """An answer came, and it is wrong; waiting longer does not help."""


def take_baseline(stack: Stack) -> tuple[Baseline | None, tuple[str, ...]]:
    """Ask every prompt twice, at the entry, or at the first service below it that answers.

    Returns:
        The baseline, ``None`` when nobody answers; and what to say about it.
    """
    notes = []
    for name in stack.path_from(stack.entry):
        service = stack.service(name)
        if service.role not in _ENTRY_ROLES:
            continue
        try:
            first, second = _ask_all(service, _FIRST_DEADLINE_S), _ask_all(service, _DEADLINE_S)
        except EngineError as error:
            notes.append(f"before the change: {error.problem}")
            continue
        answers = tuple(
            Answered(digest=_digest(a), steady=bool(a) and a == b, recalled=(_RIGHT in a) if recalls else None)
            for a, b, recalls in zip(first, second, _RECALLS, strict=True)
        )
        if notes:
            notes.append(f"answers are compared at {name} instead")
        return Baseline(service=name, answers=answers), tuple(notes)
    return None, (*notes, "answers cannot be compared: nobody answered before the change")


def compare_answers(stack: Stack, baseline: Baseline) -> str:
    """Ask again and compare: exactly where the answer was steady before, by the recalled value where it was recalled.

    Raises:
        AnswerError: One differs, or lost the planted value.
        EngineError: One is missing.
    """
    service = stack.service(baseline.service)
    after = _ask_all(service, _DEADLINE_S)
    for number, (text, was) in enumerate(zip(after, baseline.answers, strict=True), 1):
        shown = redact_text(text)[:80]
        if was.recalled and _RIGHT not in text:
            raise AnswerError(
                f"{service.name}: prompt {number} lost its context: asked for {_RIGHT}, it answered {shown!r}",
                remedy="vindicate diagnose",
            )
        if was.steady and _digest(text) != was.digest:
            raise AnswerError(
                f"{service.name}: prompt {number} is answered differently than before the change: {shown!r}",
                remedy="compare by hand; a numerical change of a kernel can do that",
            )
    n_steady = sum(was.steady for was in baseline.answers)
    return f"{n_steady} of {len(after)} answers compared exactly and equal, {sum(_RECALLS)} asked for recall, at {service.name}"


@dataclass(frozen=True, slots=True)
class Reached:
    """Whether *service* let a small request through after a restart; *text* says it to a person."""

    service: str | None
    good: bool
    text: str


def asked_after(stack: Stack) -> Service | None:
    """The first service from the entry on that is there and answers for the engines; a proxy may have faults of its own."""
    path = [stack.service(name) for name in stack.path_from(stack.entry)]
    return next((it for it in path if it.role in ("gateway", "router", "engine") and is_there(it)), None)


def wait_for_answer(stack: Stack, *, within_s: float = SETTLE_S) -> Reached:
    """Ask one small prompt until it is answered: a router may be well and not see its restarted workers yet.

    A refusal that is ours to mend (a key, a model) is an answer all the same.
    """
    service = asked_after(stack)
    if service is None:
        return Reached(service=None, good=True, text="no router or engine is there that could be asked")
    began = time.monotonic()
    while True:
        status, error = asyncio.run(_small_request(service, _FIRST_DEADLINE_S))
        took = format_duration(time.monotonic() - began)
        if status is not None and status < http.HTTPStatus.INTERNAL_SERVER_ERROR and error is None:
            how = "" if status == http.HTTPStatus.OK else f" with {status}"
            return Reached(
                service=service.name,
                good=True,
                text=f"{service.name} answers a small request{how}, {took} after the restart",
            )
        if time.monotonic() - began >= within_s:
            what = (
                f"answers {status}" if status not in (None, http.HTTPStatus.OK) else f"gives no whole answer ({error})"
            )
            return Reached(
                service=service.name,
                good=False,
                text=f"{service.name} {what} to a small request, {format_duration(within_s)} after the restart",
            )
        time.sleep(0.25)


async def _small_request(service: Service, deadline_s: float) -> tuple[int | None, str | None]:
    try:
        model = await first_model(service.url, headers=service.auth(), deadline_s=deadline_s, remedy="-")
    except EngineError:
        model = "default"
    body = {"model": model, "messages": _PROMPTS[2], "max_tokens": 1, "temperature": 0}
    answer = await exchange(
        f"{service.url}/v1/chat/completions", method="POST", body=msgspec.json.encode(body),
        headers={"Content-Type": "application/json", **service.auth()}, deadline_s=deadline_s, limit_bytes=1_000_000,
    )  # fmt: skip
    return answer.status, answer.error


def _ask_all(service: Service, deadline_s: float) -> list[str]:
    async def all_of_them() -> list[str]:
        return await asyncio.gather(*(_ask(service, messages, deadline_s) for messages in _PROMPTS))

    return asyncio.run(all_of_them())


async def _ask(service: Service, messages: list[dict[str, str]], deadline_s: float) -> str:
    """One answer's text, of a reasoning model what it thought where it said nothing yet.

    Raises:
        EngineError: None came in time, or one that means nothing.
    """
    began = time.monotonic()
    remedy = f"vindicate diagnose {service.url}"
    model = await first_model(service.url, headers=service.auth(), deadline_s=deadline_s, remedy=remedy)
    body = {"model": model, "messages": messages, "max_tokens": _MAX_TOKENS, "temperature": 0}
    answer = await exchange(
        f"{service.url}/v1/chat/completions", method="POST", body=msgspec.json.encode(body),
        headers={"Content-Type": "application/json", **service.auth()},
        deadline_s=max(0.1, deadline_s - (time.monotonic() - began)), limit_bytes=1_000_000,
    )  # fmt: skip
    if answer.status not in (None, 200):
        raise EngineError(f"{service.name} answers {answer.status} to a short prompt", remedy=remedy)
    if answer.error is not None:
        raise EngineError(
            f"{service.name} gave no whole answer in {deadline_s:g} s to a short prompt ({answer.error})", remedy=remedy
        )
    try:
        message = msgspec.json.decode(answer.body)["choices"][0]["message"]
        said = (message.get(part) for part in ("content", "reasoning_content", "reasoning"))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, LookupError, TypeError, AttributeError) as error:
        raise EngineError(
            f"{service.name} gave no usable answer to a short prompt ({type(error).__name__})", remedy=remedy
        ) from error
    return next((text for text in said if isinstance(text, str) and text), "")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
