"""Rules about what programs in lower pods find: the names of other pods, and the Kubernetes API."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from clusterset.model.namespace_map import NamespaceConfig
from virtual_node.config import program
from virtual_node.examine.codes import Code
from virtual_node.examine.engine import Level, rule
from virtual_node.examine.finding import Findings
from virtual_node.examine.path import API_ACCESS, DOMAIN, EVENTS, NAMES, ApiAccess, Names
from virtual_node.examine.snapshot import Snapshot, View
from virtual_node.rights.name_server import DEFAULT_DOMAIN, Installed
from virtual_node.translate.pods import api_server


@rule(Code.NAMES_DIFFER, uses=[DOMAIN], where=[NAMES], level=Level.LOWER)
def upper_names(snapshot: Snapshot, lower: View) -> Findings:
    """Yield that upper names are other names in a lower cluster, and no name server serves them.

    This is only a remark, because pods may not need names of other namespaces.
    """
    names, domain = lower[NAMES], upper_domain(snapshot)
    if why := unserved(names, domain):
        cause = f"{why}, so pods do not find others by {form(domain)}"
        step = f"if they need it: {_make(names.cluster)}, then set dns.servers (docs/use/services.md)"
        yield lower.sentence(Code.NAMES_DIFFER, "Cluster", lower.name, cause, step)


@rule(Code.NAME_SERVER_UNUSABLE, uses=[DOMAIN], where=[NAMES], level=Level.LOWER)
def name_servers(snapshot: Snapshot, lower: View) -> Findings:
    """Yield name servers that have no ready pod, or that answer for former settings."""
    names, domain = lower[NAMES], upper_domain(snapshot)
    for each in _used(names):
        space, _, name = each.name.partition("/")
        if not each.ready:
            cause = f"name server {each.name} has no ready pod"
            step = f"'kubectl --namespace {space} get pods -l app.kubernetes.io/instance={name}' there"
        elif _is_outdated(each, names.namespaces, domain, names.domain):
            cause = f"name server {each.name} answers for former namespaces or clusterDomain"
            step = f"{_make(names.cluster)} again"
        else:
            continue
        yield lower.sentence(Code.NAME_SERVER_UNUSABLE, "Service", each.name, cause, step)


@rule(Code.API_MISMATCH, Code.API_NOT_USABLE, uses=[API_ACCESS, EVENTS], level=Level.PATH)
def api_of_pods(snapshot: Snapshot) -> Findings:
    """Yield that in-cluster clients in pods get address and token of different clusters, or cannot use the upper API.

    The configuration says so before a pod exists; without it, the newest event of a pod does. This is only a remark,
    because pods may not use the API.
    """
    if (access := snapshot.upper.get(API_ACCESS)) is not None:
        yield from _configured(snapshot, access)
        return
    for code in (Code.API_MISMATCH, Code.API_NOT_USABLE):
        events = [each for each in snapshot.upper.get(EVENTS) or () if each.get("reason") == code]
        for event in events[-1:]:
            involved = event.get("involvedObject") or {}
            pod = f"{involved.get('namespace')}/{involved.get('name')}"
            text = str(event.get("message") or "")
            what, _, step = text.partition(". ") if code is Code.API_MISMATCH else text.rpartition(": ")
            yield snapshot.upper.sentence(code, "Pod", pod, what or step, step if what else "")


def unserved(names: Names, domain: str) -> str:
    """Return why upper names are other names in a lower cluster; empty: they are the same, or a name server serves them."""
    if names.installed if names.servers is None else names.servers:
        return ""
    domains = f"the domain there is {names.domain}" if names.domain not in ("", domain) else ""
    return " and ".join(filter(None, (names.renamed, domains)))


def served_by(names: Names, domain: str) -> str:
    """Return which name servers the pods of a lower cluster are configured to use; empty: none."""
    if known := [f"{each.address} ({each.name})" for each in _used(names) if names.servers]:
        return f"{', '.join(known)} answers for {domain}"
    made = f"not made by {program.name('lower-cluster')} dns, so not checked"
    return f"{', '.join(names.servers)}: {made}" if names.servers else ""


def upper_domain(snapshot: Snapshot) -> str:
    """Return the DNS domain of the upper cluster, or the usual one."""
    return snapshot.upper.get(DOMAIN) or DEFAULT_DOMAIN


def form(domain: str) -> str:
    """Return the form of the upper name of a Service."""
    return f"NAME.NAMESPACE.svc.{domain}"


def _used(names: Names) -> Iterable[Installed]:
    return [each for each in names.installed if names.servers is None or each.address in names.servers]


def _is_outdated(
    server: Installed, namespaces: NamespaceConfig | None, domain: str, lower_domain: str
) -> bool:
    return namespaces is not None and server.is_outdated(
        namespaces, upper_domain=domain, lower_domain=lower_domain or DEFAULT_DOMAIN
    )


def _make(cluster: str) -> str:
    return f"'{program.name('lower-cluster')} dns {cluster} --client-kubeconfig LOWER_ADMIN.yaml --apply'"


def _configured(snapshot: Snapshot, access: ApiAccess) -> Findings:
    """Yield what is wrong with the API of pods according to the configuration."""
    found = partial(snapshot.upper.sentence, kind="Configuration", name="")
    if not api_server.may_use_upper(access.setting, identities=access.identities):
        if access.identities:
            cause = f"the lower API servers refuse the upper tokens that pods get (kubernetesService: {access.setting})"
            yield found(Code.API_MISMATCH, cause=cause, step="set kubernetesService: Auto")
    elif not access.identities:
        cause = "the upper API server refuses the lower tokens that pods get (enableServiceaccount: false)"
        step = "set enableServiceaccount: true, or kubernetesService: Auto"
        yield found(Code.API_MISMATCH, cause=cause, step=step)
    elif access.endpoint is not None and access.endpoint.problem:
        what, _, step = access.endpoint.problem.rpartition(": ")
        yield found(Code.API_NOT_USABLE, cause=what, step=step)
