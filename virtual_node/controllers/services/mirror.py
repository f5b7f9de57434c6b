"""Creates, updates, replaces, annotates and deletes the lower copy of one Service.

The ServiceController decides which Services have a copy, and when.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import Any

from controller_runtime import resources
from controller_runtime.cache.informer import Informer
from controller_runtime.errors import AlreadyExists, Conflict, Invalid, NotFound
from controller_runtime.objects import Object, from_dict
from virtual_node.controllers.base import peers
from virtual_node.controllers.base.context import ClusterContext
from virtual_node.controllers.base.preconditions import delete_only, patch_only
from virtual_node.controllers.base.problems import Problem, service_taken
from virtual_node.controllers.namespaces.controller import Namespaces
from virtual_node.translate.base import ownership
from virtual_node.translate.services import services as translate


@dataclass(eq=False, repr=False)
class ServiceCopies:
    """Writes the copies of upper Services; never touches unmanaged objects."""

    context: ClusterContext
    namespaces: Namespaces
    lower: Informer
    """Services of the lower cluster that carry our ownership label."""
    foreign: dict[str, str] = field(default_factory=dict)
    """Upper uids, by upper key, of Services whose lower name or namespace is not ours."""
    unused: dict[str, str] = field(default_factory=dict)
    """Lower uids, by upper key, of copies that were deleted because none of our pods uses them."""
    _in_step: dict[str, Object] = field(default_factory=dict)
    """Upper Services, by key, in the state with which their copies were last compared."""

    def __post_init__(self) -> None:
        """Create without any IO."""
        self._own_name = min(self.context.nodes)
        self._mark = translate.always_mark(self._own_name)

    def forget(self, key: str) -> None:
        """Forget the state kept for an upper Service that is gone."""
        self.foreign.pop(key, None)
        self.unused.pop(key, None)
        self._in_step.pop(key, None)

    def is_always(self, namespace: str, name: str) -> bool:
        """Report whether ``services.always`` includes an upper Service; it is then copied even if no pod uses it."""
        return translate.is_always(namespace, name, self.context.settings.services.always)

    def is_always_needed_elsewhere(self, copy: Object) -> bool:
        """Report whether the annotations of a copy show that another installation always wants it."""
        return bool(translate.wanted_by(copy.annotations) - {self._own_name})

    async def is_used_elsewhere(self, copy: Object) -> bool:
        """Report whether another installation wants a copy, always or for its pods. May read live."""
        return self.is_always_needed_elsewhere(copy) or await peers.have_pods_in(self.context, copy.namespace)

    async def ensure(self, upper: Object, namespace: str) -> Problem | None:
        """Create or patch the copy of an upper Service; return a Problem if its name or namespace is not ours.

        Raises:
            ApiError: the lower cluster refuses; the caller retries.
        """
        self.unused.pop(upper.key, None)
        whole = upper.to_dict()
        desired = self._desired(whole, namespace)
        existing = self.lower.store.get(f"{namespace}/{upper.name}")
        was_up_to_date = self._in_step.get(upper.key) is upper
        if existing is None:
            if was_up_to_date and not await peers.is_current(self.context.upper, resources.SERVICES, upper):
                return None  # another process has deleted the copy; our cache does not show the reason yet
            if problem := await self.namespaces.ensure(upper.namespace):
                return problem
            existing = await self._create(whole, desired)
            if existing is None:
                self._in_step[upper.key] = upper
                return None
        if not ownership.is_owned_by(existing, self.context.cluster_id, upper.namespace, upper_uid=upper.uid):
            return service_taken(existing.key, self.context.name)
        self.foreign.pop(upper.key, None)
        current = existing.to_dict()
        is_replaced = translate.must_replace(current, desired)
        patch = None if is_replaced else translate.service_patch(current, desired)
        if (is_replaced or (patch and was_up_to_date)) and not await peers.is_current(
            self.context.upper, resources.SERVICES, upper
        ):
            return None  # our cache is behind; the missing event requeues this key
        self._in_step[upper.key] = upper
        if is_replaced:
            await self.delete(existing)
            if await self._create(whole, desired) is not None:
                # The old copy is not gone yet, or another object was created first. The next reconcile checks
                # its owner.
                raise Conflict(f"Service {existing.key} is being replaced", code=409, reason="Conflict")
        elif patch:
            await self._patch(existing, patch)
        elif self._mark in existing.annotations and self._mark not in desired["metadata"]["annotations"]:
            await self.unmark(existing)
        return None

    def of(self, key: str) -> Object | None:
        """Return the copy of an upper Service from the cache; None also if another Service's copy has the name."""
        copy = self.lower.store.get(self.context.lower_key(key))
        namespace = key.partition("/")[0]
        is_ours = copy is not None and ownership.is_owned_by(copy, self.context.cluster_id, namespace)
        return copy if is_ours else None

    async def unmark(self, copy: Object) -> None:
        """Remove our annotation that we always want a copy; those of other installations stay."""
        if self._mark in copy.annotations:
            await self._patch(copy, {"metadata": {"annotations": {self._mark: None}}})

    async def delete(self, copy: Object) -> None:
        """Delete a copy by uid."""
        await delete_only(self.context.lower, resources.SERVICES, copy)

    def _desired(
        self, whole: dict[str, Any], namespace: str, *, with_families: bool = True
    ) -> dict[str, Any]:
        desired = translate.lower_service(
            whole,
            namespace=namespace,
            cluster_id=self.context.cluster_id,
            with_families=with_families,
            rules=self.context.rules.policy.of(whole["metadata"]["namespace"]).metadata,
        )
        if self.is_always(whole["metadata"]["namespace"], whole["metadata"]["name"]):
            desired["metadata"]["annotations"][self._mark] = "true"
        return desired

    async def _patch(self, copy: Object, patch: dict[str, Any]) -> None:
        await patch_only(self.context.lower, resources.SERVICES, copy, patch)

    async def _create(self, whole: dict[str, Any], desired: dict[str, Any]) -> Object | None:
        """Create the copy and return None; if its name is taken, return the existing Service."""
        lower, namespace = self.context.lower, desired["metadata"]["namespace"]
        name = desired["metadata"]["name"]
        if whole["metadata"]["uid"] == self.foreign.get(f"{whole['metadata']['namespace']}/{name}"):
            with contextlib.suppress(NotFound):
                return from_dict(await lower.get(resources.SERVICES, name, namespace=namespace))
        try:
            with self.namespaces.in_use(namespace):
                created, refused = await self._create_first_accepted(whole, desired)
        except AlreadyExists:
            return from_dict(await lower.get(resources.SERVICES, name, namespace=namespace))
        self.context.log.debug("lower service created", service=f"{namespace}/{name}")
        self._report_address(whole, created, refused)
        return None

    async def _create_first_accepted(
        self, whole: dict[str, Any], desired: dict[str, Any]
    ) -> tuple[dict[str, Any], str]:
        """Create the copy as similar to the upper Service as the lower cluster accepts.

        Returns the copy and the reason why the upper addresses were refused; empty: they were accepted, or
        not requested. They are only requested here, because a Service's addresses cannot be changed later.
        """
        create, namespace = self.context.lower.create, desired["metadata"]["namespace"]
        first = translate.at_upper_addresses(whole, desired) if self._asks_for_same(whole) else []
        refused = ""
        for body in (*first, desired):
            try:
                return await create(resources.SERVICES, body, namespace=namespace), refused
            except Invalid as error:
                cause = translate.address_refusal(error.message)
                if not cause:
                    raise
                refused = refused or cause
        # The lower cluster has other IP families, so let it choose.
        last = self._desired(whole, namespace, with_families=False)
        return await create(resources.SERVICES, last, namespace=namespace), refused

    def _report_address(self, whole: dict[str, Any], created: dict[str, Any], refused: str) -> None:
        """Write an event if the lower cluster refused the upper Service's addresses for the copy."""
        if refused and self._asks_for_same(whole):
            wanted, given = translate.upper_addresses(whole), translate.upper_addresses(created)
            self.context.warn(
                whole,
                "OtherClusterIP",
                f"Lower cluster {self.context.name} gave the Service {', '.join(given)} instead of "
                f"{', '.join(wanted)}: {refused} (services.clusterIP: same)",
            )

    def _asks_for_same(self, whole: dict[str, Any]) -> bool:
        return self.context.config.services.cluster_ip == "same" and bool(translate.upper_addresses(whole))
