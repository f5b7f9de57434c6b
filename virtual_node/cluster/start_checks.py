"""Refuses names and kubeconfigs with which a lower cluster would change objects that are not ours."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping
from typing import Any

from clusterset.config import Cluster
from clusterset.following import connection
from clusterset.profiles import load_providers
from controller_runtime import resources
from controller_runtime.auth import kubeconfig
from controller_runtime.client.client import Client, find
from controller_runtime.errors import ApiError, ConfigError, Forbidden, NotFound
from controller_runtime.tls import key_pairs
from controller_runtime.tls.reloader import CertificateReloader
from virtual_node.cluster.credential_renewal import kube_system
from virtual_node.config.types import Config, KubeletConfig
from virtual_node.controllers.base.context import ClusterContext
from virtual_node.translate.nodes.node import is_real

_PATIENCE = 3.0
"""Seconds for the answers of a lower cluster before the daemon starts; an unreachable cluster is checked
again later."""


async def refuse_real_nodes(upper: Client, nodes: Iterable[str]) -> None:
    """Refuse names of real Nodes, because the pods on these Nodes would be mirrored.

    Raises:
        ConfigError: a real Node has one of the names.
        ApiError: the upper cluster does not answer, or refuses.
    """
    for name in nodes:
        node = await find(upper, resources.NODES, name)
        if node is None:
            continue
        if is_real(node):
            raise ConfigError(
                f"node {name}: the upper cluster has a Node of that name that is not virtual, and it is not changed; "
                "choose another name (--nodename, or nodeName of the configuration)"
            )


async def refuse_upper_as_lower(context: ClusterContext) -> None:
    """Refuse a lower cluster that is the upper cluster, because every pod would be mirrored onto itself.

    If kube-system of a cluster does not exist or may not be read, nothing is refused.

    Raises:
        ConfigError: both clusters are the same, or the lower credentials are not accepted.
        ApiError: a cluster does not answer.
    """
    try:
        system = await kube_system(context)
        upper = await context.upper.get(resources.NAMESPACES, "kube-system")
    except (Forbidden, NotFound):
        return
    refuse_same_cluster(context.name, system, upper)


def refuse_same_cluster(name: str, lower: Mapping[str, Any], upper: Mapping[str, Any]) -> None:
    """Refuse a lower cluster whose namespace kube-system has the same uid as the upper cluster's.

    Raises:
        ConfigError: both clusters are the same.
    """
    if lower["metadata"]["uid"] == upper["metadata"]["uid"]:
        raise ConfigError(
            f"lower cluster {name}: its kubeconfig leads to the upper cluster, whose pods would be mirrored onto "
            "themselves; give the kubeconfig of another cluster"
        )


def refuse_files(kubelet: KubeletConfig) -> None:
    """Refuse files of the kubelet API that cannot be used.

    Raises:
        ConfigError: a file cannot be used; the message names it.
    """
    ca = kubelet.client_ca_file
    if kubelet.tls_cert_file:
        CertificateReloader(kubelet.tls_cert_file, kubelet.tls_private_key_file, client_ca=ca).forget()
    elif ca:
        CertificateReloader.from_pair(key_pairs.self_signed("files"), client_ca=ca).forget()


async def unusable(config: Config) -> str:
    """Return why a file named in the configuration cannot be used; empty: all files can.

    Lower clusters' kubeconfigs are not read here, because a bad one does not stop the other clusters.
    """
    try:
        await kubeconfig.load(config.kubeconfig, server=config.server)
        refuse_files(config.kubelet)
        if config.cluster_profiles is not None:
            load_providers(config.cluster_profiles.providers_file)
    except ConfigError as error:
        return str(error)
    return ""


async def refuse(cluster: Cluster, *, upper: Client) -> None:
    """Check names and kubeconfig of a cluster before the start; checks that get no answer now are repeated later.

    Raises:
        ConfigError: a node name is a real Node's, the kubeconfig cannot be used, or the lower cluster is the
            upper cluster.
    """
    with contextlib.suppress(ApiError):
        await refuse_real_nodes(upper, [node.name for node in cluster.virtual_nodes()])
    loaded = await connection(cluster)
    with contextlib.suppress(ApiError, TimeoutError):
        async with asyncio.timeout(_PATIENCE), Client(loaded, cluster=cluster.name) as lower:
            refuse_same_cluster(
                cluster.name,
                await lower.get(resources.NAMESPACES, "kube-system"),
                await upper.get(resources.NAMESPACES, "kube-system"),
            )
