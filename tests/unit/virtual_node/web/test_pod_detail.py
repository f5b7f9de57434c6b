"""A pod in both clusters: shown fields, and fields that are never shown."""

from __future__ import annotations

import json
from typing import Any

from clusterset.model import names
from virtual_node.web.pod_detail import lower_side, placement, pod_side

_SECRET = "hunter2"
_POD: dict[str, Any] = {
    "metadata": {
        "namespace": "shop", "name": "web",
        "annotations": {
            "kubectl.kubernetes.io/last-applied-configuration": _SECRET, "note": _SECRET,
            "clusterSelector": '{"nodeSelector": {"zone": "a"}}', "virtual-node.io/replaces": "old-uid",
        },
    },
    "spec": {
        "nodeName": "vn", "nodeSelector": {"zone": "a"},
        "tolerations": [{"key": "k", "operator": "Exists", "effect": "NoSchedule"}, {"operator": "Exists"}],
        "volumes": [
            {"name": "s", "secret": {"secretName": "db-password"}},
            {"name": "c", "csi": {"driver": "d", "volumeAttributes": {"password": _SECRET}}},
            {"name": "p", "projected": {"sources": [{"secret": {"name": _SECRET}}]}},
        ],
        "initContainers": [{"name": "init", "command": ["sh", "-c", _SECRET]}],
        "containers": [
            {
                "name": "main", "image": "web:1", "command": [_SECRET], "args": [_SECRET],
                "env": [{"name": "PASSWORD", "value": _SECRET}],
                "resources": {"requests": {"cpu": "1"}, "limits": {"memory": "1Gi"}},
                "livenessProbe": {"httpGet": {"httpHeaders": [{"name": "Authorization", "value": _SECRET}]}},
                "lifecycle": {"preStop": {"exec": {"command": [_SECRET]}}},
            }
        ],
    },
    "status": {
        "phase": "Running",
        "conditions": [{"type": "Ready", "status": "False", "reason": "ContainersNotReady"}],
        "containerStatuses": [
            {
                "name": "main", "restartCount": 3, "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "b"}},
                "lastState": {"terminated": {"exitCode": 1, "reason": "Error"}},
            }
        ],
    },
}  # fmt: skip


def test_shows_no_value_that_may_be_a_password() -> None:
    """Commands, arguments, values of variables, probes, attributes of volumes, annotations."""
    assert _SECRET not in json.dumps([pod_side(_POD), placement(_POD)])


def test_shows_placement_volumes_and_containers() -> None:
    """The fields that determine where a pod runs and why it does not."""
    side = pod_side(_POD)
    spec = {one["name"]: one["value"] for one in side["spec"]}
    assert spec["nodeSelector"] == "zone=a"
    assert spec["tolerations"] == "everything, k:NoSchedule"
    assert spec["volumes"] == "s (secret db-password), c (csi d), p (projected)"
    init, main = side["containers"]
    assert (init["kind"], init["state"]) == ("init", "")
    assert (main["env"], main["requests"], main["limits"]) == (["PASSWORD"], "cpu 1", "memory 1Gi")
    assert (main["state"], main["last"]) == ("CrashLoopBackOff: b", "Error, exit code 1")
    assert side["conditions"][0]["reason"] == "ContainersNotReady"


def test_shows_what_selected_the_node() -> None:
    """As far as the pod has it."""
    assert placement(_POD) == [
        {"name": "scheduler", "value": "default-scheduler"},
        {"name": "selects lower nodes", "value": '{"nodeSelector": {"zone": "a"}}'},
        {"name": "re-created by the descheduler in place of the pod with uid", "value": "old-uid"},
    ]


def test_shows_the_fields_that_overrides_changed_only_of_the_lower_pod() -> None:
    """A tenant can write the annotation of the upper pod."""
    record = json.dumps({"mirror": ["spec.containers[main].image"], "proxy": ["spec.containers[main].env"]})
    pod = {**_POD, "metadata": {"name": "web", "annotations": {names.ANNOTATION_OVERRIDES: record}}}
    assert {
        "name": "overrides",
        "value": "mirror: spec.containers[main].image; proxy: spec.containers[main].env",
    } in lower_side(pod)["spec"]
    assert lower_side(_POD)["spec"] == pod_side(pod)["spec"]
