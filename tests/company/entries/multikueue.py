"""MultiKueue: the upper cluster sends Jobs to Kueue of the lower cluster, beside Jobs that run on the virtual node."""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import Any

from clusterset.model import names
from clusterset.model.pod.conditions import is_true
from tests.company.entries import kueue
from tests.company.place import Place
from tests.company.software import Observations, Software
from tests.workloads import manifest

_SENT, _HERE = "sent", "here"
"""Queues, and the Jobs in them: of the lower cluster's Kueue, and of this one."""
_WORKER = "worker"
_KUEUE = "kueue-system"


async def _run(place: Place) -> Observations:
    # A manager connects to a worker cluster only if that serves all kinds of jobs which the manager manages.
    await kueue.install(place, frameworks=["batch/job", "pod"])
    below = replace(place, virtual=False)
    if place.virtual:
        await below.apply(manifest("Namespace", place.namespace))
        await below.apply(kueue.flavor(below), *kueue.queue(below, _SENT))
        await place.apply(*_manager(place))
        await place.becomes(lambda: _states(place), {"True"}, "the manager reaches the worker cluster")
        strategy = {"admissionChecks": [{"name": _WORKER}]}
        sent = kueue.queue(place, _SENT, flavor=_WORKER, admissionChecksStrategy=strategy)
    else:
        sent = kueue.queue(place, _SENT)
    await place.apply(kueue.flavor(place), *kueue.queue(place, _HERE), *sent)
    await place.apply(*(kueue.job(place, name, name) for name in (_SENT, _HERE)))
    owners: set[str] = set()

    async def finished() -> list[bool]:
        owners.update(pod["metadata"]["labels"]["job-name"] for pod in await place.pods("job-name"))
        if place.virtual:
            await _check_sent_pods(below)
        jobs = [await kueue.job_of(place, name) for name in (_SENT, _HERE)]
        return [is_true(job["status"], "Complete") for job in jobs]

    await place.becomes(finished, [True, True], "both Jobs complete")
    jobs = [await kueue.job_of(place, name) for name in (_SENT, _HERE)]
    if place.virtual:
        await place.becomes(lambda: _jobs(below), [], "the finished Job is removed from the worker cluster")
    return {
        "pods that succeeded": [job["status"]["succeeded"] for job in jobs],
        "conditions of the Jobs": sorted(
            {one["type"] for job in jobs for one in job["status"]["conditions"]}
        ),
        "Jobs whose pods the cluster shows": sorted(owners),
    }


def _manager(place: Place) -> list[dict[str, Any]]:
    """Return what connects the upper cluster's Kueue with the lower cluster, by the documentation of MultiKueue."""
    kubeconfig = place.sandbox.lower[0].kubeconfig.read_bytes()
    data = {"kubeconfig": base64.b64encode(kubeconfig).decode()}
    source = {"kubeConfig": {"location": _WORKER, "locationType": "Secret"}}
    parameters = {"apiGroup": "kueue.x-k8s.io", "kind": "MultiKueueConfig", "name": _WORKER}
    check = {"controllerName": "kueue.x-k8s.io/multikueue", "parameters": parameters}
    return [
        manifest("Secret", _WORKER, metadata={"namespace": _KUEUE}, data=data),
        manifest("ResourceFlavor", _WORKER, api=kueue.API, spec={}),
        manifest("MultiKueueCluster", _WORKER, api=kueue.API, spec={"clusterSource": source}),
        manifest("MultiKueueConfig", _WORKER, api=kueue.API, spec={"clusters": [_WORKER]}),
        manifest("AdmissionCheck", _WORKER, api=kueue.API, spec=check),
    ]


async def _states(place: Place) -> set[str]:
    """Return whether the worker cluster and its AdmissionCheck are active, or why not."""
    states = set()
    for kind in ("multikueueclusters", "admissionchecks"):
        status = (await place.get(f"/apis/{kueue.API}/{kind}/{_WORKER}")).get("status", {})
        states |= {
            one["status"] if one["status"] == "True" else one["message"]
            for one in status.get("conditions", [])
        }
    return states


async def _jobs(place: Place) -> list[str]:
    items = (await place.get(f"/apis/batch/v1/namespaces/{place.namespace}/jobs"))["items"]
    return [one["metadata"]["name"] for one in items]


async def _check_sent_pods(below: Place) -> None:
    """Fail if the virtual node took a pod of the worker's Job for one of its own."""
    for pod in await below.pods(f"job-name={_SENT}"):
        assert names.LABEL_UPPER_UID not in pod["metadata"]["labels"], pod["metadata"]


SOFTWARE = Software(
    name="multikueue",
    job="a manager in the upper cluster sends one Job to the lower cluster's Kueue, and runs another one on the virtual "
    "node of the same cluster; directly, both Jobs run in their queues",
    run=_run,
    programs=("kueue",),
    both=True,
)
