"""Rules about what pods on virtual nodes reach: Services without endpoints, DNS, and webhooks that fail."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clusterset.model.pod.conditions import is_finished
from virtual_node.examine import clusters
from virtual_node.examine.codes import Code, Severity
from virtual_node.examine.engine import Level, rule
from virtual_node.examine.finding import Findings
from virtual_node.examine.objects import Json, is_deleting, key, labels_of
from virtual_node.examine.snapshot import Fact, Snapshot, View, objects
from virtual_node.translate import endpoints

_CREATED = frozenset({"*", "pods", "pods/*", "*/*"})
"""Resources in a webhook's rules that include pods, so that the webhook can stop pods."""


@rule(
    Code.SERVICE_UNSERVED,
    needs=[objects("Service"), objects("EndpointSlice"), objects("Pod")],
    level=Level.PATH,
)
def services(snapshot: Snapshot) -> Findings:
    """Yield upper Services that select pods on our virtual nodes and have no ready endpoint."""
    served, ours = _served(snapshot.upper, objects("EndpointSlice")), clusters.virtual_nodes(snapshot)
    unserved = [
        _Selection(service, selector)
        for service in snapshot.upper.of("Service")
        if (selector := (service.get("spec") or {}).get("selector")) and key(service) not in served
    ]
    by_namespace: dict[str, list[_Selection]] = {}
    for each in unserved:
        by_namespace.setdefault(each.service["metadata"]["namespace"], []).append(each)
    for pod in snapshot.upper.heads("Pod") if unserved else ():
        if pod["spec"].get("nodeName") not in ours or is_finished(pod.get("status")) or is_deleting(pod):
            continue
        for one in by_namespace.get(pod["metadata"]["namespace"], ()):
            if one.selector.items() <= labels_of(pod).items():
                one.pods += 1
                one.is_old |= (
                    snapshot.age(pod["metadata"].get("creationTimestamp")) > clusters.limits(snapshot).grace
                )
    for item in unserved:
        if item.is_old:
            cause = f"has no ready endpoint, although it selects {item.pods} pods on virtual nodes"
            step = f"kubectl -n {item.service['metadata']['namespace']} get pods,endpointslices: are the pods Ready?"
            yield snapshot.upper.finding(
                Code.SERVICE_UNSERVED, "Service", key(item.service), cause, step, transient=True
            )


@dataclass(slots=True)
class _Selection:
    """A Service without a ready endpoint, and the pods on virtual nodes that it selects."""

    service: Mapping[str, Any]
    selector: Mapping[str, str]
    pods: int = 0
    is_old: bool = False
    """Whether one of the pods is older than ``--grace``."""


@rule(Code.ENDPOINTS_FOREIGN, where=[objects("Service"), clusters.FOREIGN_SLICES], level=Level.LOWER)
def foreign_slices(snapshot: Snapshot, lower: View) -> Findings:
    """Yield copied Services to which others add endpoints in the lower cluster."""
    found: dict[str, list[endpoints.Slice]] = {}
    for each in lower.of(clusters.FOREIGN_SLICES):
        labels = labels_of(each)
        service = f"{each['metadata'].get('namespace')}/{labels.get(endpoints.LABEL_SERVICE)}"
        manager = labels.get(endpoints.LABEL_MANAGED_BY, "")
        found.setdefault(service, []).append(endpoints.Slice(each["metadata"]["name"], manager))
    for copy in clusters.owned(snapshot, lower, "Service") if found else ():
        if text := endpoints.message(key(copy), found.get(key(copy), ())):
            problem, _, remedy = text.partition(". ")
            yield lower.finding(Code.ENDPOINTS_FOREIGN, "Service", key(copy), problem, remedy)


@rule(Code.DNS_UNSERVED, where=[clusters.DNS_SERVICES, clusters.SERVICE_BACKENDS], level=Level.LOWER)
def dns(_snapshot: Snapshot, lower: View) -> Findings:
    """Yield DNS Services of a lower cluster without a ready endpoint; pods there cannot resolve names."""
    ready = _served(lower, clusters.SERVICE_BACKENDS)
    for service in lower.of(clusters.DNS_SERVICES):
        if key(service) not in ready:
            cause = "has no ready endpoint: pods of this cluster cannot resolve names"
            step = "kubectl -n kube-system get pods -l k8s-app=kube-dns, in the lower cluster"
            yield lower.finding(Code.DNS_UNSERVED, "Service", key(service), cause, step, transient=True)


@rule(Code.WEBHOOK_UNSERVED, level=Level.CLUSTER)
def webhooks(snapshot: Snapshot, cluster: View) -> Findings:
    """Yield admission webhooks that must answer (failurePolicy Fail) and whose Service has no ready endpoint."""
    slices = objects("EndpointSlice") if cluster is snapshot.upper else clusters.SERVICE_BACKENDS
    ready = _served(cluster, slices)
    for kind, configuration, webhook, service in (
        clusters.webhook_services(cluster) if cluster.knows(slices) else ()
    ):
        if webhook.get("failurePolicy") == "Ignore" or service in ready:
            continue
        rules = webhook.get("rules") or ()
        stops_pods = any(not _CREATED.isdisjoint(each.get("resources") or ()) for each in rules)
        cause = (
            f"its Service {service} has no ready endpoint: the API server refuses the requests that it "
            f"reviews{', also for pods' if stops_pods else ''}"
        )
        step = f"start the pods of Service {service}, or remove the webhook if its program is gone"
        severity, name = Severity.ERROR if stops_pods else None, f"{key(configuration)}/{webhook['name']}"
        yield cluster.finding(Code.WEBHOOK_UNSERVED, kind, name, cause, step, severity, transient=True)


def _served(cluster: View, slices: Fact[Sequence[Json]]) -> set[str]:
    """Return the Services, as ``namespace/name``, that have a ready endpoint."""
    return {
        f"{each['metadata']['namespace']}/{labels_of(each)[endpoints.LABEL_SERVICE]}"
        for each in cluster.of(slices)
        if each.get("isServing") and endpoints.LABEL_SERVICE in labels_of(each)
    }
