"""Creates lower pods after their dependencies. ``creation_delays`` reports why one cannot be created yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clusterset.admission import Refusal
from clusterset.model.pod import own_annotations, resource_claims
from clusterset.model.pod.groups import native_group
from controller_runtime import resources
from controller_runtime.apimachinery.translation_budget import TooLargeError, TranslationBudget
from controller_runtime.client.client import find
from controller_runtime.errors import (
    AlreadyExists,
    ApiError,
    Forbidden,
    NotConnected,
    RequestTooLarge,
)
from controller_runtime.objects import Object, from_dict
from controller_runtime.util import event_loop
from controller_runtime.util.event_loop import run_apart
from controller_runtime.workqueue.controller import Result
from virtual_node import metrics
from virtual_node.controllers.base.caches import shrink_large
from virtual_node.controllers.base.context import ClusterContext
from virtual_node.controllers.base.preconditions import delete_only
from virtual_node.controllers.base.problems import (
    TOO_LARGE,
    Problem,
    claims_of_group,
    unreadable,
)
from virtual_node.controllers.certificates import CertificateController
from virtual_node.controllers.copies.facade import Follow
from virtual_node.controllers.copies.references import DependencyController
from virtual_node.controllers.namespaces import Namespaces
from virtual_node.controllers.pods import remover
from virtual_node.controllers.pods.creation_delays import PREDECESSOR_RETRY, CreationDelays
from virtual_node.controllers.pods.record import Creation, LowerState, PodRecord, has_same_mirrored_fields
from virtual_node.controllers.pods.service_links import ServiceLinks
from virtual_node.controllers.tokens import IdentityController
from virtual_node.controllers.volumes.facade import Volumes
from virtual_node.translate.base import ownership
from virtual_node.translate.base.view import PodOptions
from virtual_node.translate.pods import lost_fields, lower_pod
from virtual_node.translate.pods.lost_fields import LostField
from virtual_node.translate.pods.service_account import mounted_names

_TOO_LARGE_CHECK = 60.0
"""Seconds until a check whether a pod that was too large, or an object that it is translated with, has changed."""
_LOST_FOR = 600.0
"""Seconds for which pods with a field that the lower cluster dropped are refused without a request."""


@dataclass(frozen=True, slots=True)
class _Translated:
    """An upper pod and the lower pod to create for it, without Service variables."""

    upper_pod: dict[str, Any]
    body: dict[str, Any]
    """Empty if the pod may not run."""
    refusal: Refusal | None
    """Why the pod may not run in this lower cluster; None: it may."""
    budget: TranslationBudget
    """What is left for the Service variables."""


@dataclass(eq=False, repr=False)
class PodCreator:
    """Creates a lower pod, dependencies first."""

    context: ClusterContext
    namespaces: Namespaces
    dependencies: DependencyController
    identities: IdentityController
    certificates: CertificateController
    volumes: Volumes | None
    service_links: ServiceLinks
    follow: Follow
    delays: CreationDelays

    def __post_init__(self) -> None:
        """Create without any IO."""
        self._lag = metrics.MIRROR_SECONDS.labels(self.context.name, "down")
        self._dropped: dict[tuple[str, str], float] = {}
        """Until which loop time the lower cluster is believed to drop a field without which pods must not run, by its version and path."""

    def adopt(self, upper: Object, lower: Object) -> None:
        """Keep the dependencies of a lower pod that an earlier process created. Repeated calls have no effect."""
        if not self.dependencies.knows(upper.uid):
            self._claim(upper, upper.to_dict(), lower.to_dict())

    def found_at_start(self, upper: Object, lower: Object) -> None:
        """Keep the dependencies of a lower pod found at start, and recreate a token Secret deleted while no process ran."""
        upper_pod, lower_pod = upper.to_dict(), lower.to_dict()
        self._claim(upper, upper_pod, lower_pod)
        mounted = mounted_names(lower_pod.get("spec") or {})
        self.identities.adopt(upper_pod, mounted)
        self.certificates.adopt(upper, mounted)

    def _claim(self, upper: Object, upper_pod: dict[str, Any], lower_pod: dict[str, Any]) -> None:
        """Register what a lower pod of an earlier process uses."""
        self.dependencies.claim(upper_pod, lower_pod)
        if self.volumes is not None:
            self.volumes.adopt(upper, upper_pod)

    def forget_pod(self, uid: str) -> None:
        """Remove what only this pod needed in the lower cluster; its upper pod is gone."""
        self.dependencies.forget_pod(uid)
        self.identities.forget_pod(uid)
        self.certificates.forget_pod(uid)
        self.delays.refusals.forget(uid)
        self.follow.forget_pod(uid)
        if self.volumes is not None:
            self.volumes.forget_pod(uid)

    async def create(self, upper: Object, record: PodRecord) -> Result | None:
        """Create the lower pod, or report on the upper pod why it cannot be created yet.

        Raises:
            ApiError: a temporary error; the caller retries with back-off.
        """
        others: int | None = None
        creation = record.creation
        if creation.too_large is not None:
            # Read before the translation. The first refusal has no version, because reading it for each pod would cost
            # time, so a pod that is too large is translated twice.
            others = self._version_of_others(upper)
            refused, with_others = creation.too_large
            if others == with_others and has_same_mirrored_fields(refused, upper):
                creation.too_large = upper, others  # otherwise the older object would stay in memory
                return Result(requeue_after=_TOO_LARGE_CHECK)
            creation.too_large = None
        try:
            return await self._create(upper, record)
        except (TooLargeError, RequestTooLarge) as error:
            await self.delays.refused(upper, record, TOO_LARGE, self.context.rules.too_large(error))
            creation.too_large = upper, others
            return Result(requeue_after=_TOO_LARGE_CHECK)

    def _version_of_others(self, upper: Object) -> int:
        """Return a hash of the other objects that a pod is translated with."""
        return hash((self.service_links.version(upper.namespace), self.dependencies.version(upper.uid)))

    def _translated(self, upper: Object, options: PodOptions) -> _Translated:
        """Translate a pod, without IO.

        Raises:
            TooLargeError: the translation exceeds its budget.
        """
        upper_pod, budget = upper.to_dict(), TranslationBudget()
        admitted = self.context.rules.admit(upper_pod, options, budget)
        if isinstance(admitted, Refusal):
            return _Translated(upper_pod, {}, admitted, budget)
        body = lower_pod.created(upper_pod, options, admitted, budget)
        return _Translated(upper_pod, body, None, budget)

    async def _create(self, upper: Object, record: PodRecord) -> Result | None:
        options = self.context.options[upper.node_name]
        namespace = options.namespace_map(upper.namespace)
        translated = await run_apart(lambda: self._translated(upper, options), size=upper.size)
        upper_pod, body = translated.upper_pod, translated.body
        if (refusal := translated.refusal) is not None:
            await self.delays.not_admitted(upper, record, refusal)
            return None
        if (paused := await self.delays.pause(upper, record, namespace, body["spec"])) is not None:
            return paused
        if lost := self._foreseen(body["spec"]):
            return await self._refuse(upper, record, body, lost)
        is_unanswered = record.creation.sent
        try:
            problems = await self._prepare(upper, translated, options)
        except ApiError as error:
            return await self.delays.not_created(upper, record, body, error)
        if problems:
            return await self.delays.wait_for(upper, record, problems[0])
        lower = shrink_large(from_dict(body))
        # Asked again, because others were created or refused meanwhile.
        if (paused := await self.delays.pause(upper, record, namespace, body["spec"])) is not None:
            return paused
        if (problem := self.context.no_room(upper.namespace, lower.memory)) is not None:
            return await self.delays.wait_for(upper, record, problem)
        try:
            with (
                self.namespaces.in_use(namespace),
                self.context.lower.caches.growing("Pod", namespace, upper.name, lower.memory),
            ):
                created = await self._send(body, record.creation)
        except AlreadyExists:
            return await self._name_is_taken(upper, record, body if is_unanswered else None)
        except ApiError as error:
            return await self.delays.not_created(upper, record, body, error)
        if lost := await self._lost(upper, record, body, created):
            return await self._undo(upper, record, body, from_dict(created), lost)
        self.delays.refusals.created(upper.uid, record.creation)
        self._report_ignored(upper)
        self._note_created(record, created["metadata"]["uid"])
        if record.creation.wanted_at:
            self._lag.observe(record.creation.created_at - record.creation.wanted_at)
            record.creation.wanted_at = 0.0
        # Debug containers can only be added to an existing pod, so the next reconcile adds them.
        record.spec.synced = None if upper_pod["spec"].get("ephemeralContainers") else upper
        record.spec.reached = int(created["metadata"].get("generation") or 0)
        return None

    async def _lost(
        self, upper: Object, record: PodRecord, body: dict[str, Any], created: Mapping[str, Any]
    ) -> list[LostField]:
        """Return the fields that the new lower pod lacks and must not run without; report other lost fields by an event."""
        record.creation.is_compared = True
        lost = await run_apart(
            lambda: lost_fields.lost_fields(body["spec"], created.get("spec") or {}), size=upper.size
        )
        must = [field for field in lost if field.consequence]
        if lost and not must:
            self.context.warn(upper, lost_fields.EVENT, lost_fields.message(self.context.name, lost))
        return must

    async def undo_unanswered(self, upper: Object, lower: Object, record: PodRecord) -> Result | None:
        """Delete a lower pod that lacks fields which it needs, if the response to its creation was lost; None: it stays."""
        if not record.creation.sent or record.creation.is_compared:
            return None
        options = self.context.options[upper.node_name]
        body = (await run_apart(lambda: self._translated(upper, options), size=upper.size)).body
        if not body or not (lost := await self._lost(upper, record, body, lower.to_dict())):
            return None
        return await self._undo(upper, record, body, lower, lost)

    def _foreseen(self, spec: Mapping[str, Any]) -> list[LostField]:
        """Return the fields of a pod that the lower cluster has dropped from other pods, and that must not be lost."""
        now = event_loop.now()
        self._dropped = {key: until for key, until in self._dropped.items() if until > now}
        if not self._dropped:
            return []
        version = self.context.lower_version
        return [field for field in lost_fields.needed(spec) if (version, field.path) in self._dropped]

    async def _undo(
        self, upper: Object, record: PodRecord, body: dict[str, Any], lower: Object, lost: Sequence[LostField]
    ) -> Result:
        """Delete a new lower pod that lacks fields which it needs. No kubelet starts a pod that is already being deleted."""
        record.lower = LowerState(given_up=lower.uid)
        await delete_only(self.context.lower, resources.PODS, lower)
        until = event_loop.now() + _LOST_FOR
        self._dropped |= {(self.context.lower_version, field.path): until for field in lost}
        return await self._refuse(upper, record, body, lost)

    async def _refuse(
        self, upper: Object, record: PodRecord, body: dict[str, Any], lost: Sequence[LostField]
    ) -> Result:
        message = lost_fields.message(self.context.name, lost)
        await self.delays.refused(upper, record, lost_fields.EVENT, message, event=lost_fields.EVENT)
        return self.delays.refusals.refused(upper.uid, body["metadata"]["namespace"], record.creation)

    def _report_ignored(self, upper: Object) -> None:
        """Write an event about annotations that have no effect, because most pods are created without a user who sees warnings."""
        if ignored := own_annotations.problems(upper.labels, upper.annotations):
            self.context.warn(upper, own_annotations.EVENT, "; ".join(ignored))

    @staticmethod
    def _note_created(record: PodRecord, uid: str) -> None:
        record.lower.created(uid)
        record.creation.created_at = event_loop.now()

    async def _prepare(self, upper: Object, translated: _Translated, options: PodOptions) -> list[Problem]:
        """Create what a new pod needs, and complete its body with what depends on that; return what is missing.

        Raises:
            ApiError: the lower cluster refuses or does not answer.
        """
        upper_pod, body = translated.upper_pod, translated.body
        namespace = body["metadata"]["namespace"]
        with self.namespaces.in_use(namespace):
            if problems := await self._missing(upper, upper_pod, options):
                return problems
            await self.service_links.settled(upper.namespace)
            await self.service_links.add(body, upper_pod, translated.budget)
            reference = ownership.controller_reference(namespace, await self.namespaces.uid(namespace))
            body["metadata"]["ownerReferences"] = [reference]
        return []

    async def _missing(self, upper: Object, upper_pod: dict[str, Any], options: PodOptions) -> list[Problem]:
        """Create what a new pod needs in the lower cluster; return what is missing or cannot be created."""
        if (problem := self.context.too_large(upper.namespace)) is not None:
            return [problem]
        if (problem := self.context.no_room(upper.namespace)) is not None:
            return [problem]
        problem = await self.namespaces.ensure(upper.namespace, is_for_new_pod=True)
        if problem is None:
            problem = await self.follow.ready(upper.namespace, upper.uid)
        if problem is not None:
            return [problem]
        if (problem := await self._claims_of_group(upper, upper_pod)) is not None:
            return [problem]
        problems = await self.dependencies.ensure(upper, upper_pod)
        if self.volumes is not None:
            problems += await self.volumes.ensure(upper, upper_pod)
        problems = problems or await self.identities.ensure(upper, upper_pod, options)
        return problems or await self.certificates.ensure(upper, upper_pod, options)

    async def _claims_of_group(self, upper: Object, upper_pod: dict[str, Any]) -> Problem | None:
        """Return the problem of a pod with claims that its PodGroup generates; None: it has none.

        The lower pod does not name the group, so its cluster would generate a claim for each pod.
        """
        name = native_group(upper.spec)
        if not name or not any(map(resource_claims.template_of, resource_claims.references(upper_pod))):
            return None
        key = f"{upper.namespace}/{name}"
        try:
            group = await find(
                self.context.upper, resources.NATIVE_POD_GROUPS, name, namespace=upper.namespace
            )
        except Forbidden as error:
            return unreadable(f"PodGroup {key}", error)
        shared = resource_claims.of_group(upper_pod, group) if group is not None else []
        return claims_of_group(key, shared) if shared else None

    async def _send(self, body: dict[str, Any], creation: Creation) -> dict[str, Any]:
        was_sent, creation.sent = creation.sent, True
        try:
            return await self.context.lower.create(
                resources.PODS, body, namespace=body["metadata"]["namespace"]
            )
        except NotConnected:
            creation.sent = was_sent  # this request has not reached the server
            raise
        except ApiError as error:
            if 400 <= error.code < 500:
                creation.sent = False
            raise

    async def _name_is_taken(
        self, upper: Object, record: PodRecord, unanswered: dict[str, Any] | None
    ) -> Result | None:
        """Handle the lower pod that has the name.

        Args:
            upper: the upper pod.
            record: of the pod.
            unanswered: the pod of an earlier request, the response to which was lost; None: there was none.
        """
        self.delays.refusals.forget(upper.uid)
        existing = await remover.lower_named_as(self.context, upper)
        if existing is None:
            return Result(requeue_after=0)
        if remover.is_lower_pod_of(self.context, upper, existing, known_uid=record.lower.uid):
            # We created this pod before a restart, or by a request whose response was lost. The informer will
            # show it, unless its labels were removed.
            if unanswered and (lost := await self._lost(upper, record, unanswered, existing.to_dict())):
                return await self._undo(upper, record, unanswered, existing, lost)
            self._note_created(record, existing.uid)
            return Result(requeue_after=PREDECESSOR_RETRY)
        if not ownership.is_owned(existing.labels, self.context.cluster_id):
            controller = ownership.lower_controller(existing)
            what = f"a pod {existing.key} that is not ours" + (f", but of {controller}" if controller else "")
            return await self.delays.name_conflict(upper, record, what)
        namespace = ownership.upper_namespace(existing)
        if namespace != upper.namespace:
            what = f"a pod {existing.key} that stands for {namespace}/{upper.name}"
            return await self.delays.name_conflict(upper, record, what)
        # The lower pod was made for an older upper pod of this name. Its deletion requeues ``upper``. The process that
        # should delete it may be gone (a virtual node removed from the configuration), so delete it here if
        # ``upper`` still exists.
        if existing.metadata.deletion_timestamp is None and await remover.upper_exists(
            self.context, upper.uid, existing
        ):
            await delete_only(self.context.lower, resources.PODS, existing)
        return await self.delays.wait_for_predecessor(upper, record, existing)
