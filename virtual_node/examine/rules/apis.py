"""Rules about the ways to API servers and kubelet APIs, and about what programs in lower pods find: names and the Kubernetes API."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from clusterset.model.pod.conditions import is_true
from controller_runtime.apimachinery.readable import some
from virtual_node.config import program
from virtual_node.examine import facts
from virtual_node.examine.codes import Code
from virtual_node.examine.connections import Failure, failure
from virtual_node.examine.engine import Level, rule
from virtual_node.examine.finding import Findings
from virtual_node.examine.objects import Json, involved
from virtual_node.examine.snapshot import Snapshot, View, objects
from virtual_node.rights.name_server import DEFAULT_DOMAIN, Installed
from virtual_node.translate.pods import api_server


@rule(
    *(Code.UPPER_UNREACHABLE, Code.LOWER_UNREACHABLE, Code.KUBECONFIG_UNUSABLE),
    where=[facts.ANSWER],
    level=Level.CLUSTER,
)
def answers(snapshot: Snapshot, cluster: View) -> Findings:
    """Yield that the API server of a cluster does not answer, or that its kubeconfig cannot be used."""
    answer = cluster[facts.ANSWER]
    if answer.error:
        code = Code.UPPER_UNREACHABLE if cluster is snapshot.upper else Code.LOWER_UNREACHABLE
        code = code if answer.usable else Code.KUBECONFIG_UNUSABLE
        step = answer.step or "kubectl get --raw '/readyz?verbose'"
        yield cluster.sentence(code, "Cluster", cluster.name, answer.error, step)


@rule(Code.RIGHTS_DENIED, level=Level.PATH)
def rights(snapshot: Snapshot) -> Findings:
    """Yield the rights that the caller lacks."""
    if why := snapshot.upper.unread.get(facts.DENIED):
        cause, step = f"your rights cannot be read: {why}", "use a kubeconfig with an identity"
        yield snapshot.upper.sentence(Code.RIGHTS_DENIED, "Right", "*", cause, step)
    elif denied := snapshot.upper.get(facts.DENIED):
        cause = f"you may not {some(denied, limit=12)}"
        step = "ask for these rights, or use an administrator's kubeconfig"
        yield snapshot.upper.sentence(Code.RIGHTS_DENIED, "Right", "*", cause, step)


@rule(Code.KUBELET_UNREACHABLE, needs=[facts.NODES, facts.KUBELETS], level=Level.PATH)
def kubelet_apis(snapshot: Snapshot) -> Findings:
    """Yield Ready virtual nodes whose kubelet API cannot be reached by the API server."""
    for name, probe in ready_kubelets(snapshot).items():
        if found := kubelet_trouble(name, probe):
            yield replace(snapshot.upper.sentence(Code.KUBELET_UNREACHABLE, "Node", name, *found), node=name)


@rule(Code.LOWER_NODES_CLOSED, level=Level.LOWER, where=[facts.ANSWER, objects("Node")])
def lower_nodes(_snapshot: Snapshot, lower: View) -> Findings:
    """Yield that no node of a lower cluster is Ready and schedulable."""
    nodes = lower.of("Node")
    if not any(map(is_schedulable, nodes)):
        cause = f"none of its {len(nodes)} nodes is Ready and schedulable"
        step = f"kubectl --kubeconfig {lower.name} get nodes"
        yield lower.sentence(Code.LOWER_NODES_CLOSED, "Cluster", lower.name, cause, step)


def ready_kubelets(snapshot: Snapshot) -> dict[str, facts.Probe]:
    """Return the answers of the kubelet APIs of Ready virtual nodes, by node name."""
    probes = snapshot.upper.get(facts.KUBELETS) or {}
    ready = [
        node["metadata"]["name"]
        for node in snapshot.upper.get(facts.NODES) or ()
        if is_true(node.get("status"), "Ready")
    ]
    return {name: probes[name] for name in ready if name in probes}


def is_schedulable(node: Json) -> bool:
    """Report whether a Node is Ready and not cordoned."""
    return is_true(node.get("status"), "Ready") and not (node.get("spec") or {}).get("unschedulable")


def kubelet_trouble(name: str, probe: facts.Probe) -> tuple[str, str] | None:
    """Return why the API server cannot reach a virtual node's kubelet API, and the next step; None: it can, or this is unknown."""
    if probe.ok or is_forbidden(probe) or facts.PROXY_REFUSES in probe.text:
        return None
    kind = failure(probe.text, probe.code)
    text = " ".join(probe.text.split())[:200]
    what = f"{kind.value}: {text}" if kind.value else f"{probe.code} {text}"
    steps = {
        Failure.UNTRUSTED: "give the virtual node a serving certificate of the CA in the API server's "
        "--kubelet-certificate-authority, for the node's address ($APISERVER_CERT_LOCATION, $APISERVER_KEY_LOCATION)",
        Failure.TLS: "the virtual node must trust the CA of the API server's --kubelet-client-certificate: "
        "--client-verify-ca",
        Failure.REFUSED: "does the node's address ($VKUBELET_POD_IP) and port ($KUBELET_PORT) lead to the process?",
        Failure.SILENT: "let the API server reach the node's address ($VKUBELET_POD_IP): routes, firewalls, "
        "network policies, konnectivity",
        Failure.NO_NAME: "give the node an address: $VKUBELET_POD_IP",
        Failure.UNAUTHENTICATED: "the virtual node must trust the CA of the API server's "
        "--kubelet-client-certificate: --client-verify-ca",
        Failure.FORBIDDEN: "bind the API server's kubelet client to ClusterRole system:kubelet-api-admin",
    }
    return f"the API server cannot reach {name}: {what}", steps.get(kind, "look at the virtual node's log")


def is_forbidden(probe: facts.Probe) -> bool:
    """Report whether the API server refused the caller, so that the request never reached the kubelet API."""
    return probe.code == 403 and "cannot get resource" in probe.text


@rule(Code.NAMES_DIFFER, uses=[facts.DOMAIN], where=[facts.NAMES], level=Level.LOWER)
def upper_names(snapshot: Snapshot, lower: View) -> Findings:
    """Yield that upper names are other names in a lower cluster, and no name server serves them.

    This is only a remark, because pods may not need names of other namespaces.
    """
    names, domain = lower[facts.NAMES], upper_domain(snapshot)
    if why := unserved(names, domain):
        cause = f"{why}, so pods do not find others by {form(domain)}"
        step = f"if they need it: {_make(names.cluster)}, then set dns.servers (docs/use/services.md)"
        yield lower.sentence(Code.NAMES_DIFFER, "Cluster", lower.name, cause, step)


@rule(Code.NAME_SERVER_UNUSABLE, uses=[facts.DOMAIN], where=[facts.NAMES], level=Level.LOWER)
def name_servers(snapshot: Snapshot, lower: View) -> Findings:
    """Yield name servers that have no ready pod, or that were created with other settings."""
    names, domain = lower[facts.NAMES], upper_domain(snapshot)
    for each in _used(names):
        space, _, name = each.name.partition("/")
        if not each.ready:
            cause = f"name server {each.name} has no ready pod"
            step = f"'kubectl --namespace {space} get pods -l app.kubernetes.io/instance={name}' there"
        elif names.namespaces is not None and each.is_outdated(
            names.namespaces, upper_domain=domain, lower_domain=names.domain or DEFAULT_DOMAIN
        ):
            cause = f"name server {each.name} answers for former namespaces or clusterDomain"
            step = f"{_make(names.cluster)} again"
        else:
            continue
        yield lower.sentence(Code.NAME_SERVER_UNUSABLE, "Service", each.name, cause, step)


@rule(Code.API_MISMATCH, Code.API_NOT_USABLE, uses=[facts.API_ACCESS, facts.EVENTS], level=Level.PATH)
def api_of_pods(snapshot: Snapshot) -> Findings:
    """Yield that in-cluster clients in pods get address and token of different clusters, or cannot use the upper API.

    The configuration says so before a pod exists; without it, the newest event of a pod does. This is only a remark,
    because pods may not use the API.
    """
    if (access := snapshot.upper.get(facts.API_ACCESS)) is not None:
        yield from _configured(snapshot, access)
        return
    for code in (Code.API_MISMATCH, Code.API_NOT_USABLE):
        events = [each for each in snapshot.upper.get(facts.EVENTS) or () if each.get("reason") == code]
        for event in events[-1:]:
            text = str(event.get("message") or "")
            what, _, step = text.partition(". ") if code is Code.API_MISMATCH else text.rpartition(": ")
            yield snapshot.upper.sentence(code, "Pod", involved(event), what or step, step if what else "")


def unserved(names: facts.Names, domain: str) -> str:
    """Return why upper names are other names in a lower cluster; empty: they are the same, or a name server serves them."""
    if names.installed if names.servers is None else names.servers:
        return ""
    domains = f"the domain there is {names.domain}" if names.domain not in ("", domain) else ""
    return " and ".join(filter(None, (names.renamed, domains)))


def served_by(names: facts.Names, domain: str) -> str:
    """Return which name servers the pods of a lower cluster are configured to use; empty: none."""
    if known := [f"{each.address} ({each.name})" for each in _used(names) if names.servers]:
        return f"{', '.join(known)} answers for {domain}"
    made = f"not made by {program.name('lower-cluster')} dns, so not checked"
    return f"{', '.join(names.servers)}: {made}" if names.servers else ""


def upper_domain(snapshot: Snapshot) -> str:
    """Return the DNS domain of the upper cluster, or the usual one."""
    return snapshot.upper.get(facts.DOMAIN) or DEFAULT_DOMAIN


def form(domain: str) -> str:
    """Return the form of the upper name of a Service."""
    return f"NAME.NAMESPACE.svc.{domain}"


def _used(names: facts.Names) -> Iterable[Installed]:
    return [each for each in names.installed if names.servers is None or each.address in names.servers]


def _make(cluster: str) -> str:
    return f"'{program.name('lower-cluster')} dns {cluster} --client-kubeconfig LOWER_ADMIN.yaml --apply'"


def _configured(snapshot: Snapshot, access: facts.ApiAccess) -> Findings:
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
