"""One client request → its two legs, to prefill and to decode at once; decode's answer is relayed as it comes.

Neither leg outlives the other's failure, nor the client; and the client always learns of a failure, by a status or by an error event.
"""

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Mapping

import aiohttp
from aiohttp import web

from vindicate.reference.openai import DONE, error_body
from vindicate.reference.worker import Worker

__all__ = ["Pair", "reason"]

_LOG = logging.getLogger("vindicate.reference")
_RELAYED = ("content-type", "cache-control", "content-length", "x-vindicate-simulated")


class _LegError(Exception):
    """A leg failed; what the client is to be told."""

    def __init__(self, worker: Worker, status: int, message: str, body: bytes | None = None) -> None:
        super().__init__(message)
        self.worker = worker
        self.status = status
        self.message = message
        self.body = body or json.dumps(error_body(message, status)).encode()


class Pair:
    """The two legs of one request; both get the same *body* and *headers*, an x-request-id among them."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        request: web.Request,
        workers: tuple[Worker, Worker],
        body: bytes,
        headers: Mapping[str, str],
    ) -> None:
        self._session = session
        self._request = request
        self._prefill, self._decode = workers
        self._body = body
        self._headers = headers
        self._response: web.StreamResponse | None = None

    async def answer(self, *, decode_is_lost: bool = False) -> web.StreamResponse:
        """Send both, and answer the client.

        Args:
            decode_is_lost: Act as if the decode leg had never got out, and wait for prefill all the same.

        Cancelled:
            Both legs are closed, so that both engines free the request.
        """
        prefill = asyncio.create_task(self._prefill_leg())
        decode = asyncio.create_task(self._decode_leg())
        legs = (prefill, decode)
        try:
            if decode_is_lost:
                decode.cancel()
                await prefill
            # Prefill ends first when all is well; when it fails, decode would wait for it in vain.
            await asyncio.wait(legs, return_when=asyncio.FIRST_COMPLETED)
            if prefill.done() and not decode.done():
                prefill.result()
            return await decode
        except _LegError as error:
            await _close(legs)
            return await self._fail(error)
        finally:
            await _close(legs)

    async def _prefill_leg(self) -> None:
        """Read prefill's answer to the end; it says nothing that a client needs."""
        worker = self._prefill
        with worker.active():
            try:
                answer = await self._send(worker)
                said = await answer.read()
            except (aiohttp.ClientError, TimeoutError) as error:
                raise _LegError(worker, 502, f"prefill {worker.url} failed: {reason(error)}") from error
        if answer.status != 200:
            raise _LegError(worker, answer.status, f"prefill {worker.url} answered {answer.status}", said)
        worker.succeeded()

    async def _decode_leg(self) -> web.StreamResponse:
        """Relay what decode sends."""
        worker = self._decode
        with worker.active():
            try:
                answer = await self._send(worker)
                said = b"" if answer.status == 200 else await answer.read()
            except (aiohttp.ClientError, TimeoutError) as error:
                raise _LegError(worker, 502, f"decode {worker.url} failed: {reason(error)}") from error
            async with answer:
                if answer.status != 200:
                    raise _LegError(worker, answer.status, f"decode {worker.url} answered {answer.status}", said)
                kept = {name: value for name, value in answer.headers.items() if name.lower() in _RELAYED}
                response = web.StreamResponse(headers={**kept, "x-request-id": self._headers["x-request-id"]})
                self._response = response
                await response.prepare(self._request)
                async for piece in _pieces(answer, worker):
                    await response.write(piece)
        worker.succeeded()
        await response.write_eof()
        return response

    async def _send(self, worker: Worker) -> aiohttp.ClientResponse:
        return await self._session.post(worker.url + self._request.path, data=self._body, headers=self._headers)

    async def _fail(self, error: _LegError) -> web.StreamResponse:
        """Tell the client: a status when nothing was sent yet, else an error event."""
        request_id = self._headers["x-request-id"]
        _LOG.warning("%s: %s", request_id, error.message)
        if error.status >= 500:
            error.worker.failed(time.monotonic())
        response = self._response
        if response is None or not response.prepared:
            headers = {"Content-Type": "application/json", "x-request-id": request_id}
            return web.Response(status=error.status, body=error.body, headers=headers)
        said = json.dumps({"error": error_body(error.message, error.status)})
        await response.write(f"data: {said}\n\n".encode() + DONE)
        await response.write_eof()
        return response


async def _pieces(answer: aiohttp.ClientResponse, worker: Worker) -> AsyncIterator[bytes]:
    """What *worker* sends, unbuffered; its failures are its own, and not those of the client that it is relayed to."""
    try:
        async for piece in answer.content.iter_any():
            yield piece
    except (aiohttp.ClientError, TimeoutError) as error:
        raise _LegError(worker, 502, f"decode {worker.url} broke off: {reason(error)}") from error


async def _close(legs: tuple[asyncio.Task[None], asyncio.Task[web.StreamResponse]]) -> None:
    """End both, and take note of how they ended."""
    for leg in legs:
        leg.cancel()
    await asyncio.gather(*legs, return_exceptions=True)


def reason(error: BaseException) -> str:
    """What *error* says, or else its kind."""
    return str(error) or type(error).__name__
