"""An API server in memory: the verbs over ``Storage``, with the rules of the real one. No time passes in here.

Kept of a real one: UIDs and versions, preconditions, finalizers, graceful deletion of pods, subresources, generations,
immutable fields, namespaces, dry runs, evictions, and watches that see objects enter and leave a selection.
``cases.py`` has requests that this server and a real one answer alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import jsonpatch

from controller_runtime.apimachinery.strategic_merge import merged
from controller_runtime.client.client import PatchType
from controller_runtime.errors import (
    AlreadyExists,
    Conflict,
    Forbidden,
    Invalid,
    TooManyRequests,
    Unavailable,
)
from tests.fakes.apiserver.rules import (
    check_addresses,
    check_content_update,
    check_pod_update,
    grace_period,
    is_deletable,
    metadata_update,
    new_object,
    new_uid,
    with_address,
)
from tests.fakes.apiserver.selectors import selection
from tests.fakes.apiserver.storage import Body, Storage, is_namespaced, not_found, object_key, typed

_UNCONDITIONAL = frozenset({"pods", "nodes", "configmaps", "secrets", "services", "namespaces"})
"""Resources that can be replaced without a resourceVersion."""


class Server(Storage):
    """The storage and its rules. All verbs are atomic."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self._created: Counter[tuple[str, str]] = Counter()
        self.drop_unknown: Callable[[str, Body], None] = lambda _plural, _body: None
        """Removes from a new or changed object the fields that this server's version does not know."""
        self.families = {"IPv4", "IPv6"}
        """Families of Services' addresses."""
        super().__init__(*args, **options)

    def create(
        self, plural: str, body: Mapping[str, Any], *, who: str = "", namespace: str | None = None, dry_run: bool = False
    ) -> Body:  # fmt: skip
        metadata = dict(body["metadata"])
        namespace = namespace or metadata.get("namespace")
        if is_namespaced(plural):
            metadata["namespace"] = namespace
            self._check_namespace(namespace or "")
        if not metadata.get("name") and metadata.get("generateName"):
            metadata["name"] = f"{metadata['generateName']}{new_uid(str(self.version))[:5]}"
        if not metadata.get("name"):
            raise Invalid("metadata.name: Required value", code=422, reason="Invalid")
        key = object_key(plural, namespace, metadata["name"])
        if key in self.objects[plural]:
            raise AlreadyExists(f'{plural} "{key}" already exists', code=409, reason="AlreadyExists")
        for field in ("deletionTimestamp", "deletionGracePeriodSeconds", "resourceVersion", "uid"):
            metadata.pop(field, None)
        metadata |= {
            "uid": new_uid(f"{self.name} {plural} {key} {self._created[plural, key] + 1}"),
            "creationTimestamp": self.now(self.version),
        }
        if plural == "services":
            check_addresses(body["spec"], self.objects[plural].values(), self.families)
        whole = new_object(plural, typed(plural, body), metadata)
        self.drop_unknown(plural, whole)
        if dry_run:
            return whole
        self._created[plural, key] += 1
        return self.commit(plural, key, None, whole, who=who, verb="create")

    def patch(
        self, plural: str, key: str, patch: Any, *, who: str = "", subresource: str | None = None,
        patch_type: PatchType = PatchType.MERGE, dry_run: bool = False,
    ) -> Body:  # fmt: skip
        stored = self.get(plural, key)
        after: Body = _patched(stored, patch, patch_type)
        return self._update(plural, key, stored, after, who=who, subresource=subresource, dry_run=dry_run)

    def update(
        self, plural: str, key: str, body: Mapping[str, Any], *, who: str = "", subresource: str | None = None,
        dry_run: bool = False,
    ) -> Body:  # fmt: skip
        stored, metadata = self.get(plural, key), body["metadata"]
        if "resourceVersion" not in metadata and plural not in _UNCONDITIONAL:
            raise Invalid("metadata.resourceVersion: must be specified for an update", code=422)
        if metadata.get("uid", stored["metadata"]["uid"]) != stored["metadata"]["uid"]:
            raise Conflict("Precondition failed: UID in precondition", code=409, reason="Conflict")
        return self._update(
            plural, key, stored, dict(body), who=who, subresource=subresource, dry_run=dry_run
        )

    def delete(
        self, plural: str, key: str, *, who: str = "", uid: str | None = None,
        resource_version: str | None = None, grace: int | None = None, dry_run: bool = False,
    ) -> Body:  # fmt: skip
        stored = self.get(plural, key)
        metadata = stored["metadata"]
        if (uid and uid != metadata["uid"]) or resource_version not in (None, metadata["resourceVersion"]):
            raise Conflict("the precondition does not hold", code=409, reason="Conflict")
        is_terminating = "deletionTimestamp" in metadata
        if dry_run:
            return stored
        if plural == "namespaces":
            if is_terminating:
                return stored
            ending = {**metadata, "deletionTimestamp": self.now(self.version)}
            whole = {**stored, "metadata": ending, "status": {"phase": "Terminating"}}
            return self.commit(plural, key, stored, whole, who=who, verb="delete")
        seconds = grace_period(stored, grace) if plural == "pods" else 0
        if is_terminating:
            pending = metadata.get("deletionGracePeriodSeconds")
            if plural != "pods" or grace is None or pending is None or grace >= pending:
                return stored  # only a shorter grace period changes something
            seconds = grace
        if seconds == 0 and not metadata.get("finalizers"):
            return self.remove(plural, key, stored, who=who)
        ending = {
            **metadata,
            "deletionTimestamp": metadata.get("deletionTimestamp") or self.now(self.version),
        }
        ending["deletionGracePeriodSeconds"] = seconds
        if ending.get("generation") and not is_terminating:
            ending["generation"] += 1
        return self.commit(plural, key, stored, {**stored, "metadata": ending}, who=who, verb="delete")

    def evict(self, key: str, body: Mapping[str, Any], *, who: str = "", dry_run: bool = False) -> Body:
        """POST pods/eviction; a budget without allowed disruptions refuses it."""
        options = body.get("deleteOptions") or {}
        wanted = options.get("preconditions") or {}
        pod = self.get("pods", key)
        budgets = []
        for budget in self.all("poddisruptionbudgets"):
            labels = budget["spec"]["selector"]["matchLabels"]
            matches = selection(
                pod["metadata"]["namespace"], ",".join(f"{name}={labels[name]}" for name in labels), None
            )
            if matches(pod):
                budgets.append(budget)
        if len(budgets) > 1:  # as version 1.34 answers
            message = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
            raise Unavailable(message, code=500)
        for budget in budgets:
            if budget["status"]["disruptionsAllowed"] <= 0:
                message = "Cannot evict pod as it would violate the pod's disruption budget."
                status = {"details": {"causes": [{"reason": "DisruptionBudget"}]}}
                raise TooManyRequests(message, code=429, status=status)
        self.delete(
            "pods", key, who=who, uid=wanted.get("uid"), resource_version=wanted.get("resourceVersion"),
            grace=options.get("gracePeriodSeconds"), dry_run=dry_run,
        )  # fmt: skip
        return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}

    def bind(self, key: str, node: str, *, who: str = "") -> None:
        """POST pods/binding."""
        stored = self.get("pods", key)
        if stored["spec"].get("nodeName") or "deletionTimestamp" in stored["metadata"]:
            return
        whole = {**stored, "spec": {**stored["spec"], "nodeName": node}}
        self.commit("pods", key, stored, whole, who=who, verb="bind")

    def _update(
        self, plural: str, key: str, stored: Body, after: Body, *, who: str, subresource: str | None, dry_run: bool
    ) -> Body:  # fmt: skip
        old, new = stored["metadata"], metadata_update(stored["metadata"], after["metadata"])
        whole = {**after, "metadata": new}
        if subresource in {"status", "approval"}:
            whole = {**stored, "metadata": new, "status": after.get("status") or {}}
        elif "status" in stored:
            whole["status"] = stored["status"]
        self.drop_unknown(plural, whole)
        if plural == "pods":
            check_pod_update(stored, whole, subresource)
            if whole["spec"] != stored["spec"]:
                new["generation"] = old.get("generation", 0) + 1
        elif plural in {"configmaps", "secrets"}:
            check_content_update(plural, stored, whole)
        elif plural == "services" and subresource is None:
            whole["spec"] = with_address(whole["spec"], old["uid"])
        if dry_run or whole == stored:
            return whole
        if plural != "namespaces" and is_deletable(new):
            return self.remove(plural, key, whole, who=who, before=stored, verb="patch")
        return self.commit(plural, key, stored, whole, who=who, verb=f"patch {subresource or ''}".strip())

    def _check_namespace(self, namespace: str) -> None:
        stored = self.find("namespaces", namespace)
        if stored is None:
            raise not_found("namespaces", namespace)
        if "deletionTimestamp" in stored["metadata"]:
            raise Forbidden(
                f"unable to create new content in namespace {namespace} because it is being terminated",
                code=403, reason="Forbidden",
                status={"details": {"causes": [{"reason": "NamespaceTerminating"}]}},
            )  # fmt: skip


def _patched(stored: Any, patch: Any, patch_type: PatchType) -> Any:
    """Return an object with a patch applied; neither argument changes.

    Raises:
        Invalid: a JSON patch does not apply.
    """
    if patch_type is PatchType.JSON:
        try:
            return jsonpatch.apply_patch(stored, patch)
        except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException) as error:
            raise Invalid(
                "the server rejected our request due to an error in our request", code=422, reason="Invalid"
            ) from error
    return merged(stored, patch, strategic=patch_type is PatchType.STRATEGIC)
