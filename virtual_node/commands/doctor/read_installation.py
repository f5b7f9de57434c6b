"""Reads our own Deployments and pods in the upper cluster, for ``doctor``; they may run elsewhere."""

from __future__ import annotations

import asyncio

from clusterset.model.pod.conditions import is_true
from controller_runtime import resources
from controller_runtime.client.client import Client
from controller_runtime.errors import ApiError
from controller_runtime.resources import Resource
from virtual_node.commands.common import probes
from virtual_node.commands.doctor.facts import INSTALLED_AS, LABEL_NAME, Installation
from virtual_node.health.objects import Json, key
from virtual_node.health.replicas import explanation

_LABEL_PART_OF = "app.kubernetes.io/part-of"
"""Label that does not change with the chart's nameOverride, unlike the name label."""


async def read(upper: Client) -> Installation:
    """Return Deployments and pods with the chart's labels, and log lines or a warning of pods that fail.

    Raises:
        ApiError: Deployments or pods cannot be listed.
    """
    found: dict[Resource, dict[str, Json]] = {}
    for resource in (resources.DEPLOYMENTS, resources.PODS):
        # A manual installation may have only the first label, an installation by the chart has the second.
        listed = await asyncio.gather(
            *(
                upper.list(resource, label_selector=f"{label}={INSTALLED_AS}")
                for label in (LABEL_NAME, _LABEL_PART_OF)
            )
        )
        found[resource] = {one.key: one.to_dict() for some in listed for one in some.items}
    deployments, pods = found[resources.DEPLOYMENTS].values(), found[resources.PODS].values()
    return Installation(
        list(deployments), list(pods), {key(pod): await _last_log_lines(upper, pod) for pod in pods}
    )


async def _last_log_lines(upper: Client, pod: Json) -> list[str]:
    """Return the last log lines of a terminated container of the pod.

    Without such lines, return the explanation by events of a pod that is not Ready; empty for a Ready pod.
    """
    try:
        if lines := await probes.previous_log(upper, pod):
            return lines
        if is_true(pod.get("status"), "Ready"):
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
