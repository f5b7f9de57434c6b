"""Random clusters with most of the faults that ``inspect`` finds, and sometimes a malformed object."""

from __future__ import annotations

import copy
from collections.abc import Callable
from random import Random
from typing import Any

from tests import generated_pods
from tests.unit.virtual_node.commands.healthy_clusters import (
    ago,
    bodies,
    copied,
    healthy,
    meta,
    node,
    ready,
    set_up,
)
from virtual_node.examine.clusters import FOREIGN_PODS, SETTINGS, VirtualNode
from virtual_node.examine.snapshot import Snapshot
from virtual_node.translate.base.ownership import Owner
from virtual_node.translate.base.view import PodOptions
from virtual_node.translate.pods.lower_pod import lower_pod
from virtual_node.translate.pods.status import upper_status

Body = dict[str, Any]
_NAMESPACES = ("shop", "team-a", "team-b")


def generate(random: Random, *, pods: int = 12) -> Snapshot:
    """Return an upper and two lower clusters with this number of pods."""
    facts = healthy()
    paris = facts.lowers[0]
    options = PodOptions(owner=Owner("me", "vn-rome"), service_accounts=random.random() < 0.5)
    rome = copied(paris, "rome")
    set_up(rome, nodes={"vn-rome": VirtualNode(options=options)})
    bodies(rome, "Pod").clear()
    bodies(rome, "ConfigMap").clear()
    facts.lowers.append(rome)  # type: ignore[attr-defined]
    bodies(facts.upper, "Node").append(node("vn-rome", cpu="8", type="virtual-kubelet"))
    for number in range(pods):
        lower = random.choice(facts.lowers)
        (name, virtual), *_ = lower[SETTINGS].nodes.items()
        upper, below = _pair(random, number, name, virtual.options)
        for change in random.sample(_CHANGES, k=random.choice((0, 0, 0, 1, 2))):
            change(random, upper, below)
        if random.random() < 0.9:
            bodies(facts.upper, "Pod").append(upper)
        copies = random.choices((0, 1, 2), (1, 10, 1))[0]
        for number_of_copy in range(copies):
            one = copy.deepcopy(below)
            one["metadata"]["name"] += f"-{number_of_copy}" if number_of_copy else ""
            bodies(lower if random.random() < 0.95 else random.choice(facts.lowers), "Pod").append(one)
        if random.random() < 0.3:
            foreign = {"nodeName": random.choice(("n1", "n2", "")), "containers": [_asking(random)]}
            bodies(lower, FOREIGN_PODS).append(
                {
                    "metadata": meta(f"f{number}", f"f{number}"),
                    "spec": foreign,
                    "status": {"phase": "Running"},
                }
            )
        if random.random() < 0.2:
            namespace = random.choice(_NAMESPACES)
            service = {"metadata": {**meta(f"s{number}", f"s{number}"), "namespace": namespace}}
            service["spec"] = {"selector": {"app": "web"}}
            bodies(facts.upper, "Service").append(service)
    if random.random() < 0.15:
        where = bodies(random.choice([facts.upper, *facts.lowers]), "Pod")
        if where:
            random.choice(_MALFORMED)(random.choice(where))
    return facts


def _pair(random: Random, number: int, name: str, options: PodOptions) -> tuple[Body, Body]:
    body = generated_pods.generate(random)
    body["metadata"] = meta(f"p{number}", f"u{number}", labels={"app": "web", "pod-template-hash": "abc"})
    body["metadata"]["namespace"] = random.choice(_NAMESPACES)
    body["metadata"]["ownerReferences"] = [{"kind": "ReplicaSet", "name": "web-abc"}]
    body["spec"]["nodeName"] = name
    body["spec"]["containers"][0] |= _asking(random)
    body["status"] = {}
    below = copy.deepcopy(lower_pod(body, options))
    below["metadata"] |= {"uid": f"l{number}", "creationTimestamp": ago(days=1)}
    below["spec"]["nodeName"] = random.choice(("n1", "n2"))
    below["status"] = {
        "phase": random.choice(("Running", "Running", "Succeeded", "Pending")),
        "conditions": [ready()],
    }
    body["status"] = upper_status(below, body)
    return body, below


def _asking(random: Random) -> Body:
    return {"resources": {"requests": {"cpu": random.choice(("10m", "1", "5")), "memory": "64Mi"}}}


def _set(*path: Any, lower: bool = True) -> Callable[[Random, Body, Body], None]:
    """Return a change of a field of the lower or upper pod; the path's last part is the value."""

    def change(_: Random, upper: Body, below: Body) -> None:
        *way, last, value = path
        target: Any = below if lower else upper
        for part in way:
            target = target[part]
        target[last] = value

    return change


_CHANGES = (
    _set("metadata", "labels", "app", "other"),
    _set("metadata", "annotations", {"note": "x"}, lower=False),
    _set("metadata", "deletionTimestamp", ago(hours=1)),
    _set("metadata", "deletionTimestamp", ago(hours=1), lower=False),
    _set("metadata", "finalizers", ["example.com/hold"], lower=False),
    _set("metadata", "creationTimestamp", ago(minutes=1)),
    _set("metadata", "uid", "replaced", lower=False),
    _set("spec", "containers", 0, "image", "mirror/busybox"),
    _set("spec", "containers", 0, "image", "busybox:2", lower=False),
    _set("spec", "containers", 0, "resources", {"requests": {"cpu": "7"}}),
    _set("spec", "tolerations", [{"key": "gpu"}], lower=False),
    _set("spec", "imagePullSecrets", [{"name": "old"}]),
    _set("spec", "nodeName", ""),
    _set("status", "phase", "Failed"),
    _set("status", "conditions", [ready("False")]),
    _set("status", "conditions", [{"type": "PodScheduled", "status": "False", "reason": "x"}], lower=False),
)
_MALFORMED: tuple[Callable[[Body], object], ...] = (
    lambda pod: pod.update(spec={}),
    lambda pod: pod.update(spec={"containers": "x"}),
    lambda pod: pod.update(status={"conditions": [1]}),
    lambda pod: pod["metadata"].update(creationTimestamp="x"),
    lambda pod: pod["spec"]["containers"].append({"resources": {"requests": {"cpu": "9" * 10_000}}}),
    lambda pod: pod["spec"]["containers"].append({"name": "c", "image": 1e300, "env": 5}),
)
