"""Generates varied healthy pods: each is as a kubelet and controllers leave it while nothing is wrong."""

from __future__ import annotations

import random
from typing import Any

from tests.unit.virtual_node.examine.health_objects import ago, condition

Json = dict[str, Any]
_OWNERS = ("ReplicaSet", "StatefulSet", "DaemonSet", "Job", "")
_OLD_EVENTS = (
    ("FailedMount", 'MountVolume.SetUp failed for volume "key" : secret "key" not found'),
    ("FailedScheduling", "0/3 nodes are available: 3 Insufficient cpu."),
    ("Unhealthy", "Readiness probe failed: connection refused"),
    ("BackOff", "Back-off restarting failed container"),
    ("FailedCreatePodSandBox", "network is not ready"),
    ("Killing", "Container c0 failed liveness probe, will be restarted"),
)
_SCENES = (*["running"] * 3, "completed", "half-completed", "starting", "initializing", "unbound", "ending")


def healthy_pod(chance: random.Random, number: int) -> tuple[Json, Json | None, list[Json]]:
    """Return a pod, its lower pod (None: the lower cluster is not read) and events about it."""
    scene = chance.choice(_SCENES)
    owner = "Job" if scene in {"completed", "half-completed"} else chance.choice(_OWNERS)
    is_young = scene in {"starting", "unbound", "initializing"}
    age = chance.uniform(1, 25) if is_young else chance.uniform(400, 1e7)
    # A Job's pod that has completed a part of its containers has at least two.
    names = [f"c{place}" for place in range(chance.randint(2 if scene == "half-completed" else 1, 4))]
    spec: Json = {
        "containers": [{"name": name} for name in names],
        "restartPolicy": chance.choice(("Never", "OnFailure")) if owner == "Job" else "Always",
        "initContainers": _init_containers(chance),
        "readinessGates": [{"conditionType": "lb"}] if chance.random() < 0.2 else [],
    }
    if scene != "unbound":
        spec["nodeName"] = "vn-a"
    metadata: Json = {
        "namespace": "shop",
        "name": f"web-{number}",
        "uid": f"u{number}",
        "creationTimestamp": ago(age),
        "ownerReferences": [{"kind": owner, "name": "web", "controller": True}] if owner else [],
        "finalizers": ["batch.kubernetes.io/job-tracking"] if owner == "Job" else [],
        "annotations": {"virtual-node.io/lower-uid": "l/u"} if chance.random() < 0.5 else {},
    }
    if scene == "ending":
        metadata["deletionTimestamp"] = ago(chance.uniform(-300, 60))
    pod = {"metadata": metadata, "spec": spec, "status": _status(chance, scene, spec, age)}
    lower = None
    if not is_young and chance.random() < 0.5:
        lower = {
            **pod,
            "metadata": {**metadata, "finalizers": [], "ownerReferences": []},
            "spec": {**spec, "nodeName": "n1"},
        }
    is_old = scene in {"running", "completed"}
    events = [
        {"reason": reason, "message": message, "lastTimestamp": ago(chance.uniform(0, 390))}
        for reason, message in chance.sample(_OLD_EVENTS, chance.randint(0, 4) if is_old else 0)
    ]
    return pod, lower, events


def _init_containers(chance: random.Random) -> list[Json]:
    steps: list[Json] = [{"name": f"i{place}"} for place in range(chance.randint(0, 2))]
    sidecars: list[Json] = [
        {"name": f"s{place}", "restartPolicy": "Always"} for place in range(chance.randint(0, 2))
    ]
    return chance.sample([*steps, *sidecars], len(steps) + len(sidecars))


def _status(chance: random.Random, scene: str, spec: Json, age: float) -> Json:
    if scene == "unbound":
        return {"phase": "Pending"}
    status: Json = {"phase": "Pending", "conditions": [condition("PodScheduled", "True", age=age)]}
    if scene == "starting" and chance.random() < 0.3:
        return status
    ends = scene in {"completed", "ending"}
    initial = []
    held = False  # An init container runs, so those after it wait.
    for place, container in enumerate(spec["initContainers"]):
        one: Json = {"name": container["name"], "image": "i", "restartCount": _restarts(chance)}
        is_sidecar = "restartPolicy" in container
        if held or scene == "starting":
            one |= {"state": {"waiting": {"reason": "PodInitializing"}}, "restartCount": 0}
        elif scene == "initializing" and not is_sidecar and place == len(spec["initContainers"]) - 1:
            one |= {"state": {"running": {}}, "restartCount": 0}
            held = True
        elif is_sidecar and not ends:
            one |= {"state": {"running": {}}, "ready": True, "started": True}
        else:
            one |= {"state": {"terminated": _end(chance.choice((0, 143, 137)) if is_sidecar else 0)}}
        if one["restartCount"]:
            one["lastState"] = {"terminated": _end(chance.choice((1, 137, 143)))}
        initial.append(one)
    status["initContainerStatuses"] = initial
    status["containerStatuses"] = [
        _container(chance, scene, place, spec) for place in range(len(spec["containers"]))
    ]
    if scene in {"starting", "initializing"}:
        return status
    status["phase"] = "Succeeded" if scene == "completed" else "Running"
    ready = "False" if scene in {"completed", "half-completed"} else "True"
    if scene == "ending":
        ready = chance.choice(("True", "False"))
    status["conditions"] += [
        condition("Initialized", "True", age=age),
        condition("ContainersReady", ready, age=age),
        condition("Ready", ready, age=age),
        *([condition("lb", "True", age=age)] if spec["readinessGates"] else []),
    ]
    return status


def _container(chance: random.Random, scene: str, place: int, spec: Json) -> Json:
    one: Json = {"name": spec["containers"][place]["name"], "image": "i", "restartCount": 0, "lastState": {}}
    if scene in {"starting", "initializing"}:
        reason = "PodInitializing" if spec["initContainers"] else "ContainerCreating"
        return one | {"state": {"waiting": {"reason": reason}}, "ready": False}
    if scene == "completed" or (scene == "half-completed" and place == 0):
        return one | {"state": {"terminated": _end(0)}, "ready": False}
    if scene == "ending" and chance.random() < 0.5:
        return one | {"state": {"terminated": _end(chance.choice((0, 1, 137, 143)))}, "ready": False}
    one["restartCount"] = _restarts(chance)
    if one["restartCount"]:
        one["lastState"] = {"terminated": _end(chance.choice((0, 1, 137, 139, 143)))}
    return one | {"state": {"running": {}}, "ready": True, "started": True}


def _restarts(chance: random.Random) -> int:
    return chance.choice((0, 0, 0, 1, 17))


def _end(code: int) -> Json:
    reason = "Completed" if code == 0 else "OOMKilled" if code == 137 else "Error"
    return {"exitCode": code, "reason": reason, "finishedAt": ago(3600)}
