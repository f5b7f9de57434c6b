"""Lower pods as a feed stores them, the events that report them, and a fit agent with a state that has read everything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from clusterset.config import KNOWN_CONTROLLERS, Cluster
from clusterset.model import cluster_selector, names
from controller_runtime.objects import Object, from_dict
from multi_scheduler.agent import AgentContext
from multi_scheduler.agents.fit.agent import FitAgent, FitSettings
from multi_scheduler.bound_pods import BoundPods, bound_pods
from multi_scheduler.config import Config
from multi_scheduler.shared import Shared
from multi_scheduler.state.cluster.pod_requirements import Demand, demand
from multi_scheduler.state.cluster_feed import Feed
from multi_scheduler.state.cluster_state import ClusterState


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


def demand_of(pod: Mapping[str, Any]) -> Demand:
    """Return the demand of a pod; its annotation clusterSelector, if any, has the scheduling fields of the lower pod."""
    metadata, spec = pod["metadata"], pod["spec"]
    selector = cluster_selector.of(metadata.get("annotations"), names.ANNOTATION_CLUSTER_SELECTOR)
    if selector is None:
        return demand(pod)
    affinity = {**(spec.get("affinity") or {}), **(selector.get("affinity") or {})}
    return demand({**pod, "spec": {**spec, **selector, "affinity": affinity}})


def fit_agent(context: AgentContext) -> FitAgent:
    """Return a fit agent with its own state, from a context without one."""
    bound = BoundPods(context.bound_pods or bound_pods(context.upper))
    settings = context.read_settings(FitSettings)
    state = ClusterState(settings, context.upper, bound, context.recorder, context.find_node)
    for name, client in context.lower.items():
        config = context.clusters.get(name) or Cluster(name=name, kubeconfig="")
        given = config.enable_controllers
        state.add(config, client, KNOWN_CONTROLLERS if given is None else given)
    return FitAgent(replace(context, state=state))


def shared_of(config: Config, client: Any) -> Shared:
    """Return what the agents share, with one client for all clusters of a configuration."""
    shared = Shared(config, client, bound_pods(client))
    for cluster in config.clusters:
        shared.add(cluster, client)
    return shared


def mark_synced(state: ClusterState) -> None:
    """Let the state, and the fit agent that follows it, count as having read all clusters."""
    informers = [informer for lower in state.clusters.values() for informer in lower.feed.informers]
    informers += [*state._upper_informers, state.upper_namespaces._informer]
    for informer in informers:
        informer._synced.set()


def report(feed: Feed, pod: Object, kind: str = "ADDED") -> None:
    """Let the feed's watch report a lower pod; ``kind``: ADDED, MODIFIED or DELETED."""
    feed._pods.change(kind, pod)
