"""Follows the lower clusters of a process: which were added, changed or removed, and whose kubeconfigs changed.

The clusters come from the configuration file and from ClusterProfiles (``profile_clusters``).

With ``--wait-for-config``, a program with an unusable configuration is not ready, and waits until it is usable. If the
program ended instead, the reason would be only in the log of a container in a crash loop, and the kubelet would restart
the container with a delay of up to five minutes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from clusterset.config import Cluster
from controller_runtime import log
from controller_runtime.auth import kubeconfig
from controller_runtime.auth.kubeconfig import ConnectionConfig
from controller_runtime.errors import ConfigError
from controller_runtime.process import lifecycle
from controller_runtime.serving.health import Check
from controller_runtime.serving.server import HealthServer
from controller_runtime.util.file_changes import FileChanges


async def connection(cluster: Cluster) -> ConnectionConfig:
    """Return how to connect to a lower cluster.

    Raises:
        ConfigError: the kubeconfig cannot be used.
    """
    return await kubeconfig.load(
        cluster.kubeconfig, context=cluster.context, server=cluster.server, in_cluster=False
    )


_AGAIN = 60.0
"""Seconds until an unchanged kubeconfig that cannot be used is loaded again. Users who are not administrators can cause this
by ClusterProfiles, and a credential plugin may need much CPU time."""
_AT_ONCE = 8
"""Maximum number of kubeconfigs, and so of credential plugins, that are loaded at the same time."""


@dataclass(frozen=True, slots=True)
class Change:
    """The names of the lower clusters that differ between two configurations, sorted."""

    added: Sequence[str]
    changed: Sequence[str]
    """Clusters with other settings or with a rotated kubeconfig."""
    removed: Sequence[str]


def changes(before: Iterable[Cluster], after: Iterable[Cluster], rotated: Collection[str] = ()) -> Change:
    """Return how the clusters differ; ``rotated`` names those whose kubeconfig has other content."""
    old, new = ({cluster.name: cluster for cluster in clusters} for clusters in (before, after))
    return Change(
        added=sorted(new.keys() - old.keys()),
        changed=sorted(name for name in new.keys() & old.keys() if new[name] != old[name] or name in rotated),
        removed=sorted(old.keys() - new.keys()),
    )


class Kubeconfigs:
    """Loads the kubeconfigs of lower clusters when they change. One that cannot be used replaces none in use.

    Attributes:
        loaded: how to connect to each cluster, from its last kubeconfig that could be used, by the cluster's name.
        refused: why the current kubeconfig of a cluster is not applied, by the cluster's name.
    """

    def __init__(self, clusters: Sequence[Cluster], *, component: str, loads_new: bool = False) -> None:
        """Begin with the current content of the files.

        Args:
            clusters: the clusters that run with their current kubeconfigs.
            component: the program's name in the log.
            loads_new: whether a kubeconfig is also loaded when its cluster or its path is new. Otherwise the caller does
                that when it starts the cluster.
        """
        self.loaded: dict[str, ConnectionConfig] = {}
        self.refused: dict[str, str] = {}
        self._loads_new = loads_new
        self._changes = FileChanges(_files(clusters))
        self._paths: dict[str, str] = {}
        self._loading: dict[str, asyncio.Task[None]] = {}
        self._again: dict[str, float] = {}
        """Loop time at which a refused kubeconfig is loaded again, by the cluster's name."""
        self._applicable: set[str] = set()
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._log = log.get_logger(component=component)

    async def load(self, clusters: Sequence[Cluster]) -> None:
        """Load the kubeconfigs of clusters now, and not in the background.

        Raises:
            ConfigError: a kubeconfig cannot be used.
        """
        loaded = await asyncio.gather(
            *(self._connection(cluster) for cluster in clusters), return_exceptions=True
        )
        for cluster, result in zip(clusters, loaded, strict=True):
            if isinstance(result, BaseException):
                raise result
            self.loaded[cluster.name] = result
        self._paths |= _files(clusters)

    def poll(self, clusters: Sequence[Cluster]) -> set[str]:
        """Begin to load changed kubeconfigs; return the clusters whose kubeconfig was loaded since the last call.

        Args:
            clusters: the clusters to follow from now on; others are forgotten.
        """
        now, files = asyncio.get_running_loop().time(), _files(clusters)
        for name in self._paths.keys() - files.keys():
            self._forget(name)
        due = {*self._changes.changed(files), *(name for name, at in self._again.items() if now >= at)}
        if self._loads_new:
            due |= {name for name, path in files.items() if self._paths.get(name) != path}
        self._paths = files
        for cluster in clusters:
            if cluster.name in due:
                self._stop_loading(cluster.name)
                self._again.pop(cluster.name, None)
                self._loading[cluster.name] = asyncio.create_task(
                    self._load(cluster), name=f"kubeconfig of {cluster.name}"
                )
        applicable, self._applicable = self._applicable, set()
        return applicable

    @property
    def is_loading(self) -> bool:
        """Report whether a kubeconfig is being loaded."""
        return bool(self._loading)

    async def close(self) -> None:
        """Stop loading."""
        tasks = list(self._loading.values())
        for name in list(self._loading):
            self._stop_loading(name)
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _load(self, cluster: Cluster) -> None:
        name, why = cluster.name, ""
        try:
            self.loaded[name] = await self._connection(cluster)
        except Exception as error:  # noqa: BLE001 - any error concerns this cluster only
            why = lifecycle.describe(error) or repr(error)
        self._loading.pop(name)
        if not why:
            self.refused.pop(name, None)
            self._applicable.add(name)
            return
        if why != self.refused.get(name):
            self._log.error("kubeconfig not applied", cluster=name, error=why)
        self.refused[name] = why
        self._again[name] = asyncio.get_running_loop().time() + _AGAIN

    async def _connection(self, cluster: Cluster) -> ConnectionConfig:
        async with self._slots:
            return await connection(cluster)

    def _stop_loading(self, name: str) -> None:
        if (task := self._loading.pop(name, None)) is not None:
            task.cancel()

    def _forget(self, name: str) -> None:
        self._stop_loading(name)
        self._applicable.discard(name)
        for known in (self.loaded, self.refused, self._again):
            known.pop(name, None)


def _files(clusters: Sequence[Cluster]) -> dict[str, str]:
    return {cluster.name: cluster.kubeconfig for cluster in clusters}


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
