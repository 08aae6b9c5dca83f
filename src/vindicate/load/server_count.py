"""A server's metrics page → how many tokens it says that it generated, to be held beside the client's count."""

from collections.abc import Mapping

from vindicate.stack.http import exchange
from vindicate.wire.prometheus import read_page

__all__ = ["generated_tokens"]

_NAMES = ("sglang:generation_tokens_total", "sglang_generation_tokens_total", "vllm:generation_tokens_total")
_DEADLINE_S = 0.5


async def generated_tokens(url: str, headers: Mapping[str, str]) -> float | None:
    """The counter's sum over the server's processes; ``None`` where the page is missing, slow, or has none."""
    answer = await exchange(f"{url}/metrics", deadline_s=_DEADLINE_S, headers=headers)
    if answer.error is not None or answer.status != 200:
        return None
    found = [sample.value for sample in read_page(answer.body, families=_NAMES).values if sample.name in _NAMES]
    return sum(found) if found else None
