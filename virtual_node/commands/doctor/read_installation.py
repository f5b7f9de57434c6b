"""Looks for our own processes in the upper cluster, for ``doctor``; it may well run elsewhere."""

from __future__ import annotations

import asyncio

from controller_runtime import resources
from controller_runtime.client.client import Client
from controller_runtime.errors import ApiError
from controller_runtime.resources import Resource
from virtual_node.commands.common import previous_logs
from virtual_node.commands.doctor.facts import INSTALLED_AS, LABEL_NAME, Installation
from virtual_node.health.objects import Json, condition, key
from virtual_node.health.replicas import explanation

_LABEL_PART_OF = "app.kubernetes.io/part-of"
"""With the chart's nameOverride the name is another; this stays."""


async def look_at_installation(upper: Client) -> Installation:
    """Deployments and pods by the chart's labels, and what pods that ended said last.

    Raises:
        ApiError: they cannot be listed.
    """
    found: dict[Resource, dict[str, Json]] = {}
    for resource in (resources.DEPLOYMENTS, resources.PODS):
        # An installation by hand may have the first label alone, one of the chart has the second.
        listed = await asyncio.gather(
            *(
                upper.list(resource, label_selector=f"{label}={INSTALLED_AS}")
                for label in (LABEL_NAME, _LABEL_PART_OF)
            )
        )
        found[resource] = {one.key: one.to_dict() for some in listed for one in some.items}
    deployments, pods = found[resources.DEPLOYMENTS].values(), found[resources.PODS].values()
    return Installation(list(deployments), list(pods), {key(pod): await _said(upper, pod) for pod in pods})


async def _said(upper: Client, pod: Json) -> list[str]:
    """Return the last log lines of a pod that has ended, otherwise why it is not Ready as far as events tell."""
    try:
        if lines := await previous_logs.of(upper, pod):
            return lines
        if condition(pod, "Ready").get("status") == "True":
            return []
        metadata = pod["metadata"]
        events = await upper.list(
            resources.EVENTS,
            namespace=metadata["namespace"],
            field_selector=f"involvedObject.uid={metadata['uid']}",
        )
    except ApiError:
        return []
    return [explanation(event.to_dict() for event in events.items)]
