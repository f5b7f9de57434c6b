"""Lower pods as a feed stores them, the events that report them, and an agent that has read everything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clusterset.model import names
from controller_runtime.objects import Object, from_dict
from multi_scheduler.fit.agent import FitAgent
from multi_scheduler.fit.feeds.cluster_feed import Feed


def lower_pod(
    upper_uid: str,
    node: str = "",
    requests: Mapping[str, int] | None = None,
    *,
    name: str = "",
    namespace: str = "shop",
    phase: str = "Pending",
    **metadata: Any,
) -> Object:
    """Return the lower pod of an upper pod, whose name is its UID unless ``name`` is given; without a node it waits."""
    spec: dict[str, Any] = {"requests": {**(requests or {}), "pods": 1}}
    if node:
        spec["nodeName"] = node
    name = name or upper_uid
    return from_dict(
        {
            "metadata": {
                "name": name,
                "namespace": namespace,
                "uid": f"lower-{namespace}-{name}",
                "labels": {names.LABEL_UPPER_UID: upper_uid},
                **metadata,
            },
            "spec": spec,
            "status": {"phase": phase},
        }
    )


def mark_synced(agent: FitAgent) -> None:
    """Let the agent count as having read all clusters."""
    informers = [informer for feed in agent.feeds.values() for informer in feed.informers]
    informers += [agent._bound_pods._pods, agent.groups.members.pending.informer, agent._namespaces._informer]
    for informer in informers:
        informer._synced.set()


def report(feed: Feed, pod: Object, kind: str = "ADDED") -> None:
    """Let the feed's watch report a lower pod; ``kind``: ADDED, MODIFIED or DELETED."""
    feed._pods.change(kind, pod)
