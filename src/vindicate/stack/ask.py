"""A port → what it says of itself, by a few GETs with short deadlines; never anything that changes it."""

import asyncio
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import msgspec

from vindicate.stack.http import Exchange, exchange
from vindicate.wire.prometheus import read_page

__all__ = ["ASK_S", "BODY_LIMIT", "Answers", "ask", "read_json", "speaks_plain"]

ASK_S = 1.5
BODY_LIMIT = 1_000_000
_ROUTERS = {"smg_": "sglang-router", "sgl_router_": "sglang-router", "vllm_router_": "vllm-router"}
_ENGINES = {"sglang:": "sglang", "vllm:": "vllm", "llamacpp:": "llama.cpp"}


@dataclass(slots=True)
class Answers:
    """What a port said to three GETs.

    Attributes:
        spoke: Some HTTP status came.
        silent: It took the connection, or let it wait, and said nothing.
        llm: It answers like an LLM service, or like something that passes such answers on.
        mode: ``prefill`` or ``decode``, where it says so; a router passes on what its first worker says.
        engine, router: Whose metrics it shows, in the words of the stack file.
        metrics: Where it shows them.
        workers: URLs that a router's metrics name as its workers; which side of a split pair they count each as, or "".
    """

    spoke: bool = False
    silent: bool = False
    refused: bool = False
    llm: bool = False
    mode: str | None = None
    engine: str | None = None
    router: str | None = None
    metrics: str | None = None
    workers: dict[str, str] = field(default_factory=dict)


async def ask(url: str, other_ports: list[int]) -> Answers:
    """Three GETs to a port, and one for metrics to each further port of the same process."""
    parts = urlsplit(url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    pages = [f"{url}/metrics", *(f"{parts.scheme}://{host}:{port}/metrics" for port in other_ports)]
    models, info, *metrics = await asyncio.gather(
        *(_get(each) for each in (f"{url}/v1/models", f"{url}/model_info", *pages))
    )
    made = Answers()
    first = (models, info, metrics[0])
    made.spoke = any(one.status is not None for one in first)
    made.refused = all(one.error in ("refused", "unreachable", "unresolved", "connect_timeout") for one in first)
    made.silent = not made.spoke and any(one.error in ("no_headers", "connect_timeout") for one in first)
    listed = _json(models)
    made.llm = isinstance(listed.get("data"), list) or models.status in (401, 403)
    mode = _json(info).get("disaggregation_mode")
    made.mode = mode if mode in ("prefill", "decode") else None
    made.llm |= "model_path" in _json(info)
    for page, answer in zip(pages, metrics, strict=True):
        _read_families(made, page, answer)
    return made


async def read_json(url: str) -> dict[str, object]:
    """The JSON object at *url*; empty when there is none."""
    return _json(await _get(url))


async def speaks_plain(url: str) -> bool:
    """Whether the port of an https *url* fails its handshake and answers plain HTTP."""
    if (await _get(f"{url}/v1/models")).error not in ("tls", "tls_timeout"):
        return False
    return (await _get(f"http{url.removeprefix('https')}/v1/models")).status is not None


def _read_families(made: Answers, page: str, answer: Exchange) -> None:
    if answer.status != 200 or answer.error is not None:
        return
    sides: dict[str, set[str]] = {}
    for value in read_page(answer.body, limit=2000).values:
        for prefix, engine in _ROUTERS.items():
            if value.name.startswith(prefix):
                made.router, made.metrics, made.llm = made.router or engine, page, True
                for worker in (text for label, text in value.labels if label == "worker" and "://" in text):
                    sides.setdefault(worker, set()).update(s for s in ("prefill", "decode") if s in value.name)
        for prefix, engine in _ENGINES.items():
            if value.name.startswith(prefix):
                made.engine, made.metrics, made.llm = made.engine or engine, made.metrics or page, True
    made.workers |= {url: "".join(its) if len(its) == 1 else "" for url, its in sorted(sides.items())[:64]}


async def _get(url: str) -> Exchange:
    return await exchange(url, deadline_s=ASK_S, limit_bytes=BODY_LIMIT)


def _json(answer: Exchange) -> dict[str, object]:
    if answer.error is not None or answer.status != 200:
        return {}
    try:
        found = msgspec.json.decode(answer.body)
    except (msgspec.DecodeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
