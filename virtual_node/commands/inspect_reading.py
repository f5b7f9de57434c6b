"""Reads all clusters at the same time, page by page, for ``virtual-node inspect``. Nothing is ever written."""

from __future__ import annotations

import asyncio
import email.utils
from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from controller_runtime import resources
from controller_runtime.api import names
from controller_runtime.client import Client
from controller_runtime.errors import ApiError, ConfigError, Forbidden, NotFound
from controller_runtime.objects import Object
from controller_runtime.resources import Resource
from virtual_node.commands import inspect_expiries
from virtual_node.commands.inspection_facts import (
    FOREIGN_POD,
    UPPER,
    Cluster,
    Expiry,
    Facts,
    Limits,
    VirtualNode,
    annotations_of,
    labels_of,
)
from virtual_node.config import ClusterConfig, Config
from virtual_node.controllers.node_lease import NAMESPACE as LEASES
from virtual_node.translate.namespaces import NamespaceMap
from virtual_node.translate.ownership import Owner
from virtual_node.translate.pod_down import PodOptions

_FIRST_ANSWER = 10.0
"""Seconds a cluster may take to say its version; one that does not is not asked for more."""
_PARALLEL = 8
_OWNED_KINDS = (
    *(resources.PODS, resources.CONFIG_MAPS, resources.SECRETS, resources.SERVICES),
    *(resources.ENDPOINT_SLICES, resources.PERSISTENT_VOLUME_CLAIMS, resources.NAMESPACES),
)
_UPPER_KINDS = (
    *(resources.NODES, resources.NAMESPACES, resources.SERVICES, resources.ENDPOINT_SLICES),
    *(resources.PERSISTENT_VOLUME_CLAIMS, resources.PERSISTENT_VOLUMES),
)


@dataclass(frozen=True, slots=True)
class Opened:
    """The clients of all clusters, and what the configuration says of each."""

    config: Config
    upper: Client
    lowers: Sequence[tuple[ClusterConfig, Client]]
    credentials: Sequence[Expiry]
    """Of the kubeconfigs."""


async def read(opened: Opened, limits: Limits) -> Facts:
    """Look at everything once."""
    upper = Cluster(name=UPPER)
    cluster_id = opened.config.cluster_id
    try:
        cluster_id = cluster_id or await _identity(opened.upper)
    except ApiError as error:
        upper.error = str(error)
    lowers = [lower_cluster(opened.config, config, cluster_id) for config, _ in opened.lowers]
    reading = [
        _guarded(lower, _read_lower(client, lower, cluster_id))
        for lower, (_, client) in zip(lowers, opened.lowers, strict=True)
    ]
    await asyncio.gather(_guarded(upper, _read_upper(opened.upper, upper)), *reading)
    await _guarded(upper, _read_counterparts(opened.upper, upper, lowers))
    return Facts(
        upper=upper,
        lowers=lowers,
        cluster_id=cluster_id,
        now=datetime.now(UTC),
        expiries=[*opened.credentials, *await _served(opened, upper)],
        limits=limits,
    )


def lower_cluster(config: Config, cluster: ClusterConfig, cluster_id: str) -> Cluster:
    """A lower cluster as the configuration has it, nothing of it read yet."""
    mapping = NamespaceMap(cluster.namespaces.prefix, cluster.namespaces.map)
    nodes = {
        node.name: VirtualNode(
            options=PodOptions(
                owner=Owner(cluster_id=cluster_id, node_name=node.name),
                ignore_labels=tuple(config.ignore_labels),
                service_accounts=config.enable_serviceaccount,
                namespace_map=mapping,
                node_labels={
                    names.LABEL_HOSTNAME: node.name,
                    names.LABEL_NODE_TYPE: names.NODE_TYPE_VIRTUAL,
                    names.LABEL_LOWER_CLUSTER: cluster.name,
                    **node.labels,
                },
            ),
            selector=node.node_selector,
            reserve=node.capacity.reserve,
        )
        for node in cluster.virtual_nodes()
    }
    return Cluster(name=cluster.name, nodes=nodes, removes_namespaces=cluster.namespaces.remove)


async def _identity(upper: Client) -> str:
    try:
        system = await upper.get(resources.NAMESPACES, "kube-system")
    except (Forbidden, NotFound):
        return ""  # told as a finding; what needs no identity is still looked at
    return str(system["metadata"]["uid"])


async def _guarded(cluster: Cluster, reading: Awaitable[None]) -> None:
    """A cluster that does not answer is noted, and the others are read all the same."""
    try:
        await reading
    except (ApiError, ConfigError) as error:
        cluster.error = cluster.error or str(error)


async def _read_upper(client: Client, upper: Cluster) -> None:
    if upper.error:
        return
    await _greet(client, upper)
    await _all(_list(client, upper, resource) for resource in _UPPER_KINDS)


async def _read_lower(client: Client, lower: Cluster, cluster_id: str) -> None:
    await _greet(client, lower)
    owned = names.LABEL_UPPER_CLUSTER
    listing = [_list(client, lower, resources.NODES)]
    if cluster_id:
        listing += [
            _list(
                client,
                lower,
                resource,
                # Other upper clusters' pods count as foreign ones; of the rest theirs are only counted.
                label_selector=f"{owned}={cluster_id}" if resource is resources.PODS else owned,
            )
            for resource in _OWNED_KINDS
        ]
        listing.append(
            _list(client, lower, resources.PODS, label_selector=f"{owned}!={cluster_id}", kind=FOREIGN_POD)
        )
    await _all(listing)


async def _read_counterparts(client: Client, upper: Cluster, lowers: Sequence[Cluster]) -> None:
    """What must be compared with something below: pods of virtual nodes, sources of copies; nothing else is read."""
    if upper.error:
        return
    nodes = {name for lower in lowers for name in lower.nodes}
    nodes |= {
        labels_of(pod)[names.LABEL_NODE]
        for pod in _owned(lowers, "Pod")
        if names.LABEL_NODE in labels_of(pod)
    }
    # Tokens' Secrets name the virtual node of their pod; so do copies, whose pods may be gone.
    nodes |= {
        labels_of(secret)[names.LABEL_NODE]
        for secret in _owned(lowers, "Secret")
        if names.LABEL_TOKEN_OF in labels_of(secret) and names.LABEL_NODE in labels_of(secret)
    }
    upper.objects["Pod"] = []
    reading = [
        _list(client, upper, resources.PODS, field_selector=f"spec.nodeName={node}") for node in sorted(nodes)
    ]
    for resource in (resources.CONFIG_MAPS, resources.SECRETS):
        upper.objects[resource.kind] = []
        namespaces = {
            annotations_of(copy).get(names.ANNOTATION_UPPER_NAMESPACE, copy["metadata"]["namespace"])
            for copy in _owned(lowers, resource.kind)
            if names.LABEL_TOKEN_OF not in labels_of(copy)
        }
        reading += [_list(client, upper, resource, namespace=namespace) for namespace in sorted(namespaces)]
    upper.objects["Lease"] = []
    reading += [_lease(client, upper, name) for name in sorted(_virtual_nodes(upper, lowers))]
    await _all(reading)
    for kind in upper.unread:
        upper.objects.pop(kind, None)


def _owned(lowers: Iterable[Cluster], kind: str) -> Iterable[dict[str, Any]]:
    return (one for lower in lowers for one in lower.of(kind))


def _virtual_nodes(upper: Cluster, lowers: Iterable[Cluster]) -> set[str]:
    there = {
        node["metadata"]["name"]
        for node in upper.of("Node")
        if labels_of(node).get(names.LABEL_NODE_TYPE) == names.NODE_TYPE_VIRTUAL
    }
    return there | {name for lower in lowers for name in lower.nodes}


async def _served(opened: Opened, upper: Cluster) -> list[Expiry]:
    clients = [(UPPER, opened.upper), *((config.name, client) for config, client in opened.lowers)]
    looks = [inspect_expiries.of_apiserver(name, client.config) for name, client in clients]
    virtual = _virtual_nodes(upper, ())
    looks += [
        inspect_expiries.of_kubelet(node) for node in upper.of("Node") if node["metadata"]["name"] in virtual
    ]
    return [found for found in await asyncio.gather(*looks) if found is not None]


async def _greet(client: Client, cluster: Cluster) -> None:
    version = await client.version(timeout=_FIRST_ANSWER)
    cluster.version = str(version.get("gitVersion") or "")
    async with client.stream("GET", "/version") as response:
        text = response.headers.get("Date")
    if text:
        moment = email.utils.parsedate_to_datetime(text)
        cluster.clock_skew = (moment - datetime.now(UTC)).total_seconds()


async def _all(reading: Iterable[Awaitable[None]]) -> None:
    """All of them, a few at a time; the first error once all have ended."""
    limit = asyncio.Semaphore(_PARALLEL)

    async def one(wanted: Awaitable[None]) -> None:
        async with limit:
            await wanted

    for outcome in await asyncio.gather(*map(one, reading), return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome


async def _list(
    client: Client,
    cluster: Cluster,
    resource: Resource,
    *,
    namespace: str | None = None,
    label_selector: str | None = None,
    field_selector: str | None = None,
    kind: str = "",
) -> None:
    kind = kind or resource.kind
    try:
        listed = await client.list(
            resource, namespace=namespace, label_selector=label_selector, field_selector=field_selector
        )
    except (Forbidden, NotFound) as error:
        cluster.unread[kind] = str(error)
        return
    cluster.objects.setdefault(kind, []).extend(_kept(one, kind) for one in listed.items)


async def _lease(client: Client, upper: Cluster, name: str) -> None:
    try:
        lease = await client.get(resources.LEASES, name, namespace=LEASES)
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
