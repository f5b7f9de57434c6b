"""``--wait-for-config``: a program with an unusable configuration is not ready, and waits until it is usable.

If the program ended instead, the reason would be only in the log of a container in a crash loop, and the kubelet would
restart the container with a delay of up to five minutes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Protocol, TypeVar

from controller_runtime.errors import ConfigError
from controller_runtime.serving.health import Check
from controller_runtime.serving.server import HealthServer

_POLL = 2.0
"""Seconds between two attempts to read the configuration."""


class Settings(Protocol):
    """A parsed command line with its configuration."""

    @property
    def rejected(self) -> str:
        """Return why the configuration cannot be used; empty: it can."""


S = TypeVar("S", bound=Settings)


async def until_usable(settings: S, read: Callable[[], Awaitable[S]], report: Callable[[str], None]) -> S:
    """Read the settings again until their configuration can be used; return them.

    ``report`` is called with the reason after each attempt that failed.
    """
    while settings.rejected:
        await asyncio.sleep(_POLL)
        settings = await read()
        if settings.rejected:
            report(settings.rejected)
    return settings


@contextlib.asynccontextmanager
async def unready(address: str, why: Check) -> AsyncIterator[None]:
    """Serve health and metrics within the context, and ``why`` as the reason for not being ready.

    An address that is empty or in use is left out: the log is then the only report.
    """
    async with contextlib.AsyncExitStack() as stack:
        if address:
            with contextlib.suppress(ConfigError):
                await stack.enter_async_context(HealthServer(address, checks={"configuration": why}))
        yield
