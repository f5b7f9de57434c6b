"""The kept fields of unmanaged objects."""

from __future__ import annotations

from typing import Any

import pytest

from controller_runtime.api.pod import pod_resources
from controller_runtime.errors import ConfigError, NotFound
from controller_runtime.objects import from_dict
from virtual_node.cluster.start_checks import refuse_real_nodes
from virtual_node.controllers.base.caches import shrink_foreign


def test_an_unmanaged_pod_keeps_the_fields_for_capacity():
    """Requests, node and phase are kept; images, environment and volumes are dropped."""
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


class _Upper:
    """An upper cluster with some Nodes."""

    def __init__(self, **labels: dict[str, str]) -> None:
        self._labels = labels

    async def get(self, _resource: Any, name: str) -> dict[str, Any]:
        if name not in self._labels:
            raise NotFound("not found")
        return {"metadata": {"name": name, "labels": self._labels[name]}}


async def test_a_real_node_of_the_same_name_is_never_taken_over():
    """Also not the pods bound to it, whatever the configuration."""
    upper: Any = _Upper(worker={"kubernetes.io/os": "linux"})
    with pytest.raises(ConfigError, match=r"worker.*not virtual"):
        await refuse_real_nodes(upper, ["worker"])


async def test_an_existing_virtual_node_is_reused():
    """After a restart, or from tensile-kube."""
    upper: Any = _Upper(vn={"type": "virtual-kubelet"})
    await refuse_real_nodes(upper, ["vn", "new"])
