"""Writes the addresses of a copied Ingress to the status of the upper Ingress.

Several lower clusters write to one status. Each adds its addresses, and removes only those that it has written. It
records them on its copy before it writes them, because upper users can write the upper object.
"""

from __future__ import annotations

from typing import Any

from controller_runtime import resources
from controller_runtime.api import names
from controller_runtime.objects import Object
from virtual_node.controllers.base.context import ClusterContext
from virtual_node.controllers.base.preconditions import patch_only
from virtual_node.translate.follow import ingresses


async def report(
    context: ClusterContext, upper: Object | None, copy: Object, *, is_leaving: bool = False
) -> None:
    """Update the upper status.

    Args:
        context: the two clusters.
        upper: the upper Ingress; None: it is gone.
        copy: its copy.
        is_leaving: remove the addresses, because the copy is about to be deleted.

    Raises:
        ApiError: a cluster refuses, or the upper Ingress has changed; the caller retries.
    """
    if upper is None:
        return
    below, above = copy.to_dict(), upper.to_dict()
    current = [] if is_leaving else ingresses.addresses(below)
    earlier = ingresses.reported(below)
    if any(entry not in earlier for entry in current):
        await _record(context, copy, [*earlier, *(entry for entry in current if entry not in earlier)])
    wanted = ingresses.merged(above, current, earlier)
    if wanted != _present(above):
        await patch_only(
            context.upper,
            resources.INGRESSES,
            upper.name,
            {"status": {"loadBalancer": {"ingress": wanted}}},
            uid=upper.uid,
            resource_version=upper.resource_version,
            namespace=upper.namespace,
            subresource="status",
        )
    if not is_leaving and any(entry not in current for entry in earlier):
        # At once, so that a record that is wrong removes an address of another cluster only once.
        await _record(context, copy, current)


async def _record(context: ClusterContext, copy: Object, entries: list[dict[str, str]]) -> None:
    patch = {"metadata": {"annotations": {names.ANNOTATION_REPORTED: ingresses.report(entries)}}}
    await patch_only(
        context.lower, resources.INGRESSES, copy.name, patch, uid=copy.uid, namespace=copy.namespace
    )


def _present(ingress: dict[str, Any]) -> list[Any]:
    return ((ingress.get("status") or {}).get("loadBalancer") or {}).get("ingress") or []
