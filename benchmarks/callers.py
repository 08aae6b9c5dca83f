"""An entry's URL → clients of it, as processes of their own: agents that wait for ever, that leave, or that keep idle connections."""

import asyncio
import random

__all__ = ["CLIENTS", "body", "busy", "forever", "hang", "session_of", "stream"]


def body(max_tokens: int, words: int = 40) -> dict[str, object]:
    """A chat of random words, so that no cache knows it."""
    text = " ".join(f"w{random.randrange(10_000)}" for _ in range(words))
    return {
        "model": "reference",
        "messages": [{"role": "user", "content": text}],
        "max_tokens": max_tokens,
        "stream": True,
        "ignore_eos": True,
    }


async def stream(session, url: str, max_tokens: int, *, stop_after: int | None = None) -> None:  # noqa: ANN001
    """Read one answer, or leave after *stop_after* events."""
    async with session.post(url + "/v1/chat/completions", json=body(max_tokens)) as response:
        if response.status != 200:
            await asyncio.sleep(0.5)
        seen = 0
        async for line in response.content:
            seen += line.startswith(b"data:")
            if stop_after is not None and seen >= stop_after:
                response.close()
                return


def session_of(n: int):  # noqa: ANN201
    """A client with *n* connections that it keeps alive."""
    import aiohttp

    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=n), timeout=aiohttp.ClientTimeout(total=None))


async def forever(session, url: str, max_tokens: int) -> None:  # noqa: ANN001
    """Ask again and again."""
    import aiohttp

    while True:
        try:
            await stream(session, url, max_tokens)
        except (aiohttp.ClientError, OSError):
            await asyncio.sleep(0.5)


async def hang(url: str) -> None:
    """Eight agents, round after round, with patience without end."""
    async with session_of(8) as session:
        await asyncio.gather(*(forever(session, url, 48) for _ in range(8)))


async def busy(url: str) -> None:
    """Twelve agents, round after round."""
    async with session_of(12) as session:
        await asyncio.gather(*(forever(session, url, 64) for _ in range(12)))


async def leave(url: str) -> None:
    """Cancel streams in the middle, more than any small pool has slots; each on its own connection."""
    for _ in range(6):
        async with session_of(1) as session:
            try:
                async with asyncio.timeout(3):
                    await stream(session, url, 200, stop_after=4)
            except TimeoutError:
                pass


async def idle(url: str) -> None:
    """Finish some requests and keep the connections."""
    async with session_of(6) as session:
        await asyncio.gather(*(stream(session, url, 16) for _ in range(6)))
        await asyncio.sleep(3600)


CLIENTS = {"hang": hang, "busy": busy, "leave": leave, "idle": idle}
