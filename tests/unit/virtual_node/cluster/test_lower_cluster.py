"""The kept fields of unmanaged objects."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import structlog

from clusterset.config import Cluster
from clusterset.model.pod import pod_resources
from controller_runtime.errors import ConfigError, NotFound
from controller_runtime.objects import Object, from_dict
from virtual_node.cluster.lower_cluster import LowerCluster
from virtual_node.cluster.start_checks import refuse_real_nodes
from virtual_node.controllers.base.caches import shrink_foreign
from virtual_node.translate.nodes.capacity import Capacity


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


def test_infeasible_resize_of_foreign_pod_takes_no_capacity():
    """Its kubelet never applies it, and the other lower nodes stay usable."""
    pod = _foreign({"cpu": "9000"}).to_dict()
    pod["status"] |= {
        "conditions": [{"type": "PodResizePending", "status": "True", "reason": "Infeasible"}],
        "containerStatuses": [{"name": "a", "allocatedResources": {"cpu": "2"}}],
    }
    assert pod_resources.pod_requests(shrink_foreign(from_dict(pod)).spec) == {"cpu": 2000}


def _foreign(resources: dict[str, str], *, phase: str = "Running", node: str = "n") -> Object:
    containers = [{"name": "a", "resources": {"requests": resources, "limits": resources}}]
    metadata = {"name": "p", "namespace": "ns", "uid": "u", "labels": {"a": "b"}}
    return from_dict(
        {
            "metadata": metadata,
            "spec": {"nodeName": node, "containers": containers},
            "status": {"phase": phase},
            "other": 1,
        }
    )


def test_an_unmanaged_pod_keeps_few_of_the_resources_that_a_lower_user_invents():
    """A hundred pods of a megabyte would fill the caches of the lower cluster, and stop its virtual nodes."""
    invented = {f"example.com/r{number}": "1" for number in range(20_000)}
    small = shrink_foreign(_foreign({**invented, "nvidia.com/gpu": "2", "cpu": "1500m", "memory": "1Gi"}))
    requests = pod_resources.pod_requests(small.spec)
    assert (requests["cpu"], requests["memory"]) == (1500, 1024**3)
    assert len(requests) == 16
    assert small.memory < 2000


@pytest.mark.parametrize(("phase", "node"), [("Succeeded", "n"), ("Failed", "n"), ("Pending", "")])
def test_nothing_is_kept_of_an_unmanaged_pod_that_uses_no_node(phase, node):
    """It does not reduce the capacity."""
    small = shrink_foreign(_foreign({"cpu": "1"}, phase=phase, node=node))
    assert (small.spec, small.status, small.field("other")) == ({}, {"phase": phase}, None)


@pytest.mark.parametrize("malformed", ["x", None, {}, ["1"]])
def test_unreadable_requests_of_an_unmanaged_pod_count_as_missing(malformed):
    """An error would stop the watch of all unmanaged pods."""
    assert pod_resources.pod_requests(shrink_foreign(_foreign({"cpu": malformed})).spec) == {}


def test_capacity_forgets_the_resources_that_no_pod_requests_any_more():
    """A lower user can request other resources in each pod."""
    capacity = Capacity()
    capacity.upsert_node({"metadata": {"name": "n"}, "status": {"allocatable": {"cpu": "4"}}})
    capacity.upsert_pod("kept", "n", {"cpu": 1000}, counts=True)
    for number in range(100):
        capacity.upsert_pod("u", "n", {"cpu": 1000, f"example.com/r{number}": 1}, counts=True)
    capacity.remove_pod("u")
    assert capacity.foreign() == {"n": {"cpu": 1000, "pods": 1}}


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


class _Unwritable:
    """A virtual node that cannot be patched, because a credential of the upper cluster has expired."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def give_up(self, why: str) -> None:
        self.asked.append(why)
        raise ConfigError("the credential plug-in failed")


async def test_a_cluster_that_is_too_large_stops_as_such_if_this_cannot_be_reported():
    """Otherwise it would look like a wrong configuration, and be listed again after seconds."""
    nothing: Any = None
    cluster = LowerCluster(Cluster(name="low"), nothing, "id", nothing)
    cluster.nodes["vn"] = unwritable = _Unwritable()  # type: ignore[assignment]
    context: Any = SimpleNamespace(name="low", upper=SimpleNamespace(cluster="upper"))
    with structlog.testing.capture_logs() as logs:
        await cluster._give_up(context, "too large")
    assert unwritable.asked == ["too large"]
    assert [line["error"] for line in logs] == ["the credential plug-in failed"]
