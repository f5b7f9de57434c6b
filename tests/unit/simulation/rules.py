"""What an API server makes of single objects: uids, times, grace periods, and changes that it refuses."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from controller_runtime.errors import Conflict, Invalid

FINISHED = frozenset({"Succeeded", "Failed"})
"""Phases that a pod does not leave."""
_MAY_CHANGE = frozenset({"containers", "initContainers", "activeDeadlineSeconds", "tolerations", "nodeName"})
_KEPT = (
    "uid", "resourceVersion", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation",
    "name", "namespace",
)  # fmt: skip
"""Metadata that no update changes."""
_EMPTY_IS_NONE = ("labels", "annotations", "finalizers")
_BY_SUBRESOURCE = {"resize": {"containers"}, "ephemeralcontainers": {"ephemeralContainers"}}


def metadata_update(old: Mapping[str, Any], asked: Mapping[str, Any]) -> dict[str, Any]:
    """An object's metadata after a change; Invalid or Conflict where it may not change so."""
    new = dict(asked)
    if new.get("uid", old["uid"]) != old["uid"]:
        causes = {"details": {"causes": [{"reason": "FieldValueInvalid", "field": "metadata.uid"}]}}
        raise Invalid("field is immutable", code=422, reason="Invalid", status=causes)
    if new.get("resourceVersion", old["resourceVersion"]) != old["resourceVersion"]:
        raise Conflict("the object has been modified", code=409, reason="Conflict")
    if "deletionTimestamp" in old and set(new.get("finalizers") or ()) - set(old.get("finalizers") or ()):
        raise Invalid("no new finalizers can be added if it is being deleted", code=422, reason="Invalid")
    kept = {field: old[field] for field in _KEPT if field in old}
    lists = {field: new[field] for field in _EMPTY_IS_NONE if new.get(field)}
    others = {field: value for field, value in new.items() if field not in {*_KEPT, *_EMPTY_IS_NONE}}
    return {**others, **lists, **kept}


def has_ended(metadata: Mapping[str, Any]) -> bool:
    """Whether nothing keeps an object any more that is being deleted."""
    return (
        "deletionTimestamp" in metadata
        and not metadata.get("finalizers")
        and not metadata.get("deletionGracePeriodSeconds")
    )


def check_pod_update(there: Mapping[str, Any], whole: Mapping[str, Any], subresource: str | None) -> None:
    """Raise Invalid where a pod's spec may not change so."""
    if subresource == "status":
        return
    allowed = _BY_SUBRESOURCE.get(subresource or "", _MAY_CHANGE)
    old, new = there["spec"], whole["spec"]
    changed = {field for field in {*old, *new} if old.get(field) != new.get(field)}
    if changed - allowed:
        raise Invalid(f"spec: Forbidden: {sorted(changed)}", code=422, reason="Invalid")


def check_content_update(there: Mapping[str, Any], whole: Mapping[str, Any]) -> None:
    """Raise Invalid where a ConfigMap or Secret may not change so."""
    fixed = ("type", "data", "binaryData", "immutable") if there.get("immutable") else ("type",)
    if any(whole.get(field) != there.get(field) for field in fixed):
        raise Invalid("field is immutable", code=422, reason="Invalid")


def grace_period(pod: Mapping[str, Any], asked: int | None) -> int:
    """Seconds that a pod which is deleted has left."""
    if not pod["spec"].get("nodeName") or pod["status"].get("phase") in FINISHED:
        return 0
    return int(pod["spec"]["terminationGracePeriodSeconds"]) if asked is None else asked


def new_uid(of: str) -> str:
    """The same one in each run."""
    return str(uuid.uuid5(uuid.NAMESPACE_DNS, of))


def stamp(version: int) -> str:
    """A moment for each version: later ones are later."""
    days, seconds = divmod(version, 86400)
    return f"2026-01-{1 + days:02}T{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}Z"
