"""Checks at intervals whether the lower cluster answers within a time limit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from controller_runtime.errors import ApiError, ConfigError
from virtual_node import metrics
from virtual_node.controllers.base.context import ClusterContext
from virtual_node.examine.connections import plain
from virtual_node.translate.base.fields import word

_version = word(64)
"""Reads the lower cluster's version, which becomes the kubelet version of its virtual nodes."""


@dataclass(eq=False, repr=False)
class HealthController:
    """Pings the lower API server, with at most one ping at a time."""

    context: ClusterContext
    changed: Callable[[], None]
    reachable: bool | None = None
    """None until the first answer or timeout."""
    answered_at: float | None = None
    """Loop time of the last answer; None: none yet."""
    error: str = ""
    version: str = ""
    """The lower cluster's gitVersion, such as v1.34.4; empty: unknown."""

    @property
    def served_certificate(self) -> bytes | None:
        """Return the API server's certificate (DER); None: unknown."""
        return self.context.lower.served_certificate

    async def run(self) -> None:
        """Ping until cancelled."""
        settings = self.context.settings
        while True:
            await self._ping(settings.ping_timeout)
            await asyncio.sleep(settings.ping_interval)

    async def _ping(self, timeout: float) -> None:  # noqa: ASYNC109 - passed to the request
        before = (self.reachable, self.error, self.version)
        try:
            async with asyncio.timeout(timeout):
                await self.context.lower.ping(timeout=timeout)
                if not self.version or not self.reachable:
                    # A cluster may have been upgraded while it was down.
                    self.version = _version((await self.context.lower.version()).get("gitVersion")) or ""
        except (ApiError, ConfigError, TimeoutError) as error:
            # ConfigError: a credential has expired and cannot be renewed.
            self.reachable = False
            self.error = plain(str(error)) or f"no answer within {timeout:g} s"
        else:
            self.reachable = True
            self.answered_at = asyncio.get_running_loop().time()
            self.error = ""
        metrics.CLUSTER_UP.labels(self.context.name).set(self.reachable)
        if (self.reachable, self.error, self.version) != before:
            if self.reachable:
                self.context.log.info("lower cluster answers", version=self.version)
            else:
                self.context.log.warning("lower cluster does not answer", error=self.error)
            self.changed()
