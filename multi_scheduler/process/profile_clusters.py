"""Adds ClusterProfiles with a working credential plugin to the lower clusters of the configuration file."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping

import msgspec

from clusterset.config import Cluster, names_in_use, profile_cluster
from clusterset.inventory import inventory
from clusterset.inventory.inventory import Inventory
from controller_runtime import log
from controller_runtime.auth import kubeconfig
from controller_runtime.client.connecting import connected
from multi_scheduler.config import Config
from multi_scheduler.process.settings import ProcessSettings

_AGAIN = 60.0
"""Seconds between two attempts to use a kubeconfig whose plugin failed."""
_INTERVAL = 60.0
"""Minimum seconds between two changes of the clusters. Each change restarts all clients, and users who are not
administrators can cause changes, too."""
_LONGEST = 3600.0
"""Maximum seconds between two restarts because of one cluster. The time doubles from ``_INTERVAL`` with each restart."""
AT_ONCE = 8
"""Maximum number of plugins that run at the same time."""


class ProfileClusters:
    """The lower clusters of the configuration file and, with ``clusterProfiles``, of ClusterProfiles."""

    def __init__(self, config: Config, found: Inventory | None, program: str) -> None:
        """Begin without clusters of ClusterProfiles; without ``found``, they are not used."""
        self._config, self._inventory = config, found
        self._taken = names_in_use(config.clusters)
        self._applied: Mapping[str, str] = {}
        self._applied_at = float("-inf")
        self._waits: dict[str, tuple[float, float]] = {}
        """Name of a cluster → monotonic time until which its changes cause no restart, and the seconds of this wait."""
        self._checked: dict[str, tuple[str, float]] = {}
        """Path of a kubeconfig → why it cannot be used (empty: it can), and when that was checked."""
        self._checks: dict[str, asyncio.Task[None]] = {}
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._log = log.get_logger(component=program)

    def config(self) -> Config:
        """Return the configuration with the clusters of ClusterProfiles that can be used now."""
        usable, now = self._usable(), _now()
        self._waits = {name: one for name, one in self._waits.items() if now < one[0] + _LONGEST}
        for name in self._different(usable):
            delay = min(2 * self._waits.get(name, (0.0, _INTERVAL / 2))[1], _LONGEST)
            self._waits[name] = now + delay, delay
        self._applied, self._applied_at = usable, now
        clusters = [self._cluster(name) for name in self._applied]
        return msgspec.structs.replace(self._config, clusters=[*self._config.clusters, *clusters])

    def is_changed(self) -> bool:
        """Report whether ``config`` would return other clusters; False if its last call is too recent.

        A cluster counts when its plugin has run. A cluster that comes and goes again and again counts less and less
        often, and does not delay the changes of other clusters.
        """
        self.check()
        now = _now()
        return now - self._applied_at >= _INTERVAL and any(
            now >= self._waits.get(name, (now,))[0] for name in self._different(self._usable())
        )

    def rotated(self) -> list[Cluster]:
        """Return the applied clusters whose kubeconfig has changed and can be used; from now on they count as applied.

        The inventory limits how often a ClusterProfile changes its kubeconfig.
        """
        usable = self._usable()
        changed = [name for name, path in self._applied.items() if usable.get(name, path) != path]
        self._applied = {name: usable.get(name, path) for name, path in self._applied.items()}
        return [self._cluster(name) for name in changed]

    def _cluster(self, name: str) -> Cluster:
        if (profiles := self._config.cluster_profiles) is None:
            raise ValueError(f"{name}: there are no ClusterProfiles")
        return profile_cluster(profiles, name, self._applied[name])

    def _different(self, usable: Mapping[str, str]) -> list[str]:
        """Return the clusters that were added or removed since ``config`` ran, except those not checked yet."""
        paths = self._inventory.kubeconfigs(self._taken) if self._inventory is not None else {}
        return [
            name
            for name in usable.keys() ^ self._applied.keys()
            if name not in paths or paths[name] in self._checked
        ]

    def check(self) -> bool:
        """Start checks that are due; report whether all current kubeconfigs have been checked."""
        if self._inventory is None:
            return True
        paths = self._inventory.kubeconfigs(self._taken)
        current = frozenset(paths.values())
        for path in self._checked.keys() - current:
            del self._checked[path]
        for path in self._checks.keys() - current:
            self._checks.pop(path).cancel()
        for name, path in paths.items():
            why, at = self._checked.get(path, ("unknown", float("-inf")))
            if why and _now() - at >= _AGAIN and path not in self._checks:
                self._checks[path] = asyncio.create_task(self._check(name, path), name=f"check of {name}")
        return self._inventory.has_synced and all(path in self._checked for path in current)

    def failed(self, name: str, why: str) -> None:
        """Leave out a cluster whose clients cannot be created; its kubeconfig is checked again later."""
        self._log.error("lower cluster of a ClusterProfile not used", cluster=name, error=why)
        self._checked[self._applied[name]] = (why, _now())
        self._applied = {other: path for other, path in self._applied.items() if other != name}

    def is_profile(self, name: str) -> bool:
        """Report whether a cluster of the last configuration comes from a ClusterProfile."""
        return name in self._applied

    async def settle(self, seconds: float) -> None:
        """Wait until all kubeconfigs have been checked, at most ``seconds``."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self.check():  # noqa: ASYNC110 - the caches have no event for this
                    await asyncio.sleep(0.1)

    async def close(self) -> None:
        """Stop running checks."""
        for task in self._checks.values():
            task.cancel()
        await asyncio.gather(*self._checks.values(), return_exceptions=True)

    def _usable(self) -> Mapping[str, str]:
        if self._inventory is None:
            return {}
        paths = self._inventory.kubeconfigs(self._taken)
        return {name: path for name, path in paths.items() if self._checked.get(path, ("unknown",))[0] == ""}

    async def _check(self, name: str, path: str) -> None:
        async with self._slots:
            why = await kubeconfig.trouble(path)
        before = self._checked.get(path, ("", 0.0))[0]
        if why and why != before:
            self._log.error("lower cluster of a ClusterProfile not used", cluster=name, error=why)
        self._checked[path] = (why, _now())
        self._checks.pop(path, None)


@contextlib.asynccontextmanager
async def following(options: ProcessSettings, program: str) -> AsyncIterator[ProfileClusters]:
    """Follow the ClusterProfiles within the context, if the configuration uses them.

    Raises:
        ConfigError: the upper kubeconfig or the file of providers cannot be used.
    """
    settings = options.config.cluster_profiles
    async with contextlib.AsyncExitStack() as stack:
        found: Inventory | None = None
        if settings is not None:
            upper = await stack.enter_async_context(
                connected(options.kubeconfig, server=options.master, cluster="upper", user_agent=program)
            )
            found = await stack.enter_async_context(inventory.following(upper, settings))
        clusters = ProfileClusters(options.config, found, program)
        stack.push_async_callback(clusters.close)
        yield clusters


def _now() -> float:
    return asyncio.get_running_loop().time()
