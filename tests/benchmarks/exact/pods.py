"""Nodes and pods of the bursts: random sizes, constraints and groups. One seed is one sequence of bursts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from clusterset.model import names
from hack.sandbox.nodes.kwok import kwok_node
from tests.workloads import manifest

NAMESPACE = "exact"
GROUP, MINIMUM = "virtual-node.io/pod-group", "virtual-node.io/min-members"
CORES: Mapping[str, Sequence[int]] = {
    "lower1": (8, 12, 16, 24, 32),
    "lower2": (6, 10, 16, 20, 28),
    "lower3": (4, 8, 8, 16, 24),
}
"""Cores of the nodes of each lower cluster."""
TOTAL = 1000 * sum(sum(cores) for cores in CORES.values())
"""Millicores of all lower nodes together."""
_GIB_PER_CORE = 4
_HOST = names.LABEL_HOSTNAME
_SIZES = ((100, 250, 500, 1000), (1500, 2000, 3000, 4000), (6000, 8000, 12000))
"""Millicores of small, medium and large pods."""
_OF_100 = (50, 38, 12)
"""How many of 100 pods are small, medium and large."""
_PORTS = (8080, 8081, 9090)

_PORT_TAKEN = 8080
"""Host port of a pod of a lower user in each cluster."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A pod to create."""

    name: str
    cpu: int
    memory: int
    """MiB."""
    labels: Mapping[str, str] = field(default_factory=dict)
    selector: Mapping[str, Any] = field(default_factory=dict)
    """``nodeSelector``, ``affinity`` and ``tolerations`` for lower nodes."""
    spec: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of the pod, which apply in both clusters."""
    ports: Sequence[int] = ()
    group: str = ""
    minimum: int = 0

    def upper(self) -> dict[str, Any]:
        """Return the upper pod."""
        annotations = {names.ANNOTATION_CLUSTER_SELECTOR: json.dumps(self.selector)} if self.selector else {}
        if self.group:
            annotations |= {GROUP: self.group, MINIMUM: str(self.minimum)}
        tolerations = [{"key": names.TAINT_PROVIDER, "operator": "Exists"}]
        return self._pod(annotations, {**self.spec, "tolerations": tolerations})

    def lower(self) -> dict[str, Any]:
        """Return a pod for a lower cluster with the same requirements, as a user of that cluster would write it."""
        affinity = {**self.selector.get("affinity", {}), **self.spec.get("affinity", {})}
        spec = {**self.spec, **self.selector, **({"affinity": affinity} if affinity else {})}
        return self._pod({}, spec)

    def _pod(self, annotations: Mapping[str, str], spec: Mapping[str, Any]) -> dict[str, Any]:
        container = {
            "name": "main",
            "image": "registry.k8s.io/pause:3.10",
            "resources": {"requests": {"cpu": f"{self.cpu}m", "memory": f"{self.memory}Mi"}},
            **({"ports": [{"containerPort": port, "hostPort": port} for port in self.ports]} if self.ports else {}),
        }  # fmt: skip
        metadata = {"labels": {"exact": "pod", **self.labels}, "annotations": dict(annotations)}
        whole = {
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
            "containers": [container],
            **spec,
        }
        return manifest("Pod", self.name, metadata=metadata, spec=whole)


def nodes(cluster: str) -> list[dict[str, Any]]:
    """Return the nodes of a lower cluster: two have fast disks, one is tainted, and one is avoided if possible."""
    cores = CORES[cluster]
    taints: Mapping[int, Sequence[Mapping[str, str]]] = {
        1: [{"key": "dedicated", "value": "batch", "effect": "NoSchedule"}],
        2: [{"key": "old", "value": "true", "effect": "PreferNoSchedule"}],
    }
    return [
        kwok_node(
            f"{cluster}-{number}",
            cpu=str(count),
            memory=f"{count * _GIB_PER_CORE}Gi",
            pods=60,
            labels={"disk": "fast" if number % 2 else "slow", "rack": "abc"[number % 3]},
            taints=taints.get(number, ()),
        )
        for number, count in enumerate(cores)
    ]


def natives(cluster: str) -> list[dict[str, Any]]:
    """Return running pods of lower users: one has a host port, one keeps pods of an app off its node."""
    taken = Wanted("native-port", 200, 128, ports=(_PORT_TAKEN,)).lower()
    lonely = Wanted("native-lonely", 200, 128, spec=_apart("a0", namespaces=[NAMESPACE])).lower()
    for pod, number in ((taken, len(CORES[cluster]) - 1), (lonely, len(CORES[cluster]) - 2)):
        pod["spec"]["nodeName"] = f"{cluster}-{number}"
        pod["metadata"]["namespace"] = "default"
        pod["metadata"]["labels"] = {"exact": "native"}
    return [taken, lonely]


def bursts(seed: int, *, pods: int, overfill: float) -> list[list[Wanted]]:
    """Return bursts with at least so many pods together, each of which requests so many times the cores that exist."""
    random = Random(seed)
    found: list[list[Wanted]] = []
    while sum(map(len, found)) < pods:
        found.append(_burst(random, f"b{len(found)}", overfill * TOTAL))
    return found


def _burst(random: Random, prefix: str, cores: float) -> list[Wanted]:
    units: list[list[Wanted]] = []
    while sum(pod.cpu for unit in units for pod in unit) < cores:
        name = f"{prefix}-{len(units)}"
        units.append(_group(random, name) if random.random() < 0.03 else [_single(random, name)])
    return [pod for unit in units for pod in unit]


def _group(random: Random, name: str) -> list[Wanted]:
    size, cpu = random.randint(3, 8), random.choice((500, 1000, 2000, 3000))
    minimum = random.choice((size, size, max(2, size - 2)))
    return [
        Wanted(f"{name}-{number}", cpu, cpu * 2, {"app": name}, group=name, minimum=minimum)
        for number in range(size)
    ]


def _single(random: Random, name: str) -> Wanted:
    cpu = random.choice(random.choices(_SIZES, _OF_100)[0])
    memory = round(cpu * random.choice((0.5, 1, 2, 4, 7)))
    app = f"a{random.randrange(6)}"
    selector: dict[str, Any] = {}
    spec: dict[str, Any] = {}
    ports: tuple[int, ...] = ()
    if random.random() < 0.15:
        selector["nodeSelector"] = {"disk": "fast"}
    if random.random() < 0.15:
        selector["tolerations"] = [{"key": "dedicated", "operator": "Exists"}]
    if random.random() < 0.1:
        racks = random.sample("abc", 2)
        terms = [{"matchExpressions": [{"key": "rack", "operator": "In", "values": racks}]}]
        required = {"nodeSelectorTerms": terms}
        selector["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    elif random.random() < 0.1:
        terms = [{"matchExpressions": [{"key": "rack", "operator": "In", "values": [random.choice("abc")]}]}]
        preferred = [{"weight": 100, "preference": term} for term in terms]
        selector["affinity"] = {
            "nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}
        }
    kind = random.random()
    if kind < 0.06:
        ports = (random.choice(_PORTS),)
    elif kind < 0.1:
        app = f"apart{random.randrange(3)}"
        spec |= _apart(app)
    elif kind < 0.2:
        app = f"even{random.randrange(2)}"
        spec |= _even(app, "DoNotSchedule")
    elif kind < 0.3:
        spec |= _even(app, "ScheduleAnyway")
    return Wanted(name, cpu, memory, {"app": app}, selector, spec, ports)


def _apart(app: str, **term: Any) -> dict[str, Any]:
    terms = [{"topologyKey": _HOST, "labelSelector": {"matchLabels": {"app": app}}, **term}]
    return {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}}


def _even(app: str, otherwise: str) -> dict[str, Any]:
    constraint = {
        "topologyKey": _HOST,
        "maxSkew": 1,
        "whenUnsatisfiable": otherwise,
        "labelSelector": {"matchLabels": {"app": app}},
    }
    return {"topologySpreadConstraints": [constraint]}
