"""metrics-server, kubectl top and a HorizontalPodAutoscaler that scales a busy Deployment."""

from __future__ import annotations

from typing import Any

from tests.company import manifests
from tests.company.place import Place
from tests.company.software import Observations, Software
from tests.workloads import manifest

_MOST = 3


async def install(place: Place) -> None:
    """Install metrics-server, whose program the entry must list."""
    image = place.import_program("metrics-server", "/metrics-server")
    published = await manifests.rendered(place.tools.modules["metrics-server"] / "manifests" / "base")
    # The node's serving certificate is not from the cluster's CA in either place.
    arguments = {"metrics-server": ["--kubelet-insecure-tls"]}
    await place.install(
        *(manifests.moved(one, place.namespace) for one in published),
        images={"metrics-server": image},
        arguments=arguments,
    )


async def _run(place: Place) -> Observations:
    await install(place)
    await place.apply(_busy(place), _autoscaler(place))

    async def replicas() -> int:
        path = f"/apis/apps/v1/namespaces/{place.namespace}/deployments/busy"
        return int((await place.get(path))["status"].get("readyReplicas", 0))

    await place.becomes(replicas, _MOST, "the autoscaler adds replicas")
    path = f"/apis/autoscaling/v2/namespaces/{place.namespace}/horizontalpodautoscalers/busy"
    conditions = (await place.get(path))["status"]["conditions"]

    async def measured() -> int:
        return len((await place.get(_path(place), labelSelector="app=busy"))["items"])

    await place.becomes(measured, _MOST, "all replicas are measured")
    metrics = (await place.get(_path(place), labelSelector="app=busy"))["items"]
    node = await place.get(f"/apis/metrics.k8s.io/v1beta1/nodes/{place.node}")
    top = await place.cluster.kubectl(
        "top", "pods", "-n", place.namespace, "-l", "app=busy", "--containers", "--no-headers"
    )
    return {
        "replicas": await replicas(),
        "conditions of the autoscaler": sorted(f"{one['type']}={one['status']}" for one in conditions),
        "measured containers": sorted({one["name"] for item in metrics for one in item["containers"]}),
        "measures of the node": sorted(node["usage"]),
        "rows of kubectl top": len(top.stdout.splitlines()),
    }


def _path(place: Place) -> str:
    return f"/apis/metrics.k8s.io/v1beta1/namespaces/{place.namespace}/pods"


def _busy(place: Place) -> dict[str, Any]:
    container = {
        "name": "busy",
        "image": "busybox:1.36",
        "command": ["sh", "-c", "while true; do :; done"],
        "resources": {"requests": {"cpu": "20m"}, "limits": {"cpu": "50m"}},
    }
    return place.deployment("busy", container)


def _autoscaler(place: Place) -> dict[str, Any]:
    target = {"type": "Utilization", "averageUtilization": 50}
    return manifest(
        "HorizontalPodAutoscaler",
        "busy",
        api="autoscaling/v2",
        metadata={"namespace": place.namespace},
        spec={
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "busy"},
            "minReplicas": 1,
            "maxReplicas": _MOST,
            "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": target}}],
        },
    )


SOFTWARE = Software(
    name="metrics-server",
    job="`kubectl top`, and a HorizontalPodAutoscaler that scales a busy Deployment from one replica to three",
    run=_run,
    programs=("metrics-server",),
)
