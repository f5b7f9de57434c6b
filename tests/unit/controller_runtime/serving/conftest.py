"""A client for the servers under test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import aiohttp
import pytest_asyncio


@pytest_asyncio.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    """An HTTP client."""
    async with aiohttp.ClientSession() as session:
        yield session
