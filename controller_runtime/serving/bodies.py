"""Reads request bodies and writes answers within limits of size and time for each, and of memory for all."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from aiohttp import web

from controller_runtime.util.byte_budget import ByteBudget

RETRY_AFTER = {"Retry-After": "1"}
"""client-go repeats a request that is answered 429 or 5xx with this header until its own timeout."""


class Bodies:
    """Reads the bodies of one server's requests and writes answers.

    Args:
        max_bytes: Largest body of a request.
        total_bytes: Maximum bytes of all bodies that are being read or written; above this, the oldest
            transfer is dropped.
        seconds: Seconds within which a body must be received, or an answer must be read by the client.
    """

    def __init__(self, *, max_bytes: int, total_bytes: int, seconds: float) -> None:
        self.max_bytes = max_bytes
        self._seconds = seconds
        self._budget: ByteBudget[_Transfer] = ByteBudget(total_bytes, drop=_Transfer.drop)

    @property
    def held(self) -> int:
        """Return the bytes of all bodies that are being read or written."""
        return self._budget.held

    async def read(self, request: web.Request) -> bytes:
        """Return a request's body.

        Raises:
            HTTPException: The body is too large (413), too slow (408), incomplete (400), or exceeds the
                memory limit (503); the text names the reason.
        """
        if (request.content_length or 0) > self.max_bytes:
            raise self._too_large()
        body = bytearray()
        reading = _Transfer(asyncio.timeout(self._seconds))
        try:
            async with reading.deadline:
                while chunk := await request.content.readany():
                    body += chunk
                    if len(body) > self.max_bytes:
                        raise self._too_large()
                    self._budget.set(reading, len(body))
                    if reading.is_dropped:
                        raise TimeoutError
        except TimeoutError:
            if reading.is_dropped:
                raise web.HTTPServiceUnavailable(
                    text="too many request bodies at once\n", headers=RETRY_AFTER
                ) from None
            raise web.HTTPRequestTimeout(
                text=f"the body was not received within {self._seconds:g} s\n"
            ) from None
        except (asyncio.IncompleteReadError, ConnectionResetError):
            raise web.HTTPBadRequest(text="the body ended early\n") from None
        finally:
            self._budget.set(reading, 0)
        return bytes(body)

    async def write(self, request: web.Request, answer: web.Response) -> web.Response:
        """Write an answer and return it; close the connection of a client that does not read it in time.

        Without the limit, aiohttp would keep the complete answer in memory while the client is connected.
        """
        writing = _Transfer(asyncio.timeout(self._seconds))
        try:
            async with writing.deadline:
                self._budget.set(writing, len(answer.body) if isinstance(answer.body, bytes) else 0)
                await answer.prepare(request)
                await answer.write_eof()
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
        finally:
            self._budget.set(writing, 0)
        return answer

    def _too_large(self) -> web.HTTPException:
        return web.HTTPRequestEntityTooLarge(
            max_size=self.max_bytes, actual_size=0, text=f"the body is longer than {self.max_bytes} bytes\n"
        )


@dataclass(slots=True, eq=False)
class _Transfer:
    deadline: asyncio.Timeout
    is_dropped: bool = False

    def drop(self) -> None:
        """Stop the transfer: its deadline expires now."""
        self.is_dropped = True
        self.deadline.reschedule(asyncio.get_running_loop().time())
