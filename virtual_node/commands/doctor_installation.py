"""Looks for the virtual nodes' own process in the upper cluster, for ``doctor``; it may well run elsewhere."""

from __future__ import annotations

import asyncio

from controller_runtime import resources
from controller_runtime.client import Client
from controller_runtime.errors import ApiError
from virtual_node.commands import last_words
from virtual_node.commands.doctoring.facts import INSTALLED_AS, LABEL_NAME, Installation, Json, key

_LABEL_PART_OF = "app.kubernetes.io/part-of"
"""With the chart's nameOverride the name is another; this stays."""
_LABEL_COMPONENT = "app.kubernetes.io/component"


async def look_at_installation(upper: Client) -> Installation:
    """Deployments and pods by the chart's labels, and what pods that ended said last.

    Raises:
        ApiError: they cannot be listed.
    """
    for label in (LABEL_NAME, _LABEL_PART_OF):
        selector = f"{label}={INSTALLED_AS}"
        deployments, pods = (
            [one for found in listed.items if _runs_virtual_nodes(one := found.to_dict())]
            for listed in await asyncio.gather(
                upper.list(resources.DEPLOYMENTS, label_selector=selector),
                upper.list(resources.PODS, label_selector=selector),
            )
        )
        if deployments or pods:
            break
    return Installation(deployments, pods, {key(pod): await _said(upper, pod) for pod in pods})


async def _said(upper: Client, pod: Json) -> list[str]:
    try:
        return await last_words.of(upper, pod)
    except ApiError:
        return []


def _runs_virtual_nodes(one: Json) -> bool:
    """Whether it is a virtual node's: not the webhook's, say, or the pod of a `helm test` that failed."""
    component = (one["metadata"].get("labels") or {}).get(_LABEL_COMPONENT)
    return component in {None, INSTALLED_AS}
