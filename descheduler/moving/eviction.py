"""The eviction API: a controller's pod goes, and its controller makes another; disruption budgets are heard.

Source: https://kubernetes.io/docs/concepts/scheduling-eviction/api-eviction/
"""

from __future__ import annotations

from typing import Any

from controller_runtime import resources
from controller_runtime.client.client import Client
from controller_runtime.errors import TooManyRequests
from controller_runtime.objects import Object


async def evict(client: Client, pod: Object) -> None:
    """Evict one pod in the very state that was judged (uid, resourceVersion); POST ``pods/eviction``, policy/v1.

    Raises:
        TooManyRequests: a disruption budget forbids it now (``is_budget``), or the server sheds load;
            ``retry_after`` may say when to ask again.
        NotFound: it is gone.
        Conflict: it has changed, or another pod has its name.
        ApiError: anything else.
    """
    await client.create(
        resources.PODS, eviction(pod), namespace=pod.namespace, name=pod.name, subresource="eviction"
    )


def eviction(pod: Object) -> dict[str, Any]:
    """The Eviction object."""
    return {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": pod.name, "namespace": pod.namespace},
        "deleteOptions": {"preconditions": {"uid": pod.uid, "resourceVersion": pod.resource_version}},
    }


def is_budget(error: TooManyRequests) -> bool:
    """Whether it is a disruption budget that refuses; else nobody has looked at the eviction yet."""
    causes = (error.status.get("details") or {}).get("causes") or ()
    return any(cause.get("reason") == "DisruptionBudget" for cause in causes)
