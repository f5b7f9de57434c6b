"""Yields to other tasks during long work without IO."""

from __future__ import annotations

import asyncio

_SLICE = 0.005
"""Seconds of work after which other tasks get a turn."""


class Slicer:
    """Yields to the event loop every 5 ms; call ``tick`` after each small piece of work."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._since = self._loop.time()

    async def tick(self) -> None:
        """Yield to other tasks if the time slice is used up."""
        if self._loop.time() - self._since > _SLICE:
            await asyncio.sleep(0)
            self._since = self._loop.time()
