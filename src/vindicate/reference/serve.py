"""An aiohttp application → a server that drains for a bounded time on SIGTERM, and is then gone."""

import asyncio
import logging
import signal

from aiohttp import web

from vindicate.errors import CannotError
from vindicate.reference.settings import Settings

__all__ = ["serve"]


async def serve(app: web.Application, settings: Settings) -> None:
    """Serve *app* until SIGTERM or SIGINT; live requests get `settings.drain_s` to end, and are then cut.

    Raises:
        CannotError: The port cannot be had.
    """
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    # A client that leaves cancels its handler; that is how a request is freed at once.
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=settings.drain_s, access_log=None)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, settings.host, settings.port, backlog=1024).start()
        except OSError as error:
            raise port_error(settings.host, settings.port, error) from error
        logging.getLogger("vindicate.reference").info(
            "%s is ready on http://%s:%d", settings.role, settings.host, settings.port
        )
        await stopped.wait()
    finally:
        await runner.cleanup()


def port_error(host: str, port: int, error: OSError) -> CannotError:
    """What to say when a port cannot be had."""
    return CannotError(
        f"cannot listen on {host}:{port}: {error.strerror or error}",
        remedy=f"see who holds it: ss -ltnp 'sport = :{port}'",
    )
