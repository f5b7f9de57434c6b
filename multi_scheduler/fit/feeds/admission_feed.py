"""Keeps what is known of admission below true: informers on quotas, limit ranges, priority classes and namespaces.

A kubeconfig may lack these rights. Then pods are sent where admission may refuse them, as if there were no such rules;
it is said once in the log, and by a metric for as long as it lasts.
"""

from __future__ import annotations

import asyncio

from prometheus_client import Gauge

from controller_runtime import log, resources
from controller_runtime.cache.informer import Informer
from controller_runtime.client.client import Client
from controller_runtime.errors import ApiError
from controller_runtime.objects import Object
from multi_scheduler.fit.admission.predictor import Admission

_UNKNOWN = Gauge(
    "virtual_node_extender_unknown_rules",
    "1 while quotas, limit ranges, priority classes or namespaces of a lower cluster cannot be read.",
    ["cluster", "resource"],
)
_REFUSALS = (401, 403, 404)
_LOOK = 5.0
_COUNTED = 1.0
"""Seconds in which the quota controller has counted a pod that has gone no more."""


class AdmissionFeed:
    """One lower cluster's informers on the rules of its namespaces."""

    def __init__(self, client: Client, admission: Admission) -> None:
        """Set up; whoever runs the ``informers`` runs this, too."""
        self._cluster = client.cluster
        self._admission = admission
        quotas = Informer(client, resources.RESOURCE_QUOTAS)
        quotas.add_handler(
            on_add=lambda quota, _initial: admission.upsert_quota(quota.to_dict()),
            on_update=lambda _old, new: admission.upsert_quota(new.to_dict()),
            on_delete=lambda quota: admission.remove_quota(quota.namespace, quota.name),
        )
        ranges = Informer(client, resources.LIMIT_RANGES)
        ranges.add_handler(
            on_add=lambda one, _initial: admission.upsert_range(one.to_dict()),
            on_update=lambda _old, new: admission.upsert_range(new.to_dict()),
            on_delete=lambda one: admission.remove_range(one.namespace, one.name),
        )
        classes = Informer(client, resources.PRIORITY_CLASSES, transform=_shrink_class)
        classes.add_handler(
            on_add=lambda one, _initial: admission.upsert_class(one.to_dict()),
            on_update=lambda _old, new: admission.upsert_class(new.to_dict()),
            on_delete=lambda one: admission.remove_class(one.name),
        )
        namespaces = Informer(client, resources.NAMESPACES, transform=_shrink_namespace)
        namespaces.add_handler(
            on_add=lambda one, _initial: admission.upsert_namespace(one.to_dict()),
            on_update=lambda _old, new: admission.upsert_namespace(new.to_dict()),
            on_delete=lambda one: admission.remove_namespace(one.name),
        )
        self.informers = (quotas, ranges, classes, namespaces)
        self._is_settled = False
        self._log = log.get_logger(component="extender")

    async def run(self) -> None:
        """Tell what is unknown until cancelled."""
        while True:
            await asyncio.sleep(_LOOK)
            self.look()

    def left(self, namespace: str) -> None:
        """A lower pod has gone, or ended."""
        if self._admission.has_quotas(namespace):
            self._admission.left(namespace, counted_by=asyncio.get_running_loop().time() + _COUNTED)

    @property
    def is_settled(self) -> bool:
        """Whether each of them has been read, or cannot be for now: nobody waits for a right that is missing."""
        if not self._is_settled:  # asked for every pod and virtual node
            self._is_settled = all(
                informer.has_synced or informer.last_error is not None for informer in self.informers
            )
        return self._is_settled

    def look(self) -> None:
        """Believe what can be read, forget what cannot, and say so when that changes."""
        for informer in self.informers:
            plural, error = informer.resource.plural, informer.last_error
            is_refused = isinstance(error, ApiError) and error.code in _REFUSALS
            _UNKNOWN.labels(self._cluster, plural).set(int(is_refused))
            if is_refused and plural not in self._admission.unknown:
                self._admission.unknown.add(plural)
                self._log.warning(
                    "rules of the lower cluster are unknown: pods that they refuse may be sent there. "
                    "`virtual-node lower-cluster register` grants the right",
                    cluster=self._cluster,
                    resource=plural,
                    error=str(error),
                )
            elif error is None and plural in self._admission.unknown:
                self._admission.unknown.discard(plural)
                self._log.info("rules of the lower cluster are known", cluster=self._cluster, resource=plural)


def _shrink_namespace(namespace: Object) -> Object:
    return namespace.with_fields(spec={}, status={})


def _shrink_class(priority_class: Object) -> Object:
    return priority_class.without("description", "preemptionPolicy")
