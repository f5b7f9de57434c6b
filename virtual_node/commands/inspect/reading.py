"""Reads all clusters concurrently for ``virtual-node inspect``. Writes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import chain

from clusterset.config import Cluster
from clusterset.model import names
from clusterset.model.pod.eligibility import PV_CONTROLLERS, SERVICE_CONTROLLERS
from controller_runtime import resources
from controller_runtime.client.client import Client
from controller_runtime.client.connecting import weaknesses
from controller_runtime.errors import ApiError, ConfigError, Forbidden, NotFound
from controller_runtime.process import version
from controller_runtime.resources import Resource
from virtual_node.certificates import expiries
from virtual_node.certificates.expiry import UPPER, Expiry, ExpiryLimits
from virtual_node.commands.common import connection_errors
from virtual_node.commands.inspect import counterparts
from virtual_node.commands.inspect.configured import lower_cluster
from virtual_node.commands.inspect.facts import (
    COMPONENT_POD,
    DNS_SERVICE,
    FOREIGN_POD,
    WAITING_POD,
    WEBHOOKS,
    ClusterFacts,
    InspectFacts,
)
from virtual_node.commands.inspect.listing import all_of, list_into, read_backends, read_version
from virtual_node.config.types import Config
from virtual_node.health.objects import is_virtual
from virtual_node.health.pods import WAITING
from virtual_node.health.replicas import COMPONENTS
from virtual_node.translate.kinds import REFERENCED, enabled

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


async def read(
    opened: Opened, limits: ExpiryLimits, *, silent: Mapping[str, str] | None = None
) -> InspectFacts:
    """Return what was read of all clusters in one pass.

    Args:
        opened: the clusters.
        limits: thresholds of findings, stored in the facts.
        silent: errors of the first read, by name of the cluster; these clusters are not read again.
    """
    silent = silent or {}
    upper = ClusterFacts(name=UPPER, error=silent.get(UPPER, ""))
    cluster_id = opened.config.cluster_id

    async def identify() -> None:
        nonlocal cluster_id
        if not upper.error:
            cluster_id = cluster_id or await _identity(opened.upper)

    await _guarded(opened, opened.upper, upper, identify())
    lowers = [lower_cluster(opened.config, config, cluster_id) for config, _ in opened.lowers]
    copied = {config.name: enabled(config.follow) for config, _ in opened.lowers}
    # ``counterparts`` reads the objects that pods reference, because there may be many more than copies.
    every = {kind.resource for kind in chain(enabled(()), *copied.values())} - {
        kind.resource for kind in REFERENCED.values()
    }
    reading = [_guarded(opened, opened.upper, upper, _read_upper(opened.upper, upper, every))]
    pending = [expiries.of_apiserver(UPPER, opened.upper.config)]
    for lower, (_, client) in zip(lowers, opened.lowers, strict=True):
        if isinstance(client, ConfigError):
            lower.error = str(client)
        elif lower.name in silent:
            lower.error = silent[lower.name]
        else:
            owned = [*_OWNED_KINDS, *(kind.resource for kind in copied[lower.name])]
            reading.append(_guarded(opened, client, lower, _read_lower(client, lower, cluster_id, owned)))
            pending.append(expiries.of_apiserver(lower.name, client.config))
    served, _ = await asyncio.gather(_served(pending), asyncio.gather(*reading))
    await _guarded(opened, opened.upper, upper, counterparts.read(opened.upper, upper, lowers))
    for cluster in (upper, *lowers):
        _drop_optional(cluster, opened)
    return InspectFacts(
        upper=upper,
        lowers=lowers,
        cluster_id=cluster_id,
        now=datetime.now(UTC),
        release=version.version(),
        expiries=[
            *opened.credentials,
            *served,
            *await _served(map(expiries.of_kubelet, filter(is_virtual, upper.of("Node")))),
            *(found for cluster in (upper, *lowers) for found in _of_webhooks(cluster)),
        ],
        limits=limits,
        weaknesses=_weaknesses(opened),
    )


def _weaknesses(opened: Opened) -> list[tuple[str, str, str]]:
    clients = {UPPER: opened.upper, **{cluster.name: client for cluster, client in opened.lowers}}
    return [
        (name, what, step)
        for name, client in clients.items()
        if isinstance(client, Client)
        for what, step in weaknesses(client.config)
    ]


async def _identity(upper: Client) -> str:
    try:
        system = await upper.get(resources.NAMESPACES, "kube-system")
    except (Forbidden, NotFound):
        return ""  # Reported as a finding; rules that need no identity still run.
    return str(system["metadata"]["uid"])


def _drop_optional(cluster: ClusterFacts, opened: Opened) -> None:
    """Remove from a cluster's unread kinds those that only a disabled controller or component needs."""
    controllers = {
        PV_CONTROLLERS: ("PersistentVolumeClaim", "PersistentVolume"),
        SERVICE_CONTROLLERS: ("EndpointSlice",),
    }
    config = opened.config
    # Kinds of the upper cluster are needed if any lower cluster has the controller.
    concerned = [one for one, _ in opened.lowers if cluster.name in {one.name, UPPER}]
    lists = [config.controllers(one) for one in concerned] or [config.enable_controllers]
    enabled = {name for controllers_of_one in lists for name in controllers_of_one}
    for name, kinds in controllers.items():
        if name not in enabled:
            for kind in kinds:
                cluster.unread.pop(kind, None)
    cluster.unread.pop(names.SWARMS.kind, None)  # optional


async def _guarded(opened: Opened, client: Client, cluster: ClusterFacts, reading: Awaitable[None]) -> None:
    """Await a read of a cluster; record its error, which does not stop the reads of other clusters."""
    try:
        await reading
    except ApiError as error:
        known = [one for one in opened.credentials if one.cluster == cluster.name]
        trouble = connection_errors.explain(error, client.config, expiries=known, now=datetime.now(UTC))
        cluster.error = cluster.error or str(trouble)
    except ConfigError as error:
        cluster.error = cluster.error or str(error)
    except Exception as error:  # noqa: BLE001 - objects may have any content
        cluster.mark_malformed(error)


async def _read_upper(client: Client, upper: ClusterFacts, copied: set[Resource]) -> None:
    if upper.error:
        return
    await read_version(client, upper)
    listed = partial(list_into, client, upper)
    await all_of(
        [
            *map(listed, {*_UPPER_KINDS, *_WEBHOOKS, *copied, names.SWARMS}),
            listed(resources.PODS, label_selector=COMPONENTS, kind=COMPONENT_POD),
            listed(resources.PODS, field_selector=WAITING, kind=WAITING_POD),
        ]
    )


async def _read_lower(
    client: Client, lower: ClusterFacts, cluster_id: str, owned_kinds: Iterable[Resource]
) -> None:
    await read_version(client, lower)
    owned = names.LABEL_UPPER_CLUSTER
    listed = partial(list_into, client, lower)
    dns = "k8s-app=kube-dns"
    listing = [
        *map(listed, (resources.NODES, *_WEBHOOKS)),
        listed(resources.SERVICES, namespace="kube-system", label_selector=dns, kind=DNS_SERVICE),
    ]
    if cluster_id:
        # Other upper clusters' pods count as foreign pods; their other objects are only counted.
        listing += [listed(one, label_selector=owned) for one in owned_kinds]
        listing += [
            listed(resources.PODS, label_selector=f"{owned}={cluster_id}"),
            listed(resources.PODS, label_selector=f"{owned}!={cluster_id}", kind=FOREIGN_POD),
        ]
    await all_of(listing)
    await read_backends(client, lower)


def _of_webhooks(cluster: ClusterFacts) -> list[Expiry]:
    configurations = [one for kind in WEBHOOKS for one in cluster.of(kind)]
    try:
        return [one for each in configurations for one in expiries.of_webhooks(cluster.name, each)]
    except Exception as error:  # noqa: BLE001 - objects may have any content
        cluster.mark_malformed(error)
        return []


async def _served(pending: Iterable[Awaitable[Expiry | None]]) -> list[Expiry]:
    return [found for found in await asyncio.gather(*pending) if found is not None]
