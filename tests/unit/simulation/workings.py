"""What works in the two kinds of cluster besides us: schedulers, kubelets, and controllers of the control plane.

Each does a share of what there is to do; none takes time. They obey the API server's rules.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from controller_runtime.client.client import PatchType
from tests.fakes.apiserver.rules import FINISHED
from tests.fakes.apiserver.server import Server
from tests.fakes.apiserver.storage import Body
from tests.unit.simulation import claims
from tests.unit.simulation.bodies import is_ending, key_of, labels_of, uid_of

JOB = "job:"
"""How images begin whose containers end by themselves, however calm it is."""
_EMPTIED = ("configmaps", "secrets", "services", "endpointslices", "pods", "persistentvolumeclaims")
_READY = ("PodScheduled", "Initialized", "ContainersReady", "Ready")


class Workings:
    """All of them. ``is_calm``: containers neither end nor restart by themselves."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.is_calm = False

    def lower(self, server: Server, share: float) -> None:
        """Scheduler, kubelets and namespaces of one lower cluster."""
        for pod in server.all("pods"):
            if self.chance.random() < share:
                self._kubelet(server, pod)
        claims.provide_below(server)
        self._namespaces(server, share)

    def upper(self, server: Server, share: float, nodes: Sequence[str]) -> None:
        """Scheduler, endpoints and namespaces of the upper cluster."""
        for pod in server.all("pods"):
            is_waiting = not pod["spec"].get("nodeName") and not is_ending(pod)
            node = _choose(pod, nodes)
            if is_waiting and self.chance.random() < share and claims.are_bound(server, pod, node):
                server.bind(key_of(pod), node, who="scheduler")
        claims.bind_above(server)
        self._slices(server, share)
        self._namespaces(server, share)

    # --- pods -------------------------------------------------------------------------------------

    def _kubelet(self, server: Server, pod: Body) -> None:
        key, phase = key_of(pod), pod["status"]["phase"]
        if not pod["spec"].get("nodeName"):
            if not is_ending(pod) and claims.are_provisioned(server, pod):
                server.bind(key, _choose(pod, ["n1", "n2"]), who="scheduler")
        elif is_ending(pod):
            self._end(server, pod)
        elif phase == "Pending" and _has_all(server, pod):
            _start(server, pod)
        elif phase == "Running":
            self._go_on(server, pod)

    def _end(self, server: Server, pod: Body) -> None:
        key = key_of(pod)
        if pod["status"]["phase"] == "Running" and self.chance.random() < 0.5:
            _finish(server, key)
        if server.get("pods", key)["metadata"].get("deletionGracePeriodSeconds") != 0:
            server.delete("pods", key, who="kubelet", uid=pod["metadata"]["uid"], grace=0)

    def _go_on(self, server: Server, pod: Body) -> None:
        key, status, generation = key_of(pod), pod["status"], pod["metadata"]["generation"]
        if status.get("observedGeneration") != generation:
            _say(server, key, {"observedGeneration": generation})
        draw = 1.0 if self.is_calm else self.chance.random()
        is_due = pod["spec"].get("restartPolicy") == "Never" and draw < 0.1
        if is_due or pod["spec"]["containers"][0]["image"].startswith(JOB):
            _finish(server, key)
        elif draw < 0.03:
            count = status["containerStatuses"][0]["restartCount"] + 1
            container = {"name": "main", "restartCount": count, "ready": True, "state": {"running": {}}}
            _say(server, key, {"containerStatuses": [container]})

    # --- the rest ---------------------------------------------------------------------------------

    def _slices(self, server: Server, share: float) -> None:
        """One slice for each Service with a selector, as the endpoints of its running pods are."""
        wanted = {
            f"{key_of(service)}-{service['metadata']['uid'][:5]}": service
            for service in server.all("services")
            if service["spec"].get("selector")
        }
        for piece in server.all("endpointslices"):
            if key_of(piece) not in wanted and self.chance.random() < share:
                server.delete("endpointslices", key_of(piece), who="endpoints")
        for key, service in wanted.items():
            if self.chance.random() < share:
                _publish(server, key, service)

    def _namespaces(self, server: Server, share: float) -> None:
        """Empties namespaces that are being deleted, then removes them."""
        for namespace in server.all("namespaces"):
            if not is_ending(namespace) or self.chance.random() > share:
                continue
            name = namespace["metadata"]["name"]
            left = [
                (plural, body)
                for plural in _EMPTIED
                for body in server.all(plural)
                if body["metadata"].get("namespace") == name
            ]
            for plural, body in left:
                if not is_ending(body):
                    server.delete(plural, key_of(body), who="namespace controller")
            if not left:
                server.remove("namespaces", name, namespace, who="namespace controller")


def _choose(pod: Body, nodes: Sequence[str]) -> str:
    """A node for a pod: always the same one, so that a story with a fault can be compared with one without."""
    return random.Random(uid_of(pod)).choice(nodes)


def _start(server: Server, pod: Body) -> None:
    address, node = f"10.{server.name}.{uid_of(pod)[:8]}", pod["spec"]["nodeName"]
    container = {"name": "main", "restartCount": 0, "ready": True, "state": {"running": {}}}
    status: Body = {
        "phase": "Running", "startTime": "2026-01-01T00:00:00Z", "podIP": address, "podIPs": [{"ip": address}],
        "hostIP": node, "hostIPs": [{"ip": node}], "observedGeneration": pod["metadata"]["generation"],
        "conditions": [{"type": kind, "status": "True"} for kind in _READY],
        "containerStatuses": [{**container, "containerID": f"c-{uid_of(pod)[:8]}"}],
    }  # fmt: skip
    _say(server, key_of(pod), status)


def _finish(server: Server, key: str) -> None:
    phase = random.Random(uid_of(server.get("pods", key))).choice(["Succeeded", "Failed"])
    state = {"terminated": {"exitCode": 0 if phase == "Succeeded" else 1}}
    conditions = [{"type": kind, "status": "False"} for kind in ("ContainersReady", "Ready")]
    containers = [{"name": "main", "restartCount": 0, "ready": False, "state": state}]
    _say(server, key, {"phase": phase, "conditions": conditions, "containerStatuses": containers})


def _say(server: Server, key: str, status: Body) -> None:
    server.patch(
        "pods", key, {"status": status}, who="kubelet", subresource="status", patch_type=PatchType.STRATEGIC
    )


def _has_all(server: Server, pod: Body) -> bool:
    """Whether every ConfigMap and Secret that a pod mounts is there."""
    for volume in pod["spec"].get("volumes") or ():
        sources = [volume, *((volume.get("projected") or {}).get("sources") or ())]
        for source in sources:
            for field, plural in (("configMap", "configmaps"), ("secret", "secrets")):
                wanted = source.get(field) or {"optional": True}
                name = wanted.get("name") or wanted.get("secretName")
                key = f"{pod['metadata']['namespace']}/{name}"
                if not wanted.get("optional") and server.find(plural, key) is None:
                    return False
    return claims.are_provisioned(server, pod)


def _publish(server: Server, key: str, service: Body) -> None:
    namespace, name = service["metadata"]["namespace"], service["metadata"]["name"]
    endpoints = [
        {
            "addresses": [pod["status"]["podIP"]],
            "conditions": {"ready": not is_ending(pod)},
            "targetRef": {
                "kind": "Pod", "namespace": namespace, "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"],
            },
        }
        for pod in server.all("pods")
        if pod["metadata"]["namespace"] == namespace
        and pod["status"].get("podIP")
        and pod["status"]["phase"] not in FINISHED
        and service["spec"]["selector"].items() <= labels_of(pod).items()
    ]  # fmt: skip
    there = server.find("endpointslices", key)
    if there is not None:
        server.patch("endpointslices", key, {"endpoints": endpoints}, who="endpoints")
        return
    if is_ending(server.get("namespaces", namespace)):
        return
    labels = {"kubernetes.io/service-name": name}
    body = {
        "addressType": "IPv4", "endpoints": endpoints, "ports": [{"port": 80, "protocol": "TCP"}],
        "metadata": {"name": key.partition("/")[2], "labels": labels},
    }  # fmt: skip
    server.create("endpointslices", body, who="endpoints", namespace=namespace)
