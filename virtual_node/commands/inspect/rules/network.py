"""Rules about what pods on virtual nodes reach: Services without endpoints, DNS, and webhooks that fail."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from clusterset.model.pod.conditions import is_finished
from virtual_node.certificates.expiry import UPPER
from virtual_node.commands.inspect.facts import (
    DNS_SERVICE,
    ERROR,
    FOREIGN_SLICE,
    SERVICE_BACKEND,
    WARNING,
    WEBHOOKS,
    ClusterFacts,
    Findings,
    InspectFacts,
    Subject,
    webhook_services,
)
from virtual_node.examine.objects import is_deleting, key, labels_of
from virtual_node.translate.services import endpoints, foreign_endpoints

_CREATED = frozenset({"*", "pods", "pods/*", "*/*"})
"""Resources in a webhook's rules that include pods, so that the webhook can stop pods."""


def services(facts: InspectFacts) -> Findings:
    """Yield upper Services that select pods on our virtual nodes and have no ready endpoint."""
    if not facts.upper.knows("Service", "EndpointSlice", "Pod"):
        return
    served, ours = _served(facts.upper, "EndpointSlice"), facts.virtual_nodes()
    unserved = [
        _Selection(service, selector)
        for service in facts.upper.of("Service")
        if (selector := (service.get("spec") or {}).get("selector")) and key(service) not in served
    ]
    by_namespace: dict[str, list[_Selection]] = {}
    for one in unserved:
        by_namespace.setdefault(one.service["metadata"]["namespace"], []).append(one)
    for pod in facts.upper.heads("Pod") if unserved else ():
        if pod["spec"].get("nodeName") not in ours or is_finished(pod.get("status")) or is_deleting(pod):
            continue
        for one in by_namespace.get(pod["metadata"]["namespace"], ()):
            if one.selector.items() <= labels_of(pod).items():
                one.pods += 1
                one.is_old |= facts.age(pod["metadata"].get("creationTimestamp")) > facts.limits.grace
    for one in unserved:
        if one.is_old:
            yield Subject("service", UPPER, "Service", key(one.service)).warning(
                f"has no ready endpoint, although it selects {one.pods} pods on virtual nodes",
                f"kubectl -n {one.service['metadata']['namespace']} get pods,endpointslices: are the pods Ready?",
                transient=True,
            )


@dataclass(slots=True)
class _Selection:
    """A Service without a ready endpoint, and the pods on virtual nodes that it selects."""

    service: Mapping[str, Any]
    selector: Mapping[str, str]
    pods: int = 0
    is_old: bool = False
    """Whether one of the pods is older than ``--grace``."""


def foreign_slices(facts: InspectFacts) -> Findings:
    """Yield copied Services to which others add endpoints in the lower cluster."""
    for lower in facts.lowers:
        if not lower.knows("Service", FOREIGN_SLICE):
            continue
        found: dict[str, list[foreign_endpoints.Slice]] = {}
        for one in lower.of(FOREIGN_SLICE):
            labels = labels_of(one)
            service = f"{one['metadata'].get('namespace')}/{labels.get(endpoints.LABEL_SERVICE)}"
            manager = labels.get(endpoints.LABEL_MANAGED_BY, "")
            found.setdefault(service, []).append(foreign_endpoints.Slice(one["metadata"]["name"], manager))
        for copy in facts.owned(lower, "Service") if found else ():
            if text := foreign_endpoints.message(key(copy), found.get(key(copy), ())):
                problem, _, remedy = text.partition(". ")
                yield Subject("foreign-endpoints", lower.name, "Service", key(copy)).warning(problem, remedy)


def dns(facts: InspectFacts) -> Findings:
    """Yield lower clusters whose DNS Service has no ready endpoint; pods there cannot resolve names."""
    for lower in facts.lowers:
        if not lower.knows(DNS_SERVICE, SERVICE_BACKEND):
            continue
        ready = _served(lower, SERVICE_BACKEND)
        for service in lower.of(DNS_SERVICE):
            if key(service) not in ready:
                yield Subject("dns", lower.name, "Service", key(service)).error(
                    "has no ready endpoint: pods of this cluster cannot resolve names",
                    "kubectl -n kube-system get pods -l k8s-app=kube-dns, in the lower cluster",
                    transient=True,
                )


def webhooks(facts: InspectFacts) -> Findings:
    """Yield admission webhooks that must answer (failurePolicy Fail) and whose Service has no ready endpoint."""
    for cluster in (facts.upper, *facts.lowers):
        slices = "EndpointSlice" if cluster is facts.upper else SERVICE_BACKEND
        if not cluster.knows(slices):
            continue
        ready = _served(cluster, slices)
        for kind in WEBHOOKS:
            for configuration in cluster.of(kind):
                for webhook, service in webhook_services(configuration):
                    if webhook.get("failurePolicy") == "Ignore" or service in ready:
                        continue
                    stops_pods = any(
                        not _CREATED.isdisjoint(rule.get("resources") or ())
                        for rule in webhook.get("rules") or ()
                    )
                    name = f"{key(configuration)}/{webhook['name']}"
                    yield Subject("webhook", cluster.name, kind, name).finding(
                        ERROR if stops_pods else WARNING,
                        f"its Service {service} has no ready endpoint: the API server refuses the requests that it "
                        f"reviews{', also for pods' if stops_pods else ''}",
                        f"start the pods of Service {service}, or remove the webhook if its program is gone",
                        transient=True,
                    )


def _served(cluster: ClusterFacts, kind: str) -> set[str]:
    """Return the Services, as ``namespace/name``, that have a ready endpoint."""
    return {
        f"{one['metadata']['namespace']}/{labels_of(one)[endpoints.LABEL_SERVICE]}"
        for one in cluster.of(kind)
        if one.get("isServing") and endpoints.LABEL_SERVICE in labels_of(one)
    }
