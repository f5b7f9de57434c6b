"""A client for the servers under test, and its requests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import aiohttp
import pytest_asyncio

from controller_runtime.serving.server import HttpsServer


@pytest_asyncio.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    """An HTTP client."""
    async with aiohttp.ClientSession() as session:
        yield session


async def get(session: aiohttp.ClientSession, server: HttpsServer, path: str) -> tuple[int, str]:
    """Return status and body of a path."""
    async with session.get(f"http://127.0.0.1:{server.port}{path}") as response:
        return response.status, await response.text()
