"""Writes the addresses of a copied Ingress or Gateway to the status of the upper object.

Several lower clusters write to one status. Each adds its addresses, and removes only those that it has written. Its
copy records them before they are written, because upper users can change the upper object.
"""

from __future__ import annotations

import asyncio

from controller_runtime.api import names
from controller_runtime.objects import Object
from virtual_node.controllers.base.context import ClusterContext
from virtual_node.controllers.base.pace import Pace
from virtual_node.controllers.base.preconditions import patch_only
from virtual_node.controllers.follow.kinds import Kind
from virtual_node.translate.follow import addresses as translate


async def report(
    context: ClusterContext,
    kind: Kind,
    upper: Object | None,
    copy: Object,
    *,
    pace: Pace[str],
    is_leaving: bool = False,
) -> float:
    """Write the addresses of a copy to the upper status, and record them on the copy.

    Returns for how many seconds the write has to wait, because the addresses change too often; 0: it was done.

    Args:
        context: the two clusters.
        kind: the kind; nothing is written if it has no addresses.
        upper: the upper object; None: it is gone.
        copy: its copy.
        pace: limits the writes to each upper object.
        is_leaving: remove the addresses at once, because the copy is about to be deleted.

    Raises:
        ApiError: a cluster refuses, or the upper object has changed; the caller retries.
    """
    field = kind.addresses
    if upper is None or field is None:
        return 0.0
    below, above = copy.to_dict(), upper.to_dict()
    current = [] if is_leaving else field.read(below)
    earlier = translate.reported(below)
    if any(entry not in earlier for entry in current):
        await _record(context, kind, copy, [*earlier, *(entry for entry in current if entry not in earlier)])
    wanted = field.merged(above, current, earlier)
    if wanted != field.present(above):
        seconds = pace.wait(upper.key, now=asyncio.get_running_loop().time())
        if seconds and not is_leaving:
            return seconds
        await patch_only(
            context.upper,
            kind.resource,
            upper,
            field.patch(wanted),
            resource_version=upper.resource_version,
            subresource="status",
        )
    if not is_leaving and any(entry not in current for entry in earlier):
        # Otherwise a wrong record would remove another cluster's address each time.
        await _record(context, kind, copy, current)
    return 0.0


async def _record(context: ClusterContext, kind: Kind, copy: Object, entries: list[dict[str, str]]) -> None:
    patch = {"metadata": {"annotations": {names.ANNOTATION_REPORTED: translate.report(entries)}}}
    await patch_only(context.lower, kind.resource, copy, patch)
