"""Kueue: Jobs and pods of a queue with a quota for one of them at a time, in both clusters at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

from clusterset.model.pod.conditions import is_true
from tests.company import manifests
from tests.company.place import Place
from tests.company.software import Observations, Software
from tests.recipes import block
from tests.workloads import manifest

API = "kueue.x-k8s.io/v1beta2"
_QUEUE = "queue"
_CONFIGURATION = "controller_manager_config.yaml"


async def _run(place: Place) -> Observations:
    await install(place)
    await place.apply(flavor(place), *queue(place, _QUEUE))
    await place.apply(*(job(place, name, _QUEUE) for name in ("first", "second")))

    async def waiting() -> list[bool]:
        return sorted([(await job_of(place, name))["spec"]["suspend"] for name in ("first", "second")])

    await place.becomes(waiting, [False, True], "the quota admits one Job at a time")

    async def finished() -> list[bool]:
        jobs = [await job_of(place, name) for name in ("first", "second")]
        return [is_true(job["status"], "Complete") for job in jobs]

    await place.becomes(finished, [True, True], "both Jobs complete")
    await place.apply(_pod(place))

    async def phase() -> str:
        return str((await place.get(f"/api/v1/namespaces/{place.namespace}/pods/single"))["status"]["phase"])

    await place.becomes(phase, "Succeeded", "the pod of the queue succeeds")
    workloads = (await place.get(f"/apis/{API}/namespaces/{place.namespace}/workloads"))["items"]
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


async def install(place: Place, *, frameworks: Sequence[str] = ()) -> None:
    """Install Kueue from its published manifest.

    Args:
        place: the cluster.
        frameworks: kinds of jobs that it manages; none: those of the manifest.
    """
    image = place.import_program("kueue", "/manager")
    published = await manifests.rendered(place.tools.modules["kueue"] / "config" / "default")
    for one in published:
        if frameworks and one["kind"] == "ConfigMap" and _CONFIGURATION in one.get("data", {}):
            configuration = yaml.safe_load(one["data"][_CONFIGURATION])
            configuration["integrations"]["frameworks"] = list(frameworks)
            one["data"][_CONFIGURATION] = yaml.safe_dump(configuration)
    await place.install(*published, images={"manager": image})


def flavor(place: Place) -> dict[str, Any]:
    """Return the flavor of the documentation, or one for the lower node, both with the same name."""
    if place.virtual:
        published: dict[str, Any] = block("Kueue in both clusters", "flavor.yaml")
        return published
    labels = {"kubernetes.io/hostname": place.node}
    return manifest("ResourceFlavor", "lower1", api=API, spec={"nodeLabels": labels})


def queue(place: Place, name: str, *, flavor: str = "lower1", **spec: Any) -> list[dict[str, Any]]:
    """Return a LocalQueue of the job's namespace, and its ClusterQueue with further fields of its spec."""
    quota = [{"name": "cpu", "nominalQuota": "300m"}, {"name": "memory", "nominalQuota": "300Mi"}]
    group = {"coveredResources": ["cpu", "memory"], "flavors": [{"name": flavor, "resources": quota}]}
    spec |= {"namespaceSelector": {}, "resourceGroups": [group]}
    metadata = {"namespace": place.namespace}
    return [
        manifest("ClusterQueue", name, api=API, spec=spec),
        manifest("LocalQueue", name, api=API, metadata=metadata, spec={"clusterQueue": name}),
    ]


def job(place: Place, name: str, queue: str) -> dict[str, Any]:
    """Return a Job of two pods that use most of the quota; it starts suspended, as Kueue wants."""
    spec = {
        "suspend": True,
        "parallelism": 2,
        "completions": 2,
        "template": {"spec": {"restartPolicy": "Never", "containers": [_container("100m", "sleep 3")]}},
    }
    metadata = {"namespace": place.namespace, "labels": _labels(queue)}
    return manifest("Job", name, api="batch/v1", metadata=metadata, spec=spec)


def _pod(place: Place) -> dict[str, Any]:
    metadata = {"namespace": place.namespace, "labels": _labels(_QUEUE)}
    spec = {"restartPolicy": "Never", "containers": [_container("100m", "true")]}
    return manifest("Pod", "single", metadata=metadata, spec=spec)


def _labels(queue: str) -> dict[str, str]:
    return {"kueue.x-k8s.io/queue-name": queue}


def _container(cpu: str, script: str) -> dict[str, Any]:
    requests = {"cpu": cpu, "memory": "50Mi"}
    return {
        "name": "main",
        "image": "busybox:1.36",
        "command": ["sh", "-c", script],
        "resources": {"requests": requests},
    }


async def job_of(place: Place, name: str) -> dict[str, Any]:
    """Return a Job of the job's namespace."""
    return await place.get(f"/apis/batch/v1/namespaces/{place.namespace}/jobs/{name}")


SOFTWARE = Software(
    name="kueue",
    job="two Jobs and a pod of a queue whose quota admits one Job at a time, with Kueue also in the lower cluster",
    run=_run,
    programs=("kueue",),
    both=True,
)
