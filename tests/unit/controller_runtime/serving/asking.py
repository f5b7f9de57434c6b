"""One request to a server."""

from __future__ import annotations

import aiohttp

from controller_runtime.serving.server import HttpsServer


async def get(session: aiohttp.ClientSession, server: HttpsServer, path: str) -> tuple[int, str]:
    """Return status and body of a path."""
    async with session.get(f"http://127.0.0.1:{server.port}{path}") as response:
        return response.status, await response.text()
