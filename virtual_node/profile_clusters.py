"""Adds the lower clusters of ClusterProfiles to those of the configuration file."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator, Mapping, Sequence

from controller_runtime.api.decoding import convert
from controller_runtime.client.client import Client
from controller_runtime.events.recorder import EventRecorder
from controller_runtime.inventory import inventory
from controller_runtime.inventory.inventory import Inventory
from controller_runtime.process import lifecycle
from virtual_node.cluster.lower_cluster import COMPONENT
from virtual_node.config.types import Config, LowerClusterConfig


class ProfileClusters:
    """The lower clusters of a process from both sources; without ``clusterProfiles``, those of the file."""

    def __init__(self, config: Config) -> None:
        """Begin with the lower clusters of the configuration file."""
        self._settings = config.cluster_profiles
        self._listed: Sequence[LowerClusterConfig] = config.clusters
        self._inventory: Inventory | None = None
        self._paths: Mapping[str, str] = {}
        self._found: list[LowerClusterConfig] = []

    @property
    def names(self) -> frozenset[str]:
        """Return the names of the lower clusters of ClusterProfiles."""
        return frozenset(self._paths)

    def merged(self, listed: Sequence[LowerClusterConfig] | None = None) -> list[LowerClusterConfig]:
        """Return the lower clusters of the file, then those of ClusterProfiles.

        Args:
            listed: the lower clusters of a changed file; None: the file has not changed.
        """
        if listed is not None:
            self._listed = listed
        if self._inventory is not None and self._settings is not None:
            taken = {
                name
                for one in self._listed
                for name in (one.name, *(node.name for node in one.virtual_nodes()))
            }
            paths = self._inventory.kubeconfigs(taken)
            if paths is not self._paths:
                self._paths = paths
                self._found = [
                    convert({**self._settings.defaults, "name": name, "kubeconfig": path}, LowerClusterConfig)
                    for name, path in paths.items()
                ]
        return [*self._listed, *self._found]

    @contextlib.asynccontextmanager
    async def following(self, upper: Client) -> AsyncIterator[None]:
        """Follow the ClusterProfiles within the context, and write events about those that are refused.

        Raises:
            ConfigError: the file of providers cannot be used.
        """
        recorder = EventRecorder(upper, component=COMPONENT, host=socket.gethostname())
        async with contextlib.AsyncExitStack() as stack:
            if self._settings is not None:
                await stack.enter_async_context(lifecycle.beside(recorder.run()))
            self._inventory = await stack.enter_async_context(
                inventory.following(
                    upper,
                    self._settings,
                    on_refused=lambda profile, why: recorder.event(profile, "Warning", inventory.REASON, why),
                )
            )
            yield
