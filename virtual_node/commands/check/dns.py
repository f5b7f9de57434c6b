"""Checks whether pods of a lower cluster find other pods and Services by the names of the upper cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from clusterset.config import Cluster
from controller_runtime.client.client import Client
from virtual_node.commands.common import cluster_dns, name_server
from virtual_node.commands.common.name_server import Installed
from virtual_node.config import program
from virtual_node.translate.pods import dns


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of the check."""

    ok: bool
    detail: str
    next: str = ""


async def check(cluster: Cluster, lower: Client, upper_domain: str) -> Verdict:
    """Return the result for a lower cluster.

    Raises:
        ApiError: the cluster does not answer.
    """
    found = await cluster_dns.read(lower)
    servers = await name_server.installed(lower) if cluster.dns.servers else []
    return verdict(cluster, servers, upper_domain=upper_domain, lower_domain=found.domain)


def verdict(
    cluster: Cluster, installed: Sequence[Installed], *, upper_domain: str, lower_domain: str
) -> Verdict:
    """Return whether pods of a lower cluster find other pods and Services by their upper names.

    Without a name server, different names are only a warning (``ok`` with ``next``), because pods may not
    need names of other namespaces.

    Args:
        cluster: the lower cluster.
        installed: the name servers in it.
        upper_domain: DNS domain of the upper cluster.
        lower_domain: that of the lower cluster; empty: unknown.
    """
    make = (
        f"'{program.name('lower-cluster')} dns {cluster.name} --client-kubeconfig LOWER_ADMIN.yaml --apply'"
    )
    if not cluster.dns.servers:
        why = dns.different(cluster.namespaces, upper_domain=upper_domain, lower_domain=lower_domain)
        if not why:
            return Verdict(ok=True, detail=f"pods find others by NAME.NAMESPACE.svc.{upper_domain}")
        detail = f"{why}, so pods do not find others by NAME.NAMESPACE.svc.{upper_domain}"
        return Verdict(ok=True, detail=detail, next=f"{make}, then set dns.servers (docs/use/services.md)")
    ours = [one for one in installed if one.address in cluster.dns.servers]
    for one in ours:
        if not one.ready:
            space, _, name = one.name.partition("/")
            look = f"'kubectl --namespace {space} get pods -l app.kubernetes.io/instance={name}' there"
            return Verdict(ok=False, detail=f"{one.address} ({one.name}) has no ready pod", next=look)
        if one.is_outdated(
            cluster.namespaces,
            upper_domain=upper_domain,
            lower_domain=lower_domain or cluster_dns.DEFAULT_DOMAIN,
        ):
            detail = f"{one.address} ({one.name}) answers for former namespaces or clusterDomain"
            return Verdict(ok=False, detail=detail, next=f"{make} again")
    if known := [f"{one.address} ({one.name})" for one in ours]:
        return Verdict(ok=True, detail=f"{', '.join(known)} answers for {upper_domain}")
    detail = (
        f"{', '.join(cluster.dns.servers)}: not made by {program.name('lower-cluster')} dns, so not checked"
    )
    return Verdict(ok=True, detail=detail)
