"""A server → the model it serves first."""

import msgspec

from vindicate.errors import EngineError
from vindicate.redact import redact_text
from vindicate.stack.http import exchange

__all__ = ["first_model"]


async def first_model(url: str, *, headers: dict[str, str], deadline_s: float, remedy: str) -> str:
    """The name that `/v1/models` lists first.

    Raises:
        EngineError: It lists none, answers an error, or says nothing in time.
    """
    shown = f"{redact_text(url)}/v1/models"
    answer = await exchange(f"{url}/v1/models", deadline_s=deadline_s, headers=headers)
    if answer.error in ("connect_timeout", "no_headers", "no_first_byte", "stalled"):
        raise EngineError(f"{shown} did not answer within {deadline_s:g} s", remedy=remedy)
    if answer.error is not None:
        raise EngineError(f"{shown} gave no whole answer ({answer.error})", remedy=remedy)
    if answer.status != 200:
        raise EngineError(f"{shown} answers {answer.status}", remedy=remedy)
    try:
        return str(msgspec.json.decode(answer.body)["data"][0]["id"])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, LookupError, TypeError) as error:
        raise EngineError(f"{shown} does not list a model: {type(error).__name__}", remedy=remedy) from error
