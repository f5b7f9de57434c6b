"""client-go, with which most controllers are written: streams over both protocols, an eviction, and an election of a leader."""

from __future__ import annotations

import json
from typing import Any

from clusterset.model.pod.conditions import is_true
from tests.company.place import Place
from tests.company.software import Observations, Software
from tests.workloads import manifest

_RBAC = "rbac.authorization.k8s.io"


async def _run(place: Place) -> Observations:
    spec = {"terminationGracePeriodSeconds": 1, **place.scheduling}
    seen = await place.program("client-go", "use", place.namespace, json.dumps(spec))
    assert seen["exec by WebSocket"] == ["got word", "error", 7], seen
    assert seen["exec by SPDY"] == seen["exec by WebSocket"], seen
    assert seen["forwarded port by WebSocket"] == seen["forwarded port by SPDY"] == "page", seen
    assert seen["exit code of the debug container"] == 5, seen
    return {**seen, **await _elections(place)}


async def _elections(place: Place) -> Observations:
    """Return what a Deployment of two candidates does when the pod of the leader is deleted."""
    image = place.import_program("client-go", "/client-go")
    await place.apply(*_rights(place), _candidates(place, image))
    path = f"/apis/coordination.k8s.io/v1/namespaces/{place.namespace}/leases/company"

    async def ready() -> list[bool]:
        return [is_true(pod["status"], "Ready") for pod in await place.pods("app=candidate")]

    async def leader() -> str:
        return str((await place.get(path))["spec"].get("holderIdentity"))

    async def leads() -> bool:
        return await leader() in [pod["metadata"]["name"] for pod in await place.pods("app=candidate")]

    await place.becomes(ready, [True, True], "both candidates run")
    await place.becomes(leads, True, "one candidate leads")
    first = await leader()
    await place.cluster.kubectl("delete", "pod", "-n", place.namespace, first)

    async def next_one() -> bool:
        return await leads() and await leader() != first

    await place.becomes(next_one, True, "another candidate leads")
    lease = await place.get(path)
    return {
        "leaders": lease["spec"]["leaseTransitions"] + 1,
        "name of a leader": first.rpartition("-")[0][:9],
    }


def _rights(place: Place) -> list[dict[str, Any]]:
    metadata = {"namespace": place.namespace}
    rules = [
        {
            "apiGroups": ["coordination.k8s.io"],
            "resources": ["leases"],
            "verbs": ["create", "get", "update"],
        }
    ]
    subject = {"kind": "ServiceAccount", "name": "candidate", "namespace": place.namespace}
    role = {"apiGroup": _RBAC, "kind": "Role", "name": "candidate"}
    return [
        manifest("ServiceAccount", "candidate", metadata=metadata),
        manifest("Role", "candidate", api=f"{_RBAC}/v1", metadata=metadata, rules=rules),
        manifest(
            "RoleBinding",
            "candidate",
            api=f"{_RBAC}/v1",
            metadata=metadata,
            roleRef=role,
            subjects=[subject],
        ),
    ]


def _candidates(place: Place, image: str) -> dict[str, Any]:
    container = {"name": "main", "image": image, "args": ["lead"], "imagePullPolicy": "IfNotPresent"}
    return place.deployment("candidate", container, replicas=2, serviceAccountName="candidate")


SOFTWARE = Software(
    name="client-go",
    job="a program that follows logs, executes commands and forwards ports over WebSocket and SPDY, adds a debug "
    "container and evicts the pod, and candidates in pods that elect a leader",
    run=_run,
    programs=("client-go",),
)
