"""The context that all controllers of one lower cluster share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import structlog
from prometheus_client import Histogram

from clusterset.admission import ClusterRules
from clusterset.config import Cluster, NodeConfig
from clusterset.model import names
from clusterset.model.pod.affinity_terms import UpperNamespaces
from clusterset.model.pod.conditions import claim_names
from controller_runtime.cache.informer import Informer
from controller_runtime.cache.shared import SharedInformers
from controller_runtime.client.client import Client
from controller_runtime.events import EventRecorder
from controller_runtime.objects import Object
from controller_runtime.resources import Resource
from controller_runtime.store import Indexer
from controller_runtime.util.rate_limiter import ExponentialBackoff
from controller_runtime.workqueue.controller import Controller, Result
from controller_runtime.workqueue.queue import WorkQueue
from virtual_node import metrics
from virtual_node.config.types import Config
from virtual_node.controllers.base.problems import Problem, lower_cluster_full, namespace_too_large
from virtual_node.translate.base import ownership
from virtual_node.translate.base.view import PodOptions, View, pod_options
from virtual_node.translate.objects.namespaces import Places

K = TypeVar("K", bound=Hashable)
TOO_LARGE_RETRY = 60.0
"""Seconds until an object of a namespace or lower cluster that is too large is reconciled again."""
SHORTEST_PAUSE = 0.01
"""Minimum pause in seconds, because waiting for less than a clock tick returns immediately and would become a
busy loop."""

INDEX_UID = "uid"
INDEX_UPPER_UID = "upper-uid"
INDEX_CLAIM = "claim"
INDEX_LOWER_KEY = "lower-key"
"""Index of upper objects by the namespace and name that their lower object has."""
INDEX_PLACE = "place"
"""Index of lower pods by their namespace, and by namespace and upper namespace (``lower/upper``)."""


@dataclass(slots=True)
class ClusterContext:
    """The upper and the lower cluster, the identity of this upper cluster there, and the settings."""

    name: str
    """The lower cluster's name in the configuration, logs and metrics."""
    cluster_id: str
    """Identity of the upper cluster, written to every object created in the lower cluster."""
    upper: Client
    lower: Client
    settings: Config
    config: Cluster
    """The lower cluster's own settings."""
    nodes: dict[str, NodeConfig]
    """The virtual nodes of this lower cluster by name."""
    recorder: EventRecorder
    """Writes events to the upper cluster."""
    log: structlog.stdlib.BoundLogger
    shared: SharedInformers | None = None
    """Caches of the upper cluster that the lower clusters of a process share; None: this cluster has its own."""
    rules: ClusterRules = field(init=False)
    """Decides which pods run in the lower cluster, and how."""
    upper_namespaces: UpperNamespaces = field(init=False, default_factory=UpperNamespaces)
    """Labels of the upper namespaces, for translations; ``ClusterCaches`` keeps them current."""
    options: dict[str, PodOptions] = field(init=False)
    """Translation options of pods, by virtual node."""
    lower_version: str = field(init=False, default="")
    """The lower cluster's gitVersion, such as v1.37.2, as ``HealthController`` last read it; empty: unknown."""
    places: Places = field(init=False)
    """Decides in which lower namespaces objects with our labels are ours."""
    pod_work: dict[str, Histogram] = field(init=False)
    """Seconds that steps for pods took, by virtual node; a series of its kubelet API."""
    proving: list[Informer] = field(default_factory=list)
    """Informers that ``lower_informer`` waits for: they decide which lower objects are ours."""

    def __post_init__(self) -> None:
        """Derive the translation options once, because they are read for every pod."""
        self.rules = ClusterRules(
            self.config,
            controllers=self.controllers,
            cluster_id=self.cluster_id,
            upper_namespaces=self.upper_namespaces,
            ignored=self.settings.ignored,
        )
        self.places = Places(self.cluster_id, self.rules.namespace_map, self.config.namespaces.adopt)
        self.options = {
            name: pod_options(self.settings, self.config, self.rules, node)
            for name, node in self.nodes.items()
        }
        self.pod_work = {name: metrics.pod_work() for name in self.nodes}

    @property
    def controllers(self) -> Sequence[str]:
        """Return the optional controllers of this lower cluster."""
        return self.settings.controllers(self.config)

    def controller(
        self,
        name: str,
        reconcile: Callable[[K], Awaitable[Result | None]],
        *,
        workers: int,
        first_delay: float = 0.2,
        longest_delay: float = 60.0,
        flow: Callable[[K], str] | None = None,
    ) -> Controller[K]:
        """Return a controller of this lower cluster with a new ``queue``, to be run by the caller."""
        queue = self.queue(
            name, workers=workers, first_delay=first_delay, longest_delay=longest_delay, flow=flow
        )
        return Controller(queue.name, reconcile, workers=workers, queue=queue)

    def queue(
        self,
        name: str,
        *,
        workers: int,
        first_delay: float,
        longest_delay: float = 60.0,
        flow: Callable[[K], str] | None = None,
    ) -> WorkQueue[K]:
        """Return the work queue of a controller of this lower cluster.

        When one of the API servers answers again after an outage, all failed keys are retried immediately. Otherwise
        they would wait for their back-offs, which are long after a long outage.

        Args:
            name: in logs and metrics, before the cluster's name.
            workers: of the controller.
            first_delay: first back-off of a failing key, in seconds.
            longest_delay: longest back-off of a failing key, in seconds.
            flow: as in ``WorkQueue``.
        """
        made: WorkQueue[K] = WorkQueue(
            f"{name}-{self.name}",
            rate_limiter=ExponentialBackoff(first_delay, longest_delay),
            flow=flow,
            workers=workers if flow else 0,
        )
        for client in (self.upper, self.lower):
            client.outage.on_return(made.retry_failed)
        return made

    def lower_informer(
        self,
        resource: Resource,
        *,
        selector: str = "",
        keep: Callable[[Object], bool] | None = None,
        transform: Callable[[Object], Object] | None = None,
        indexers: Mapping[str, Indexer] | None = None,
        name: str = "",
    ) -> Informer:
        """Return an informer of the namespaced lower objects that are ours: labelled, and in their place.

        Objects elsewhere are never stored, because users of the lower cluster can copy our labels.

        Args:
            resource: the kind.
            selector: label selector; empty: our ownership label.
            keep: reports whether an object is in its place; None: ``places.is_in_place``.
            transform: as of ``Informer``.
            indexers: as of ``Informer``.
            name: as of ``Informer``.
        """
        made = Informer(
            self.lower,
            resource,
            label_selector=selector or f"{names.LABEL_UPPER_CLUSTER}={self.cluster_id}",
            keep=keep or self.places.is_in_place,
            transform=transform,
            after=self.proving,
            indexers=indexers,
            name=name,
        )
        self.places.on_new(made.reconsider)
        return made

    def view(self) -> View:
        """Return what translations of copies read of the configuration."""
        config = self.config
        return View(
            cluster_id=self.cluster_id,
            nodes=tuple(self.nodes),
            changed_labels=self.rules.changed_labels,
            lower_namespace=self.lower_namespace,
            rules_of=lambda namespace: self.rules.policy.of(namespace).metadata,
            adopt=config.namespaces.adopt,
            ingress_classes=config.ingress_classes,
            gateway_classes=config.gateway_classes,
            device_classes=config.resource_claims.device_classes,
            always=self.settings.services.always,
            requests_same_addresses=config.services.cluster_ip == "same",
        )

    def warn(self, upper: Object | Mapping[str, Any], reason: str, message: str) -> None:
        """Write an event of type Warning about an object of the upper cluster."""
        self.recorder.event(upper, "Warning", reason, message)

    def upper_informer(
        self,
        resource: Resource,
        *,
        indexers: Mapping[str, Indexer] | None = None,
        transform: Callable[[Object], Object] | None = None,
    ) -> Informer:
        """Return an informer of all upper objects of a kind, see ``SharedInformers.informer``."""
        if self.shared is None:
            return Informer(self.upper, resource, indexers=indexers, transform=transform)
        return self.shared.informer(self.upper, resource, indexers=indexers, transform=transform)

    @property
    def index_lower_key(self) -> str:
        """Return the name of the index by lower key in shared informers, where each lower cluster has its own."""
        return f"{INDEX_LOWER_KEY} {self.name}"

    def too_large(self, namespace: str) -> Problem | None:
        """Return why copies of an upper namespace's objects must stay as they are; None: all its objects are known."""
        if self.shared is None or not (left_out := self.shared.stubs(namespace)):
            return None
        limit = self.settings.limits.cache_bytes_per_namespace
        return namespace_too_large(namespace, f"{left_out} of its objects are not read", limit)

    def no_room(self, upper_namespace: str, growth: int = 1) -> Problem | None:
        """Return why the lower objects of an upper namespace must not grow by some bytes in all; None: they may."""
        if growth <= 0 or self.lower.caches.has_room(self.lower_namespace(upper_namespace), growth):
            return None
        return lower_cluster_full(self.name)

    def cannot_grow(self, upper: Object, copy: Object | None) -> Problem | None:
        """Return why the copy of an upper object must not become as large as that; None: it may. No copy: it is created."""
        growth = upper.memory - (0 if copy is None else copy.memory)
        return self.no_room(upper.namespace, growth)

    def lower_namespace(self, upper: str) -> str:
        """Return the lower namespace that stands for an upper namespace."""
        return self.rules.namespace_map(upper)

    def lower_key(self, upper_key: str) -> str:
        """Return the lower key (namespace/name) for an upper key: the lower namespace and the same name."""
        namespace, _, name = upper_key.partition("/")
        return f"{self.lower_namespace(namespace)}/{name}"


def namespace_of(key: str) -> str:
    """Return the namespace of a key (namespace/name); used as ``flow`` of controllers."""
    return key.partition("/")[0]


def requeue_on_change(
    controller: Controller[K], *sources: tuple[Informer, Callable[[Object], Iterable[K]]]
) -> None:
    """Queue keys whenever an object changes in an informer, for its old and its new state.

    Args:
        controller: its work queue gets the keys.
        sources: informers, each with a function that returns the keys of an object; empty keys are left out.
    """

    def on_change(keys: Callable[[Object], Iterable[K]]) -> Callable[[Object], None]:
        def changed(thing: Object) -> None:
            for key in filter(None, keys(thing)):
                controller.queue.add(key)

        return changed

    for informer, keys in sources:
        informer.on_change(on_change(keys), on_change(keys), with_old=True)


@dataclass(slots=True)
class PodCaches:
    """The informers of pods: one per virtual node in the upper cluster, one for all our pods in the lower cluster."""

    upper: dict[str, Informer]
    """By virtual node; indexed by ``INDEX_UID``, ``INDEX_CLAIM`` and ``INDEX_LOWER_KEY``."""
    lower: Informer
    """Only our pods, see ``is_ours``; indexed by ``INDEX_UPPER_UID`` and ``INDEX_PLACE``."""
    places: Places

    @staticmethod
    def claims_of(pod: Object) -> list[str]:
        """Return the upper claims (namespace/name) that an upper pod uses, for ``INDEX_CLAIM``."""
        used = claim_names({"metadata": {"name": pod.name}, "spec": pod.spec or {}})
        return [f"{pod.namespace}/{name}" for name in used]

    def upper_pod(self, uid: str) -> Object | None:
        """Return the upper pod of that uid on any of our virtual nodes; None: not cached."""
        found = (pod for informer in self.upper.values() for pod in informer.store.by_index(INDEX_UID, uid))
        return next(found, None)

    def upper_of(self, lower: Object) -> Object | None:
        """Return the upper pod that a lower pod of ours was made for; None: not cached, or it has another name."""
        upper = self.upper_pod(lower.labels.get(names.LABEL_UPPER_UID, ""))
        return upper if upper is not None and _is_named_as(lower, upper) else None

    def lower_of(self, upper: Object) -> Object | None:
        """Return the lower pod made for an upper pod; None: not cached. A pod of another name is not."""
        found = self.lower.store.by_index(INDEX_UPPER_UID, upper.uid)
        return next((pod for pod in found if _is_named_as(pod, upper)), None)

    def upper_by_name(self, namespace: str, name: str) -> Object | None:
        """Return the upper pod of that name if it is bound to one of our virtual nodes."""
        found = (informer.store.get(f"{namespace}/{name}") for informer in self.upper.values())
        return next((pod for pod in found if pod is not None), None)

    def lower_pods_in(self, namespace: str) -> list[Object]:
        """Return our lower pods in a lower namespace."""
        return self.lower.store.by_index(INDEX_PLACE, namespace)

    def lower_pod(self, upper_uid: str) -> Object | None:
        """Return the lower pod made for the upper pod of that uid; None: not cached."""
        if (upper := self.upper_pod(upper_uid)) is not None:
            return self.lower_of(upper)
        found = self.lower.store.by_index(INDEX_UPPER_UID, upper_uid)
        # The upper pod is gone. If several pods have the label, the oldest is ours: a user may have copied it with its labels.
        return min(found, key=lambda pod: pod.metadata.creation_timestamp or "", default=None)

    def upper_namespace(self, upper_uid: str) -> str:
        """Return the upper namespace of the pod of that uid; empty: neither it nor its lower pod is cached."""
        if (upper := self.upper_pod(upper_uid)) is not None:
            return upper.namespace
        lower = self.lower_pod(upper_uid)
        return "" if lower is None else ownership.upper_namespace(lower)

    def is_ours(self, lower: Object) -> bool:
        """Report whether a labelled lower pod is ours: where we put it, or confirmed by its upper pod.

        The upper pod has the uid of its lower pod in an annotation. This counts in a lower namespace that must not be
        used any more: its pods are older than a change of the configuration.
        """
        if self.places.stands_for(lower.namespace, ownership.upper_namespace(lower)):
            return True
        upper = self.upper_pod(lower.labels.get(names.LABEL_UPPER_UID, ""))
        return upper is not None and ownership.is_confirmed(lower, upper)

    def are_in(self, namespace: str, upper_namespace: str = "") -> bool:
        """Report whether we have lower pods of an upper namespace in that lower namespace; empty: of any."""
        place = f"{namespace}/{upper_namespace}" if upper_namespace else namespace
        return self.lower.store.count(INDEX_PLACE, place) > 0


def _is_named_as(lower: Object, upper: Object) -> bool:
    return ownership.upper_key(lower) == upper.key or ownership.is_confirmed(lower, upper)
