"""The vertical pod autoscaler: it recommends resources from measured usage, and resizes a pod without a restart."""

from __future__ import annotations

from typing import Any

from tests.company import manifests
from tests.company.entries import metrics_server
from tests.company.place import Place
from tests.company.software import Observations, Software
from tests.workloads import manifest

_API = "autoscaling.k8s.io/v1"
_COMPONENTS = ("recommender", "updater")
_LEAST = "25m"
"""CPU that the recommender recommends at least; a pod of the job requests less."""


async def _run(place: Place) -> Observations:
    await metrics_server.install(place)
    images = {name: place.import_program(f"vpa-{name}", f"/{name}") for name in _COMPONENTS}
    arguments = {
        "recommender": ["--recommender-interval=10s"],
        # The admission controller, which changes pods when they are created, does not run.
        "updater": ["--updater-interval=10s", "--min-replicas=1", "--use-admission-controller-status=false"],
    }
    await place.install(*_published(place), images=images, arguments=arguments)
    await place.apply(_deployment(place), _autoscaler(place))

    async def pods() -> int:
        return len(await place.pods("app=worker"))

    await place.becomes(pods, 1, "the Deployment has its pod")
    (before,) = await place.pods("app=worker")
    path = f"/apis/{_API}/namespaces/{place.namespace}/verticalpodautoscalers/worker"

    async def recommended() -> list[str]:
        status = (await place.get(path)).get("status", {})
        return [
            one["containerName"]
            for one in status.get("recommendation", {}).get("containerRecommendations", [])
        ]

    await place.becomes(recommended, ["main"], "resources are recommended")

    async def resized() -> bool:
        (pod,) = await place.pods("app=worker")
        statuses = pod["status"].get("containerStatuses", [{}])
        requests = statuses[0].get("resources", {}).get("requests", {})
        wanted = pod["spec"]["containers"][0]["resources"]["requests"]
        return bool(wanted == requests and requests.get("cpu") == _LEAST)

    await place.becomes(resized, True, "the pod has the recommended CPU")
    (after,) = await place.pods("app=worker")
    (status,) = after["status"]["containerStatuses"]
    conditions = (await place.get(path))["status"]["conditions"]
    return {
        "conditions of the autoscaler": sorted(f"{one['type']}={one['status']}" for one in conditions),
        "same pod": after["metadata"]["uid"] == before["metadata"]["uid"],
        "restarts": status["restartCount"],
        "requests of the container": sorted(status["resources"]["requests"]),
        "event of the resize": [
            reason for reason in await place.reasons("Pod", after["metadata"]["name"]) if "VPA" in reason
        ],
    }


def _published(place: Place) -> list[dict[str, Any]]:
    deploy = place.tools.modules["vpa-recommender"] / "deploy"
    names = ["vpa-v1-crd-gen", "vpa-rbac", *(f"{name}-deployment" for name in _COMPONENTS)]
    return [
        manifests.moved(one, place.namespace)
        for name in names
        for one in manifests.read(deploy / f"{name}.yaml")
    ]


def _deployment(place: Place) -> dict[str, Any]:
    container = {
        "name": "main",
        "image": "busybox:1.36",
        "command": ["sleep", "3600"],
        "resources": {"requests": {"cpu": "10m", "memory": "10Mi"}},
    }
    return place.deployment("worker", container)


def _autoscaler(place: Place) -> dict[str, Any]:
    spec = {
        "targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "worker"},
        "updatePolicy": {"updateMode": "InPlaceOrRecreate", "minReplicas": 1},
    }
    return manifest(
        "VerticalPodAutoscaler", "worker", api=_API, metadata={"namespace": place.namespace}, spec=spec
    )


SOFTWARE = Software(
    name="vertical-pod-autoscaler",
    job="the recommender reads the usage of a pod from metrics-server, and the updater resizes it without a restart",
    run=_run,
    programs=("vpa-recommender", "vpa-updater", "metrics-server"),
)
