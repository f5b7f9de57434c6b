"""Single steps of reading a cluster: say hello, list page by page, keep only what the rules look at."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from datetime import UTC, datetime
from typing import Any

from controller_runtime import resources
from controller_runtime.client.client import Client
from controller_runtime.errors import Forbidden, NotFound
from controller_runtime.objects import Object
from controller_runtime.resources import Resource
from virtual_node.commands.common import probes
from virtual_node.commands.common.reader import NODE_LEASES
from virtual_node.commands.inspect.facts import FOREIGN_POD, Cluster

_PARALLEL = 8


async def greet(client: Client, cluster: Cluster) -> None:
    """Ask a cluster for its version and its clock, before anything else.

    Raises:
        ApiError: it does not answer.
    """
    version = await client.version(timeout=client.timeout)
    cluster.version = str(version.get("gitVersion") or "")
    moment = await probes.date(client)
    if moment is not None:
        cluster.clock_skew = (moment - datetime.now(UTC)).total_seconds()


async def all_of(reading: Iterable[Awaitable[None]]) -> None:
    """All of them, a few at a time; the first error once all have ended."""
    limit = asyncio.Semaphore(_PARALLEL)

    async def one(wanted: Awaitable[None]) -> None:
        async with limit:
            await wanted

    for outcome in await asyncio.gather(*map(one, reading), return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome


async def list_into(
    client: Client,
    cluster: Cluster,
    resource: Resource,
    *,
    namespace: str | None = None,
    label_selector: str | None = None,
    field_selector: str | None = None,
    kind: str = "",
) -> None:
    """List a resource into a cluster's objects; what is refused is noted as unread.

    Args:
        client: of the cluster.
        cluster: takes the objects, beside those of its kind that are there.
        resource: to list.
        namespace: None: all.
        label_selector: None: all.
        field_selector: None: all.
        kind: to keep them under; empty: the resource's.

    Raises:
        ApiError: the cluster does not answer.
    """
    kind = kind or resource.kind
    try:
        listed = await client.list(
            resource, namespace=namespace, label_selector=label_selector, field_selector=field_selector
        )
    except (Forbidden, NotFound) as error:
        cluster.unread[kind] = str(error)
        return
    cluster.objects.setdefault(kind, []).extend(_kept(one, kind) for one in listed.items)


async def lease_into(client: Client, upper: Cluster, name: str) -> None:
    """Get a node's Lease into the upper cluster's objects: a virtual node's rights do not include listing them.

    Raises:
        ApiError: the cluster does not answer.
    """
    try:
        lease = await client.get(resources.LEASES, name, namespace=NODE_LEASES)
    except NotFound:
        return
    except Forbidden as error:
        upper.unread["Lease"] = str(error)
        return
    upper.objects["Lease"].append(lease)


def _kept(one: Object, kind: str) -> dict[str, Any]:
    """An object as the rules need it, and not much more: clusters are large."""
    if kind in {"EndpointSlice", "Service"}:
        one = one.without("spec", "endpoints", "ports", "status")
    whole = one.to_dict()
    if kind == "Node":
        (whole.get("status") or {}).pop("images", None)
    if kind == FOREIGN_POD:
        spec, status = whole.get("spec") or {}, whole.get("status") or {}
        whole["spec"] = {
            name: spec[name]
            for name in ("nodeName", "containers", "initContainers", "overhead", "resources")
            if name in spec
        }
        for field in ("containers", "initContainers"):
            if field in whole["spec"]:
                whole["spec"][field] = [
                    {name: part[name] for name in ("resources", "restartPolicy") if name in part}
                    for part in whole["spec"][field]
                ]
        whole["status"] = {"phase": status.get("phase", "")}
    return whole
