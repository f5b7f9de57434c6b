"""Adds the lower clusters of ClusterProfiles to those of the configuration file, for a process and for commands.

An ``Inventory`` follows the ClusterProfiles of the upper cluster (multicluster.x-k8s.io, KEP-4322 and KEP-5339), and writes
a kubeconfig file for each of them that can be used.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import structlog
from prometheus_client import Gauge

from clusterset.config import Cluster, ClusterProfiles, ClusterSet, names_in_use, profile_cluster
from clusterset.profiles import load_providers, select
from controller_runtime import resources
from controller_runtime.cache.informer import Informer
from controller_runtime.client.client import Client
from controller_runtime.errors import ApiError, ConfigError, NotFound
from controller_runtime.events import EventRecorder
from controller_runtime.objects import Object
from controller_runtime.process import lifecycle
from controller_runtime.util.file_changes import FileChanges

REASON = "ClusterProfileRefused"
"""Reason of the event about a ClusterProfile that is not used."""
_SHORTEST, _LONGEST = 5.0, 3600.0
"""Minimum and maximum seconds between two changes of one lower cluster, which restart it; doubled with each change."""
_COUNT = Gauge(
    "virtual_node_cluster_profiles",
    "ClusterProfiles that are used as lower clusters, and that are refused.",
    ["state"],
)


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
                recorder.event(profile, "Warning", REASON, why)

        async with contextlib.AsyncExitStack() as stack:
            if recorder is not None:
                await stack.enter_async_context(lifecycle.beside(recorder.run()))
            self._inventory = await stack.enter_async_context(
                followed(upper, self._settings, on_refused=report)
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
    async with read_once(upper, settings, taken=names_in_use(config.clusters)) as (paths, refused):
        config.clusters = [*config.clusters, *_lower_clusters(settings, paths)]
        yield refused


def _lower_clusters(settings: ClusterProfiles, paths: Mapping[str, str]) -> list[Cluster]:
    # The defaults are converted once, because that takes milliseconds and there may be hundreds of clusters.
    sample = profile_cluster(settings, "profile", "profile")
    return [
        msgspec.structs.replace(sample, name=name, node_name=name, kubeconfig=path)
        for name, path in paths.items()
    ]


class Inventory:
    """The lower clusters of the ClusterProfiles.

    Attributes:
        refused: why a ClusterProfile is not used, by ``namespace/name``.
    """

    def __init__(
        self,
        client: Client,
        settings: ClusterProfiles,
        *,
        directory: Path,
        on_refused: Callable[[Object, str], None] = lambda _profile, _why: None,
    ) -> None:
        """Create an inventory and read the file of providers; ``run`` follows the ClusterProfiles.

        Args:
            client: the upper cluster.
            settings: which ClusterProfiles are used.
            directory: an empty directory for the kubeconfigs.
            on_refused: called when a ClusterProfile is refused, and when the reason changes.

        Raises:
            ConfigError: the file of providers cannot be used.
        """
        self.refused: Mapping[str, str] = {}
        self._settings, self._directory, self._on_refused = settings, directory, on_refused
        self._file = {"providers": settings.providers_file}
        self._providers = load_providers(settings.providers_file)
        self._changes = FileChanges(self._file)
        self._log = structlog.get_logger(component="inventory")
        self._paths: dict[str, str] = {}
        self._waits: dict[str, tuple[float, float]] = {}
        """By name of a lower cluster: loop time before which it is not changed again, and the seconds of this wait."""
        self._taken: frozenset[str] = frozenset()
        self._is_stale = True
        # A failed list or watch, also without permission or without the CRD, leaves the store as it is: only an object that the
        # server reports as deleted, or that is missing in a complete list, is removed.
        self._informer = Informer(
            client,
            resources.CLUSTER_PROFILES,
            namespace=settings.namespace,
            label_selector=settings.label_selector or None,
            transform=lambda profile: profile.without("spec"),
        )
        self._informer.on_change(self._changed, self._changed)

    @property
    def has_synced(self) -> bool:
        """Report whether the first list of ClusterProfiles has been stored."""
        return self._informer.has_synced

    async def run(self) -> None:
        """Follow the ClusterProfiles until cancelled."""
        await self._informer.run()

    def kubeconfigs(self, taken: Collection[str]) -> Mapping[str, str]:
        """Return the path of the kubeconfig of each lower cluster, by the cluster's name; log what is refused.

        The path changes with the content, so a changed path means a changed cluster. If a ClusterProfile changes often,
        its path changes less and less often. ``taken``: the names of clusters and virtual nodes in the configuration file.
        """
        self._reread_providers()
        if self.has_synced and (self._is_stale or self._taken != frozenset(taken)):
            self._is_stale, self._taken = False, frozenset(taken)
            profiles = {profile.key: profile for profile in self._informer.store.list()}
            found = select(profiles.values(), self._providers, self._settings, taken=self._taken)
            self._report(found.refused, profiles)
            try:
                self._write(found.kubeconfigs)
            except OSError as error:
                self._is_stale = True  # tried again by the next call
                self._log.error("kubeconfigs of ClusterProfiles not written", error=str(error))
        return self._paths

    def _changed(self, _profile: Object) -> None:
        self._is_stale = True

    def _reread_providers(self) -> None:
        if not self._changes.changed(self._file):
            return
        try:
            self._providers = load_providers(self._settings.providers_file)
        except ConfigError as error:
            self._log.error("providers not applied", error=str(error))
            return
        self._is_stale = True

    def _report(self, refused: Mapping[str, str], profiles: Mapping[str, Object]) -> None:
        for key, why in refused.items():
            if self.refused.get(key) != why:
                self._log.warning("ClusterProfile refused", profile=key, error=why)
                self._on_refused(profiles[key], why)
        self.refused = refused
        _COUNT.labels("refused").set(len(refused))
        _COUNT.labels("used").set(len(profiles) - len(refused))

    def _write(self, kubeconfigs: Mapping[str, bytes]) -> None:
        paths: dict[str, str] = {}
        now = asyncio.get_running_loop().time()
        self._waits = {name: one for name, one in self._waits.items() if now < one[0] + _LONGEST}
        for name, content in kubeconfigs.items():
            path = self._directory / f"{name}-{hashlib.sha256(content).hexdigest()[:16]}"
            if str(path) == (former := self._paths.get(name)):
                paths[name] = former
                continue
            if self._must_wait(name, now):
                paths |= {name: former} if former is not None else {}
                continue
            if not path.exists():
                # Renamed when complete, so that a partly written file is never used.
                part = self._directory / "part"
                part.write_bytes(content)
                part.rename(path)
            paths[name] = str(path)
            self._count_change(name, now)
        for unused in set(self._paths.values()) - set(paths.values()):
            Path(unused).unlink(missing_ok=True)
        if paths != self._paths:  # the same object tells callers that nothing changed
            self._paths = paths

    def _must_wait(self, name: str, now: float) -> bool:
        """Report whether a cluster has changed too recently. The change is then compared again by the next call."""
        must_wait = name in self._waits and now < self._waits[name][0]
        self._is_stale = self._is_stale or must_wait
        return must_wait

    def _count_change(self, name: str, now: float) -> None:
        delay = min(2 * self._waits.get(name, (now, _SHORTEST / 2))[1], _LONGEST)
        self._waits[name] = now + delay, delay


@contextlib.asynccontextmanager
async def followed(
    client: Client,
    settings: ClusterProfiles,
    *,
    on_refused: Callable[[Object, str], None] = lambda _profile, _why: None,
) -> AsyncIterator[Inventory]:
    """Follow the ClusterProfiles within the context, see ``Inventory``.

    Raises:
        ConfigError: the file of providers cannot be used, or no directory for kubeconfigs can be created.
    """
    with _directory() as directory:
        inventory = Inventory(client, settings, directory=directory, on_refused=on_refused)
        async with lifecycle.beside(inventory.run()):
            yield inventory


@contextlib.asynccontextmanager
async def read_once(
    client: Client, settings: ClusterProfiles, *, taken: Collection[str]
) -> AsyncIterator[tuple[Mapping[str, str], Mapping[str, str]]]:
    """Read the ClusterProfiles once.

    Yields two maps: name of the lower cluster → path of its kubeconfig, and ``namespace/name`` of the ClusterProfile →
    why it is not used. The files exist within the context. Without the CRD there are no ClusterProfiles.

    Raises:
        ConfigError: the ClusterProfiles or the file of providers cannot be read, or no directory can be created.
    """
    known = load_providers(settings.providers_file)
    try:
        listed = await client.list(
            resources.CLUSTER_PROFILES,
            namespace=settings.namespace,
            label_selector=settings.label_selector or None,
        )
        profiles = listed.items
    except NotFound:
        profiles = []
    except ApiError as error:
        where = f"namespace {settings.namespace}"
        raise ConfigError(
            f"clusterProfiles: the ClusterProfiles in {where} cannot be read: {error}"
        ) from None
    found = select(profiles, known, settings, taken=taken)
    with _directory() as directory:
        paths = {name: directory / name for name in found.kubeconfigs}
        for name, content in found.kubeconfigs.items():
            paths[name].write_bytes(content)
        yield {name: str(path) for name, path in paths.items()}, found.refused


@contextlib.contextmanager
def _directory() -> Iterator[Path]:
    try:
        directory = tempfile.mkdtemp(prefix="virtual-node-clusters-")  # only this user can read it
    except OSError as error:
        raise ConfigError(f"clusterProfiles: no directory for kubeconfigs: {error} (set $TMPDIR)") from None
    try:
        yield Path(directory)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
