"""The upstream descheduler: its Job evicts a pod that restarts too often, and leaves the others."""

from __future__ import annotations

import json
from typing import Any

from clusterset.model.pod.conditions import is_true
from tests.company import manifests
from tests.company.place import Place
from tests.company.software import Observations, Software
from tests.workloads import manifest

_RESTARTS = 2


async def _run(place: Place) -> Observations:
    image = place.import_program("descheduler", "/bin/descheduler")
    await place.apply(
        _deployment(place, "crashing", "sleep 1; exit 1"), _deployment(place, "healthy", "sleep 3600")
    )

    async def restarted() -> bool:
        (pod,) = await place.pods("app=crashing")
        (status,) = pod["status"].get("containerStatuses", [{"restartCount": 0}])
        return bool(status["restartCount"] >= _RESTARTS)

    await place.becomes(restarted, True, "the container has restarted")
    before = {pod["metadata"]["name"] for pod in await place.pods()}
    published = await manifests.rendered(place.tools.modules["descheduler"] / "kubernetes" / "job")
    for one in published:
        if one["kind"] == "ConfigMap":
            one["data"] = {"policy.yaml": _policy(place)}
    await _second_node(place)
    await place.install(
        *(
            manifests.in_namespace(manifests.moved(one, place.namespace), place.namespace)
            for one in published
        ),
        images={"descheduler": image},
    )

    async def complete() -> bool:
        job = await place.get(f"/apis/batch/v1/namespaces/{place.namespace}/jobs/descheduler-job")
        return is_true(job["status"], "Complete")

    await place.becomes(complete, True, "the descheduler ends")

    async def evicted() -> list[str]:
        left = {pod["metadata"]["name"] for pod in await place.pods()}
        return sorted(name.partition("-")[0] for name in before - left)

    await place.becomes(evicted, ["crashing"], "only the pod that restarts is evicted")
    (name,) = before - {pod["metadata"]["name"] for pod in await place.pods()}
    reasons = await place.reasons("Pod", name)
    return {
        "evicted": await evicted(),
        "event of the eviction": [reason for reason in reasons if "Restarts" in reason],
        "replaced": len(await place.pods("app=crashing")),
    }


async def _second_node(place: Place) -> None:
    """Add a ready node without a kubelet, because the descheduler does nothing in a cluster with one node."""
    await place.apply(manifest("Node", "company-other", spec={"unschedulable": True}))
    status = {"conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}]}
    patch = ("--type=merge", "--subresource=status", f"--patch={json.dumps({'status': status})}")
    await place.cluster.kubectl("patch", "node", "company-other", *patch)


def _policy(place: Place) -> str:
    """Return a policy that removes pods which restart often, in the job's namespace."""
    return f"""
apiVersion: descheduler/v1alpha2
kind: DeschedulerPolicy
profiles:
  - name: company
    pluginConfig:
      - name: DefaultEvictor
      - name: RemovePodsHavingTooManyRestarts
        args: {{podRestartThreshold: {_RESTARTS}, namespaces: {{include: [{place.namespace}]}}}}
    plugins:
      deschedule:
        enabled: [RemovePodsHavingTooManyRestarts]
"""


def _deployment(place: Place, name: str, script: str) -> dict[str, Any]:
    container = {"name": "main", "image": "busybox:1.36", "command": ["sh", "-c", script]}
    labels = {"app": name}
    spec = place.pod_spec(container)
    return manifest(
        "Deployment",
        name,
        api="apps/v1",
        metadata={"namespace": place.namespace},
        spec={
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    )


SOFTWARE = Software(
    name="descheduler",
    job="its Job evicts the pod that restarts too often, and leaves another one",
    run=_run,
    programs=("descheduler",),
)
