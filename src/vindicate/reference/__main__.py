"""``python -m vindicate.reference prefill|decode|router …`` → one process of the reference stack."""

import asyncio
import logging
import sys
from collections.abc import AsyncIterator
from typing import Any

from aiohttp import web
from prometheus_client import disable_created_metrics

from vindicate.errors import VindicateError
from vindicate.reference.decode import Decode
from vindicate.reference.device import CpuDevice, Device, make_device
from vindicate.reference.front import Front
from vindicate.reference.metric import EngineMetrics
from vindicate.reference.model import CopyModel, Model
from vindicate.reference.prefill import Prefill
from vindicate.reference.router import Router
from vindicate.reference.serve import serve
from vindicate.reference.settings import Settings, read_settings

__all__ = ["main"]


def main(argv: list[str]) -> int:
    """Run one process until it is told to stop; its exit code."""
    disable_created_metrics()  # type: ignore[no-untyped-call]
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    try:
        settings = read_settings(argv)
        asyncio.run(_run(settings))
    except VindicateError as error:
        sys.stderr.write(f"error: {error.problem}\ntry: {error.remedy}\n")
        return error.exit_code
    return 0


async def _run(settings: Settings) -> None:
    if settings.role == "router":
        await serve(Router(settings).app(), settings)
        return
    role = Prefill if settings.role == "prefill" else Decode
    device = make_device(settings.device, has_knob=role is Decode)
    metrics = EngineMetrics(role=settings.role, model=settings.model, max_total_tokens=settings.max_total_tokens)
    engine = role(settings, make_model(device), device, metrics)

    async def live(_: web.Application) -> AsyncIterator[None]:
        await engine.start()
        yield
        await engine.close()

    app = Front(settings, engine).app()
    app.cleanup_ctx.append(live)
    await serve(app, settings)


def make_model(device: Device) -> Model[Any]:
    """Attention where it is computed, its shortcut where the device is simulated; the tokens are the same."""
    if isinstance(device, CpuDevice):
        from vindicate.reference.attention import exact_attention
        from vindicate.reference.induction import AttentionModel

        return AttentionModel(device.kernel or exact_attention)
    return CopyModel()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
