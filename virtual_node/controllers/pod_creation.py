"""Creates lower pods: what they need first, then the pod itself, and a clear word when that cannot be."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from functools import partial
from typing import Any

from controller_runtime import resources
from controller_runtime.api import matching, names
from controller_runtime.api.namespace_map import NEVER_MIRRORED
from controller_runtime.controller import Result
from controller_runtime.errors import AlreadyExists, ApiError, NotConnected, NotFound, is_retryable
from controller_runtime.objects import Object
from virtual_node import metrics
from virtual_node.controllers import live_pods
from virtual_node.controllers.context import ClusterContext
from virtual_node.controllers.dependencies import DependencyController
from virtual_node.controllers.identities import IdentityController
from virtual_node.controllers.namespaces import Namespaces
from virtual_node.controllers.pod_status import StatusWriter
from virtual_node.controllers.problems import Problem
from virtual_node.controllers.records import PodRecord
from virtual_node.controllers.service_links import ServiceLinks
from virtual_node.controllers.volumes import Volumes
from virtual_node.translate import own_status, pod_down, pools, volumes

_CONFLICT_RETRY = 30.0
"""Seconds between two looks at a name that somebody else's pod holds below (its end is no event of ours)."""
_PREDECESSOR_RETRY = 5.0
"""Safety net while a predecessor of the same name ends below; normally its delete event comes first."""
_QUOTA_RETRY = 10.0
_DEPENDENCY_RETRY = 60.0
"""Safety net while a dependency is missing; normally its watch brings the pod back at once."""


class PodCreator:
    """Brings a lower pod into being, dependencies first."""

    def __init__(
        self,
        context: ClusterContext,
        *,
        namespaces: Namespaces,
        dependencies: DependencyController,
        identities: IdentityController,
        volumes: Volumes | None,
        service_links: ServiceLinks,
        status: StatusWriter,
    ) -> None:
        self._context = context
        self._namespaces = namespaces
        self._dependencies = dependencies
        self._identities = identities
        self._volumes = volumes
        self._service_links = service_links
        self._status = status
        self._selects = matching.compile_selector(context.config.pod_selector)
        self._lag = metrics.MIRROR_SECONDS.labels(context.name, "down")

    def adopt(self, upper: Object) -> None:
        """The pod runs below already, from before a restart: what it needs there stays."""
        self._dependencies.claim(upper)

    def found_at_start(self, upper: Object) -> None:
        """The pod runs below already: what it needs there stays, and a token that went while nobody looked is made."""
        self.adopt(upper)
        self._identities.adopt(upper.uid)

    async def prepare(self, upper: Object, upper_pod: dict[str, Any]) -> list[Problem]:
        """Have the ConfigMaps and Secrets there below that a pod names; why that cannot be.

        Raises:
            ApiError: a passing trouble; the caller retries with back-off.
        """
        namespace = self._context.lower_namespace(upper.namespace)
        await self._namespaces.ensure(namespace, upper_name=upper.namespace)
        return await self._dependencies.ensure(upper, upper_pod, namespace)

    async def prepare_debugging(
        self, upper: Object, upper_pod: dict[str, Any], patch: dict[str, Any]
    ) -> None:
        """Give debug containers that are about to be added below what a pod's first containers get, in place.

        They may name what no other container does; what cannot be had the lower kubelet tells.

        Raises:
            ApiError: a passing trouble; the caller retries with back-off.
        """
        await self.prepare(upper, upper_pod)
        await self._service_links.ready(upper.namespace)
        self._service_links.add_to_containers(
            patch["spec"], upper_pod, partial(self._dependencies.keys_of, upper.uid)
        )

    def release(self, uid: str) -> None:
        """The upper pod is gone: what only it needed below may go too."""
        self._dependencies.release(uid)
        self._identities.release(uid)
        if self._volumes is not None:
            self._volumes.release(uid)

    async def create(self, upper: Object, record: PodRecord) -> Result | None:
        """Create the lower pod, or say on the upper pod why not yet.

        Raises:
            ApiError: a passing trouble; the caller retries with back-off.
        """
        upper_pod = upper.to_dict()
        if not_here := self._not_here(upper, upper_pod):
            await self._refused(upper, record, "NotAllowed", not_here, event="NotMirrored")
            return None
        options = self._context.options[upper_pod["spec"]["nodeName"]]
        namespace = options.namespace_map(upper.namespace)
        body = pod_down.lower_pod(upper_pod, options)
        if await self._has_no_node(upper, body["spec"], record, node_name=options.owner.node_name):
            return None
        try:
            problems = await self.prepare(upper, upper_pod)
            if self._volumes is not None:
                problems += await self._volumes.ensure(upper, upper_pod)
            if problems:
                return await self._wait_for(upper, upper_pod, record, problems)
            problems = await self._identities.ensure(upper, upper_pod, options)
            if problems:
                return await self._wait_for(upper, upper_pod, record, problems)
            await self._service_links.ready(upper.namespace)
            self._service_links.add(body, upper_pod, partial(self._dependencies.keys_of, upper.uid))
            created = await self._send(body, record)
        except AlreadyExists:
            return await self._name_is_taken(upper, record)
        except NotFound:
            self._namespaces.forget(namespace)
            raise
        except ApiError as error:
            if is_retryable(error):
                raise
            reason = own_status.refusal_reason(error.code, error.reason, error.message)
            message = f"Lower cluster {self._context.name} refused the pod: {error.message}"
            await self._refused(upper, record, reason, message)
            if reason == "ExceededQuota":
                # Not a failure of ours; quota is freed at any moment, and no watch of ours tells when.
                return Result(requeue_after=_QUOTA_RETRY)
            raise
        record.lower_uid = created["metadata"]["uid"]
        record.created_at = asyncio.get_running_loop().time()
        if record.wanted_at:
            self._lag.observe(record.created_at - record.wanted_at)
            record.wanted_at = 0.0
        record.observed = False
        # Debug containers can only be added to a pod that is there: the next look does.
        record.synced = None if upper_pod["spec"].get("ephemeralContainers") else upper
        record.reached = int(created["metadata"].get("generation") or 0)
        record.complaint = ""
        return None

    async def _has_no_node(
        self, upper: Object, spec: dict[str, Any], record: PodRecord, *, node_name: str
    ) -> bool:
        """Keep the lower pod to the virtual node's own lower nodes; say so where none of them can take it."""
        pool = self._context.nodes[node_name].node_selector
        why = pools.contradiction(spec, pool, node_name=node_name, cluster=self._context.name)
        if not why:
            pools.keep_to(spec, pool)
            return False
        if _is_news(record, "FailedScheduling", why):
            status = own_status.unschedulable(upper.to_dict(), message=why, now=datetime.now(UTC))
            await self._complain(upper, record, "FailedScheduling", why, status)
        return True

    async def _send(self, body: dict[str, Any], record: PodRecord) -> dict[str, Any]:
        was_sent, record.sent = record.sent, True
        try:
            return await self._context.lower.create(
                resources.PODS, body, namespace=body["metadata"]["namespace"]
            )
        except NotConnected:
            record.sent = was_sent  # this one has not arrived
            raise
        except ApiError as error:
            if 400 <= error.code < 500:
                record.sent = False
            raise

    async def _wait_for(
        self, upper: Object, upper_pod: dict[str, Any], record: PodRecord, problems: list[Problem]
    ) -> Result:
        first = problems[0]
        if _is_news(record, first.event_reason, first.message):
            status = own_status.pending(upper_pod, reason=first.waiting_reason, message=first.waiting_message)
            await self._complain(upper, record, first.event_reason, first.message, status)
        return Result(requeue_after=_DEPENDENCY_RETRY)

    async def _name_is_taken(self, upper: Object, record: PodRecord) -> Result | None:
        there = await live_pods.lower_named_as(self._context, upper)
        if there is None:
            return Result(requeue_after=0)
        if there.labels.get(names.LABEL_UPPER_CLUSTER) != self._context.cluster_id:
            return await self._name_conflict(upper, record, f"a pod {there.key} that is not ours")
        if there.labels.get(names.LABEL_UPPER_UID) == upper.uid:
            # Ours: created before a restart or by a request whose answer was lost. The informer brings it.
            record.lower_uid = there.uid
            record.created_at = asyncio.get_running_loop().time()
            return None
        namespace = live_pods.upper_namespace(there)
        if namespace != upper.namespace:
            return await self._name_conflict(
                upper, record, f"a pod {there.key} that stands for {namespace}/{upper.name}"
            )
        # A predecessor of the same name; its deletion wakes this pod. Who was to delete it may be gone (a virtual
        # node that was taken out of the configuration), so we do, once the upper cluster confirms that the name is ours.
        if there.metadata.deletion_timestamp is None and await live_pods.exists_above(
            self._context, upper.uid, there
        ):
            await live_pods.delete_below(self._context, there, grace_period_seconds=None)
        return Result(requeue_after=_PREDECESSOR_RETRY)

    async def _name_conflict(self, upper: Object, record: PodRecord, what: str) -> Result:
        message = f"Lower cluster {self._context.name} has {what}; it is left alone. Delete or rename one of the two"
        if _is_news(record, "NameConflict", message):
            status = own_status.pending(
                upper.to_dict(), reason="NameConflict", message=message, pod_reason="NameConflict"
            )
            await self._complain(upper, record, "NameConflict", message, status)
        return Result(requeue_after=_CONFLICT_RETRY)

    def _not_here(self, upper: Object, upper_pod: dict[str, Any]) -> str:
        """Why the policy keeps a pod out of this lower cluster; empty when it does not."""
        if upper.namespace == NEVER_MIRRORED:
            return f"Pods in {NEVER_MIRRORED} are not mirrored to lower clusters; keep this pod off virtual nodes"
        if not self._namespaces.allowed(upper.namespace):
            return (
                f"Lower cluster {self._context.name} takes no pods of namespace {upper.namespace} "
                "(namespaces.allowed in the virtual node's configuration)"
            )
        if not self._selects(upper.labels):
            return (
                f"Lower cluster {self._context.name} does not take pods with these labels "
                "(podSelector in the virtual node's configuration)"
            )
        if upper_pod["spec"].get("resourceClaims"):
            return (
                "Pods with resourceClaims are not mirrored to lower clusters: claims are objects of the upper cluster; "
                "keep this pod off virtual nodes"
            )
        path = volumes.refused_host_path(upper_pod, self._context.config.volumes.allowed_host_paths)
        if path:
            return (
                f"Lower cluster {self._context.name} does not let pods mount the host path {path} "
                "(volumes.allowedHostPaths in the virtual node's configuration)"
            )
        return ""

    async def _refused(
        self, upper: Object, record: PodRecord, reason: str, message: str, *, event: str = "FailedCreate"
    ) -> None:
        if _is_news(record, event, message):
            status = own_status.refused(
                upper.to_dict(), reason=reason, message=message, now=datetime.now(UTC)
            )
            await self._complain(upper, record, event, message, status)
            metrics.REFUSED.labels(self._context.name, reason).inc()

    async def _complain(
        self, upper: Object, record: PodRecord, reason: str, message: str, status: dict[str, Any]
    ) -> None:
        """Write a problem into the pod, then tell it as an event; once, and again only if it could not be written."""
        await self._status.say(upper, status)
        record.complaint = _complaint(reason, message)
        self._context.recorder.event(upper, "Warning", reason, message)
        self._context.log.info("pod has to wait", pod=upper.key, uid=upper.uid, reason=reason, why=message)


def _is_news(record: PodRecord, reason: str, message: str) -> bool:
    """Whether a problem is another one than the pod's last."""
    return record.complaint != _complaint(reason, message)


def _complaint(reason: str, message: str) -> str:
    return f"{reason}: {message}"
