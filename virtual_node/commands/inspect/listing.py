"""Single steps of reading a cluster: check that it answers, list resources, keep the fields that rules use."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Unpack

from controller_runtime import resources
from controller_runtime.client.client import Client, encode
from controller_runtime.client.collection import ListOptions
from controller_runtime.errors import Forbidden, NotFound
from controller_runtime.objects import Object
from controller_runtime.resources import Resource
from virtual_node.commands.common import probes
from virtual_node.commands.common.reader import NODE_LEASES
from virtual_node.commands.inspect.facts import (
    DNS_SERVICE,
    FOREIGN_POD,
    LABEL_SERVICE,
    SERVICE_BACKEND,
    WEBHOOKS,
    ClusterFacts,
    webhook_services,
)
from virtual_node.commands.inspect.packed import PackedObjects, Packer
from virtual_node.health.objects import key
from virtual_node.translate.kinds import KINDS

_PARALLEL = 8
_KEPT: Mapping[str, Sequence[str]] = {
    **{kind.kind: kind.kept_spec for kind in KINDS if kind.kept_spec is not None},
    SERVICE_BACKEND: (),
    DNS_SERVICE: (),
    "Deployment": ("replicas", "strategy", "template"),
    "StatefulSet": ("replicas", "template"),
}
"""Fields of ``spec`` that rules use, by kind. The objects of other kinds have other reductions, or none."""
_WHOLE = {"Pod", *(kind.kind for kind in KINDS if kind.kept_spec is None)}


async def read_version(client: Client, cluster: ClusterFacts) -> None:
    """Store a cluster's version and clock skew; called before all other reads.

    Raises:
        ApiError: the cluster does not answer.
    """
    version = await client.version(timeout=client.timeout)
    cluster.version = str(version.get("gitVersion") or "")
    moment = await probes.date(client)
    if moment is not None:
        cluster.clock_skew = (moment - datetime.now(UTC)).total_seconds()


async def all_of(reading: Iterable[Awaitable[None]]) -> None:
    """Await all with bounded concurrency, then raise the first error."""
    limit = asyncio.Semaphore(_PARALLEL)

    async def one(wanted: Awaitable[None]) -> None:
        async with limit:
            await wanted

    for outcome in await asyncio.gather(*map(one, reading), return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome


async def list_into(
    client: Client,
    cluster: ClusterFacts,
    resource: Resource,
    *,
    kind: str = "",
    **selection: Unpack[ListOptions],
) -> None:
    """List a resource into a cluster's objects; a refused or unknown resource is recorded as unread.

    Args:
        client: client of the cluster.
        cluster: receives the objects, in addition to earlier objects of the same kind.
        resource: resource to list.
        kind: key in ``ClusterFacts.objects``; empty: the resource's kind.
        selection: ``namespace``, ``label_selector`` and ``field_selector``; without them, all objects.

    Raises:
        ApiError: the cluster does not answer.
    """
    kind = kind or resource.kind
    try:
        found, _ = await client.list_as(resource, Packer(partial(_json, kind=kind)), **selection)
    except (Forbidden, NotFound) as error:
        cluster.unread[kind] = str(error)
        return
    cluster.objects.setdefault(kind, PackedObjects()).extend(found)


async def lease_into(client: Client, upper: ClusterFacts, leases: list[dict[str, Any]], name: str) -> None:
    """Append a node's Lease to ``leases``; read by name, because virtual nodes have no right to list Leases.

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
    leases.append(lease)


async def read_backends(client: Client, lower: ClusterFacts) -> None:
    """Read the EndpointSlices of the Services that must work for pods: of DNS and of webhooks.

    Raises:
        ApiError: the cluster does not answer.
    """
    services = {key(service) for service in lower.of(DNS_SERVICE)}
    services |= {name for kind in WEBHOOKS for one in lower.of(kind) for _, name in webhook_services(one)}
    lower.objects[SERVICE_BACKEND] = PackedObjects()
    listed = partial(list_into, client, lower, kind=SERVICE_BACKEND)
    await all_of(
        listed(resources.ENDPOINT_SLICES, namespace=namespace, label_selector=f"{LABEL_SERVICE}={name}")
        for namespace, _, name in (one.partition("/") for one in sorted(services))
    )
    if SERVICE_BACKEND in lower.unread:
        del lower.objects[SERVICE_BACKEND]


def _json(one: Object, kind: str) -> bytes:
    """Return an object as JSON, without large fields that no rule uses, to save memory in large clusters."""
    if kind in _WHOLE:
        return one.to_json()
    whole = one.to_dict()
    if kind in _KEPT:
        spec, endpoints = whole.get("spec") or {}, whole.get("endpoints") or ()
        whole = {name: whole[name] for name in ("kind", "metadata") if name in whole}
        whole["spec"] = {name: spec[name] for name in _KEPT[kind] if name in spec}
        # API reference of EndpointConditions: a missing condition means ready.
        whole["isServing"] = any(
            (part.get("conditions") or {}).get("ready") is not False for part in endpoints
        )
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
    return encode(whole)
