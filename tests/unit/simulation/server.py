"""One cluster's API server in memory: what it stores, refuses and tells watchers. No time passes in here.

Kept of a real one: uids and versions, preconditions, finalizers, graceful deletion of pods, subresources, generations,
immutable fields, namespaces that must be there and not be ending, watches that see objects enter and leave a selection.
"""

from __future__ import annotations

import bisect
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from controller_runtime.errors import AlreadyExists, Conflict, Expired, Forbidden, NotFound
from controller_runtime.objects import Object, WatchEvent, from_dict
from tests.unit.simulation.merging import merged
from tests.unit.simulation.rules import (
    check_content_update,
    check_pod_update,
    grace_period,
    has_ended,
    metadata_update,
    new_uid,
    stamp,
)
from tests.unit.simulation.selecting import Chooses

Body = dict[str, Any]
PROTECTED = {
    "persistentvolumeclaims": "kubernetes.io/pvc-protection",
    "persistentvolumes": "kubernetes.io/pv-protection",
}
"""Finalizers that admission adds (StorageObjectInUseProtection)."""
_CLUSTER_SCOPED = {"namespaces", "nodes", "persistentvolumes", "storageclasses", "csidrivers"}


@dataclass(frozen=True, slots=True)
class Commit:
    """One change of what is stored."""

    version: int
    plural: str
    key: str
    old: Body | None
    new: Body | None
    who: str
    """Who asked for it: a process of ours, or an actor."""
    verb: str

    @property
    def body(self) -> Body:
        """What there is after the change, or was before its end."""
        body = self.new or self.old
        assert body is not None
        return body


class Server:
    """The storage and its rules. All verbs are atomic."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.objects: dict[str, dict[str, Body]] = defaultdict(dict)
        self.history: dict[str, list[Commit]] = defaultdict(list)
        self.version = 1
        self.floor = 0
        """Versions up to this one have been compacted away."""
        self.observers: list[Callable[[Commit], None]] = []
        self._cached: dict[int, tuple[Body, Object]] = {}
        self._made: Counter[tuple[str, str]] = Counter()

    # --- reading ------------------------------------------------------------------------------------

    def find(self, plural: str, key: str) -> Body | None:
        """An object, not to be changed; or None."""
        return self.objects[plural].get(key)

    def all(self, plural: str) -> list[Body]:
        """All objects of a resource, not to be changed."""
        return [self.objects[plural][key] for key in sorted(self.objects[plural])]

    def get(self, plural: str, key: str) -> Body:
        """An object."""
        found = self.objects[plural].get(key)
        if found is None:
            name = key.rpartition("/")[2]
            raise NotFound(
                f'{plural} "{name}" not found', code=404, reason="NotFound",
                status={"details": {"name": name, "kind": plural}},
            )  # fmt: skip
        return found

    def list(self, plural: str, chosen: Chooses) -> tuple[list[Object], str]:
        """A collection, and its version."""
        found = [self.cached(body) for body in self.objects[plural].values() if chosen(body)]
        return found, str(self.version)

    def cached(self, body: Body) -> Object:
        """A stored object as informers keep it."""
        entry = self._cached.get(id(body))
        if entry is None:
            entry = self._cached[id(body)] = (body, from_dict(body))
        return entry[1]

    def since(
        self, plural: str, version: int, chosen: Chooses, *, until: int | None = None
    ) -> Iterator[WatchEvent]:
        """Yield what a watch brings after that version, up to another; None: up to now."""
        if version < self.floor:
            raise Expired("too old resource version", code=410, reason="Expired")
        changes = self.history[plural]
        for commit in changes[bisect.bisect_right(changes, version, key=lambda one: one.version) :]:
            if until is not None and commit.version > until:
                return
            if event := self.event(commit, chosen):
                yield event

    def event(self, commit: Commit, chosen: Chooses) -> WatchEvent | None:
        """A change as one collection sees it."""
        was = commit.old is not None and chosen(commit.old)
        has = commit.new is not None and chosen(commit.new)
        if has:
            assert commit.new is not None
            return WatchEvent("MODIFIED" if was else "ADDED", self.cached(commit.new))
        if was:
            assert commit.old is not None
            metadata = {**commit.old["metadata"], "resourceVersion": str(commit.version)}
            return WatchEvent("DELETED", from_dict({**commit.old, "metadata": metadata}))
        return None

    def changes_since(self, version: int) -> Iterator[Commit]:
        """All changes after that version."""
        return (one for changes in self.history.values() for one in changes if one.version > version)

    # --- writing ------------------------------------------------------------------------------------

    def create(self, plural: str, body: Mapping[str, Any], *, who: str, namespace: str | None = None) -> Body:
        """POST."""
        metadata = dict(body["metadata"])
        namespace = namespace or metadata.get("namespace")
        if plural not in _CLUSTER_SCOPED:
            metadata["namespace"] = namespace
            self._may_have_content(namespace or "")
        key = f"{namespace}/{metadata['name']}" if plural not in _CLUSTER_SCOPED else metadata["name"]
        if key in self.objects[plural]:
            raise AlreadyExists(f'{plural} "{key}" already exists', code=409, reason="AlreadyExists")
        for field in ("deletionTimestamp", "deletionGracePeriodSeconds", "resourceVersion", "uid"):
            metadata.pop(field, None)
        self._made[plural, key] += 1
        metadata |= {
            "uid": new_uid(f"{self.name} {plural} {key} {self._made[plural, key]}"),
            "creationTimestamp": stamp(self.version),
        }
        whole = {**body, "metadata": metadata}
        if plural == "pods":
            metadata["generation"] = 1
            whole["status"] = {"phase": "Pending", "qosClass": "BestEffort"}
            whole["spec"] = {"terminationGracePeriodSeconds": 30, **whole["spec"]}
        elif plural == "services":
            whole["spec"] = _addressed(whole["spec"], metadata["uid"])
        elif plural in PROTECTED:
            metadata["finalizers"] = [*(metadata.get("finalizers") or ()), PROTECTED[plural]]
            whole["status"] = {"phase": "Pending"}
        elif plural == "namespaces":
            whole["status"] = {"phase": "Active"}
            metadata["labels"] = {
                **(metadata.get("labels") or {}),
                "kubernetes.io/metadata.name": metadata["name"],
            }
        elif plural == "secrets":
            whole.setdefault("type", "Opaque")
        return self._commit(plural, key, None, whole, who=who, verb="create")

    def patch(
        self, plural: str, key: str, patch: Mapping[str, Any], *, who: str,
        subresource: str | None = None, strategic: bool = False,
    ) -> Body:  # fmt: skip
        """PATCH, or PUT where the patch is the whole."""
        there = self.get(plural, key)
        after: Body = merged(there, patch, strategic=strategic)
        return self._update(plural, key, there, after, who=who, subresource=subresource)

    def update(self, plural: str, key: str, body: Mapping[str, Any], *, who: str) -> Body:
        """PUT."""
        return self._update(plural, key, self.get(plural, key), dict(body), who=who, subresource=None)

    def delete(
        self, plural: str, key: str, *, who: str, uid: str | None = None,
        resource_version: str | None = None, grace: int | None = None,
    ) -> Body:  # fmt: skip
        """DELETE."""
        there = self.get(plural, key)
        metadata = there["metadata"]
        if (uid and uid != metadata["uid"]) or resource_version not in (None, metadata["resourceVersion"]):
            raise Conflict("the precondition does not hold", code=409, reason="Conflict")
        is_ending = "deletionTimestamp" in metadata
        if plural == "namespaces":
            if is_ending:
                return there
            ending = {**metadata, "deletionTimestamp": stamp(self.version)}
            whole = {**there, "metadata": ending, "status": {"phase": "Terminating"}}
            return self._commit(plural, key, there, whole, who=who, verb="delete")
        seconds = grace_period(there, grace) if plural == "pods" else 0
        if is_ending:
            pending = metadata.get("deletionGracePeriodSeconds")
            if plural != "pods" or grace is None or pending is None or grace >= pending:
                return there  # only a shorter grace period is news
            seconds = grace
        if seconds == 0 and not metadata.get("finalizers"):
            return self.remove(plural, key, there, who=who)
        ending = {**metadata, "deletionTimestamp": metadata.get("deletionTimestamp") or stamp(self.version)}
        ending["deletionGracePeriodSeconds"] = seconds
        if ending.get("generation") and not is_ending:
            ending["generation"] += 1
        return self._commit(plural, key, there, {**there, "metadata": ending}, who=who, verb="delete")

    def bind(self, key: str, node: str, *, who: str) -> None:
        """POST pods/binding."""
        there = self.get("pods", key)
        if there["spec"].get("nodeName") or "deletionTimestamp" in there["metadata"]:
            return
        whole = {**there, "spec": {**there["spec"], "nodeName": node}}
        self._commit("pods", key, there, whole, who=who, verb="bind")

    def remove(
        self, plural: str, key: str, last: Body, *, who: str, before: Body | None = None, verb: str = "delete"
    ) -> Body:
        """Take it out of the storage, past every rule."""
        self.version += 1
        del self.objects[plural][key]
        self._tell(Commit(self.version, plural, key, before or last, None, who, verb))
        return last

    # --- within -------------------------------------------------------------------------------------

    def _update(
        self, plural: str, key: str, there: Body, after: Body, *, who: str, subresource: str | None
    ) -> Body:  # fmt: skip
        old, new = there["metadata"], metadata_update(there["metadata"], after["metadata"])
        whole = {**after, "metadata": new}
        if subresource == "status":
            whole = {**there, "metadata": new, "status": after.get("status") or {}}
        elif "status" in there:
            whole["status"] = there["status"]
        if plural == "pods":
            check_pod_update(there, whole, subresource)
            if whole["spec"] != there["spec"]:
                new["generation"] = old.get("generation", 0) + 1
        elif plural in {"configmaps", "secrets"}:
            check_content_update(there, whole)
        elif plural == "services" and subresource is None:
            whole["spec"] = _addressed(whole["spec"], old["uid"])
        if whole == there:
            return there
        if plural != "namespaces" and has_ended(new):
            return self.remove(plural, key, whole, who=who, before=there, verb="patch")
        return self._commit(plural, key, there, whole, who=who, verb=f"patch {subresource or ''}".strip())

    def _may_have_content(self, namespace: str) -> None:
        there = self.find("namespaces", namespace)
        if there is None:
            raise NotFound(
                f'namespaces "{namespace}" not found', code=404, reason="NotFound",
                status={"details": {"name": namespace, "kind": "namespaces"}},
            )  # fmt: skip
        if "deletionTimestamp" in there["metadata"]:
            raise Forbidden(
                f"unable to create new content in namespace {namespace} because it is being terminated",
                code=403, reason="Forbidden",
            )  # fmt: skip

    def _commit(self, plural: str, key: str, old: Body | None, new: Body, *, who: str, verb: str) -> Body:
        self.version += 1
        new = {**new, "metadata": {**new["metadata"], "resourceVersion": str(self.version)}}
        # As it would come back over the wire: nobody who wrote it can change what is stored.
        new = msgspec.json.decode(msgspec.json.encode(new))
        self.objects[plural][key] = new
        self._tell(Commit(self.version, plural, key, old, new, who, verb))
        return new

    def _tell(self, commit: Commit) -> None:
        self.history[commit.plural].append(commit)
        for observer in self.observers:
            observer(commit)


def _addressed(spec: Body, uid: str) -> Body:
    if spec.get("type") == "ExternalName":
        return {key: value for key, value in spec.items() if key not in {"clusterIP", "clusterIPs"}}
    if spec.get("clusterIP"):
        return spec
    return {"type": "ClusterIP", **spec, "clusterIP": f"10.96.{uid[:8]}"}
