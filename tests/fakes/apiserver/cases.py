"""Requests that the server in memory and a real one answer alike; each case has objects of its own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from controller_runtime import resources
from controller_runtime.client.client import PatchType
from controller_runtime.resources import Resource

_PODS = {"spec": {"containers": [{"name": "c", "image": "i"}], "schedulerName": "none"}}
"""Without a scheduler, which would add a condition at any time."""
_READY = {"type": "Ready", "status": "True"}
_DRY_RUN = {"dryRun": "All"}


@dataclass(frozen=True, slots=True)
class Step:
    """One request and what it returns.

    Attributes:
        verb: a method of ``client.Client``.
        body: the object or patch.
        options: further arguments; the string ``$uid`` or ``$resourceVersion`` stands for that of the last response.
        shows: path of a field of the response → its value; None: it is absent.
        code: the HTTP status of an error; 0: success.
    """

    verb: str
    body: Any = None
    options: dict[str, Any] = field(default_factory=dict)
    shows: dict[str, Any] = field(default_factory=dict)
    code: int = 0


@dataclass(frozen=True, slots=True)
class Case:
    """Requests for one object, in order."""

    name: str
    resource: Resource
    steps: tuple[Step, ...]


def create(body: dict[str, Any] | None = None, *, code: int = 0, **shows: Any) -> Step:
    """Return a step that creates the object."""
    return Step("create", body or {}, shows=_paths(shows), code=code)


def patch(body: Any, shows: dict[str, Any] | None = None, *, code: int = 0, **options: Any) -> Step:
    """Return a step that patches it."""
    return Step("patch", body, options, shows or {}, code)


def _paths(shows: dict[str, Any]) -> dict[str, Any]:
    return {path.replace("__", "."): value for path, value in shows.items()}


def _metadata(**fields: Any) -> dict[str, Any]:
    return {"metadata": fields}


_STRATEGIC: dict[str, Any] = {"patch_type": PatchType.STRATEGIC}
_STATUS: dict[str, Any] = {"subresource": "status"}
_JSON: dict[str, Any] = {"patch_type": PatchType.JSON}
_MAPS, _SECRETS = resources.CONFIG_MAPS, resources.SECRETS

CASES = (
    Case("create twice", _MAPS, (create(), create(code=409))),
    Case("get missing", _MAPS, (Step("get", code=404),)),
    Case("create in missing namespace", _MAPS, (Step("create", {}, {"namespace": "missing"}, code=404),)),
    Case("create with dry run", _MAPS, (Step("create", {}, {"params": _DRY_RUN}), Step("get", code=404))),
    Case("server sets UID", _MAPS, (create(_metadata(uid="mine")), Step("delete", None, {"uid": "mine"}, code=409))),
    Case("secret type", _SECRETS, (create({"data": {"a": "Yg=="}}, type="Opaque"), patch({"type": "other"}, code=422))),
    Case("bad key", _MAPS, (create({"data": {"a b": ""}}, code=422),)),
    Case(
        "merge patch", _MAPS,
        (
            create({"data": {"a": "1", "b": "2"}}),
            patch({"data": {"a": None, "c": "3"}}, {"data": {"b": "2", "c": "3"}}),
            patch(_metadata(labels={"x": "y"}), {"metadata.labels": {"x": "y"}}),
            patch(_metadata(labels={"x": None}), {"metadata.labels": None}),
            patch({"data": None}, {"data": None}),
        ),
    ),
    Case(
        "patch with dry run", _MAPS,
        (
            create({"data": {"a": "1"}}),
            patch({"data": {"a": "2"}}, {"data": {"a": "2"}}, params=_DRY_RUN),
            Step("get", shows={"data": {"a": "1"}}),
        ),
    ),
    Case(
        "patch preconditions", _MAPS,
        (
            create(),
            patch(_metadata(uid="other"), code=422),
            patch(_metadata(resourceVersion="1"), code=409),
            patch(_metadata(resourceVersion="$resourceVersion", labels={"a": "b"}), {"metadata.labels": {"a": "b"}}),
        ),
    ),
    Case("patch another name", _MAPS, (create(), patch(_metadata(name="other"), code=400))),
    Case("patch missing", _MAPS, (patch({"data": {"a": "1"}}, code=404),)),
    Case(
        "update", _MAPS,
        (
            create({"data": {"a": "1"}}),
            Step("update", {**_metadata(resourceVersion="1"), "data": {"a": "2"}}, code=409),
            Step("update", {**_metadata(uid="other"), "data": {"a": "2"}}, code=409),
            Step("update", {"data": {"b": "2"}}, shows={"data": {"b": "2"}}),
            Step("update", _metadata(labels={"a": "b"}), shows={"data": None, "metadata.labels": {"a": "b"}}),
        ),
    ),
    Case("update missing", _MAPS, (Step("update", _metadata(uid="u"), code=404),)),
    Case("update lease without version", resources.LEASES, (create(), Step("update", {"spec": {}}, code=422))),
    Case(
        "immutable content", _MAPS,
        (
            create({"data": {"a": "1"}, "immutable": True}),
            patch({"data": {"a": "2"}}, code=422),
            patch(_metadata(labels={"a": "b"}), {"metadata.labels": {"a": "b"}}),
        ),
    ),
    Case(
        "JSON patch", _MAPS,
        (
            create({"data": {"a": "1"}}),
            patch([{"op": "test", "path": "/data/a", "value": "2"}], code=422, **_JSON),
            patch([{"op": "remove", "path": "/data/missing"}], code=422, **_JSON),
            patch(
                [
                    {"op": "test", "path": "/data/a", "value": "1"},
                    {"op": "replace", "path": "/data/a", "value": "3"},
                    {"op": "add", "path": "/data/x~1y", "value": "4"},
                ],
                code=422, **_JSON,
            ),
            patch([{"op": "add", "path": "/data/b", "value": "4"}], {"data": {"a": "1", "b": "4"}}, **_JSON),
        ),
    ),
    Case(
        "delete preconditions", _MAPS,
        (
            create(),
            Step("delete", None, {"uid": "other"}, code=409),
            Step("delete", None, {"resource_version": "1"}, code=409),
            Step("get"),
            Step("delete", None, {"uid": "$uid", "resource_version": "$resourceVersion"}),
            Step("delete", code=404),
        ),
    ),
    Case(
        "finalizers", _MAPS,
        (
            create(_metadata(finalizers=["example.com/a", "example.com/b"])),
            Step("delete"),
            Step("get", shows={"metadata.deletionGracePeriodSeconds": 0}),
            create(code=409),
            patch(_metadata(finalizers=["example.com/a", "example.com/c"]), code=422),
            patch(
                _metadata(**{"$deleteFromPrimitiveList/finalizers": ["example.com/a"]}),
                {"metadata.finalizers": ["example.com/b"]},
                **_STRATEGIC,
            ),
            Step("delete"),
            patch(_metadata(finalizers=None)),
            Step("get", code=404),
        ),
    ),
    Case(
        "merge finalizers", _MAPS,
        (
            create(_metadata(finalizers=["example.com/a"])),
            patch(
                _metadata(finalizers=["example.com/b", "example.com/a"]),
                {"metadata.finalizers": ["example.com/b", "example.com/a"]},
                **_STRATEGIC,
            ),
            patch(_metadata(finalizers=["example.com/b"]), {"metadata.finalizers": ["example.com/b"]}),
            patch(_metadata(finalizers=[]), {"metadata.finalizers": None}),
        ),
    ),
    Case(
        "pod status subresource", resources.PODS,
        (
            create({**_PODS, "status": {"phase": "Running"}}, status__phase="Pending", metadata__generation=1),
            patch({"status": {"phase": "Running"}}, {"status.phase": "Pending"}),
            patch({"status": {"message": "m"}, "spec": {"nodeName": "n"}}, {"status.message": "m", "spec.nodeName": None}, **_STATUS),
            patch({"status": {"conditions": [_READY, {**_READY, "type": "A"}]}}, {}, **_STATUS),
            patch(
                {"status": {"conditions": [{"type": "A", "status": "False"}]}},
                {
                    "status.conditions.0.type": "Ready", "status.conditions.1.status": "False",
                    "status.conditions.2": None, "metadata.generation": 1,
                },
                **_STATUS, **_STRATEGIC,
            ),
            patch(
                {"status": {"conditions": [{"type": "B", "status": "True"}]}},
                {"status.conditions.0.type": "B", "status.conditions.1.type": "Ready", "status.conditions.2.type": "A"},
                **_STATUS, **_STRATEGIC,
            ),
            patch(
                {"status": {"conditions": [{"$patch": "delete", "type": "Ready"}]}},
                {"status.conditions.0.type": "B", "status.conditions.1.type": "A", "status.conditions.2": None},
                **_STATUS, **_STRATEGIC,
            ),
            patch(
                {"status": {"conditions": [_READY]}},
                {"status.conditions.0.type": "Ready", "status.conditions.1": None},
                **_STATUS,
            ),
        ),
    ),
    Case(
        "pod spec", resources.PODS,
        (
            create(_PODS),
            patch({"spec": {"nodeSelector": {"a": "b"}, "restartPolicy": "Never"}}, code=422),
            patch(
                {"spec": {"containers": [{"name": "c", "image": "j"}]}},
                {"spec.containers.0.image": "j", "metadata.generation": 2},
                **_STRATEGIC,
            ),
            patch({"spec": {"activeDeadlineSeconds": 9}}, {"spec.activeDeadlineSeconds": 9, "metadata.generation": 3}),
        ),
    ),
    Case("delete unbound pod", resources.PODS, (create(_PODS), Step("delete"), Step("get", code=404))),
    Case(
        "delete bound pod", resources.PODS,
        (
            create({"spec": {**_PODS["spec"], "nodeName": "missing"}}, spec__terminationGracePeriodSeconds=30),
            Step("delete"),
            Step("get", shows={"metadata.deletionGracePeriodSeconds": 30, "metadata.generation": 2}),
            Step("delete", None, {"grace_period_seconds": 60}),
            Step("get", shows={"metadata.deletionGracePeriodSeconds": 30}),
            Step("delete", None, {"grace_period_seconds": 5}),
            Step("get", shows={"metadata.deletionGracePeriodSeconds": 5}),
            Step("delete", None, {"grace_period_seconds": 0}),
            Step("get", code=404),
        ),
    ),
    Case(
        "evict", resources.PODS,
        (
            create(_PODS),
            Step("evict", {"preconditions": {"uid": "other"}}, code=409),
            Step("evict", {"dryRun": ["All"]}, {"params": _DRY_RUN}),
            Step("get"),
            Step("evict", {"preconditions": {"uid": "$uid"}}),
            Step("get", code=404),
            Step("evict", code=404),
        ),
    ),
    Case(
        "node status", resources.NODES,
        (
            create({"status": {"capacity": {"pods": "1"}}}, status__capacity={"pods": "1"}),
            patch(
                {"status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]}},
                {"status.capacity": {"pods": "1"}, "status.addresses.0.address": "192.0.2.1"},
                **_STATUS, **_STRATEGIC,
            ),
            patch({"spec": {"unschedulable": True}}, {"spec.unschedulable": True}, **_STRATEGIC),
        ),
    ),
    Case(
        "claim protection", resources.PERSISTENT_VOLUME_CLAIMS,
        (
            create(
                {"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}},
                metadata__finalizers=["kubernetes.io/pvc-protection"], status__phase="Pending",
            ),
        ),
    ),
)  # fmt: skip
