"""Rules about the ways to the upper API server, from there to the kubelet APIs of virtual nodes, and to lower clusters."""

from __future__ import annotations

from dataclasses import replace

from clusterset.model.pod.conditions import is_true
from controller_runtime.apimachinery.readable import some
from virtual_node.examine.codes import Code
from virtual_node.examine.connections import Failure, failure
from virtual_node.examine.engine import Level, rule
from virtual_node.examine.facts import NODES
from virtual_node.examine.finding import Findings
from virtual_node.examine.objects import Json
from virtual_node.examine.path import ANSWER, DENIED, KUBELETS, PROXY_REFUSES, Probe
from virtual_node.examine.snapshot import Snapshot, View, objects


@rule(
    *(Code.UPPER_UNREACHABLE, Code.LOWER_UNREACHABLE, Code.KUBECONFIG_UNUSABLE),
    where=[ANSWER],
    level=Level.CLUSTER,
)
def answers(snapshot: Snapshot, cluster: View) -> Findings:
    """Yield that the API server of a cluster does not answer, or that its kubeconfig cannot be used."""
    answer = cluster[ANSWER]
    if answer.error:
        code = Code.UPPER_UNREACHABLE if cluster is snapshot.upper else Code.LOWER_UNREACHABLE
        code = code if answer.usable else Code.KUBECONFIG_UNUSABLE
        step = answer.step or "kubectl get --raw '/readyz?verbose'"
        yield cluster.sentence(code, "Cluster", cluster.name, answer.error, step)


@rule(Code.RIGHTS_DENIED, level=Level.PATH)
def rights(snapshot: Snapshot) -> Findings:
    """Yield the rights that the caller lacks."""
    if why := snapshot.upper.unread.get(DENIED):
        cause, step = f"your rights cannot be read: {why}", "use a kubeconfig with an identity"
        yield snapshot.upper.sentence(Code.RIGHTS_DENIED, "Right", "*", cause, step)
    elif denied := snapshot.upper.get(DENIED):
        cause = f"you may not {some(denied, limit=12)}"
        step = "ask for these rights, or use an administrator's kubeconfig"
        yield snapshot.upper.sentence(Code.RIGHTS_DENIED, "Right", "*", cause, step)


@rule(Code.KUBELET_UNREACHABLE, needs=[NODES, KUBELETS], level=Level.PATH)
def kubelet_apis(snapshot: Snapshot) -> Findings:
    """Yield Ready virtual nodes whose kubelet API cannot be reached by the API server."""
    for name, probe in ready_kubelets(snapshot).items():
        if found := kubelet_trouble(name, probe):
            yield replace(snapshot.upper.sentence(Code.KUBELET_UNREACHABLE, "Node", name, *found), node=name)


@rule(Code.LOWER_NODES_CLOSED, level=Level.LOWER, where=[ANSWER, objects("Node")])
def lower_nodes(_snapshot: Snapshot, lower: View) -> Findings:
    """Yield that no node of a lower cluster is Ready and schedulable."""
    nodes = lower.of("Node")
    if not any(map(is_schedulable, nodes)):
        cause = f"none of its {len(nodes)} nodes is Ready and schedulable"
        step = f"kubectl --kubeconfig {lower.name} get nodes"
        yield lower.sentence(Code.LOWER_NODES_CLOSED, "Cluster", lower.name, cause, step)


def ready_kubelets(snapshot: Snapshot) -> dict[str, Probe]:
    """Return the answers of the kubelet APIs of Ready virtual nodes, by node name."""
    probes = snapshot.upper.get(KUBELETS) or {}
    ready = [
        node["metadata"]["name"]
        for node in snapshot.upper.get(NODES) or ()
        if is_true(node.get("status"), "Ready")
    ]
    return {name: probes[name] for name in ready if name in probes}


def is_schedulable(node: Json) -> bool:
    """Report whether a Node is Ready and not cordoned."""
    return is_true(node.get("status"), "Ready") and not (node.get("spec") or {}).get("unschedulable")


def kubelet_trouble(name: str, probe: Probe) -> tuple[str, str] | None:
    """Return why the API server cannot reach a kubelet API, and the next step; None: it can, or this is unknown.

    Args:
        name: name of the virtual node.
        probe: result of ``kubelet``.
    """
    if probe.ok or is_forbidden(probe) or PROXY_REFUSES in probe.text:
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


def is_forbidden(probe: Probe) -> bool:
    """Report whether the API server refused the caller, so that the request never reached the kubelet API."""
    return probe.code == 403 and "cannot get resource" in probe.text
