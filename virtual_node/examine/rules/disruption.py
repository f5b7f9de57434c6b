"""Rules about interruptions of Deployments and StatefulSets on virtual nodes by updates and drains."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

from clusterset.model.moving.drain import TEMPLATE_HASH
from clusterset.model.pod.conditions import is_finished
from controller_runtime.apimachinery import matching
from virtual_node.examine.clusters import virtual_nodes
from virtual_node.examine.codes import Code
from virtual_node.examine.engine import Level, rule
from virtual_node.examine.finding import Finding, Findings
from virtual_node.examine.objects import Json, is_deleting, key, labels_of
from virtual_node.examine.snapshot import Snapshot, View, objects


@rule(
    Code.SINGLE_REPLICA,
    Code.MAX_UNAVAILABLE,
    Code.NO_DISRUPTION_BUDGET,
    Code.NO_READINESS_PROBE,
    Code.NO_PRE_STOP,
    needs=[objects("Pod")],
    level=Level.PATH,
)
def disruption(snapshot: Snapshot) -> Findings:
    """Yield why an update or a drain can interrupt workloads with pods on our virtual nodes."""
    ours = _workloads(snapshot)
    budgets, services = (
        _by_namespace(snapshot.upper.of(kind)) for kind in ("PodDisruptionBudget", "Service")
    )
    for kind in ("Deployment", "StatefulSet"):
        for workload in snapshot.upper.of(kind):
            spec = workload["spec"]
            if (kind, key(workload)) not in ours or is_deleting(workload) or spec.get("replicas") == 0:
                continue
            namespace = workload["metadata"]["namespace"]
            known = budgets.get(namespace, ()) if snapshot.upper.knows("PodDisruptionBudget") else None
            yield from _risks(snapshot.upper, workload, kind, known, services.get(namespace, ()))


def _workloads(snapshot: Snapshot) -> set[tuple[str, str]]:
    """Return kind and key of the workloads that own unfinished pods on our virtual nodes."""
    ours, found = virtual_nodes(snapshot), set()
    for pod in snapshot.upper.heads("Pod"):
        if pod["spec"].get("nodeName") not in ours or is_finished(pod.get("status")):
            continue
        namespace = pod["metadata"]["namespace"]
        for owner in pod["metadata"].get("ownerReferences") or ():
            suffix = f"-{labels_of(pod).get(TEMPLATE_HASH)}"
            # A Deployment names its ReplicaSets by its own name and the hash, so ReplicaSets need not be read.
            if owner["kind"] == "ReplicaSet" and owner["name"].endswith(suffix):
                found.add(("Deployment", f"{namespace}/{owner['name'].removesuffix(suffix)}"))
            found.add((owner["kind"], f"{namespace}/{owner['name']}"))
    return found


def _by_namespace(objects: Iterable[Json]) -> dict[str, list[Json]]:
    found: dict[str, list[Json]] = {}
    for each in objects:
        found.setdefault(each["metadata"]["namespace"], []).append(each)
    return found


def _risks(
    upper: View, workload: Json, kind: str, budgets: Iterable[Json] | None, services: Iterable[Json]
) -> Findings:
    """Yield the risks of a workload, with budgets and Services of its namespace; None: budgets could not be listed."""
    spec, template = workload["spec"], workload["spec"]["template"]
    replicas = spec.get("replicas", 1)
    name, namespace = workload["metadata"]["name"], workload["metadata"]["namespace"]
    labels = (template.get("metadata") or {}).get("labels") or {}
    containers = template["spec"].get("containers") or ()

    def risk(code: Code, cause: str, step: str) -> Finding:
        return upper.finding(code, kind, key(workload), cause, step)

    if replicas == 1:
        yield risk(
            Code.SINGLE_REPLICA,
            "has a single replica: its service stops when the pod is moved or its node is drained",
            f"kubectl -n {namespace} scale {kind.lower()} {name} --replicas=2",
        )
    elif kind == "Deployment" and (unavailable := _max_unavailable(spec, replicas)) >= replicas:
        yield risk(
            Code.MAX_UNAVAILABLE,
            f"an update may stop {unavailable} of {replicas} pods at once",
            "set strategy.rollingUpdate.maxUnavailable to 0 and maxSurge to 1",
        )
    if replicas > 1 and budgets is not None and not _has_budget(budgets, labels):
        yield risk(
            Code.NO_DISRUPTION_BUDGET,
            "has no PodDisruptionBudget: a drain or the descheduler may stop all pods at once",
            f"kubectl -n {namespace} create poddisruptionbudget {name} --selector=LABELS --max-unavailable=1",
        )
    if not _is_served(services, labels):
        return  # Probes and preStop protect clients of a Service.
    if not any(container.get("readinessProbe") for container in containers):
        yield risk(
            Code.NO_READINESS_PROBE,
            "is behind a Service and has no readinessProbe: new pods get requests before they can answer",
            "add a readinessProbe to a container of the pod template",
        )
    if not any((container.get("lifecycle") or {}).get("preStop") for container in containers):
        yield risk(
            Code.NO_PRE_STOP,
            "is behind a Service and has no preStop hook: pods end before clients stop to use their addresses",
            "add lifecycle.preStop with a sleep of some seconds to the pod template",
        )


def _max_unavailable(spec: Json, replicas: int) -> int:
    """Return how many pods of a Deployment an update may stop at the same time."""
    strategy = spec.get("strategy") or {}
    if strategy.get("type") == "Recreate":
        return replicas
    rolling = strategy.get("rollingUpdate") or {}
    unavailable = _count(rolling.get("maxUnavailable", "25%"), replicas, math.floor)
    # The Deployment controller uses 1 if both round to 0 (pkg/controller/deployment/util, ResolveFenceposts).
    return max(unavailable, 0 if _count(rolling.get("maxSurge", "25%"), replicas, math.ceil) else 1)


def _count(amount: int | str, replicas: int, rounded: Callable[[float], int]) -> int:
    """Return a number or a percentage of the replicas as a number."""
    if isinstance(amount, int):
        return amount
    return rounded(replicas * int(amount.removesuffix("%")) / 100)


def _has_budget(budgets: Iterable[Json], labels: Mapping[str, str]) -> bool:
    return any(
        matching.compile_selector(budget["spec"]["selector"])(labels)
        for budget in budgets
        if budget["spec"].get("selector") is not None
    )


def _is_served(services: Iterable[Json], labels: Mapping[str, str]) -> bool:
    selectors = ((service.get("spec") or {}).get("selector") for service in services)
    return any(selector and selector.items() <= labels.items() for selector in selectors)
