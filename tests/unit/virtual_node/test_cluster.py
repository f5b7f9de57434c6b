"""What is kept of objects that are not ours."""

from __future__ import annotations

from controller_runtime.api import pod_resources
from controller_runtime.objects import from_dict
from virtual_node.cluster import shrink_foreign


def test_a_foreign_pod_keeps_what_capacity_counts():
    """Requests, node and phase survive the shrinking; images, environment and volumes do not."""
    spec = {
        "nodeName": "n",
        "overhead": {"cpu": "100m"},
        "containers": [{"name": "a", "image": "x", "resources": {"requests": {"cpu": "1"}}}],
        "initContainers": [
            {"name": "s", "restartPolicy": "Always", "resources": {"requests": {"cpu": "2"}}},
        ],
        "volumes": [{"name": "v"}],
    }
    pod = from_dict(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "p", "namespace": "ns", "uid": "u"},
            "spec": spec,
            "status": {"phase": "Running", "podIP": "10.0.0.1"},
        }
    )
    small = shrink_foreign(pod)
    assert pod_resources.pod_requests(small.spec) == pod_resources.pod_requests(spec) == {"cpu": 3100}
    assert small.spec["nodeName"] == "n"
    assert small.status == {"phase": "Running"}
    assert "volumes" not in small.spec
    assert "image" not in small.spec["containers"][0]
