"""``virtual-node lower-cluster dns``: prints or applies the name server for the names of the upper cluster.

``leave`` removes it again.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import yaml

from clusterset.model.namespace_map import DNS_LABEL, NamespaceConfig
from controller_runtime import resources
from controller_runtime.client.client import Client, find
from controller_runtime.errors import ConfigError
from controller_runtime.process import terminal
from virtual_node.commands.common import connect
from virtual_node.commands.lower_cluster import applied, helm_release
from virtual_node.commands.lower_cluster.applied import marked, say
from virtual_node.commands.lower_cluster.join import (
    identity,
    lower_client,
)
from virtual_node.config import file, program
from virtual_node.examine import cluster_network
from virtual_node.rights import manifests, name_server

_AGENT = "virtual-node-dns"
_UPSTREAM = re.compile(r"[-a-z0-9.:/\[\]]+")
"""An address for CoreDNS's plugin ``forward``, in the Corefile of another owner's cluster."""
KINDS = {
    "ConfigMap": resources.CONFIG_MAPS,
    "Service": resources.SERVICES,
    "Deployment": resources.DEPLOYMENTS,
    "PodDisruptionBudget": resources.POD_DISRUPTION_BUDGETS,
}


async def run(options: argparse.Namespace) -> None:
    """Print the objects of the name server, or apply them with ``apply``.

    Args:
        options: the parsed command line.

    Raises:
        ConfigError: the cluster is not configured, or a setting is unknown; the message names the next step.
    """
    async with connect.upper(options, agent=_AGENT) as upper, lower_client(options) as lower:
        server = await _server(options, upper, lower)
        space = options.account_namespace
        bodies = name_server.objects(server, namespace=space, image=options.dns_image)
        if not options.apply:
            printed = [await applied.admissible(lower, body) for body in bodies]
            text = yaml.dump_all([_namespace(space), *printed], Dumper=_Dumper, sort_keys=False, width=4096)
            terminal.block(text.rstrip())
            return
        if await find(lower, resources.NAMESPACES, space) is None:
            await lower.create(resources.NAMESPACES, marked(_namespace(space)))
        for body in bodies:
            await applied.apply(lower, KINDS[body["kind"]], body, step="dns", by="dns --apply", where="lower")
        service = await lower.get(resources.SERVICES, server.name, namespace=space)
        address = service["spec"]["clusterIP"]
        say("dns", f"{address} answers for {server.upper_domain} of the upper cluster")
        say(
            "next",
            f'when its pods are ready, set dns: {{servers: ["{address}"]}} of cluster {options.name}; '
            "new pods then use it",
        )


async def _server(options: argparse.Namespace, upper: Client, lower: Client) -> name_server.NameServer:
    """Return what the name server answers.

    Raises:
        ConfigError: the cluster is not configured, or a setting is unknown.
    """
    namespaces, domain, cluster_id = await _configured(options, upper)
    found = await cluster_network.read_dns(lower)
    server = options.lower_dns or found.server
    if not server:
        raise ConfigError(
            "the address of the lower cluster's DNS server is unknown: give it with --lower-dns"
        )
    lower_domain = options.lower_domain or found.domain or name_server.DEFAULT_DOMAIN
    for field, value in (("clusterDomain", domain), ("--lower-domain", lower_domain)):
        if not file.DOMAIN.fullmatch(value):
            raise ConfigError(f"{field}: {value!r} is not a DNS domain such as {name_server.DEFAULT_DOMAIN}")
    for field, value in _names(namespaces):
        if not DNS_LABEL.fullmatch(value):
            raise ConfigError(f"{field}: {value!r} is not a namespace's name (DNS-1123 label)")
    if not _UPSTREAM.fullmatch(server):
        raise ConfigError(f"--lower-dns: {server!r} is not the address of a DNS server, such as 10.97.0.10")
    return name_server.NameServer(
        options.name, cluster_id or await identity(upper), domain, lower_domain, server, namespaces
    )


def _names(namespaces: NamespaceConfig) -> Iterator[tuple[str, str]]:
    """Yield field and name of all namespaces in the settings, because a release may have any values."""
    if namespaces.prefix:
        yield f"namespaces.prefix {namespaces.prefix!r}", f"{namespaces.prefix}x"
    for upper, lower in namespaces.map.items():
        yield "namespaces.map", upper
        yield f"namespaces.map.{upper}", lower


async def _configured(options: argparse.Namespace, upper: Client) -> tuple[NamespaceConfig, str, str]:
    """Return namespaces of the lower cluster, domain and identity of the upper cluster, from the file or the release."""
    if options.config:
        config = file.load(options.config)
        for cluster in config.clusters:
            if cluster.name == options.name:
                return cluster.namespaces, config.cluster_domain, config.cluster_id
        raise ConfigError(f"{options.config}: has no cluster {options.name}")
    release = await helm_release.find(upper, options.namespace, options.release)
    entry = helm_release.cluster(release.values, options.name)
    if entry is None:
        raise ConfigError(
            f"release {release.name} has no cluster {options.name}: '{program.name('lower-cluster')} join "
            f"{options.name}' first, or give the configuration file with --config"
        )
    values: Mapping[str, Any] = (release.values.get("virtualNode") or {}).get("config") or {}
    try:
        domain = msgspec.convert(values.get("clusterDomain", name_server.DEFAULT_DOMAIN), str)
    except msgspec.ValidationError as error:
        raise ConfigError(f"virtualNode.config.clusterDomain: {error}") from None
    return helm_release.namespaces(entry), domain, str(release.values.get("clusterId") or "")


async def remove(options: argparse.Namespace, lower: Client, *, cluster_id: str) -> None:
    """Delete the objects that ``apply`` created for a lower cluster.

    Args:
        options: ``account_namespace``, ``dry_run`` and ``name`` of the command line.
        lower: client of the lower cluster.
        cluster_id: identity of the upper cluster.
    """
    name = name_server.object_name(cluster_id, options.name)
    await applied.remove(
        lower,
        list(KINDS.values()),
        name,
        namespace=options.account_namespace,
        step="dns",
        dry=options.dry_run,
    )


class _Dumper(yaml.SafeDumper):
    """Writes objects that several places share in full, instead of YAML anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        """Return that the object is written again."""
        return True


def _namespace(name: str) -> dict[str, Any]:
    return manifests.account(name)[0]
