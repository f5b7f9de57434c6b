"""The virtual-node process: one upper cluster, a supervised task per lower cluster, live reconfiguration."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Collection, Iterable

import msgspec
import structlog

from clusterset.config import Cluster
from clusterset.following import Kubeconfigs, changes, connection
from clusterset.profile_clusters import ProfileClusters
from controller_runtime import resources
from controller_runtime.cache.shared import SharedInformers
from controller_runtime.client.client import Client, connected
from controller_runtime.errors import ApiError, CacheFull, ConfigError, Forbidden, Unauthorized
from controller_runtime.events import EventRecorder
from controller_runtime.leaderelection import LeaderElector
from controller_runtime.process import lifecycle
from controller_runtime.serving.server import HealthServer
from controller_runtime.util import event_loop, rate_limiter
from virtual_node import metrics, workers
from virtual_node.cluster import start_checks
from virtual_node.cluster.kubelet_endpoints import KubeletEndpoints
from virtual_node.cluster.lower_cluster import COMPONENT, TOO_LARGE_PAUSE, LowerCluster
from virtual_node.config.command_line import DaemonSettings
from virtual_node.config.types import SHARDED, Config
from virtual_node.config_status import ConfigStatus
from virtual_node.controllers.node_lease import Identity
from virtual_node.process_health import ProcessHealth, ProcessSummary
from virtual_node.process_state import ProcessState
from virtual_node.sharding import Member, Shards
from virtual_node.workers import Worker

_CONFIG_POLL = 2.0
"""Seconds between two checks of the configuration file and the kubeconfigs."""
_LAME_DUCK = 5.0
"""Seconds for which a stopping replica still accepts new streams, until the Node has the next replica's address."""
_CLEANING_UP = 15.0
"""Seconds for all other steps of a shutdown."""


class App:
    """Runs the lower clusters of the configuration until cancelled."""

    def __init__(self, options: DaemonSettings, *, worker: Worker | None = None) -> None:
        """Create without any IO; ``worker`` is set in a process of ``--workers``."""
        self._options = options
        self._worker = worker
        self.state = ProcessState(options.config)
        """What runs now; it stays the same object."""
        self._summary = ProcessSummary(self.state)
        self._supervisor = Supervisor(self.state, identity=self._identity())
        self._file = ConfigStatus(options.config_file, unusable=lambda: self.state.unusable)
        self._kubeconfigs = Kubeconfigs(options.config.clusters, component=COMPONENT)
        self._profiles = ProfileClusters(options.config)
        self._log = structlog.get_logger(component=COMPONENT)
        self._changing = asyncio.Lock()
        """Held while clusters stop and start, because the configuration and the shards may change at the same time."""
        self._health: ProcessHealth | None = None

    @property
    def grace(self) -> float:
        """Return the seconds that an orderly shutdown may take."""
        return self._lame_duck + self.state.config.kubelet.drain_timeout + _CLEANING_UP

    @property
    def _lame_duck(self) -> float:
        return _LAME_DUCK if self.state.config.leader_election.enabled else 0.0

    async def run(self) -> None:
        """Run until cancelled.

        Raises:
            ConfigError: an error at start that only the user can correct.
        """
        state, config = self.state, self.state.config
        election = config.leader_election
        for warning in self._options.warnings:
            self._log.warning(warning)
        if not self._options.config_file:
            # Without a configuration file there is one lower cluster, so a bad kubeconfig ends the process.
            start_checks.refuse_files(config.kubelet)
            for cluster in config.clusters:
                await connection(cluster)
        async with contextlib.AsyncExitStack() as stack:
            upper = await stack.enter_async_context(
                connected(config.kubeconfig, server=config.server, cluster="upper", user_agent=COMPONENT)
            )
            limit = config.limits.cache_bytes_per_namespace
            self._supervisor.shared = SharedInformers(upper, bytes_per_namespace=limit)
            # Served before other requests are sent, so that an occupied port is reported immediately, and probes show
            # why the process is not ready.
            served = serving(state, config, upper=upper, worker=self._worker, summary=self._summary)
            self._health = await stack.enter_async_context(served)
            state.cluster_id = config.cluster_id or await read(
                upper, startup_timeout=self._options.startup_timeout
            )
            if not self._options.config_file:
                for cluster in config.clusters:
                    await start_checks.refuse(cluster, upper=upper)
            self._log.info("upper cluster", server=upper.config.server, cluster_id=state.cluster_id)
            await stack.enter_async_context(lifecycle.measured())
            await stack.enter_async_context(lifecycle.beside(self._file.publish(upper)))
            recorder = EventRecorder(upper, component=COMPONENT, host=socket.gethostname())
            await stack.enter_async_context(self._profiles.following(upper, recorder=recorder))
            endpoints = await stack.enter_async_context(
                KubeletEndpoints(config.kubelet, upper=upper, summary=self._summary.answer)
            )
            await stack.enter_async_context(lifecycle.collecting_garbage())
            if not election.enabled:
                await self._work(endpoints)
                return
            state.is_standby = True
            await stack.enter_async_context(lifecycle.beside(self._follow_config_standing_by(endpoints)))
            name = self._worker.member if self._worker else ""
            member = Member(election, name=name) if election.mode == SHARDED else None
            state.elector = LeaderElector(
                upper,
                namespace=election.namespace,
                name=member.lease if member else election.name,
                identity=member.name if member else "",
                metadata=member.metadata if member else dict,
                lease_duration=election.lease_duration,
                renew_deadline=election.renew_deadline,
                retry_period=election.retry_period,
                on_started=lambda: self._lead(endpoints, upper, member),
            )
            await state.elector.run()

    async def _lead(self, endpoints: KubeletEndpoints, upper: Client, member: Member | None) -> None:
        self.state.is_standby = False
        if member is not None:
            self.state.shards = Shards(
                upper,
                self.state.config.leader_election,
                member=member,
                clusters=lambda: [cluster.name for cluster in self.state.config.clusters],
                start=lambda: self._apply(endpoints),
                stop=lambda names: self._hand_over(names, endpoints),
            )
        try:
            await self._work(endpoints)
        finally:
            self.state.is_standby, self.state.shards = True, None
            lifecycle.tune_gc()  # frees the caches, because the process may lead again at once and fill others

    async def _work(self, endpoints: KubeletEndpoints) -> None:
        """Run the lower clusters until cancelled."""
        endpoints.begin_work()
        # A new follower, because the clusters that start now read the files that changed during the standby time.
        self._kubeconfigs = Kubeconfigs(self.state.config.clusters, component=COMPONENT)
        try:
            async with contextlib.AsyncExitStack() as stack:
                if self._health is not None:
                    await stack.enter_async_context(lifecycle.beside(self._health.run()))
                if self.state.shards is not None:
                    # In a task group, because a failure of this task must end the process. A failed health task must not.
                    group = await stack.enter_async_context(asyncio.TaskGroup())
                    group.create_task(self.state.shards.run(), name="shards")
                self._apply(endpoints)
                await self._follow_config(endpoints)
        finally:
            endpoints.begin_shutdown(lame_duck=self._lame_duck)
            await self._kubeconfigs.close()
            await self._supervisor.stop(list(self._supervisor.configs))
            if self.state.shards is not None:
                await self.state.shards.release(list(self.state.shards.held))

    def _apply(self, endpoints: KubeletEndpoints) -> None:
        self._supervisor.apply(self.state.own, cluster_id=self.state.cluster_id, endpoints=endpoints)

    async def _hand_over(self, clusters: Collection[str], endpoints: KubeletEndpoints) -> None:
        """Stop clusters that another replica will run. Their kubelet APIs accept new streams for some seconds."""
        async with self._changing:
            endpoints.begin_shutdown(lame_duck=self._lame_duck)
            try:
                await self._supervisor.stop(clusters)
            finally:
                endpoints.begin_work()

    def _identity(self) -> Identity | None:
        """Return the identity under which all replicas hold the virtual nodes' Leases; None: one per process."""
        election = self.state.config.leader_election
        # Not the same for both modes, because during an upgrade replicas of both modes run.
        suffix = "/shards" if election.mode == SHARDED else ""
        name = f"{election.namespace}/{election.name}{suffix}"
        return Identity(name, is_exclusive=True) if election.enabled else None

    async def _follow_config_standing_by(self, endpoints: KubeletEndpoints) -> None:
        """While standing by, report an unusable configuration file; store a usable one for when this replica leads.

        While standing by and while leading, end this process's streams to handed-over clusters that were removed or
        changed.
        """
        while True:
            await asyncio.sleep(_CONFIG_POLL)
            if self.state.is_standby:
                self._reread()
            # Also while leading, because clusters that other replicas run have no task here.
            endpoints.keep(self.state.config.clusters)

    async def _follow_config(self, endpoints: KubeletEndpoints) -> None:
        """Apply every change of the configuration file and of kubeconfigs; report unusable files.

        A replica that starts to lead first applies changes that were made while it stood by.
        """
        while True:
            before = self.state.config.clusters
            is_fresh = self._reread()
            rotated = self._kubeconfigs.poll(self.state.own.clusters)
            self._show_rejected()
            if rotated:
                self._log.info("kubeconfigs changed; restarting their clusters", clusters=sorted(rotated))
            if is_fresh or rotated:
                change = changes(before, self.state.config.clusters, rotated)
                async with self._changing:
                    await self._supervisor.stop([*change.changed, *change.removed])
                    self._apply(endpoints)
                self._log.info(
                    "configuration applied",
                    added=change.added,
                    dropped=change.removed,
                    changed=change.changed,
                )
            await asyncio.sleep(_CONFIG_POLL)

    def _reread(self) -> bool:
        """Store the lower clusters of the file and the ClusterProfiles if they changed; report an unusable file.

        Returns:
            whether the file or the lower clusters changed.
        """
        fresh = self._file.reread()
        self._show_rejected()
        clusters = self._profiles.merged(fresh.clusters if fresh is not None else None)
        self.state.optional = self._profiles.names
        if fresh is None and clusters == self.state.config.clusters:
            return False
        # Stored before anything stops, because a replica that loses its lease meanwhile does not read the change again.
        self.state.config = msgspec.structs.replace(self.state.config, clusters=clusters)
        return True

    def _show_rejected(self) -> None:
        """Copy to the state which files are not applied."""
        of_file = {"": self._file.rejected} if self._file.rejected else {}
        self.state.rejected = {**of_file, **self._kubeconfigs.refused}


@contextlib.asynccontextmanager
async def serving(
    state: ProcessState,
    config: Config,
    *,
    upper: Client,
    worker: Worker | None,
    summary: ProcessSummary | None = None,
) -> AsyncIterator[ProcessHealth | None]:
    """Serve until the context ends; yield the evaluator of health, or None if nothing is configured to serve.

    Args:
        state: of the process.
        config: the configuration at start; the addresses do not change later.
        upper: client of the upper cluster.
        worker: this process as one of ``--workers``; None: it is the only process.
        summary: of the pods of the process, shared with its kubelet APIs; None: a new one.

    Raises:
        ConfigError: an address cannot be used.
    """
    async with contextlib.AsyncExitStack() as stack:
        if config.metrics_address:
            server = HealthServer(
                config.metrics_address,
                checks=state.checks(),
                setting="--metrics-addr (metricsAddress)",
                listener=worker.socket() if worker else None,
            )
            if worker:
                server.add_route("GET", workers.PATH, workers.serve)
            await stack.enter_async_context(server)
        if not config.web_address and not config.metrics_address:
            yield None
            return
        election = config.leader_election
        health = ProcessHealth(
            state,
            upper=upper,
            summary=summary or ProcessSummary(state),
            replicas_in=election.namespace if election.enabled else "",
            history=config.inspection_history,
        )
        if config.web_address:
            from virtual_node.web.server import page  # noqa: PLC0415 - loaded only if the page is served

            number = worker.number if worker else 1
            await stack.enter_async_context(page(state, config, upper=upper, health=health, worker=number))
        yield health


async def read(upper: Client, *, startup_timeout: float) -> str:
    """Wait until the upper cluster answers, and return its identity.

    Args:
        upper: client of the upper cluster.
        startup_timeout: maximum seconds to wait; 0: no limit.

    Raises:
        ConfigError: the cluster does not answer in time, or refuses the read.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + startup_timeout if startup_timeout else None
    delay = 0.5
    log = structlog.get_logger(component=COMPONENT)
    while True:
        try:
            namespace = await upper.get(resources.NAMESPACES, "kube-system")
            return str(namespace["metadata"]["uid"])
        except (Forbidden, Unauthorized) as error:
            raise ConfigError(
                f"the upper cluster does not let us read namespace kube-system ({error}); "
                "grant it, or give --cluster-id"
            ) from None
        except ApiError as error:
            if deadline is not None and loop.time() + delay > deadline:
                raise ConfigError(
                    f"the upper cluster did not answer within --startup-timeout: {error}"
                ) from None
            log.warning("upper cluster does not answer yet", error=str(error), retry_in=delay)
            await asyncio.sleep(delay)
            delay = min(delay * 2, 10.0)


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
