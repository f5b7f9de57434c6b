"""Objects as a hostile lower API server sends them, where they are translated for the upper cluster.

A controller isolates what a malformed object raises as the failure of one key. Any other error, and unbounded
time, would affect other clusters.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from clusterset.model import names
from controller_runtime.apimachinery import decoding
from controller_runtime.objects import decode_object, from_dict
from multi_scheduler.state.cluster.index import ClusterIndex
from multi_scheduler.state.cluster_feed import shrink_node, shrink_pod, shrink_volume
from tests.fuzz.target import MALFORMED, Target
from virtual_node.controllers.events import pack, unpack
from virtual_node.translate.follow import addresses, gateways, ingresses
from virtual_node.translate.nodes import prometheus_text, stats
from virtual_node.translate.nodes.capacity import Capacity
from virtual_node.translate.objects import events, references
from virtual_node.translate.pods import status as pod_status
from virtual_node.translate.pods import synthetic_status
from virtual_node.translate.storage import pv, pvc

_UPPER: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "web", "namespace": "shop", "uid": "u-1", "generation": 1, "resourceVersion": "1"},
    "spec": {"containers": [{"name": "main"}], "readinessGates": [{"conditionType": "x/y"}]},
    "status": {"phase": "Pending", "qosClass": "BestEffort", "conditions": [{"type": "x/y", "status": "False"}]},
}  # fmt: skip
_LOWER = {
    "metadata": {"name": "web", "namespace": "shop", "uid": "l-1", "generation": 2},
    "spec": {"nodeName": "n", "containers": [{"name": "main", "resources": {"requests": {"cpu": "1"}}}]},
    "status": {"phase": "Running", "observedGeneration": 2, "podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}],
        "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}],
        "containerStatuses": [{"name": "main", "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
            "allocatedResources": {"cpu": "1"}, "resources": {"requests": {"cpu": "1"}}}]},
}  # fmt: skip
_NODE = {
    "metadata": {"name": "n", "labels": {"kubernetes.io/os": "linux"}},
    "spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]},
    "status": {"capacity": {"cpu": "4", "pods": "110"}, "allocatable": {"cpu": "4", "memory": "8Gi", "pods": "110"},
        "conditions": [{"type": "Ready", "status": "True"}], "nodeInfo": {"kubeletVersion": "v1.34.0"}, "declaredFeatures": ["A"]},
}  # fmt: skip
_EVENT = {"metadata": {"uid": "1-2"}, "involvedObject": {"fieldPath": "spec.containers{main}"}, "reason": "Pulled",
    "message": "m", "type": "Normal", "count": 3, "source": {"component": "kubelet"},
    "firstTimestamp": "2026-01-01T00:00:00Z", "lastTimestamp": "2026-01-01T00:00:00Z"}  # fmt: skip
_METRICS = (
    b"# TYPE container_cpu_usage_seconds_total counter\n"
    b'container_cpu_usage_seconds_total{container="main",namespace="shop",pod="web"} 1.5 1700000000000\n'
    b"node_cpu_usage_seconds_total 12.5 1700000000000\nnode_memory_working_set_bytes 1e9 1700000000000\n"
    b'pod_memory_working_set_bytes{namespace="shop",pod="web"} 100 1700000000000\n'
)
_SUMMARY = json.dumps({
    "node": {"startTime": "2026-01-01T00:00:00Z", "cpu": {"usageNanoCores": 5, "usageCoreNanoSeconds": 7}},
    "pods": [{"podRef": {"name": "web", "namespace": "shop", "uid": "l"}, "containers": [{"name": "main",
        "memory": {"workingSetBytes": 1}}], "volume": [{"name": "v", "pvcRef": {"name": "d", "namespace": "shop"}}]}],
}).encode()  # fmt: skip


def _dict(raw: bytes) -> dict[str, Any]:
    found = decoding.decode(raw)
    if not isinstance(found, dict):
        raise ValueError("not an object")
    return found


def _status(raw: bytes) -> None:
    lower = _dict(raw)
    status = pod_status.upper_status(lower, _UPPER)
    assert len(json.dumps(status)) < 6 * (
        pod_status.BASE + pod_status.PER_CONTAINER
    )  # escapes have six characters
    pod_status.status_patch(_UPPER["status"], status, uid="u-1")
    synthetic_status.lost({**_UPPER, "status": status}, reason="r", message="m", now=datetime.now(UTC))


def _node(raw: bytes) -> None:
    capacity = Capacity(reserve={"cpu": "10%"})
    capacity.upsert_node(_dict(raw))
    for quantities in capacity.totals():
        assert all(isinstance(text, str) for text in quantities.values())


def _index(raw: bytes) -> None:
    index = ClusterIndex()
    index.upsert_node(shrink_node(decode_object(raw)).to_dict())


def _event(raw: bytes) -> None:
    lower = _dict(raw)
    made = events.upper_event(lower, _UPPER, node_name="vn")
    assert made["involvedObject"]["uid"] == "u-1"
    assert made["metadata"]["namespace"] == "shop"
    assert len(json.dumps(made, ensure_ascii=False).encode("utf-8", "replace")) < 6000
    if (kept := events.reduced(lower)) is not None:
        waiting = unpack(pack(from_dict(kept)))
        assert events.upper_event(waiting.to_dict(), _UPPER, node_name="vn") == made


def _metrics(raw: bytes) -> None:
    text = raw.decode("utf-8", "replace")
    pods = {("shop", "web"): prometheus_text.PodNames("upper", "above", "u-1")}
    for line in prometheus_text.render([prometheus_text.ours(text, pods)]).split("\n"):
        if line and not line.startswith("# "):
            # As a reader that searches finds the pod.
            assert line.partition('pod="')[2].startswith('above"'), line
            assert line.partition('namespace="')[2].startswith('upper"'), line
    prometheus_text.node_samples(text)
    stats.from_resource_metrics(text)


def _summary(raw: bytes) -> None:
    found = stats.read(_dict(raw))
    json.dumps(stats.summary([found], {}, node_name="vn"), allow_nan=False)


def _claim(raw: bytes) -> None:
    patch = pvc.status_patch({"status": {"phase": "Bound"}}, _dict(raw))
    assert len(json.dumps(patch)) < 6 * 400_000  # a hundred conditions


def _volume(raw: bytes) -> None:
    shrunk = shrink_volume(decode_object(raw))
    assert (shrunk.labels, shrunk.annotations) == ({}, {})
    made = pv.upper_volume(
        _dict(raw), cluster="east", cluster_labels={}, nodes=["vn"], storage_class="fast", claim=None
    )
    assert len(json.dumps({**made, "metadata": None, "spec": {**made["spec"], "csi": None}})) < 4000


def _addresses(raw: bytes) -> None:
    lower = _dict(raw)
    for field in (ingresses.ADDRESSES, gateways.ADDRESSES):
        found = field.read(lower)
        assert len(json.dumps(found)) < 50 * 600
        recorder = addresses.Recorder(b"key", "east", "u-1")
        noted = {"metadata": {"annotations": {names.ANNOTATION_REPORTED: recorder.write(found)}}}
        assert recorder.read(noted) == found


def _address_record(raw: bytes) -> None:
    text = raw.decode("utf-8", "replace")
    copy = {"metadata": {"annotations": {names.ANNOTATION_REPORTED: text}}}
    assert addresses.Recorder(b"key", "east", "u-1").read(copy) == []


def _devices(raw: bytes) -> None:
    found = references.allocated(_dict(raw))
    assert len(references.record({"claim": found})) < 64 * 1024


_POD_JSON, _NODE_JSON = json.dumps(_LOWER).encode(), json.dumps(_NODE).encode()
_VOLUME = json.dumps({"metadata": {"name": "pv"}, "spec": {"claimRef": {"namespace": "shop", "name": "data"},
    "nodeAffinity": {"required": {"nodeSelectorTerms": []}}}, "status": {"phase": "Bound"}}).encode()  # fmt: skip
TARGETS = (
    Target("lower-pod-status", _status, (_POD_JSON,), MALFORMED),
    Target("lower-node", _node, (_NODE_JSON,), MALFORMED),
    Target("lower-node-index", _index, (_NODE_JSON,), MALFORMED),
    Target("lower-pod-shrunk", lambda raw: shrink_pod(decode_object(raw)), (_POD_JSON,), MALFORMED),
    Target("lower-event", _event, (json.dumps(_EVENT).encode(),), MALFORMED),
    Target("lower-metrics", _metrics, (_METRICS,), MALFORMED),
    Target(
        "lower-claim",
        _claim,
        (
            json.dumps(
                {
                    "status": {
                        "capacity": {"storage": "1Gi"},
                        "conditions": [{"type": "Resizing", "status": "True", "reason": "r", "message": "m"}],
                    }
                }
            ).encode(),
        ),
        MALFORMED,
    ),
    Target("lower-volume", _volume, (_VOLUME,), MALFORMED),
    Target(
        "lower-addresses",
        _addresses,
        (
            json.dumps(
                {
                    "status": {
                        "loadBalancer": {"ingress": [{"ip": "10.0.0.1"}]},
                        "addresses": [{"type": "IPAddress", "value": "10.0.0.1"}],
                    }
                }
            ).encode(),
        ),
        MALFORMED,
    ),
    Target(
        "lower-address-record", _address_record, (b'{"addresses":[{"ip":"10.0.0.1"}],"hash":"x"}',), MALFORMED
    ),
    Target(
        "lower-devices",
        _devices,
        (
            json.dumps(
                {
                    "status": {
                        "allocation": {
                            "devices": {
                                "results": [{"request": "gpu", "driver": "d", "pool": "p", "device": "0"}]
                            }
                        }
                    }
                }
            ).encode(),
        ),
        MALFORMED,
    ),
    Target("lower-summary", _summary, (_SUMMARY,), MALFORMED),
)
