"""Runs a task per lower cluster, and restarts each on its own when it fails."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import structlog

from clusterset.config import Cluster
from controller_runtime.cache.shared import SharedInformers
from controller_runtime.errors import CacheFull, ConfigError
from controller_runtime.process import lifecycle
from controller_runtime.util import event_loop, rate_limiter
from virtual_node import metrics
from virtual_node.cluster.kubelet_endpoints import KubeletEndpoints
from virtual_node.cluster.lower_cluster import COMPONENT, TOO_LARGE_PAUSE, LowerCluster
from virtual_node.config.types import Config
from virtual_node.controllers.node_lease import Identity
from virtual_node.process_state import ProcessState


class Supervisor:
    """Runs lower clusters until they are stopped.

    Attributes:
        configs: configurations of the clusters that were started and not stopped, by name.
        shared: caches of the upper cluster for the clusters that start from now on; None: each has its own.
    """

    def __init__(self, state: ProcessState, *, identity: Identity | None) -> None:
        """Begin without clusters.

        Args:
            state: of the process; the running clusters, and why others do not run, are kept in it.
            identity: the holder of the virtual nodes' Leases; None: the process itself.
        """
        self.configs: dict[str, Cluster] = {}
        self.shared: SharedInformers | None = None
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._state = state
        self._identity = identity
        self._log = structlog.get_logger(component=COMPONENT)

    def apply(self, config: Config, *, cluster_id: str, endpoints: KubeletEndpoints) -> None:
        """Start the clusters of a configuration that do not run; the caller has stopped the removed ones."""
        for cluster in config.clusters:
            if cluster.name not in self._tasks:
                metrics.expect_cluster(cluster.name)
                work = self._supervise(cluster, config, cluster_id, endpoints)
                self.configs[cluster.name] = cluster
                self._tasks[cluster.name] = asyncio.create_task(work, name=f"lower cluster {cluster.name}")

    async def stop(self, clusters: Iterable[str]) -> None:
        """Stop the given clusters that were started, and drop their failures and metrics."""
        names = [name for name in clusters if name in self._tasks]
        tasks = [self._tasks.pop(name) for name in names]
        for name in names:
            del self.configs[name]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for name in names:
            self._state.failures.pop(name, None)
            self._state.incorrect.pop(name, None)
            metrics.forget_cluster(name)

    async def _supervise(
        self, cluster: Cluster, config: Config, cluster_id: str, endpoints: KubeletEndpoints
    ) -> None:
        """Run one lower cluster and restart it when it fails; a failure never affects another cluster."""
        state, log = self._state, self._log.bind(cluster=cluster.name)
        restarts = rate_limiter.Restarts()
        full_since: float | None = None
        while True:
            started = event_loop.now()
            lower = LowerCluster(
                cluster,
                settings=config,
                cluster_id=cluster_id,
                endpoints=endpoints,
                report=state.report,
                identity=self._identity,
                shared=self.shared,
                full_since=full_since,
            )
            state.clusters[cluster.name] = lower
            state.failures.pop(cluster.name, None)
            unusable, is_too_large = "", False
            try:
                await lower.run()
            except ConfigError as error:
                unusable = state.failures[cluster.name] = str(error)
                log.error("lower cluster cannot be used", error=unusable)  # noqa: TRY400 - one clear line
            except Exception as error:
                is_too_large = isinstance(error, CacheFull)
                known = lifecycle.describe(error)
                failure = state.failures[cluster.name] = known or repr(error)
                unusable = failure if _is_configuration(error) else ""
                if known is None:
                    log.exception("lower cluster failed", error=str(error))
                else:
                    log.error("lower cluster failed", error=known)  # noqa: TRY400 - one clear line
            finally:
                state.clusters.pop(cluster.name, None)
                full_since = lower.full_since if is_too_large else None
                del lower  # its caches must not stay in memory during the pause
            state.incorrect.pop(cluster.name, None)
            if unusable:
                state.incorrect[cluster.name] = unusable
            delay = max(restarts.delay(event_loop.now() - started), TOO_LARGE_PAUSE if is_too_large else 0.0)
            log.info("restarting lower cluster", retry_in=round(delay, 1))
            await asyncio.sleep(delay)


def _is_configuration(error: BaseException) -> bool:
    """Report whether only the user can correct a failure; task groups raise groups of errors."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(_is_configuration, error.exceptions))
    return isinstance(error, ConfigError)
