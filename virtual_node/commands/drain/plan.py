"""``virtual-node drain --dry-run``: lists how each pod would leave a virtual node, or why it would stay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from clusterset.model.moving import drain, movable
from clusterset.model.moving.drain import How
from clusterset.model.pod.conditions import is_finished, is_true
from controller_runtime import resources
from controller_runtime.apimachinery import matching
from controller_runtime.objects import Object
from virtual_node.commands.common import output
from virtual_node.commands.common.reader import VIRTUAL_NODES, Reader

Json = Mapping[str, Any]


async def show(reader: Reader, draining: Sequence[Object], *, local_storage: bool) -> int:
    """Print a table of the pods on the nodes; return 1 if a pod would stay, otherwise 0.

    Args:
        reader: reader of the upper cluster.
        draining: the virtual nodes.
        local_storage: whether pods with local volumes may move.

    Raises:
        ApiError: the cluster does not answer.
    """
    everything = await reader.all(resources.NODES, label_selector=VIRTUAL_NODES) or []
    away = {node.name for node in draining}
    elsewhere = [node.to_dict() for node in everything if node.name not in away and _is_open(node)]
    deployments = {one.key: one.to_dict() for one in await reader.all(resources.DEPLOYMENTS) or ()}
    rows = []
    for node in draining:
        bound = await reader.all(resources.PODS, field_selector=f"spec.nodeName={node.name}")
        for pod in bound or ():
            body = pod.to_dict()
            if is_finished(body.get("status")) or pod.metadata.deletion_timestamp:
                continue
            if movable.is_of_node(movable.controller(body["metadata"])):
                continue
            how, why = await _judge(reader, body, elsewhere, deployments, local_storage=local_storage)
            if how != How.STAYS and movable.may_run_unseen(body["metadata"], body.get("status"), node.status):
                why = f"waits: {movable.MAY_RUN}"
            rows.append((node.name, pod.key, str(how), why))
    output.table(("NODE", "POD", "HOW", "WHY"), rows, empty="There are no pods to move.")
    output.note(reader.note())
    return 1 if any(how == How.STAYS for _, _, how, _ in rows) else 0


async def _judge(
    reader: Reader,
    pod: Json,
    elsewhere: Sequence[Json],
    deployments: Mapping[str, Json],
    *,
    local_storage: bool,
) -> tuple[How, str]:
    metadata, spec = pod["metadata"], pod["spec"]
    if why := movable.why_not_evictable(metadata, spec, local_storage=local_storage):
        return How.STAYS, why
    admitting = [
        node
        for node in elsewhere
        if matching.admits(
            spec,
            name=node["metadata"]["name"],
            labels=node["metadata"].get("labels") or {},
            taints=(node.get("spec") or {}).get("taints") or (),
        )
    ]
    if not admitting:
        return How.STAYS, "no other ready virtual node admits it"
    is_single_writer = False
    for name in movable.claims(spec):
        claim = await reader.get(resources.PERSISTENT_VOLUME_CLAIMS, name, namespace=metadata["namespace"])
        bound_to = movable.volume_of(claim)
        volume = await reader.get(resources.PERSISTENT_VOLUMES, bound_to) if bound_to else None
        if why := movable.why_pinned(claim, volume, node=spec["nodeName"], elsewhere=admitting):
            return How.STAYS, why
        is_single_writer = is_single_writer or movable.is_single_writer(claim)
    labels = metadata.get("labels") or {}
    owner = movable.controller(metadata)
    deployment = (owner or {}).get("name", "").removesuffix(f"-{labels.get(drain.TEMPLATE_HASH)}")
    found = deployments.get(f"{metadata['namespace']}/{deployment}")
    recreates = drain.recreates(found) or is_single_writer
    return drain.how(owner, labels, is_ready=is_true(pod.get("status"), "Ready"), recreates=recreates), ""


def _is_open(node: Object) -> bool:
    return movable.is_open(
        node.spec or {}, node.status, is_deleted=node.metadata.deletion_timestamp is not None
    )
