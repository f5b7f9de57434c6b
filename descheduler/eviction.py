"""The eviction API: a controller's pod goes, and its controller makes another; disruption budgets are heard."""

from __future__ import annotations

from typing import Any

from controller_runtime import resources
from controller_runtime.client import Client
from controller_runtime.objects import Object


async def evict(client: Client, pod: Object) -> None:
    """Evict one pod, that very one (uid); POST ``pods/eviction``, policy/v1.

    Raises:
        TooManyRequests: a disruption budget forbids it now; ``retry_after`` may say when to ask again.
        NotFound: it is gone.
        Conflict: another pod has its name.
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
        "deleteOptions": {"preconditions": {"uid": pod.uid}},
    }
