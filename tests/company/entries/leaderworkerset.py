"""LeaderWorkerSet: workers that find their leader, and a group that restarts together, in both clusters at once."""

from __future__ import annotations

from typing import Any

from clusterset.model.pod.conditions import is_true
from tests.company import manifests
from tests.company.place import Place
from tests.company.software import Observations, Software
from tests.workloads import manifest

_API = "leaderworkerset.x-k8s.io/v1"
_SERVE = "mkdir /tmp/w; echo leader > /tmp/w/index.html; httpd -p 8080 -h /tmp/w; sleep 3600"
_ASK = 'until wget -qO- "http://$LWS_LEADER_ADDRESS:8080" 2>/dev/null; do sleep 1; done; sleep 3600'


async def _run(place: Place) -> Observations:
    image = place.import_program("lws", "/manager")
    published = await manifests.rendered(place.tools.modules["lws"] / "config" / "default")
    await place.install(*published, images={"manager": image})
    await place.apply(_set(place))
    await place.becomes(lambda: _answers(place), ["leader", "leader"], "the workers find their leader")
    first = {pod["metadata"]["uid"] for pod in await place.pods()}
    await place.cluster.kubectl("delete", "pod", "-n", place.namespace, "group-0-1", "--wait=false")

    async def replaced() -> list[bool]:
        pods = await place.pods()
        return [pod["metadata"]["uid"] not in first and is_true(pod["status"], "Ready") for pod in pods]

    await place.becomes(replaced, [True] * 3, "the group is created again when a pod is deleted")
    await place.becomes(lambda: _answers(place), ["leader", "leader"], "the new workers find the new leader")
    path = f"/apis/{_API}/namespaces/{place.namespace}/leaderworkersets/group"

    async def available() -> list[str]:
        conditions = (await place.get(path))["status"].get("conditions", [])
        return sorted(one["type"] for one in conditions if one["status"] == "True")

    await place.becomes(available, ["Available"], "the set is available")
    reasons = await place.reasons("LeaderWorkerSet", "group")
    return {
        "pods": sorted(pod["metadata"]["name"] for pod in await place.pods()),
        "conditions": await available(),
        # Whether a creation fails first, and is repeated, depends on time.
        "events": [reason for reason in reasons if reason != "FailedCreate"],
    }


async def _answers(place: Place) -> list[str]:
    """Return what the workers got from their leader."""
    texts = []
    for name in ("group-0-1", "group-0-2"):
        done = await place.cluster.kubectl("logs", "-n", place.namespace, name)
        texts.append(done.stdout.strip())
    return texts


def _set(place: Place) -> dict[str, Any]:
    template = {
        "size": 3,
        "restartPolicy": "RecreateGroupOnPodRestart",
        "leaderTemplate": {"metadata": {"labels": {"role": "leader"}}, "spec": _pod(place, _SERVE)},
        "workerTemplate": {"spec": _pod(place, _ASK)},
    }
    spec = {"replicas": 1, "leaderWorkerTemplate": template}
    return manifest("LeaderWorkerSet", "group", api=_API, metadata={"namespace": place.namespace}, spec=spec)


def _pod(place: Place, script: str) -> dict[str, Any]:
    container = {"name": "main", "image": "busybox:1.36", "command": ["sh", "-c", script]}
    return place.pod_spec(container)


SOFTWARE = Software(
    name="leaderworkerset",
    job="a leader and two workers that find it by name, and the group's restart after one pod is deleted, with "
    "LeaderWorkerSet also in the lower cluster",
    run=_run,
    programs=("lws",),
    both=True,
)
