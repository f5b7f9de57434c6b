"""Reads the usage of a lower cluster's nodes periodically: one request at a time, spread over the interval."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass

from prometheus_client import Gauge

from controller_runtime import log
from controller_runtime.errors import ApiError, ConfigError
from controller_runtime.util.event_loop import Slicer
from multi_scheduler.usage.store import Sample, UsageStore

_FAILED = Gauge(
    "virtual_node_usage_source_failed",
    "1 while usage of a lower cluster's nodes cannot be read; their scores are neutral.",
    ["cluster"],
)
_UNREADABLE = (ValueError, LookupError, TypeError, ArithmeticError, AttributeError)


class Source:
    """A source of usage."""

    def read(self, nodes: Mapping[str, float], *, pause: float) -> AsyncIterator[tuple[str, Sample]]:
        """Yield samples of nodes, with one request at a time.

        Args:
            nodes: CPU of each node, in millicores.
            pause: seconds between requests for single nodes.

        Raises:
            ApiError: the source is unreachable, or refuses the request.
            ValueError: the response is invalid.
        """
        raise NotImplementedError

    async def close(self) -> None:
        """Close the source's own connections, if it has any."""


@dataclass(eq=False)
class UsageFeed:
    """Keeps a cluster's usage store current."""

    cluster: str
    source: Source
    store: UsageStore
    nodes: Callable[[], Mapping[str, float]]
    """Returns the lower nodes with their CPU in millicores."""
    interval: float
    """Seconds between two rounds."""
    _failure: str = ""

    def __post_init__(self) -> None:
        """Set the failure metric to 0; ``run`` reads."""
        self._log = log.get_logger(component="usage", cluster=self.cluster)
        _FAILED.labels(self.cluster).set(0)

    async def run(self) -> None:
        """Read usage periodically until cancelled."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                started = loop.time()
                if nodes := self.nodes():
                    await self._round(nodes)
                # Pause even if the source is slow, so that it is not read without a break.
                await asyncio.sleep(max(self.interval - (loop.time() - started), self.interval / 10))
        finally:
            await self.source.close()

    async def _round(self, nodes: Mapping[str, float]) -> None:
        self.store.keep(nodes)
        failure, count = "", 0
        slicer = Slicer()
        try:
            async for name, sample in self.source.read(nodes, pause=self.interval / len(nodes) / 2):
                await slicer.tick()  # a response may have thousands of unknown nodes
                if name in nodes:
                    self.store.add(name, sample, capacity=nodes[name])
                    count += 1
        except (ApiError, ConfigError, TimeoutError) as error:
            failure = str(error) or "no answer in time"
        except _UNREADABLE as error:
            failure = f"unexpected response: {error!r}"
        if not failure and not count:
            failure = "the source reports no node"
        self._note(failure)

    def _note(self, failure: str) -> None:
        _FAILED.labels(self.cluster).set(int(bool(failure)))
        if failure and not self._failure:
            self._log.warning("usage of lower nodes cannot be read, their scores are neutral", error=failure)
        elif self._failure and not failure:
            self._log.info("usage of lower nodes can be read again")
        self._failure = failure
