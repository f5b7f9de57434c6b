"""What can go wrong in the sandbox, in one clear line each."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any


class SandboxError(Exception):
    """Something that the user can mend; the text says what and how."""


async def together(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Do it all at once; when one part fails the others are ended before its error is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            for part in work:
                group.create_task(part)
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
