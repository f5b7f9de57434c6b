"""The cached pods: what decisions need, in limited memory."""

from __future__ import annotations

from typing import Any

from clusterset.model import names
from clusterset.model.pod.conditions import is_true
from controller_runtime.objects import from_dict
from controller_runtime.store import is_stub
from descheduler import pods, room

_LARGE = "x" * 100_000


def _pod(**metadata: Any) -> Any:
    """Return a pod with large fields that no decision reads."""
    whole = {
        "name": "p", "namespace": "shop", "uid": "u", "resourceVersion": "1", "labels": {"app": "a"},
        "annotations": {"x": _LARGE, names.ANNOTATION_UNSCHEDULABLE_NODES: "{}"},
        "ownerReferences": [{"uid": "rs", "kind": "ReplicaSet", "controller": True}, {"uid": _LARGE}], **metadata,
    }  # fmt: skip
    term = {"weight": 1, "podAffinityTerm": {"topologyKey": _LARGE}}
    spec = {
        "nodeName": "vn", "priority": 7, "containers": [{"name": "c", "image": _LARGE}],
        "affinity": {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [term]}, "nodeAffinity": {"x": 1}},
        "topologySpreadConstraints": [{"topologyKey": _LARGE}],
    }  # fmt: skip
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}], "podIPs": [_LARGE]}
    return from_dict({"kind": "Pod", "metadata": whole, "spec": spec, "status": status})


def test_a_pod_is_cached_without_what_decisions_do_not_read():
    shrunk = pods.shrink(_pod())
    assert shrunk.memory < 2500
    assert (shrunk.spec["affinity"], shrunk.labels) == ({"nodeAffinity": {"x": 1}}, {"app": "a"})
    assert shrunk.annotations == {names.ANNOTATION_UNSCHEDULABLE_NODES: "{}"}
    assert pods.owner_key(shrunk) == pods.owner_key(_pod())


def test_a_pod_beyond_its_namespaces_limit_is_not_moved():
    """It counts on its node. The reason names the cause and what to do."""
    assert pods.why_not_evictable(pods.shrink(_pod())) == ""
    reduced = pods.stub(pods.shrink(_pod(labels={f"l{number}": _LARGE for number in range(10)})))
    assert is_stub(reduced)
    assert reduced.memory < 2000
    assert list(pods.by_node(reduced)) == ["vn"]
    assert is_true(reduced.status, "Ready")
    assert "reduce their labels" in pods.why_not_evictable(reduced)


def test_a_pod_beyond_its_namespaces_limit_uses_as_much_room_as_before():
    """Otherwise a full node would look empty, and pods of others would be moved there."""
    spec = {
        "nodeName": "vn", "overhead": {"cpu": "1"}, "containers": [{"name": "c", "resources": {"requests": {"cpu": "2"}}}],
        "initContainers": [{"name": "s", "restartPolicy": "Always", "resources": {"requests": {"memory": "1Gi"}}}],
    }  # fmt: skip
    shrunk = pods.shrink(_pod(labels={"x": _LARGE}).with_fields(spec=spec))
    assert room.requests_of(pods.stub(shrunk)) == {"cpu": 3000, "memory": 1 << 30, "pods": 1}
