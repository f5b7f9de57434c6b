"""Checks at intervals whether the lower cluster answers within a time limit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from controller_runtime.errors import ApiError, ConfigError
from virtual_node import metrics
from virtual_node.controllers.base.context import ClusterContext
from virtual_node.health.connections import plain


class HealthController:
    """Pings the lower API server, with at most one ping at a time."""

    def __init__(self, context: ClusterContext, *, changed: Callable[[], None]) -> None:
        self._context = context
        self._changed = changed
        self.reachable: bool | None = None
        """None until the first answer or timeout."""
        self.error: str = ""
        self.version: str = ""
        """The lower cluster's gitVersion, such as v1.34.4; empty: unknown."""

    @property
    def served_certificate(self) -> bytes | None:
        """Return the API server's certificate (DER); None: unknown."""
        return self._context.lower.served_certificate

    async def run(self) -> None:
        """Ping until cancelled."""
        settings = self._context.settings
        while True:
            await self._ping(settings.ping_timeout)
            await asyncio.sleep(settings.ping_interval)

    async def _ping(self, timeout: float) -> None:  # noqa: ASYNC109 - passed to the request
        before = (self.reachable, self.error, self.version)
        try:
            async with asyncio.timeout(timeout):
                await self._context.lower.ping(timeout=timeout)
                if not self.version or not self.reachable:
                    # A cluster may have been upgraded while it was down.
                    self.version = (await self._context.lower.version()).get("gitVersion", "")
        except (ApiError, ConfigError, TimeoutError) as error:
            # ConfigError: a credential has expired and cannot be renewed.
            self.reachable = False
            self.error = plain(str(error)) or f"no answer within {timeout:g} s"
        else:
            self.reachable = True
            self.error = ""
        metrics.CLUSTER_UP.labels(self._context.name).set(self.reachable)
        if (self.reachable, self.error, self.version) != before:
            if self.reachable:
                self._context.log.info("lower cluster answers", version=self.version)
            else:
                self._context.log.warning("lower cluster does not answer", error=self.error)
            self._changed()
