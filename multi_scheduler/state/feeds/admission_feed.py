"""Keeps the admission rules of a lower cluster current: informers of quotas, limit ranges, priority classes, namespaces.

A kubeconfig may lack the rights to read them. Without these rights, pods are sent to the cluster as if it had no such
rules. A missing right is logged once, and a metric reports it until it is granted.
"""

from __future__ import annotations

import asyncio

from prometheus_client import Gauge

from clusterset.model import names
from controller_runtime import log, resources
from controller_runtime.cache.informer import Informer
from controller_runtime.client.client import Client
from controller_runtime.errors import ApiError
from controller_runtime.objects import Object
from multi_scheduler.state.admission.predictor import Admission

_UNKNOWN = Gauge(
    "virtual_node_extender_unknown_rules",
    "1 while quotas, limit ranges, priority classes or namespaces of a lower cluster cannot be read.",
    ["cluster", "resource"],
)
_REFUSALS = (401, 403, 404)
_LOOK = 5.0
_COUNTED = 1.0
"""Seconds until the quota controller no longer counts a deleted or finished pod."""


class AdmissionFeed:
    """Informers of one lower cluster's admission rules."""

    def __init__(self, client: Client, admission: Admission) -> None:
        """Create the informers and register handlers; the caller must run both ``run`` and the ``informers``."""
        self._cluster = client.cluster
        self._admission = admission
        quotas = Informer(client, resources.RESOURCE_QUOTAS, transform=Object.with_only)
        quotas.on_change(
            lambda quota: admission.upsert_quota(quota.to_dict()),
            lambda quota: admission.remove_quota(quota.namespace, quota.name),
        )
        ranges = Informer(client, resources.LIMIT_RANGES, transform=Object.with_only)
        ranges.on_change(
            lambda one: admission.upsert_range(one.to_dict()),
            lambda one: admission.remove_range(one.namespace, one.name),
        )
        classes = Informer(
            client,
            resources.PRIORITY_CLASSES,
            transform=lambda one: one.without("description", "preemptionPolicy").with_only(),
        )
        classes.on_change(
            lambda one: admission.upsert_class(one.to_dict()), lambda one: admission.remove_class(one.name)
        )
        namespaces = Informer(
            client,
            resources.NAMESPACES,
            transform=lambda one: one.with_fields(spec={}, status={}).with_only(
                labels=lambda _key: True, annotations=names.is_reserved
            ),
        )
        namespaces.on_change(
            lambda one: admission.upsert_namespace(one.to_dict()),
            lambda one: admission.remove_namespace(one.name),
        )
        self.namespaces = namespaces
        self.informers = (quotas, ranges, classes, namespaces)
        self._is_settled = False
        self._log = log.get_logger(component="extender")

    async def run(self) -> None:
        """Report unreadable rules until cancelled."""
        self._is_settled = False  # the informers may have been cleared since the last run
        while True:
            await asyncio.sleep(_LOOK)
            self.look()

    def left(self, namespace: str) -> None:
        """Note that a lower pod was deleted or finished."""
        if self._admission.has_quotas(namespace):
            self._admission.left(namespace, counted_by=asyncio.get_running_loop().time() + _COUNTED)

    @property
    def is_settled(self) -> bool:
        """Report whether each informer has synced or failed; a missing right counts as failed, so it delays nothing."""
        if not self._is_settled:  # cached, because it is read for every pod and virtual node
            self._is_settled = all(
                informer.has_synced or informer.last_error is not None for informer in self.informers
            )
        return self._is_settled

    def look(self) -> None:
        """Apply readable rules and ignore unreadable ones; log when this changes."""
        for informer in self.informers:
            plural, error = informer.resource.plural, informer.last_error
            is_refused = isinstance(error, ApiError) and error.code in _REFUSALS
            _UNKNOWN.labels(self._cluster, plural).set(int(is_refused))
            if is_refused and plural not in self._admission.unknown:
                self._admission.unknown.add(plural)
                self._log.warning(
                    "admission rules of the lower cluster cannot be read, so pods that they refuse may be sent there. "
                    "`virtual-node lower-cluster register` grants the right",
                    cluster=self._cluster,
                    resource=plural,
                    error=str(error),
                )
            elif error is None and plural in self._admission.unknown:
                self._admission.unknown.discard(plural)
                self._log.info(
                    "admission rules of the lower cluster can be read again",
                    cluster=self._cluster,
                    resource=plural,
                )
