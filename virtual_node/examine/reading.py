"""Reads all clusters in depth, concurrently, with packed lists of objects. Writes nothing."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import chain
from typing import Any, Unpack

from clusterset.admission import ClusterRules
from clusterset.config import PV_CONTROLLERS, SERVICE_CONTROLLERS, Cluster
from clusterset.model import names
from controller_runtime import resources
from controller_runtime.client.client import Client, encode
from controller_runtime.client.collection import ListOptions
from controller_runtime.errors import ApiError, ConfigError, Forbidden, NotFound
from controller_runtime.objects import Object
from controller_runtime.process.program import version
from controller_runtime.resources import Resource
from virtual_node.config.types import Config
from virtual_node.examine import clusters, components, expiries, facts
from virtual_node.examine.expiry import Expiry, ExpiryLimits
from virtual_node.examine.finding import UPPER
from virtual_node.examine.health import add_reports
from virtual_node.examine.objects import (
    WITHOUT_NODE,
    Json,
    annotations_of,
    is_virtual,
    key,
    labels_of,
    ready_endpoints,
)
from virtual_node.examine.packed import PackedObjects, Packer, Selected
from virtual_node.examine.path_reading import read_version
from virtual_node.examine.reader import bounded, explain_failure
from virtual_node.examine.snapshot import Fact, Snapshot, View, objects
from virtual_node.translate import endpoints
from virtual_node.translate.base.view import pod_options
from virtual_node.translate.kinds import KINDS, REFERENCED, Demand, enabled

_RESOLUTION = 2.0
"""Seconds: a smaller difference of clocks is not known, because a Date header has whole seconds, and arrives later."""
_KEPT: Mapping[Fact[Any], Sequence[str]] = {
    **{objects(kind.kind): kind.kept_spec for kind in KINDS if kind.kept_spec is not None},
    clusters.SERVICE_BACKENDS: (),
    clusters.FOREIGN_SLICES: (),
    clusters.DNS_SERVICES: (),
    objects("Deployment"): ("replicas", "strategy", "template"),
    objects("StatefulSet"): ("replicas", "template"),
}
"""Fields of ``spec`` that rules use, by list. The objects of other lists have other reductions, or none."""
_WHOLE = {objects("Pod"), *(objects(kind.kind) for kind in KINDS if kind.kept_spec is None)}


async def list_into(
    client: Client,
    cluster: View,
    resource: Resource,
    *,
    fact: Fact[Any] | None = None,
    **selection: Unpack[ListOptions],
) -> None:
    """List a resource into a cluster's objects; a refused or unknown resource is recorded as unread.

    Args:
        client: client of the cluster.
        cluster: receives the objects, in addition to earlier objects of the same list.
        resource: resource to list.
        fact: fact that gets the objects; None: ``objects(resource.kind)``.
        selection: ``namespace``, ``label_selector`` and ``field_selector``; without them, all objects.

    Raises:
        ApiError: the cluster does not answer.
    """
    fact = fact or objects(resource.kind)
    try:
        listed, _ = await client.list_as(resource, Packer(partial(_json, fact=fact)), **selection)
    except (Forbidden, NotFound) as error:
        cluster.refuse(fact, str(error))
        return
    if fact in cluster.unread:
        return  # Another part of the list was refused.
    packed = cluster.get(fact) or PackedObjects()
    packed.extend(listed)
    cluster.put(fact, packed)


async def lease_into(client: Client, upper: View, leases: dict[str, Json], name: str) -> None:
    """Add a node's Lease to ``leases``; read by name, because virtual nodes have no right to list Leases.

    Raises:
        ApiError: the cluster does not answer.
    """
    try:
        lease = await client.get(resources.LEASES, name, namespace=names.NODE_LEASES)
    except NotFound:
        return
    except Forbidden as error:
        upper.refuse(facts.LEASES, str(error))
        return
    leases[name] = lease


async def read_backends(client: Client, lower: View) -> None:
    """Read the EndpointSlices of the Services that must work for pods: of DNS and of webhooks.

    Raises:
        ApiError: the cluster does not answer.
    """
    services = {key(service) for service in lower.of(clusters.DNS_SERVICES)}
    services |= {service for *_, service in clusters.webhook_services(lower)}
    lower.put(clusters.SERVICE_BACKENDS, PackedObjects())
    listed = partial(list_into, client, lower, fact=clusters.SERVICE_BACKENDS)
    await bounded(
        listed(
            resources.ENDPOINT_SLICES, namespace=namespace, label_selector=f"{endpoints.LABEL_SERVICE}={name}"
        )
        for namespace, _, name in (item.partition("/") for item in sorted(services))
    )


def _json(one: Object, fact: Fact[Any]) -> bytes:
    """Return an object as JSON, without large fields that no rule uses, to save memory in large clusters."""
    if fact in _WHOLE:
        return one.to_json()
    whole = one.to_dict()
    spec, status = whole.get("spec") or {}, whole.get("status") or {}
    if fact in _KEPT:
        is_serving = ready_endpoints([whole]) > 0
        whole = _only(whole, "kind", "metadata")
        whole |= {"spec": _only(spec, *_KEPT[fact]), "isServing": is_serving}
    if fact is objects("Node"):
        status.pop("images", None)
    if fact is clusters.FOREIGN_PODS:
        kept = _only(spec, "nodeName", "overhead", "resources")
        for field in ("containers", "initContainers"):
            if field in spec:
                kept[field] = [_only(part, "resources", "restartPolicy") for part in spec[field]]
        whole |= {"spec": kept, "status": {"phase": status.get("phase", "")}}
    return encode(whole)


def _only(whole: Json, *names: str) -> dict[str, Any]:
    """Return some fields of an object."""
    return {name: whole[name] for name in names if name in whole}


_OWNED_KINDS = (resources.PERSISTENT_VOLUME_CLAIMS, resources.NAMESPACES)
"""Owned in lower clusters, in addition to copies."""
_UPPER_KINDS = (
    *(resources.NODES, resources.NAMESPACES),
    *(resources.PERSISTENT_VOLUME_CLAIMS, resources.PERSISTENT_VOLUMES),
    *(resources.DEPLOYMENTS, resources.STATEFUL_SETS, resources.POD_DISRUPTION_BUDGETS),
)
"""Read in the upper cluster, in addition to the objects that have copies."""
_WEBHOOKS = (resources.MUTATING_WEBHOOK_CONFIGURATIONS, resources.VALIDATING_WEBHOOK_CONFIGURATIONS)


@dataclass(frozen=True, slots=True)
class Opened:
    """The clients of all clusters, and the configuration of each."""

    config: Config
    upper: Client
    lowers: Sequence[tuple[Cluster, Client | ConfigError]]
    """Each lower cluster with its client, or with the error of its kubeconfig, which does not stop other clusters."""
    credentials: Sequence[Expiry]
    """Expiry times of the kubeconfigs' credentials."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Why ClusterProfiles are not used, by ``namespace/name``."""


async def read(opened: Opened, limits: ExpiryLimits, *, silent: Mapping[str, str] | None = None) -> Snapshot:
    """Return what was read of all clusters in one pass.

    Args:
        opened: the clusters.
        limits: thresholds of findings, stored as a fact.
        silent: errors of the first read, by name of the cluster; these clusters are not read again.
    """
    silent = silent or {}
    upper = View(UPPER)
    upper.error = silent.get(UPPER, "")
    upper.put(clusters.IDENTITY, opened.config.cluster_id)
    await _guarded(opened, opened.upper, upper, _identify(opened.upper, upper))
    cluster_id = upper[clusters.IDENTITY]
    lowers = [lower_view(opened.config, config, cluster_id) for config, _ in opened.lowers]
    copied = {config.name: enabled(config.follow) for config, _ in opened.lowers}
    # ``counterparts`` reads the objects that pods reference, because there may be many more than copies.
    every = {kind.resource for kind in chain(enabled(()), *copied.values())} - {
        kind.resource for kind in REFERENCED.values()
    }
    reading = [_guarded(opened, opened.upper, upper, _read_upper(opened.upper, upper, every))]
    pending = [expiries.of_apiserver(UPPER, opened.upper.config)]
    for lower, (_, client) in zip(lowers, opened.lowers, strict=True):
        if isinstance(client, ConfigError):
            lower.fail(str(client))
        elif lower.name in silent:
            lower.fail(silent[lower.name])
        else:
            owned = [*_OWNED_KINDS, *(kind.resource for kind in copied[lower.name])]
            reading.append(_guarded(opened, client, lower, _read_lower(client, lower, cluster_id, owned)))
            pending.append(expiries.of_apiserver(lower.name, client.config))
    served, _ = await asyncio.gather(_served(pending), asyncio.gather(*reading))
    await _guarded(opened, opened.upper, upper, read_counterparts(opened.upper, upper, lowers))
    for cluster in (upper, *lowers):
        _drop_optional(cluster, opened)
    upper.put(facts.PROFILES, opened.refused)
    upper.put(clusters.LIMITS, limits)
    upper.put(clusters.RELEASE, version())
    found = [
        *opened.credentials,
        *served,
        *await _served(map(expiries.of_kubelet, filter(is_virtual, upper.of("Node")))),
        *(each for cluster in (upper, *lowers) for each in _of_webhooks(cluster)),
    ]
    upper.put(clusters.EXPIRIES, found)
    # Objects of the upper cluster have timestamps by its clock.
    skew = upper.get(clusters.CLOCK_SKEW) or 0.0
    now = datetime.now(UTC) + timedelta(seconds=skew if abs(skew) >= _RESOLUTION else 0.0)
    snapshot = Snapshot(now, upper=upper, lowers=lowers)
    try:
        add_installation(snapshot)
    except Exception as error:  # noqa: BLE001 - objects may have any content
        upper.mark_malformed(error)
    return snapshot


def add_installation(snapshot: Snapshot) -> None:
    """Add the facts by which all tools judge an installation, see ``examine.facts``, from what was listed."""
    upper, lowers = snapshot.upper, snapshot.lowers
    if upper.knows("Node"):
        nodes = [node for node in upper.of("Node") if is_virtual(node)]
        names = {node["metadata"]["name"] for node in nodes}
        upper.put(facts.NODES, nodes)
        if upper.knows("Pod"):
            upper.put(
                facts.BOUND, Selected(upper.of("Pod"), lambda pod: pod["spec"].get("nodeName") in names)
            )
    upper.put(
        facts.CLUSTERS,
        [
            facts.ClusterState(name=lower.name, nodes=tuple(lower[clusters.SETTINGS].nodes))
            for lower in lowers
        ],
    )
    add_reports(snapshot)


async def _identify(client: Client, upper: View) -> None:
    """Store the identity of the upper cluster, unless it is configured."""
    if not upper.error and not upper[clusters.IDENTITY]:
        # An unknown identity is a finding; rules that need no identity still run.
        with contextlib.suppress(Forbidden, NotFound):
            system = await client.get(resources.NAMESPACES, "kube-system")
            upper.put(clusters.IDENTITY, str(system["metadata"]["uid"]))


def _drop_optional(cluster: View, opened: Opened) -> None:
    """Remove from a cluster's unread kinds those that only a disabled controller or component needs."""
    controllers = {
        PV_CONTROLLERS: (objects("PersistentVolumeClaim"), objects("PersistentVolume")),
        SERVICE_CONTROLLERS: (objects("EndpointSlice"), clusters.FOREIGN_SLICES),
    }
    config = opened.config
    # Kinds of the upper cluster are needed if any lower cluster has the controller.
    concerned = [lower for lower, _ in opened.lowers if cluster.name in {lower.name, UPPER}]
    lists = [config.controllers(each) for each in concerned] or [config.enable_controllers]
    enabled = {name for controllers_of_one in lists for name in controllers_of_one}
    for name, listed in controllers.items():
        if name not in enabled:
            for fact in listed:
                cluster.unread.pop(fact, None)
    cluster.unread.pop(facts.SWARMS, None)  # the Swarm controller is optional


async def _guarded(opened: Opened, client: Client, cluster: View, reading: Awaitable[None]) -> None:
    """Await a read of a cluster; record its error, which does not stop the reads of other clusters."""
    try:
        await reading
    except ApiError as error:
        known = [expiry for expiry in opened.credentials if expiry.cluster == cluster.name]
        trouble = explain_failure(error, client.config, expiries=known, now=datetime.now(UTC))
        cluster.fail(str(trouble))
    except ConfigError as error:
        cluster.fail(str(error))
    except Exception as error:  # noqa: BLE001 - objects may have any content
        cluster.mark_malformed(error)


async def _read_upper(client: Client, upper: View, copied: set[Resource]) -> None:
    if upper.error:
        return
    await read_version(client, upper)
    listed = partial(list_into, client, upper)
    await bounded(
        [
            *map(listed, {*_UPPER_KINDS, *_WEBHOOKS, *copied}),
            listed(names.SWARMS, fact=facts.SWARMS),
            *(
                listed(resources.PODS, label_selector=each, fact=facts.COMPONENTS)
                for each in components.SELECTORS
            ),
            listed(resources.PODS, field_selector=WITHOUT_NODE, fact=facts.WAITING),
        ]
    )


async def _read_lower(client: Client, lower: View, cluster_id: str, owned_kinds: Iterable[Resource]) -> None:
    await read_version(client, lower)
    owned = names.LABEL_UPPER_CLUSTER
    listed = partial(list_into, client, lower)
    dns = "k8s-app=kube-dns"
    listing = [
        *map(listed, (resources.NODES, *_WEBHOOKS)),
        listed(resources.SERVICES, namespace="kube-system", label_selector=dns, fact=clusters.DNS_SERVICES),
    ]
    if cluster_id:
        # Other upper clusters' pods count as foreign pods; their other objects are only counted.
        listing += [listed(each, label_selector=owned) for each in owned_kinds]
        listing += [
            listed(resources.PODS, label_selector=f"{owned}={cluster_id}"),
            listed(resources.PODS, label_selector=f"{owned}!={cluster_id}", fact=clusters.FOREIGN_PODS),
            listed(
                resources.ENDPOINT_SLICES, label_selector=endpoints.SELECTOR, fact=clusters.FOREIGN_SLICES
            ),
        ]
    await bounded(listing)
    await read_backends(client, lower)


def _of_webhooks(cluster: View) -> list[Expiry]:
    configurations = [each for kind in clusters.WEBHOOKS for each in cluster.of(kind)]
    try:
        return [webhook for each in configurations for webhook in expiries.of_webhooks(cluster.name, each)]
    except Exception as error:  # noqa: BLE001 - objects may have any content
        cluster.mark_malformed(error)
        return []


async def _served(pending: Iterable[Awaitable[Expiry | None]]) -> list[Expiry]:
    return [found for found in await asyncio.gather(*pending) if found is not None]


_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
"""Names that a node or a namespace can have."""


async def read_counterparts(client: Client, upper: View, lowers: Sequence[View]) -> None:
    """Read into ``upper`` the pods and Leases of virtual nodes, and the sources of copies."""
    if upper.error:
        return
    nodes = virtual_nodes(upper, lowers)
    referenced = [kind for kind in enabled(()) if kind.demand is Demand.REFERENCES]
    sources: dict[str, set[str]] = {kind.kind: set() for kind in referenced}
    for lower in lowers:
        try:
            _add_counterparts(lower, nodes, sources)
        except Exception as error:  # noqa: BLE001 - objects may have any content
            lower.mark_malformed(error)
    upper.put(objects("Pod"), PackedObjects())
    # A name that no upper object can have would make the request fail, and all objects of its kind unread.
    listed = partial(list_into, client, upper)
    valid = sorted(filter(_NAME.fullmatch, nodes))
    reading = [listed(resources.PODS, field_selector=f"spec.nodeName={node}") for node in valid]
    for resource in (kind.resource for kind in referenced):
        upper.put(objects(resource.kind), PackedObjects())
        namespaces = sorted(filter(_NAME.fullmatch, sources[resource.kind]))
        reading += [listed(resource, namespace=namespace) for namespace in namespaces]
    leases: dict[str, Json] = {}
    upper.put(facts.LEASES, leases)
    reading += [lease_into(client, upper, leases, name) for name in sorted(virtual_nodes(upper, lowers))]
    await bounded(reading)


def _add_counterparts(lower: View, nodes: set[str], sources: Mapping[str, set[str]]) -> None:
    """Add a lower cluster's virtual nodes to ``nodes``, and its copies' upper namespaces to ``sources``."""
    nodes |= {
        labels_of(pod)[names.LABEL_NODE] for pod in lower.heads("Pod") if names.LABEL_NODE in labels_of(pod)
    }
    for kind, namespaces in sources.items():
        for copy in lower.of(kind):
            if names.LABEL_TOKEN_OF not in labels_of(copy):
                above = annotations_of(copy).get(names.ANNOTATION_UPPER_NAMESPACE)
                namespaces.add(above or copy["metadata"].get("namespace", ""))
            elif names.LABEL_NODE in labels_of(copy):
                # Secrets of tokens name the virtual node of their pod, and may be left when the pod is gone.
                nodes.add(labels_of(copy)[names.LABEL_NODE])


def virtual_nodes(upper: View, lowers: Iterable[View]) -> set[str]:
    """Return the names of the registered virtual nodes and of those that are configured for lower clusters."""
    registered = {node["metadata"]["name"] for node in upper.of("Node") if is_virtual(node)}
    return registered | {name for lower in lowers for name in lower[clusters.SETTINGS].nodes}


def lower_view(config: Config, cluster: Cluster, cluster_id: str) -> View:
    """Return a lower cluster with its configuration and without objects."""
    rules = ClusterRules(
        cluster,
        controllers=config.controllers(cluster),
        cluster_id=cluster_id,
        ignored=config.ignored,
    )
    nodes = {
        node.name: clusters.VirtualNode(
            options=pod_options(config, cluster, rules, node),
            selector=node.node_selector,
            reserve=node.capacity.reserve,
            autoscaling=node.autoscaling,
        )
        for node in cluster.virtual_nodes()
    }
    view = View(cluster.name)
    view.put(
        clusters.SETTINGS,
        clusters.LowerSettings(
            nodes=nodes,
            removes_namespaces=cluster.namespaces.remove,
            adopt=cluster.namespaces.adopt,
            namespace_map=rules.namespace_map,
        ),
    )
    return view
