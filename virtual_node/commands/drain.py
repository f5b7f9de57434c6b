"""``virtual-node drain``, ``cordon`` and ``uncordon``: keep new pods off virtual nodes, and move their pods to others.

``cordon`` leaves running pods. ``drain`` moves them and shows the progress; the descheduler does the work.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from clusterset.model import names
from clusterset.model.moving import drain, movable
from clusterset.model.moving.drain import How, PodState, Request, Status
from clusterset.model.pod.conditions import is_finished, is_true
from controller_runtime import resources
from controller_runtime.apimachinery import timestamps
from controller_runtime.apimachinery.readable import guess
from controller_runtime.client.client import Client, find
from controller_runtime.errors import ConfigError, Forbidden, TooManyRequests, Unavailable
from controller_runtime.objects import Object
from controller_runtime.process import terminal
from virtual_node.commands import parsers
from virtual_node.commands.common import connect, output
from virtual_node.commands.parsers import drain as parser
from virtual_node.config import program
from virtual_node.examine.leases import lease_age
from virtual_node.examine.objects import Json
from virtual_node.examine.reader import DESCHEDULER_LEASE, VIRTUAL_NODES, Reader, refusal, server_clock

_POLL = 1.0
_SILENCE = 30.0
"""Seconds without a status after which possible causes are printed."""
_UNANSWERED = 300.0
"""Seconds without a response of the upper API server after which the command ends. The drain continues."""
_CAUSES = "Its --node-selector may exclude this node, or it runs with --dry-run; see its log"
_INTERRUPTED = "interrupted"


def cordon(argv: Sequence[str]) -> int:
    """Cordon the nodes and return 0."""
    asyncio.run(change_all(parsers.cordon().parse_args(argv), unschedulable=True, annotations={}))
    return 0


def uncordon(argv: Sequence[str]) -> int:
    """Uncordon the nodes, cancel their drain, and return 0."""
    removed = {names.ANNOTATION_DRAIN: None, names.ANNOTATION_DRAIN_STATUS: None}
    asyncio.run(change_all(parsers.uncordon().parse_args(argv), unschedulable=False, annotations=removed))
    return 0


async def selected(reader: Reader, targets: Sequence[str]) -> list[Object]:
    """Return the virtual nodes with these names, and those of lower clusters with these names; sorted by name.

    Raises:
        ConfigError: a name belongs to no virtual node and no lower cluster, or listing nodes is forbidden.
    """
    known: dict[str, list[Object]] = {}
    for node in await reader.virtual_nodes():
        for name in {node.name, node.labels.get(names.LABEL_LOWER_CLUSTER) or node.name}:
            known.setdefault(name, []).append(node)
    for target in targets:
        if target not in known:
            hint = guess(target, sorted(known)) or f"; there are {', '.join(sorted(known)) or 'none'}"
            raise ConfigError(f"there is no lower cluster and no virtual node {target!r}{hint}")
    found = {node.name: node for target in targets for node in known[target]}
    return [found[name] for name in sorted(found)]


async def change_all(
    options: argparse.Namespace, *, unschedulable: bool, annotations: Mapping[str, Any]
) -> None:
    """Change the virtual nodes of ``options.targets`` as ``change_node`` does, and print a line for each.

    Raises:
        ConfigError, ApiError: as ``selected`` and ``change_node``.
    """
    verb = "cordon" if unschedulable else "uncordon"
    async with connect.upper(options, agent=f"virtual-node-{verb}") as client:
        for node in await selected(Reader(client), options.targets):
            await change_node(client, node.name, unschedulable=unschedulable, annotations=annotations)
            terminal.line(f"node/{node.name} {verb}ed")


async def change_node(
    client: Client, node: str, *, unschedulable: bool, annotations: Mapping[str, Any]
) -> None:
    """Cordon or uncordon a node, and set or remove (None) annotations.

    Raises:
        ConfigError: patching nodes is forbidden.
        ApiError: the request failed.
    """
    patch: dict[str, Any] = {"spec": {"unschedulable": unschedulable or None}}
    if annotations:
        patch["metadata"] = {"annotations": dict(annotations)}
    try:
        await client.patch(resources.NODES, node, patch)
    except Forbidden:
        raise refusal("patch", resources.NODES) from None


def main(argv: Sequence[str]) -> int:
    """Run the command; return 0 if no pod is left that must move, otherwise 1.

    Raises:
        ConfigError: no such virtual node, a missing right, no descheduler, or drain cancelled; exit code 2.
    """
    options = parser().parse_args(argv)
    try:
        return asyncio.run(_run(options))
    except KeyboardInterrupt:
        if not options.dry_run:
            output.note(_continues(options.targets))
        raise


async def _run(options: argparse.Namespace) -> int:
    async with connect.upper(options, agent="virtual-node-drain") as client:
        reader = Reader(client)
        found = await selected(reader, options.targets)
        if options.dry_run:
            return await show_plan(reader, found, local_storage=options.delete_emptydir_data)
        await _check_descheduler(reader)
        request = Request(
            pod_timeout_seconds=options.pod_timeout,
            delete_empty_dir_data=options.delete_emptydir_data,
            requested_at=timestamps.rfc3339(datetime.now(UTC)),
        )
        annotation = {names.ANNOTATION_DRAIN: msgspec.json.encode(request).decode()}
        # Cordon all nodes first, so that no pod moves to another node of this drain. `kubectl uncordon` does not remove the
        # annotation of an earlier drain, which the cordon would start again. On a cordoned node the drain is in progress,
        # and removing its request would cancel moves.
        for node in found:
            is_cordoned = bool((node.spec or {}).get("unschedulable"))
            removed = {} if is_cordoned else {names.ANNOTATION_DRAIN: None}
            await change_node(client, node.name, unschedulable=True, annotations=removed)
            output.note(f"node/{node.name} cordoned")
        for node in found:
            await change_node(client, node.name, unschedulable=True, annotations=annotation)
        statuses: dict[str, Status] = {}
        try:
            async with asyncio.timeout(options.timeout or None):
                await _follow(client, [node.name for node in found], statuses)
        except TimeoutError:
            output.note(f"not complete within {options.timeout:g} s; {_continues(options.targets)}")
            _list_left(statuses)
            return 1
    return _conclude(statuses)


async def _check_descheduler(reader: Reader) -> None:
    """Raise ConfigError if no descheduler renews its Lease; without the right to list Leases, do nothing."""
    leases = await reader.all(resources.LEASES, field_selector=f"metadata.name={DESCHEDULER_LEASE}")
    now = await server_clock(reader.client)
    ages = [lease_age(lease.to_dict(), now) for lease in leases or ()]
    if leases is not None and not any(age and age.holder and not age.is_expired(2) for age in ages):
        raise ConfigError(
            "no descheduler is running, and it moves the pods: nothing was changed; install the chart with "
            f"descheduler.enabled=true, or start virtual-node-descheduler (it renews Lease {DESCHEDULER_LEASE})"
        )


async def _follow(client: Client, wanted: Sequence[str], statuses: dict[str, Status]) -> None:
    """Print the status of each node when it changes, and store it in ``statuses``; return when no pod moves any more."""
    shown: dict[str, str] = {}
    loop = asyncio.get_running_loop()
    silent_at = loop.time() + _SILENCE
    unanswered_since: float | None = None
    while True:
        for name in wanted:
            try:
                node = await find(client, resources.NODES, name)
            except (Unavailable, TooManyRequests) as error:
                # The descheduler continues, so a short outage of the API server does not end the command.
                if unanswered_since is None:
                    unanswered_since = loop.time()
                    output.note(f"the upper cluster does not answer; the drain continues: {error.message}")
                elif loop.time() > unanswered_since + _UNANSWERED:
                    raise
                break
            unanswered_since = None
            status = _status(name, node, statuses.pop(name, None))
            if status is not None:
                statuses[name] = status
                line = _line(name, status)
                if shown.get(name) != line:
                    output.note(line)
                    shown[name] = line
            elif name not in shown and loop.time() >= silent_at:
                shown[name] = f"node/{name}: the descheduler has not answered for {_SILENCE:g} s. {_CAUSES}"
                output.note(shown[name])
        if len(statuses) == len(wanted) and all(status.is_over for status in statuses.values()):
            return
        await asyncio.sleep(_POLL)


def _status(name: str, node: Json | None, last: Status | None) -> Status | None:
    """Return the status of a node's drain, or the last one if the node was deleted when it was drained.

    Raises:
        ConfigError: the node was deleted earlier, or its drain was cancelled.
    """
    if node is None:
        if last is not None and last.is_complete:
            return last
        raise ConfigError(f"node {name} was deleted before it was drained")
    annotations: dict[str, Any] = node["metadata"].get("annotations") or {}
    if drain.requested(annotations) is None:
        raise ConfigError(f"the drain of {name} was cancelled, because its annotation was removed")
    return drain.status_of(annotations)


def _line(name: str, status: Status) -> str:
    parts = [f"{status.moved} moved", f"{status.moving} moving", f"{status.waiting} waiting"]
    stay = f", {status.staying} stay" if status.staying else ""
    # Pods that stay are listed at the end.
    late = [pod for pod in status.pods if pod.state != "stays" and _is_late(pod)]
    more = f", and {len(late) - 1} more" if len(late) > 1 else ""
    waits = f" ({late[0].pod}: {late[0].why}{more})" if late else ""
    return f"node/{name}: {', '.join(parts)}{stay}{waits}"


def _is_late(pod: PodState) -> bool:
    """Report whether a pod ends late, or waits for a replacement that does not start."""
    return drain.ENDS_AT in pod.why or drain.WAITS in pod.why


def _conclude(statuses: dict[str, Status]) -> int:
    """Print what is left and why; return the exit code."""
    for name, status in statuses.items():
        if status.stopped:
            output.note(f"node/{name}: stopped: {status.stopped}")
        elif status.is_complete:
            output.note(f"node/{name} drained")
    _list_left(statuses)
    return 0 if all(status.is_complete for status in statuses.values()) else 1


def _list_left(statuses: dict[str, Status]) -> None:
    left = [(name, pod.pod, pod.state, pod.why) for name, status in statuses.items() for pod in status.pods]
    if left:
        output.table(("NODE", "POD", "STATE", "WHY"), left)


def _continues(targets: Sequence[str]) -> str:
    return f"the drain continues; to cancel it: {program.name('uncordon')} {' '.join(targets)}"


async def show_plan(reader: Reader, draining: Sequence[Object], *, local_storage: bool) -> int:
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
    elsewhere = [node for node in everything if node.name not in away and _is_open(node)]
    deployments = {each.key: each.to_dict() for each in await reader.all(resources.DEPLOYMENTS) or ()}
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
    elsewhere: Sequence[Object],
    deployments: Mapping[str, Json],
    *,
    local_storage: bool,
) -> tuple[How, str]:
    metadata, spec = pod["metadata"], pod["spec"]
    if why := movable.why_not_evictable(metadata, spec, local_storage=local_storage):
        return How.STAYS, why
    others = movable.admitting(metadata.get("annotations") or {}, spec, elsewhere)
    admitting = [node.to_dict() for node in others]
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
