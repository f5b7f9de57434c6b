"""Reads what the health model needs from the upper cluster, and our own Deployments and pods, which may run elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from clusterset.model.names import SWARMS
from clusterset.model.pod.conditions import condition
from controller_runtime import resources
from controller_runtime.client.verbs import Verbs
from controller_runtime.errors import Forbidden, NotFound
from controller_runtime.objects import Object
from controller_runtime.resources import Resource
from virtual_node.config import program
from virtual_node.examine import health as model
from virtual_node.examine.codes import Code
from virtual_node.examine.components import SELECTOR, failing, replica_trouble
from virtual_node.examine.engine import of_all_pods
from virtual_node.examine.facts import known
from virtual_node.examine.finding import Finding
from virtual_node.examine.health import Health
from virtual_node.examine.objects import Json, key, labels_of
from virtual_node.examine.pods import WAITING
from virtual_node.examine.reader import Reader

LABEL_NAME = "app.kubernetes.io/name"
INSTALLED_AS = "virtual-node"
NODE_FAULTS = frozenset({Code.CLUSTER_FAILED, Code.CLUSTER_LOST, Code.NODE_SILENT, Code.NODE_NOT_READY})
"""Codes of faults with which a virtual node does not work."""
_LABEL_PART_OF = "app.kubernetes.io/part-of"
"""Label that does not change with the chart's nameOverride, unlike the name label."""
_LABEL_COMPONENT = "app.kubernetes.io/component"
_UNLABELLED = f"none is labelled {LABEL_NAME}={INSTALLED_AS}"
_LISTED = 3


@dataclass(frozen=True, slots=True)
class Installation:
    """Objects in the upper cluster with the labels of our installation, which may also run elsewhere."""

    deployments: Sequence[Json] = ()
    pods: Sequence[Json] = ()
    logs: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """By ``namespace/name`` of the pod: last log lines of a terminated container, else the last warning."""


async def read(upper: Verbs) -> Installation:
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
    reader = Reader(upper)
    return Installation(
        list(deployments), list(pods), {key(pod): await reader.last_words(pod) for pod in pods}
    )


def listed(faults: Sequence[Finding]) -> tuple[str, str]:
    """Return the first faults as text, and the next step of the first one."""
    more = [f"and {len(faults) - _LISTED} more"] if len(faults) > _LISTED else []
    return "; ".join([*map(str, faults[:_LISTED]), *more]), faults[0].next_step


def node_trouble(
    faults: Sequence[Finding], installation: Installation, now: datetime, *, unread: str = ""
) -> tuple[str, str] | None:
    """Return why virtual nodes do not work, and the next step; None: they work.

    Args:
        faults: faults of the health model.
        installation: our components, which explain a silent virtual node.
        now: current time by the API server's clock.
        unread: why the installation could not be read; empty: it was read.
    """
    found = [fault for fault in faults if fault.code in NODE_FAULTS]
    if not found:
        return None
    what, step = listed(found)
    if found[0].code is Code.NODE_SILENT:
        why, step = installation_trouble(installation, now, unread=unread)
        what = f"{what}; {why}"
    return what, step


def installation_trouble(installation: Installation, now: datetime, *, unread: str = "") -> tuple[str, str]:
    """Return why no virtual node is registered or renewed, as far as this cluster shows, and the next step.

    Args:
        installation: our components.
        now: current time by the API server's clock.
        unread: why the installation could not be read; empty: it was read.
    """
    if unread:
        return f"whether its process runs cannot be seen ({unread})", "look where the process runs"
    processes = list(filter(_runs_virtual_nodes, installation.pods))
    for pod in processes:
        logs = installation.logs.get(key(pod)) or ("",)
        if found := replica_trouble(pod, logs[-1], now, patience=0):
            return f"its pod {key(pod)} {found[0]}", found[1]
    for deployment in filter(_runs_virtual_nodes, installation.deployments):
        wanted = (deployment.get("spec") or {}).get("replicas", 1)
        namespace, name = deployment["metadata"]["namespace"], deployment["metadata"]["name"]
        if wanted == 0:
            return (
                f"Deployment {namespace}/{name} is scaled to 0",
                f"kubectl -n {namespace} scale deployment {name} --replicas=1",
            )
        failed = condition(deployment.get("status"), "ReplicaFailure")
        if failed.get("status") == "True" or not processes:
            return (
                f"Deployment {namespace}/{name} has no pods: {failed.get('message') or _UNLABELLED}",
                f"kubectl -n {namespace} describe deployment {name}",
            )
    if not processes:
        return (
            f"nothing here is labelled {LABEL_NAME}={INSTALLED_AS}",
            f"start it ({program.name('run')} --help), or look where it runs: it need not be in this cluster",
        )
    pod = processes[0]
    logs = f"kubectl -n {pod['metadata']['namespace']} logs {pod['metadata']['name']}"
    return (
        f"its pod {key(pod)} runs, so it has no lower cluster, or cannot register it",
        f"{program.name('lower-cluster')} join NAME --client-kubeconfig FILE; else {logs}",
    )


def _runs_virtual_nodes(one: Json) -> bool:
    """Report whether a pod or Deployment runs virtual nodes; false for the webhook or a `helm test`."""
    component = labels_of(one).get(_LABEL_COMPONENT)
    return component in {None, INSTALLED_AS}


async def judge(
    reader: Reader,
    *,
    nodes: Sequence[Json],
    bound: Sequence[Json] | None,
    leases: Mapping[str, Json] | None,
    now: datetime,
    of_bound: Sequence[Finding] = (),
) -> Health:
    """Return the health of an installation; what the caller may not read is reported as unknown.

    Args:
        reader: reader of the upper cluster.
        nodes: all virtual nodes.
        bound: the pods on the virtual nodes; None: the caller may not read pods.
        leases: Leases of the virtual nodes, by name; None: the caller may not read Leases.
        now: current time by the API server's clock.
        of_bound: findings about more pods on the virtual nodes, which are examined already.

    Raises:
        ApiError: the cluster does not answer.
    """
    (waiting, components), found_swarms = await asyncio.gather(prefetch(reader), swarms(reader.client))
    replicas = [pod.to_dict() for pod in components or ()]
    words = {key(pod): (await reader.last_words(pod) or [""])[-1] for pod in failing(replicas, now)}
    snapshot = known(
        now,
        nodes=nodes,
        leases=leases,
        bound=bound,
        waiting=None if waiting is None else [pod.to_dict() for pod in waiting],
        components=None if components is None else replicas,
        swarms=found_swarms,
        words=words,
    )
    return model.health(snapshot, of_pods=[*of_all_pods(snapshot), *of_bound])


async def prefetch(reader: Reader) -> tuple[list[Object] | None, list[Object] | None]:
    """Return the pods without a node, and the pods of our components; None: the list is forbidden.

    Raises:
        ApiError: the cluster does not answer.
    """
    waiting, components = await asyncio.gather(
        reader.all(resources.PODS, field_selector=WAITING),
        reader.all(resources.PODS, label_selector=SELECTOR),
    )
    return waiting, components


async def swarms(client: Verbs) -> list[Json]:
    """Return the Swarms of a cluster; empty also if they are not installed, or if reading them is forbidden.

    Raises:
        ApiError: any other error.
    """
    try:
        return [one.to_dict() for one in (await client.list(SWARMS)).items]
    except (Forbidden, NotFound):
        return []
