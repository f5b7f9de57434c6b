"""The sandbox's error, and concurrent steps that stop together."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any


class SandboxError(Exception):
    """An error that the user can correct; the text says what to do."""


async def together(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run all steps concurrently; when one fails the others are cancelled before its error is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            for part in work:
                group.create_task(part)
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
