"""Kueue: Jobs and pods of a queue with a quota for one of them at a time, in both clusters at once."""

from __future__ import annotations

from typing import Any

from clusterset.model.pod.conditions import is_true
from tests.company import manifests
from tests.company.place import Place
from tests.company.software import Observations, Software
from tests.recipes import block
from tests.workloads import manifest

_API = "kueue.x-k8s.io/v1beta2"
_QUEUE = {"kueue.x-k8s.io/queue-name": "queue"}


async def _run(place: Place) -> Observations:
    image = place.import_program("kueue", "/manager")
    published = await manifests.rendered(place.tools.modules["kueue"] / "config" / "default")
    await place.install(*published, images={"manager": image})
    await place.apply(_flavor(place), _cluster_queue(), manifest("LocalQueue", "queue", api=_API, metadata={
        "namespace": place.namespace}, spec={"clusterQueue": "company"}))  # fmt: skip
    await place.apply(*(_job(place, name) for name in ("first", "second")))

    async def waiting() -> list[bool]:
        return sorted([(await _job_of(place, name))["spec"]["suspend"] for name in ("first", "second")])

    await place.becomes(waiting, [False, True], "the quota admits one Job at a time")

    async def finished() -> list[bool]:
        jobs = [await _job_of(place, name) for name in ("first", "second")]
        return [is_true(job["status"], "Complete") for job in jobs]

    await place.becomes(finished, [True, True], "both Jobs complete")
    await place.apply(_pod(place))

    async def phase() -> str:
        return str((await place.get(f"/api/v1/namespaces/{place.namespace}/pods/single"))["status"]["phase"])

    await place.becomes(phase, "Succeeded", "the pod of the queue succeeds")
    workloads = (await place.get(f"/apis/{_API}/namespaces/{place.namespace}/workloads"))["items"]
    single = await place.get(f"/api/v1/namespaces/{place.namespace}/pods/single")
    return {
        "conditions of Workloads": sorted(
            {one["type"] for workload in workloads for one in workload["status"]["conditions"]}
        ),
        "Workloads": len(workloads),
        "events of a Job": await place.reasons("Job", "second"),
        "gates of the pod": single["spec"].get("schedulingGates", []),
        "pods": sorted(pod["status"]["phase"] for pod in await place.pods()),
    }


def _flavor(place: Place) -> dict[str, Any]:
    """Return the flavor of the documentation, or one for the lower node."""
    if place.virtual:
        flavor: dict[str, Any] = block("Kueue in both clusters", "flavor.yaml")
        return flavor
    labels = {"kubernetes.io/hostname": place.node}
    return manifest("ResourceFlavor", "lower1", api=_API, spec={"nodeLabels": labels})


def _cluster_queue() -> dict[str, Any]:
    quota = [{"name": "cpu", "nominalQuota": "300m"}, {"name": "memory", "nominalQuota": "300Mi"}]
    group = {"coveredResources": ["cpu", "memory"], "flavors": [{"name": "lower1", "resources": quota}]}
    return manifest(
        "ClusterQueue", "company", api=_API, spec={"namespaceSelector": {}, "resourceGroups": [group]}
    )


def _job(place: Place, name: str) -> dict[str, Any]:
    """Return a Job of two pods that use most of the quota; it starts suspended, as Kueue wants."""
    spec = {
        "suspend": True,
        "parallelism": 2,
        "completions": 2,
        "template": {"spec": {"restartPolicy": "Never", "containers": [_container("100m", "sleep 3")]}},
    }
    metadata = {"namespace": place.namespace, "labels": _QUEUE}
    return manifest("Job", name, api="batch/v1", metadata=metadata, spec=spec)


def _pod(place: Place) -> dict[str, Any]:
    metadata = {"namespace": place.namespace, "labels": _QUEUE}
    spec = {"restartPolicy": "Never", "containers": [_container("100m", "true")]}
    return manifest("Pod", "single", metadata=metadata, spec=spec)


def _container(cpu: str, script: str) -> dict[str, Any]:
    requests = {"cpu": cpu, "memory": "50Mi"}
    return {
        "name": "main",
        "image": "busybox:1.36",
        "command": ["sh", "-c", script],
        "resources": {"requests": requests},
    }


async def _job_of(place: Place, name: str) -> dict[str, Any]:
    return await place.get(f"/apis/batch/v1/namespaces/{place.namespace}/jobs/{name}")


SOFTWARE = Software(
    name="kueue",
    job="two Jobs and a pod of a queue whose quota admits one Job at a time, with Kueue also in the lower cluster",
    run=_run,
    programs=("kueue",),
    both=True,
)
