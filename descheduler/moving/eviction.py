"""The eviction API: deletes a pod if disruption budgets allow it. The pod's controller then creates another pod.

Source: https://kubernetes.io/docs/concepts/scheduling-eviction/api-eviction/
"""

from __future__ import annotations

from prometheus_client import Counter

from controller_runtime import resources
from controller_runtime.client.client import Client
from controller_runtime.errors import TooManyRequests
from controller_runtime.objects import Object

MOVED = Counter(
    "virtual_node_descheduler_moved_total", "Pods moved off a virtual node.", ["node", "strategy", "how"]
)


async def evict(client: Client, pod: Object) -> None:
    """Evict a pod if it is unchanged since it was cached (uid, resourceVersion); POST ``pods/eviction``, policy/v1.

    Raises:
        TooManyRequests: a disruption budget forbids the eviction now (``is_budget``), or the server limits
            requests; ``retry_after`` may have the seconds until the next attempt.
        NotFound: the pod does not exist.
        Conflict: the pod has changed, or another pod has its name.
        ApiError: another error of the request.
    """
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": pod.name, "namespace": pod.namespace},
        "deleteOptions": {"preconditions": {"uid": pod.uid, "resourceVersion": pod.resource_version}},
    }
    await client.create(resources.PODS, body, namespace=pod.namespace, name=pod.name, subresource="eviction")


def is_budget(error: TooManyRequests) -> bool:
    """Report whether a disruption budget refused the eviction; if False, budgets were not evaluated."""
    causes = (error.status.get("details") or {}).get("causes") or ()
    return any(cause.get("reason") == "DisruptionBudget" for cause in causes)
