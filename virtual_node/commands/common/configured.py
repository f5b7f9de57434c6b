"""Facts that follow from the configuration of the daemon, for the commands that have it."""

from __future__ import annotations

from clusterset.config import Cluster
from controller_runtime.client.client import Client
from controller_runtime.errors import ApiError
from virtual_node.config.types import Config
from virtual_node.controllers.pods import upper_endpoint
from virtual_node.examine import cluster_dns
from virtual_node.examine.path import NAMES, ApiAccess, Names
from virtual_node.examine.snapshot import View
from virtual_node.translate.pods import api_server, dns


async def api_access(config: Config, upper: Client) -> ApiAccess:
    """Return what in-cluster clients in pods get, and where they reach the upper API server."""
    setting, identities = config.kubernetes_service, config.enable_serviceaccount
    if not (identities and api_server.may_use_upper(setting, identities=identities)):
        return ApiAccess(setting, identities)
    return ApiAccess(setting, identities, await upper_endpoint.find(upper, config.kubernetes_service_url))


async def read_names(cluster: Cluster, lower: Client, view: View) -> None:
    """Read by which names pods of a lower cluster find others; an error is recorded."""
    try:
        domain = (await cluster_dns.read(lower)).domain
        installed = await cluster_dns.name_servers(lower) if cluster.dns.servers else []
    except ApiError as error:
        view.refuse(NAMES, str(error))
        return
    names = Names(
        cluster=cluster.name,
        renamed=dns.renamed(cluster.namespaces),
        domain=domain,
        installed=installed,
        servers=cluster.dns.servers,
        namespaces=cluster.namespaces,
    )
    view.put(NAMES, names)
