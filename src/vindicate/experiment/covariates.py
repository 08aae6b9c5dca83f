"""Services and the host → what a start says of itself, and what may move a figure besides the knob; reads only, never raises.

Nothing here decides anything: `fair` holds both arms' figures against each other.
"""

import asyncio
import contextlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

from vindicate.redact import is_secret_name, redact_text
from vindicate.stack.ask import read_json
from vindicate.stack.http import exchange
from vindicate.stack.model import Service
from vindicate.wire.prometheus import read_page

__all__ = ["Cards", "cache_counts", "hit_share", "said_of_itself", "watch_cards"]

_DEADLINE_S = 2.0
# What decides speed and is told by SGLang's /server_info or vLLM's /version.
_IDENTITY = (
    "version",
    "model_path",
    "device",
    "dtype",
    "quantization",
    "tp_size",
    "dp_size",
    "pp_size",
    "attention_backend",
)
_SIZES = ("max_total_num_tokens", "max_total_tokens", "effective_max_running_requests_per_dp")
_HITS = ("sglang:cached_tokens_total", "vllm:prefix_cache_hits_total")
_ASKED = ("sglang:prompt_tokens_total", "vllm:prefix_cache_queries_total")


def said_of_itself(services: Sequence[Service]) -> tuple[dict[str, str], dict[str, float]]:
    """Versions, models and layouts by ``service name``; and sizes that differ from start to start, such as its KV cache."""
    return asyncio.run(_all(services))


async def _all(services: Sequence[Service]) -> tuple[dict[str, str], dict[str, float]]:
    identity: dict[str, str] = {}
    sizes: dict[str, float] = {}
    for service in services:
        told: dict[str, Any] = {}
        for path in ("/version", "/server_info", "/get_server_info"):
            if "version" not in told or "model_path" not in told:
                told |= await read_json(service.url + path)
        identity |= {
            f"{service.name} {name}": redact_text(str(told[name])[:80])
            for name in _IDENTITY
            if isinstance(told.get(name), str | int) and not is_secret_name(name)
        }
        inner = [told, *(part for key in ("scheduler_info", "internal_states") for part in _parts(told.get(key)))]
        for name in _SIZES:
            found = next((float(part[name]) for part in inner if isinstance(part.get(name), int | float)), None)
            if found is not None:
                sizes[f"{service.name} {name}"] = found
    return identity, sizes


def _parts(value: object) -> list[dict[str, Any]]:
    return [part for part in (value if isinstance(value, list) else [value]) if isinstance(part, dict)]


def cache_counts(services: Sequence[Service]) -> dict[str, float]:
    """Counters of prompt tokens and of those that a prefix cache answered, over all *services*; empty where none tells both."""
    return asyncio.run(_counts(services))


async def _counts(services: Sequence[Service]) -> dict[str, float]:
    totals = {"hits": 0.0, "asked": 0.0}
    told = False
    for service in services:
        page = await exchange(service.metrics, deadline_s=_DEADLINE_S) if service.metrics else None
        if page is None or page.error is not None or page.status != 200:
            continue
        values = read_page(page.body, families=(*_HITS, *_ASKED)).values
        told = told or any(sample.name in _HITS for sample in values)
        for name, of in (("hits", _HITS), ("asked", _ASKED)):
            totals[name] += sum(sample.value for sample in values if sample.name in of)
    return totals if told else {}


def hit_share(before: Mapping[str, float], after: Mapping[str, float]) -> float | None:
    """Share of the prompt tokens between two readings that a prefix cache answered."""
    asked = after.get("asked", 0.0) - before.get("asked", 0.0)
    hits = after.get("hits", 0.0) - before.get("hits", 0.0)
    return round(min(hits / asked, 1.0), 4) if before and after and asked > 0 and hits >= 0 else None


@dataclass(slots=True)
class Cards:
    """Means over this host's cards while they were watched; ``None`` where there is no `nvidia-smi`, or it says nothing."""

    sm_clock_mhz: float | None = None
    celsius: float | None = None
    _rows: list[tuple[float, float]] = field(default_factory=list)

    def read(self, text: str) -> None:
        """Take lines of ``clock, temperature``; what is no number is skipped."""
        for line in text.splitlines():
            with contextlib.suppress(ValueError):
                clock, celsius = map(float, line.split(","))
                self._rows.append((clock, celsius))
        if self._rows:
            self.sm_clock_mhz = round(sum(clock for clock, _ in self._rows) / len(self._rows), 1)
            self.celsius = round(sum(celsius for _, celsius in self._rows) / len(self._rows), 1)


@contextlib.contextmanager
def watch_cards(every_s: int = 1) -> Iterator[Cards]:
    """Sample SM clock and temperature of every card once a second, by one `nvidia-smi` that runs along."""
    cards = Cards()
    program = shutil.which("nvidia-smi")
    if program is None:
        yield cards
        return
    out: IO[str]
    with tempfile.TemporaryFile("w+", errors="replace") as out:
        words = [program, "--query-gpu=clocks.sm,temperature.gpu", "--format=csv,noheader,nounits", "-l", str(every_s)]
        try:
            child = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.DEVNULL)
        except OSError:
            yield cards
            return
        try:
            yield cards
        finally:
            child.kill()
            child.wait()
            out.seek(0)
            cards.read(out.read(1_000_000))
