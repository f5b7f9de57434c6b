"""JobSet: Jobs that find each other by name, a restart, and exclusive placement, in both clusters at once."""

from __future__ import annotations

from typing import Any

from tests.company import manifests
from tests.company.place import Place
from tests.company.software import Observations, Software
from tests.workloads import manifest

_API = "jobset.x-k8s.io/v1alpha2"
_EXCLUSIVE = "alpha.jobset.sigs.k8s.io/exclusive-topology"


async def _run(place: Place) -> Observations:
    image = place.import_program("jobset", "/manager")
    published = await manifests.rendered(place.tools.modules["jobset"] / "config" / "default")
    await place.install(*published, images={"manager": image})
    await place.apply(_talking(place), _restarting(place), _exclusive(place))

    async def ended() -> dict[str, str | None]:
        items = (await place.get(f"/apis/{_API}/namespaces/{place.namespace}/jobsets"))["items"]
        return {one["metadata"]["name"]: one.get("status", {}).get("terminalState") for one in items}

    wanted = {"exclusive": "Completed", "restarting": "Failed", "talking": "Completed"}
    await place.becomes(ended, wanted, "all JobSets end")
    restarting = await place.get(f"/apis/{_API}/namespaces/{place.namespace}/jobsets/restarting")
    return {
        "results": await ended(),
        "restarts": restarting["status"].get("restarts"),
        "events of a JobSet": await place.reasons("JobSet", "restarting"),
        "pods": sorted(pod["status"]["phase"] for pod in await place.pods()),
    }


def _talking(place: Place) -> dict[str, Any]:
    """Return a JobSet whose workers connect to its driver by the name that JobSet promises."""
    serve = "mkdir /tmp/w; echo driver > /tmp/w/index.html; httpd -p 8080 -h /tmp/w; sleep 600"
    name = f"talking-driver-0-0.talking.{place.namespace}.svc.cluster.local"
    ask = f"until wget -qO- http://{name}:8080; do sleep 1; done"
    jobs = [_job("driver", _pod(place, serve)), _job("worker", _pod(place, ask), pods=2)]
    policy = {"operator": "All", "targetReplicatedJobs": ["worker"]}
    return _job_set(place, "talking", jobs, successPolicy=policy)


def _restarting(place: Place) -> dict[str, Any]:
    """Return a JobSet that fails, is restarted once, and fails again."""
    return _job_set(
        place, "restarting", [_job("fails", _pod(place, "exit 3"))], failurePolicy={"maxRestarts": 1}
    )


def _exclusive(place: Place) -> dict[str, Any]:
    """Return a JobSet whose Job has a node for itself; its second pod follows the first one to that node."""
    result = _job_set(place, "exclusive", [_job("main", _pod(place, "sleep 2"), pods=2)])
    result["metadata"]["annotations"] = {_EXCLUSIVE: "kubernetes.io/hostname"}
    return result


def _job_set(place: Place, name: str, jobs: list[dict[str, Any]], **spec: Any) -> dict[str, Any]:
    metadata = {"namespace": place.namespace}
    return manifest("JobSet", name, api=_API, metadata=metadata, spec={"replicatedJobs": jobs, **spec})


def _job(name: str, pod: dict[str, Any], *, pods: int = 1) -> dict[str, Any]:
    spec = {"parallelism": pods, "completions": pods, "backoffLimit": 0, "template": {"spec": pod}}
    return {"name": name, "replicas": 1, "template": {"spec": spec}}


def _pod(place: Place, script: str) -> dict[str, Any]:
    container = {"name": "main", "image": "busybox:1.36", "command": ["sh", "-c", script]}
    return {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "containers": [container],
        **place.scheduling,
    }


SOFTWARE = Software(
    name="jobset",
    job="JobSets whose workers find their driver by name, that restart, and with exclusive placement, with JobSet "
    "also in the lower cluster",
    run=_run,
    programs=("jobset",),
    both=True,
)
