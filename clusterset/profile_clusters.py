"""Adds the lower clusters of ClusterProfiles to those of the configuration file, for a process and for commands."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence

import msgspec

from clusterset.config import Cluster, ClusterSet, names_in_use, profile_cluster
from clusterset.inventory import inventory
from clusterset.inventory.inventory import Inventory
from clusterset.inventory.settings import ClusterProfiles
from controller_runtime.client.client import Client
from controller_runtime.events import EventRecorder
from controller_runtime.objects import Object
from controller_runtime.process import lifecycle


class ProfileClusters:
    """The lower clusters of the configuration file and, with the setting ``clusterProfiles``, of ClusterProfiles.

    The inventory limits how often a ClusterProfile changes its cluster, because users who are not administrators can cause
    changes.
    """

    def __init__(self, config: ClusterSet) -> None:
        """Begin with the lower clusters of the configuration file."""
        self._settings = config.cluster_profiles
        self._listed: Sequence[Cluster] = config.clusters
        self._inventory: Inventory | None = None
        self._paths: Mapping[str, str] = {}
        self._added: list[Cluster] = []

    @property
    def names(self) -> frozenset[str]:
        """Return the names of the lower clusters of ClusterProfiles."""
        return frozenset(self._paths)

    @property
    def has_synced(self) -> bool:
        """Report whether the ClusterProfiles have been read, or are not used."""
        return self._inventory is None or self._inventory.has_synced

    def merged(self, listed: Sequence[Cluster] | None = None) -> list[Cluster]:
        """Return the lower clusters of the file, then those of ClusterProfiles.

        Args:
            listed: the lower clusters of a changed file; None: the file has not changed.
        """
        if listed is not None:
            self._listed = listed
        if self._inventory is not None and self._settings is not None:
            paths = self._inventory.kubeconfigs(names_in_use(self._listed))
            if paths is not self._paths:
                self._paths = paths
                self._added = _lower_clusters(self._settings, paths)
        return [*self._listed, *self._added]

    @contextlib.asynccontextmanager
    async def following(self, upper: Client, *, recorder: EventRecorder | None = None) -> AsyncIterator[None]:
        """Follow the ClusterProfiles within the context.

        Args:
            upper: the upper cluster.
            recorder: runs within the context and writes events about refused ClusterProfiles; None: no events are written.

        Raises:
            ConfigError: the file of providers cannot be used.
        """
        if self._settings is None:
            yield
            return

        def report(profile: Object, why: str) -> None:
            if recorder is not None:
                recorder.event(profile, "Warning", inventory.REASON, why)

        async with contextlib.AsyncExitStack() as stack:
            if recorder is not None:
                await stack.enter_async_context(lifecycle.beside(recorder.run()))
            self._inventory = await stack.enter_async_context(
                inventory.following(upper, self._settings, on_refused=report)
            )
            yield


@contextlib.asynccontextmanager
async def added(config: ClusterSet, upper: Client) -> AsyncIterator[Mapping[str, str]]:
    """Add the lower clusters of ClusterProfiles to a configuration once, for a command.

    Yields why a ClusterProfile is not used, by its ``namespace/name``. The kubeconfigs exist within the context.

    Raises:
        ConfigError: the ClusterProfiles or the file of providers cannot be read.
    """
    if (settings := config.cluster_profiles) is None:
        yield {}
        return
    async with inventory.read(upper, settings, taken=names_in_use(config.clusters)) as (paths, refused):
        config.clusters = [*config.clusters, *_lower_clusters(settings, paths)]
        yield refused


def _lower_clusters(settings: ClusterProfiles, paths: Mapping[str, str]) -> list[Cluster]:
    # The defaults are converted once, because that takes milliseconds and there may be hundreds of clusters.
    sample = profile_cluster(settings, "profile", "profile")
    return [
        msgspec.structs.replace(sample, name=name, node_name=name, kubeconfig=path)
        for name, path in paths.items()
    ]
