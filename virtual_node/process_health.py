"""The health of an installation from the caches of its working process, for the page and the metrics.

Also summaries of the pods of all virtual nodes of this process, for ``status``. Each pod is evaluated once per version.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import UTC, datetime
from typing import TypeVar

import msgspec
import structlog

from clusterset.config import Cluster
from clusterset.model.names import LABEL_HOSTNAME
from controller_runtime import resources
from controller_runtime.cache.informer import Informer
from controller_runtime.client.client import Client
from controller_runtime.objects import Object
from controller_runtime.store import Store, is_stub
from controller_runtime.util.event_loop import Slicer
from controller_runtime.util.keyed import SharedAnswers
from virtual_node import metrics
from virtual_node.cluster.lower_cluster import COMPONENT, LowerCluster
from virtual_node.controllers.base.context import PodCaches
from virtual_node.examine import components, facts, inspections
from virtual_node.examine.connections import plain
from virtual_node.examine.engine import of_pod
from virtual_node.examine.facts import ApiAccess, ClusterState, Names, known
from virtual_node.examine.finding import Finding
from virtual_node.examine.health import Health, health
from virtual_node.examine.inspections import Inspection
from virtual_node.examine.objects import WITHOUT_NODE, Json, is_for_virtual_nodes
from virtual_node.examine.rules.nodes import rejected
from virtual_node.examine.snapshot import Snapshot, View
from virtual_node.node_summary import (
    MOST_FINDINGS,
    RESOURCES,
    Lag,
    NodeSummary,
    PodNumbers,
    PodSummary,
    Summaries,
    summarize,
    summary_of,
)
from virtual_node.process_state import ProcessState
from virtual_node.translate.pods import dns

T = TypeVar("T")
_UNKNOWN = PodSummary(PodNumbers(is_running=False, is_trouble=False, used=(0,) * len(RESOURCES)), ())
"""Of a pod whose content is not cached."""
_Evaluated = dict[str, tuple[str, PodSummary]]
"""Resource version and summary of pods, by uid; the version is empty if the content of the pod is not cached."""


async def evaluated(
    pods: Iterable[Object],
    before: dict[str, tuple[str, T]],
    evaluate: Callable[[Object], T],
    slicer: Slicer,
    *,
    version: Callable[[Object], str] = lambda pod: pod.resource_version,
) -> dict[str, tuple[str, T]]:
    """Return version and value of each pod, by uid; only pods with another version than in ``before`` are evaluated.

    Each value is also added to ``before``, so that a cancelled call does not lose what it has evaluated.
    """
    current: dict[str, tuple[str, T]] = {}
    for pod in pods:
        known, now = before.get(pod.uid), version(pod)
        if known is None or known[0] != now:
            known = now, evaluate(pod)
        before[pod.uid] = current[pod.uid] = known
        await slicer.tick()
    return current


def _version(pod: Object) -> str:
    return "" if is_stub(pod) else pod.resource_version


@dataclass(eq=False, repr=False)
class ProcessSummary:
    """Evaluates the upper pods of all that this process runs, when it is asked for them."""

    state: ProcessState
    """State of the process to evaluate."""

    def __post_init__(self) -> None:
        self._evaluated: dict[str, _Evaluated] = {}
        """By virtual node."""
        self._read: dict[str, tuple[Store, int]] = {}
        """The cache of each virtual node's pods, and its number of changes at the last evaluation."""
        self.version = 0
        """Grows with each change of ``pods``."""
        self._evaluating = asyncio.Lock()
        self._answers: SharedAnswers[str, bytes] = SharedAnswers(fresh=0)

    async def refresh(self) -> None:
        """Evaluate the pods that have changed since the last call, in slices."""
        async with self._evaluating:
            stores = {name: caches.upper[name].store for name, caches in self._caches()}
            gone = self._evaluated.keys() - stores.keys()
            for name in gone:
                del self._evaluated[name]
                self._read.pop(name, None)
            changed = {
                name: store
                for name, store in stores.items()
                if self._read.get(name) != (store, store.changes)
            }
            if not changed and not gone:
                return
            self.version += 1
            # Most pods of a node have equal numbers and no findings; one object for all needs a fifth of the memory.
            same = {each.numbers: each for each in self.pods() if not each.findings}

            def summary(pod: Object) -> PodSummary:
                if is_stub(pod):
                    return _UNKNOWN
                found = summary_of(pod.to_dict())
                return found if found.findings else same.setdefault(found.numbers, found)

            slicer = Slicer()
            for name, store in changed.items():
                before, read = self._evaluated.setdefault(name, {}), (store, store.changes)
                self._evaluated[name] = await evaluated(
                    store.list(), before, summary, slicer, version=_version
                )
                self._read[name] = read

    def pods(self) -> Iterator[PodSummary]:
        """Yield the summaries of all pods as of the last ``refresh``."""
        for evaluated in self._evaluated.values():
            for _, summary in evaluated.values():
                yield summary

    async def answer(self, node: str) -> bytes:
        """Return the JSON of ``Summaries`` for who may read a virtual node; the pods of others are not named in it."""
        return await self._answers.get(node, lambda: self._answer(node))

    async def _answer(self, node: str) -> bytes:
        await self.refresh()
        slicer, found = Slicer(), {}
        lags: dict[str, Lag] = {}
        for cluster in self.state.clusters.values():
            for name in cluster.nodes:
                if (summary := self._summary(name, cluster.caches)) is None:
                    continue
                if cluster.config.name not in lags:
                    lags[cluster.config.name] = metrics.lag(cluster.config.name)
                summary.lag = lags[cluster.config.name] or None
                found[name] = summary if name == node else summary.for_others()
                await slicer.tick()
        return msgspec.json.encode(Summaries(found))

    def _summary(self, name: str, caches: PodCaches | None) -> NodeSummary | None:
        """Return the summary of a virtual node; None: the cache is not current or complete, so the pods must be listed."""
        informer = caches.upper.get(name) if caches is not None else None
        evaluated = self._evaluated.get(name)
        if (
            informer is None
            or evaluated is None
            or not informer.has_synced
            or informer.last_error is not None
        ):
            return None
        if any(not version for version, _ in evaluated.values()):
            return None
        summary = summarize(one for _, one in evaluated.values())
        return summary if summary.findings is not None and len(summary.findings) <= MOST_FINDINGS else None

    def _caches(self) -> Iterator[tuple[str, PodCaches]]:
        for cluster in self.state.clusters.values():
            if cluster.caches is not None:
                for name in cluster.caches.upper:
                    yield name, cluster.caches


Examined = dict[str, tuple[str, list[Finding]]]
"""Resource version and findings of each pod, by uid."""
_INTERVAL = 5.0
"""Seconds between two passes over the pods; clusters and nodes are read at each request."""
_INSPECTION_INTERVAL = 60.0
"""Seconds between two reads of the history of inspections."""


@dataclass(eq=False, repr=False)
class ProcessHealth:
    """Evaluates the health of all that this process runs. Changed pods are evaluated in the background, in slices."""

    state: ProcessState
    """State of the process to evaluate."""
    _: KW_ONLY
    upper: Client
    """Client of the upper cluster."""
    replicas_in: str
    """Namespace of the pods of our components; empty: this process is the only replica."""
    history: str = ""
    """``namespace/name`` of the ConfigMap with the history of inspections; empty: none."""
    summary: ProcessSummary | None = None
    """Summary of the process's pods that others also use; None: creates a new one."""
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    """Returns the current time, timezone-aware."""

    def __post_init__(self) -> None:
        self.inspection: Inspection | None = None
        """The history of inspections; None: not configured, or not read."""
        self._waiting = Informer(
            self.upper,
            resources.PODS,
            field_selector=WITHOUT_NODE,
            transform=shrink_foreign,
            name="waiting-pods",
        )
        self._replicas = (
            Informer(
                self.upper,
                resources.PODS,
                namespace=self.replicas_in,
                label_selector=components.SELECTOR,
                name="component-pods",
            )
            if self.replicas_in
            else None
        )
        self._summary = self.summary or ProcessSummary(self.state)
        self._examined_waiting: Examined = {}
        self._of_bound: list[Finding] | None = None
        """Findings about pods on virtual nodes from the last pass; None before the first pass."""
        self._of_waiting: list[Finding] | None = None
        """Findings about pods without a node from the last pass; None before the first pass."""
        self._bound_at = -1
        """``version`` of the summary at the last pass."""
        self._waiting_at: tuple[frozenset[str], int] = frozenset(), -1
        """Names of the virtual nodes, and changes of the cache of pods without a node, at the last pass. Other names
        re-evaluate these pods."""
        self._log = structlog.get_logger(component=COMPONENT)

    async def run(self) -> None:
        """Evaluate the pods every 5 s until cancelled. Log exceptions, so that they stop nothing else."""
        try:
            async with asyncio.TaskGroup() as group:
                for informer in filter(None, (self._waiting, self._replicas)):
                    group.create_task(informer.run(), name=informer.name)
                if self.history:
                    group.create_task(self._follow_inspections(), name="inspections")
                while True:
                    try:
                        await self._read_pods()
                        metrics.show_health(self.health())
                    except Exception as error:  # noqa: BLE001 - no error here may stop mirroring
                        self._log.exception("health not computed", error=str(error))
                    await asyncio.sleep(_INTERVAL)
        finally:
            metrics.forget_health()

    async def _follow_inspections(self) -> None:
        """Read the history of inspections every minute until cancelled."""
        namespace, _, name = self.history.partition("/")
        while True:
            try:
                config_map = await self.upper.get(resources.CONFIG_MAPS, name, namespace=namespace)
                text = (config_map.get("data") or {}).get(inspections.KEY) or ""
                self.inspection = inspections.parse(text) if text else None
                metrics.show_inspection(self.inspection)
            except Exception as error:  # noqa: BLE001 - no error here may stop mirroring
                self.inspection = None
                metrics.show_inspection(None)
                self._log.warning(
                    "history of inspections not read", config_map=self.history, error=str(error)
                )
            await asyncio.sleep(_INSPECTION_INTERVAL)

    def waiting(self) -> list[Object]:
        """Return the upper pods without a node, including those that are not for virtual nodes."""
        return self._waiting.store.list()

    def health(self, swarms: Sequence[Json] | None = ()) -> Health:
        """Return the current health; pods are as in the last pass.

        Args:
            swarms: given only for the web page; None: not read yet.
        """
        if leader := self.state.leader():
            stands_by = {"installation": f"this replica stands by; {leader} works"}
            alone = known(self.clock(), {facts.REJECTED: self.state.rejected})
            return Health(tuple(rejected(alone)), stands_by)
        of_pods = [*(self._of_waiting or ()), *(self._of_bound or ())]
        return health(self._snapshot(swarms), of_pods=of_pods)

    async def _read_pods(self) -> None:
        """Evaluate the pods that have changed since the last pass."""
        await self._summary.refresh()
        if self._summary.version != self._bound_at:
            self._bound_at = self._summary.version
            self._of_bound = [finding for pod in self._summary.pods() for finding in pod.findings]
        names = frozenset(name for cluster in self.state.clusters.values() for name in cluster.nodes)
        state = names, self._waiting.store.changes
        if state == self._waiting_at:
            return
        before = self._examined_waiting if names == self._waiting_at[0] else {}
        self._examined_waiting = await evaluated(
            self._waiting.store.list(), before, lambda pod: of_pod(pod.to_dict(), names), Slicer()
        )
        self._waiting_at = state
        self._of_waiting = [each for _, found in self._examined_waiting.values() for each in found]

    def _snapshot(self, swarms: Sequence[Json] | None) -> Snapshot:
        running = dict(self.state.clusters)
        nodes = {
            name: node
            for cluster in running.values()
            for name, controller in cluster.nodes.items()
            if (node := controller.node) is not None
        }
        leases = (item for cluster in running.values() for item in cluster.leases.items())
        replicas = self._replicas.store.list() if self._replicas is not None else ()
        config = self.state.config
        return known(
            self.clock(),
            {
                facts.NODES: list(nodes.values()),
                facts.LEASES: {name: {"spec": lease.spec} for name, lease in leases},
                facts.BOUND: None if self._of_bound is None else (),
                facts.WAITING: None if self._of_waiting is None else (),
                facts.COMPONENTS: [pod.to_dict() for pod in replicas],
                facts.SWARMS: swarms,
                facts.CLUSTERS: [self._cluster(name, running.get(name)) for name in self.state.configured],
                facts.REJECTED: dict(self.state.rejected),
                facts.EXPIRING: dict(self.state.expiring),
                facts.API_ACCESS: ApiAccess(config.kubernetes_service, config.enable_serviceaccount),
            },
            unknown=dict(self._unknown(running)),
            lowers=[_configured(cluster) for cluster in self.state.own.clusters],
        )

    def _cluster(self, name: str, cluster: LowerCluster | None) -> ClusterState:
        error = self.state.failed.get(name, "")
        if error:
            return ClusterState(name=name, error=error, failed=True)
        health = cluster.health if cluster is not None else None
        if health is None:
            return ClusterState(name=name)
        return ClusterState(name=name, reachable=health.reachable, error=health.error)

    def _unknown(self, running: Mapping[str, LowerCluster]) -> Iterator[tuple[str, str]]:
        for informer in filter(None, (self._waiting, self._replicas)):
            if not informer.has_synced or informer.last_error is not None:
                yield informer.name, f"upper cluster: {plain(str(informer.last_error or 'not read yet'))}"
        for name in self.state.configured:
            cluster = running.get(name)
            if name not in self.state.failed and (
                cluster is None or cluster.pods is None or not cluster.nodes
            ):
                yield f"cluster {name}", (cluster.waits_for if cluster is not None else "") or "it starts"


def _configured(cluster: Cluster) -> View:
    """Return what the configuration says about a lower cluster. Its DNS domain is not read here."""
    view = View(cluster.name)
    renamed, servers = dns.renamed(cluster.namespaces), cluster.dns.servers
    view.put(facts.NAMES, Names(cluster=cluster.name, renamed=renamed, servers=servers))
    return view


def shrink_foreign(pod: Object) -> Object:
    """Drop spec and status of a waiting pod that cannot be for virtual nodes; return other pods unchanged.

    This saves memory, because users may create any number of pods that wait for real nodes.
    """
    whole = pod.to_dict()
    spec = whole.get("spec") or {}
    selects_by_name = LABEL_HOSTNAME in str((spec.get("nodeSelector"), spec.get("affinity")))
    return pod if selects_by_name or is_for_virtual_nodes(whole) else pod.with_fields(spec={}, status={})
