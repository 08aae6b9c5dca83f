"""A Stack → the version that each worker and router tells, by a GET or two."""

import asyncio

from vindicate.redact import redact_text
from vindicate.stack.ask import read_json
from vindicate.stack.model import Service, Stack

__all__ = ["versions_of"]


def versions_of(stack: Stack) -> dict[str, str]:
    """By service; those that tell none are left out. A relay is not asked: it would tell that of what stands behind it."""
    return asyncio.run(_all([one for one in stack.services.values() if one.role not in ("proxy", "gateway", "router")]))


async def _all(services: list[Service]) -> dict[str, str]:
    told = await asyncio.gather(*(_one(service) for service in services))
    return {service.name: version for service, version in zip(services, told, strict=True) if version}


async def _one(service: Service) -> str | None:
    for path in ("/version", "/server_info"):
        version = (await read_json(service.url + path)).get("version")
        if isinstance(version, str) and version:
            return redact_text(version[:40])
    return None
