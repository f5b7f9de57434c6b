"""Every reason why all pods may be pending has its link, in the order in which a pod meets them."""

from __future__ import annotations

import base64
from datetime import timedelta
from typing import Any

import pytest

from controller_runtime.tls.key_pairs import make_ca
from tests.unit.virtual_node.commands.doctor_facts import (
    TAINT,
    asking,
    bound,
    conditions,
    configuration,
    container,
    healthy,
    links_of,
    lower_cluster,
    node,
    pod,
    working_webhook,
)
from tests.unit.virtual_node.examine.health_objects import NOW, condition, lease, swarm
from virtual_node.commands.doctor import (
    CHECKS,
    State,
    _print,
    _print_brief,
    first_broken,
    holds,
    judged,
    sentence,
)
from virtual_node.examine.codes import Link
from virtual_node.examine.facts import (
    BOUND,
    COMPONENTS,
    DENIED,
    DESCHEDULERS,
    LEASES,
    NODES,
    SWARMS,
    WAITING,
    WEBHOOK,
    Answer,
    Installation,
    Probe,
    Webhook,
)
from virtual_node.examine.snapshot import Fact, Snapshot
from virtual_node.rights.name_server import Installed
from virtual_node.translate.pods.api_server import NOT_USABLE

STALE = {"key": "virtual-node.io/stale-cluster", "effect": "NoSchedule"}
REFUSED = (
    'failed calling webhook "pods.virtual-node.io": Post "https://x": dial tcp: connect: connection refused'
)
REPORT = '{"rejected": {"": "unknown field lables"}}'
EXPIRY = '{"expiring": {"a": "expires in 3 days"}}'
X509 = 'failed calling webhook "pods.virtual-node.io": x509: certificate signed by unknown authority'


def _expired() -> dict[str, Any]:
    old = make_ca("ca", validity=timedelta(days=1), now=NOW - timedelta(days=9)).certificate
    return configuration({"url": "https://x", "caBundle": base64.b64encode(old).decode()})


def _bundle(text: str) -> Webhook:
    return working_webhook(configurations=[configuration({"url": "https://x", "caBundle": text})])


def _unseen(**more: Any) -> dict[str, Any]:
    return pod(status={}, **more)


def _said(message: str) -> dict[str, Any]:
    return pod(status=conditions("PodScheduled", "False", "SchedulerError", message))


def _crashing() -> dict[str, Any]:
    ended = {"lastState": {"terminated": {"exitCode": 1}}}
    return pod("vn-0", status=container({"waiting": {"reason": "CrashLoopBackOff"}}, **ended))


def test_a_healthy_installation_has_no_broken_link():
    """Everything is installed and ok; only optional links are skipped."""
    links = judged(healthy())
    assert {link.name: link.state for link in links if link.state is not State.OK} == {
        "lowerApi": State.SKIPPED,
        "names": State.SKIPPED,
        "components": State.SKIPPED,
    }
    assert first_broken(links) is None
    assert sentence(links) == "Every link holds."


BROKEN: list[tuple[Snapshot, str, str, str]] = [
    # facts, link, detail, what to do
    (healthy(trouble=("nothing listens", "is the cluster up?")), "upperApi", "nothing listens", "is the cluster up?"),
    (healthy(trouble=("something new", "")), "upperApi", "something new", "readyz"),
    (healthy(denied=["list events", "get nodes/proxy"]), "rights", "list events, get nodes/proxy", "ask for"),
    (healthy(unread={DENIED: "no (403)"}), "rights", "no (403)", "identity"),
    (healthy(nodes=[]), "virtualNodes", "nothing here is labelled app.kubernetes.io/name", "start it"),
    (healthy(nodes=[node(virtual=False)]), "virtualNodes", "there is no virtual node", "start it"),
    (healthy(leases={"vn": lease(95)}), "nodeReady", "last renewed 95 s ago (it lasts 40 s)", "look where it runs"),
    (healthy(leases={}), "nodeReady", "vn: it has no Lease", "start it"),
    (
        healthy(nodes=[{**node(), "status": conditions("Ready", "False", "NoReadyLowerNodes", "None of 3")}]),
        "nodeReady", "Node vn is not Ready: NoReadyLowerNodes: None of 3", "virtual-node diagnose node vn",
    ),
    (healthy(nodes=[node(unschedulable=True)]), "taints", "cordoned", "kubectl uncordon vn"),
    (healthy(nodes=[node(taints=[TAINT, STALE])]), "taints", "descheduler keeps", "kubectl taint node vn"),
    (
        healthy(pending=[pod(tolerations=[], nodeSelector={"type": "virtual-kubelet"})]),
        "taints", "1 pod lacks a toleration of virtual-kubelet.io/provider=k8s:NoSchedule (shop/web)", "virtual-pod",
    ),
    (
        healthy(nodes=[node(), node("real", virtual=False, taints=())],
                pending=[pod(tolerations=[], labels={"virtual-pod": "true"})]),
        "taints", "lacks a toleration", "add the toleration",
    ),
    (
        healthy(kubelets={"vn": Probe(500, "tls: failed to verify certificate: x509: unknown authority")}),
        "kubeletApi", "its certificate is not trusted", "--kubelet-certificate-authority",
    ),
    (
        healthy(kubelets={"vn": Probe(503, "dial tcp 10.0.0.1:10250: connect: connection refused")}),
        "kubeletApi", "nothing listens there", "$KUBELET_PORT",
    ),
    (healthy(kubelets={"vn": Probe(503, "dial tcp: i/o timeout")}), "kubeletApi", "no way there", "firewalls"),
    (healthy(kubelets={"vn": Probe(401, "Unauthorized")}), "kubeletApi", "(401)", "--client-verify-ca"),
    (healthy(kubelets={"vn": Probe(403, "Forbidden (user=x)")}), "kubeletApi", "(403)", "kubelet-api-admin"),
    (
        healthy(kubelets={"vn": Probe(500, "remote error: tls: unknown certificate authority")}),
        "kubeletApi", "the TLS handshake fails", "--client-verify-ca",
    ),
    (healthy(kubelets={"vn": Probe(500, "dial: no such host")}), "kubeletApi", "resolved", "$VKUBELET_POD_IP"),
    (healthy(kubelets={"vn": Probe(500, "internal error")}), "kubeletApi", "500 internal error", "log"),
    (
        healthy(webhook=Webhook(), pending=[pod(labels={"virtual-pod": "true"})]),
        "webhook", "there is none, and 1 pod waits with the label virtual-pod=true (shop/web)", "--register",
    ),
    (healthy(webhook=working_webhook(configurations=[_expired()])), "webhook", "expired on 2025-12-24", "running"),
    (healthy(webhook=_bundle("bm9uc2Vuc2U=")), "webhook", "cannot be read", "leader writes"),
    (healthy(webhook=_bundle("%%%")), "webhook", "cannot be read", "leader writes"),
    (
        healthy(webhook=working_webhook(configurations=[configuration({"service": {"namespace": "n", "name": "s"}})])),
        "webhook", "its caBundle is empty", "leader writes",
    ),
    (healthy(webhook=working_webhook(endpoints={})), "webhook", "no ready endpoints", "get pods"),
    (healthy(webhook=working_webhook(dry_run_pod={"metadata": {}})), "mutation", "passes unchanged", "objectSelector"),
    (healthy(webhook=working_webhook(dry_run=Probe(500, REFUSED))), "mutation", "nothing listens there", "running"),
    (healthy(webhook=working_webhook(dry_run=Probe(500, X509))), "mutation", "not trusted", "restart the webhook"),
    (
        healthy(webhook=working_webhook(dry_run=Probe(500, REFUSED.replace("connection refused", "i/o timeout")))),
        "mutation", "no way there", "firewalls",
    ),
    (
        healthy(webhook=working_webhook(dry_run=Probe(500, 'failed calling webhook "pods.virtual-node.io": 500'))),
        "mutation", "it fails", "virtual-node-webhook's log",
    ),
    (
        healthy(webhook=working_webhook(dry_run=Probe(400, 'admission webhook "other.io" denied the request: no'))),
        "mutation", "webhook other.io denies", "log",
    ),
    (healthy(scheduler=lease(60, duration=15)), "scheduler", "renewed 60 s ago", "kube-scheduler running"),
    (healthy(scheduler=lease(holder="")), "scheduler", "has no holder", "kube-scheduler running"),
    (healthy(scheduler=None, pending=[_unseen()]), "scheduler", "default-scheduler has looked at 1 pod", "lease"),
    (healthy(pending=[_unseen(schedulerName="mine")]), "scheduler", "named mine", "spec.schedulerName"),
    (
        healthy(pending=[_said('Post "http://h:8888/filter": dial tcp: connect: connection refused')]),
        "extender", "no valid response from http://h:8888/filter", "virtual-node-multi-scheduler running",
    ),
    (
        healthy(pending=[_said("failed filter with extender at URL http://h/filter, code 500")]),
        "extender", "no valid response from http://h/filter", "log",
    ),
    (
        healthy(pending=[_said("1 virtual node a (label x: b) belongs to no lower cluster of the multi-scheduler's "
                               "configuration: write")]),
        "knownNodes", "virtual nodes without a cluster: a, which get no pods", "nodes: [{name: a}]",
    ),
    (healthy(nodes=[node("big"), {**node(), "status": conditions("Ready", "True")}],
             leases={"vn": lease(), "big": lease()}, pending=[pod(containers=asking(cpu="9"))]),
     "capacity", "no virtual node has as much: 1 pod such as shop/web (cpu 9)", "add lower nodes"),
    (healthy(pending=[pod(containers=asking(cpu="7500m"))]), "capacity", "as much left", "virtual-node status"),
    (healthy(pending=[pod(containers=asking(gpu="1"))]), "capacity", "(gpu 1)", "request less"),
    (healthy(nodes=[{**node(), "status": conditions("Ready", "True")}]), "capacity", "no free capacity", "get nodes"),
    (
        healthy(pending=[_said("0/3 nodes are available: 1 lower cluster a: 0/3 nodes are available")]),
        "scheduled", "Pod shop/web: 0/3 nodes are available", "virtual-node diagnose pod shop/web",
    ),
    (
        healthy(pending=[bound(status=conditions("PodScheduled", "False", "Unschedulable", "0/3 nodes"))]),
        "lowerVerdict", "Pod shop/web: Unschedulable: 0/3 nodes", "the descheduler moves such pods",
    ),
    (
        healthy(installation=Installation(pods=[_crashing()])),
        "components", "Pod shop/vn-0 is in CrashLoopBackOff (exit code 1)", "logs vn-0 -c c --previous",
    ),
    (
        healthy(leases={"vn": {**lease(), "metadata": {"annotations": {"virtual-node.io/faults": REPORT}}}}),
        "configuration", "Configuration is not applied: unknown field lables", "correct it",
    ),
    (
        healthy(leases={"vn": {**lease(), "metadata": {"annotations": {"virtual-node.io/faults": EXPIRY}}}}),
        "lowerCertificates", "Cluster a: expires in 3 days", "renew the certificate",
    ),
    (
        healthy(lower=[lower_cluster(answer=Answer(error="kubeconfig a.yaml: no such file", step="correct that kubeconfig"))]),
        "lowerApi", "kubeconfig a.yaml: no such file", "correct that kubeconfig",
    ),
    (
        healthy(lower=[lower_cluster(installed=[Installed("virtual-node/dns", "10.0.0.53", 0)])]),
        "names", "a.yaml: name server virtual-node/dns has no ready pod", "--namespace virtual-node get pods",
    ),
    (healthy(lower=[lower_cluster(nodes=[node(unschedulable=True)])]), "lowerApi", "none of its 1 nodes", "get nodes"),
    (healthy(descheduler=lease(99, duration=15)), "descheduler", "renewed 99 s ago", "not moved"),
    (
        healthy(swarms=[swarm("streams", condition("Degraded", "True", "JobsFailing", "1 job cannot be started"))]),
        "swarms", "Swarm shop/streams: 1 job cannot be started", "kubectl describe swarm streams -n shop",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("facts", "name", "detail", "step"), BROKEN)
def test_each_fault_breaks_its_link(facts: Snapshot, name: str, detail: str, step: str):
    """The first broken link is the cause; it names the evidence and what to do."""
    links = judged(facts)
    found = first_broken(links)
    assert found is not None
    assert (found.name, found.state) == (name, State.BROKEN)
    assert detail in found.detail
    assert step in found.next
    assert sentence(links).startswith(f"The broken link: {found.title}")


DIFFERENT = [
    ({}, "cluster.local", ""),
    ({"renamed": "namespace shop is up-shop there"}, "warning: ", "a.yaml: namespace shop is up-shop there"),
    ({"domain": "app.pre"}, "warning: ", "a.yaml: the domain there is app.pre"),
    (
        {"domain": "app.pre", "installed": [Installed("virtual-node/dns", "10.0.0.53", 2)]},
        "pods find others by NAME.NAMESPACE.svc.cluster.local", "",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("lower", "beginning", "reason"), DIFFERENT)
def test_names_that_pods_do_not_find_are_a_warning(lower: dict[str, Any], beginning: str, reason: str):
    """They do not break the link, because pods may not need names of other namespaces."""
    link = links_of(healthy(lower=[lower_cluster(**lower)]))["names"]
    assert link.state is State.OK
    assert beginning in link.detail
    assert reason in link.detail
    assert bool(reason) == ("lower-cluster dns" in link.next)


def test_every_link_can_break():
    """The table above breaks each, except the one that only warns, because pods may not use the API."""
    assert {name for _, name, _, _ in BROKEN} | {"apiOfPods"} == {*Link}


def test_an_api_server_that_pods_cannot_use_is_a_warning():
    """The virtual node's event contains the cause and the remedy."""
    event = {"reason": NOT_USABLE, "message": "Pods cannot reach it: set kubernetesServiceURL"}
    links = judged(healthy(events=[event]))
    (found,) = (link for link in links if link.name == "apiOfPods")
    assert (found.detail, found.next) == ("warning: Pods cannot reach it", "set kubernetesServiceURL")
    assert holds(links)
    assert sentence(links) == "Every link holds, with a warning: Kubernetes API of lower pods."


def test_no_toleration_is_advised_for_the_taint_of_a_lost_cluster():
    """The descheduler removes the taint when the cluster answers again; the link of the node reports the loss."""
    lost = conditions("Ready", "False", "LowerClusterUnreachable", "Lower cluster a does not answer")
    pods = [pod(nodeSelector={"type": "virtual-kubelet"})]
    links = links_of(healthy(nodes=[{**node(taints=[TAINT, STALE]), "status": lost}], pending=pods))
    assert links["nodeReady"].state is State.BROKEN
    assert links["taints"].state is State.OK


def test_a_link_depends_only_on_earlier_ones():
    """Consequences of a broken link are skipped and refer to it; independent links are checked."""
    links = links_of(healthy(nodes=[], descheduler=lease(99)))
    assert links["nodeReady"].detail == "because of: virtual nodes"
    assert {name for name, link in links.items() if link.state is State.SKIPPED} == {
        "components", "configuration", "nodeReady", "taints", "kubeletApi", "capacity", "scheduled", "lowerApi", "lowerVerdict",
        "lowerCertificates", "names",
    }  # fmt: skip
    assert links["descheduler"].state is State.BROKEN
    away = links_of(healthy(trouble=("away", "")))
    assert {link.state for name, link in away.items() if name != "upperApi"} == {State.SKIPPED}


@pytest.mark.parametrize("fact", [NODES, WAITING, BOUND, LEASES, COMPONENTS, WEBHOOK, DESCHEDULERS, SWARMS])
def test_unreadable_facts_are_unknown(fact: Fact[Any]):
    """The link gives the reason, and the doctor does not report health."""
    facts = healthy(unread={fact: "events is forbidden (403 Forbidden)"})
    links = links_of(facts)
    unseen = [link for link, check in CHECKS.items() if fact in check.reads]
    assert unseen
    assert all(links[link].state is State.UNKNOWN for link in unseen)
    assert "403" in links[unseen[0]].detail
    assert not holds(judged(facts))
    assert sentence(judged(facts)).startswith("No broken link was found, but these could not be checked: ")


def test_a_missing_right_is_named_once():
    """Ten links need the same right: the others refer to the link that names it."""
    refused = "pods is forbidden: User cannot list resource"
    facts = healthy(denied=["list pods"], unread=dict.fromkeys((WAITING, BOUND, COMPONENTS), refused))
    text = " ".join(link.detail for link in judged(facts))
    assert refused not in text
    assert text.count("list pods") == 1


def _texts(facts: Snapshot, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Return what ``doctor`` prints into a pipe: with and without the links that hold."""
    links = judged(facts)
    _print(links, headers=True)
    report = capsys.readouterr().out
    _print_brief(links)
    return [report, capsys.readouterr().out]


UNREACHABLE = "its API server https://10.0.0.1:6443 does not answer within 5 s"
SEEN = "0/3 nodes are available: 3 Insufficient example.com/accelerator of a rare kind"


@pytest.mark.parametrize(
    ("facts", "cause", "subjects"),
    [
        pytest.param(
            healthy(
                nodes=[node("vn"), node("vn-b")],
                leases={"vn": lease(), "vn-b": lease()},
                bound=[
                    pod(name, status=conditions("PodScheduled", "False", "Unschedulable", SEEN), nodeName=where)
                    for name, where in (("web", "vn"), ("db", "vn-b"))
                ],
            ),
            SEEN, ["Pod shop/web, shop/db: "], id="pods on several virtual nodes",
        ),
        pytest.param(
            healthy(nodes=[
                {**node(name), "status": conditions("Ready", "False", "NoReadyLowerNodes", UNREACHABLE)}
                for name in ("vn", "vn-b")
            ], leases={"vn": lease(), "vn-b": lease()}),
            UNREACHABLE, ["Node vn, vn-b is not Ready: "], id="several virtual nodes",
        ),
        pytest.param(
            healthy(lower=[
                lower_cluster(name, answer=Answer(error=UNREACHABLE)) for name in ("a.yaml", "b.yaml", "c.yaml")
            ]),
            UNREACHABLE, ["a.yaml, b.yaml, c.yaml: "], id="several lower clusters",
        ),
        pytest.param(
            healthy(pending=[_said(f'Post "http://h/filter": connection refused ({UNREACHABLE})')]),
            UNREACHABLE, ["Pod shop/web: see scheduler reaches its extender"], id="links that report the same message",
        ),
        pytest.param(
            healthy(unread=dict.fromkeys((WAITING, BOUND, COMPONENTS), UNREACHABLE)),
            UNREACHABLE, ["cannot be seen: see components running"], id="facts that are unread for the same reason",
        ),
        pytest.param(
            healthy(unread={NODES: UNREACHABLE}),
            UNREACHABLE, ["because of: virtual nodes"], id="links that need an unknown link",
        ),
    ],
)  # fmt: skip
def test_each_cause_is_printed_once_with_its_subjects(
    facts: Snapshot, cause: str, subjects: list[str], capsys: pytest.CaptureFixture[str]
):
    """In the report and its conclusion together, because the same long line twice hides what differs."""
    for text in _texts(facts, capsys):
        assert text.count(cause) == 1
        assert all(subject in text for subject in subjects), text


def test_a_link_that_is_ignored_does_not_hide_the_cause_of_others():
    """The report does not contain it, so no other link can refer to it."""
    facts = healthy(unread=dict.fromkeys((WAITING, BOUND, COMPONENTS), UNREACHABLE))
    details = [link.detail for link in judged(facts, ignored=["components"])]
    assert " ".join(details).count(UNREACHABLE) == 1
    assert "cannot be seen: see taints tolerated" in details


def test_the_conclusion_counts_further_broken_links():
    """The causes and next steps are in the report."""
    assert sentence(judged(healthy(leases={}))) == "The broken link: virtual nodes Ready, leases fresh."
    assert sentence(judged(healthy(leases={}, descheduler=lease(99, duration=15)))) == (
        "The broken link: virtual nodes Ready, leases fresh, and 1 more link is broken. Repair this link first."
    )


def test_unreadable_leases_are_no_fault():
    """Ready alone remains, and does not suffice to call a node healthy."""
    links = links_of(healthy(leases={}, unread={LEASES: "no"}))
    assert links["nodeReady"].state is State.UNKNOWN
    assert links["nodeReady"].detail == "all are Ready; their Leases cannot be seen: no"


def test_broken_links_come_before_missing_rights():
    """Missing rights are listed last, and alone they are still named."""
    links = judged(healthy(denied=["list events"], nodes=[]))
    found = first_broken(links)
    assert found is not None
    assert found.name == "virtualNodes"
