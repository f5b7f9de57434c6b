"""The doctor reports faults only on evidence, and counts the reasons of lower clusters."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from clusterset.config import Cluster
from controller_runtime.client.limits import CacheBudget
from multi_scheduler.config import Config
from multi_scheduler.directory import NodeDirectory
from tests.unit.virtual_node.commands.doctor_facts import (
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
from tests.unit.virtual_node.examine.health_objects import lease
from virtual_node.commands.doctor import State, first_broken, judged
from virtual_node.examine.connections import Failure, failure
from virtual_node.examine.facts import Probe, Webhook
from virtual_node.examine.snapshot import Snapshot


@pytest.mark.parametrize(
    "facts",
    [
        # A pod for real nodes that waits for room there.
        healthy(nodes=[node(), node("real", virtual=False, taints=())], pending=[pod(tolerations=[])]),
        # A pod that is just being scheduled, is gated on purpose, or is ending.
        healthy(pending=[pod(age=10, status={})]),
        healthy(pending=[pod(status={}, schedulingGates=[{"name": "g"}], tolerations=[])]),
        healthy(
            pending=[{**pod(tolerations=[]), "metadata": {**pod()["metadata"], "deletionTimestamp": "x"}}]
        ),
        # A pod that is bound and starting.
        healthy(pending=[bound(age=5, status={})]),
        # A taint with effect PreferNoSchedule.
        healthy(
            nodes=[node(taints=[{"key": "a", "effect": "PreferNoSchedule"}])], pending=[pod(tolerations=[])]
        ),
        # The API server does not support the request, or forbids it.
        healthy(kubelets={"vn": Probe(400, "address not allowed")}),
        healthy(kubelets={"vn": Probe(403, 'nodes "vn" is forbidden: cannot get resource "nodes/proxy"')}),
        # Another webhook refuses the probe pod.
        healthy(webhook=working_webhook(dry_run=Probe(403, "exceeded quota: pods"))),
        # Not installed, and not required.
        healthy(webhook=Webhook(), scheduler=None, descheduler=None),
        healthy(lower=[lower_cluster()]),
    ],
)
def test_ordinary_states_break_nothing(facts: Snapshot):
    assert first_broken(judged(facts)) is None


def test_a_ready_node_with_an_old_lease_may_have_another_clock():
    """Kubernetes compares renewals with its own clock, so a Ready node has been renewed."""
    links = links_of(healthy(leases={"vn": lease(600)}))
    assert "last renewed 600 s ago (it lasts 40 s); it is Ready all the same" in links["nodeReady"].detail
    assert "clocks" not in links_of(healthy(leases={"vn": lease(90)}))["nodeReady"].detail


def test_the_url_of_a_webhook_may_be_unreachable_for_the_doctor():
    """The API server may be the only one that reaches it; the dry run decides."""
    client = {"url": "https://x/mutate", "caBundle": ""}
    facts = working_webhook(
        configurations=[configuration(client)], urls={"https://x/mutate": Probe(0, "refused")}
    )
    links = links_of(healthy(webhook=facts))
    assert links["webhook"].state is State.OK
    assert "the system's CAs; https://x/mutate does not answer from here" in links["webhook"].detail


def _event(reason: str, message: str) -> dict[str, Any]:
    involved = {"namespace": "shop", "name": "web", "uid": "web"}
    return {"reason": reason, "message": message, "involvedObject": involved}


def test_events_of_the_extender_count():
    """A condition may have been overwritten since; events of other pods do not count."""
    said = _event("FailedScheduling", 'Post "https://h/prioritize": x509: unknown authority')
    links = links_of(healthy(pending=[pod()], events=[said]))
    assert links["extender"].state is State.BROKEN
    assert "tlsConfig" in links["extender"].next
    other = {**said, "involvedObject": {"namespace": "shop", "name": "other"}}
    assert links_of(healthy(pending=[pod()], events=[other]))["extender"].state is State.OK


def test_virtual_nodes_that_the_multi_scheduler_does_not_know_are_named():
    """With the clusters of its file that have no virtual node, quoted from the extender itself."""
    client: Any = SimpleNamespace(cluster="upper", caches=CacheBudget(0, cluster="upper"))
    directory = NodeDirectory(client, Config())
    directory.add(Cluster(name="test", kubeconfig="k"), client)
    labels = {"type": "virtual-kubelet"}
    reason = directory.refusal("192.0.2.2", {"metadata": {"name": "192.0.2.2", "labels": labels}})
    waits = pod(
        status=conditions("PodScheduled", "False", "Unschedulable", f"0/1 nodes are available: 1 {reason}.")
    )
    link = links_of(healthy(pending=[waits]))["knownNodes"]
    assert link.state is State.BROKEN
    assert (
        "the upper cluster has no virtual node of cluster test; virtual nodes without a cluster: 192.0.2.2"
        in link.detail
    )
    assert "nodes: [{name: 192.0.2.2}]" in link.next


def test_the_verdict_of_lower_clusters_counts_reasons():
    """Pods with the same fault together, the first three faults, and the next step of the first."""
    unschedulable = conditions("PodScheduled", "False", "Unschedulable", "0/3 nodes are available")
    refused = conditions("virtual-node.io/Admitted", "False", "ExceededQuota", "quota cpu")
    image = container({"waiting": {"reason": "ImagePullBackOff", "message": "not found"}})
    facts = healthy(
        pending=[
            *(bound(name=f"u{number}", status=unschedulable) for number in range(3)),
            *(bound(name=f"q{number}", status=refused) for number in range(2)),
            bound(name="i", status=image),
            bound(name="web", status={}),
            bound(name="else", status={}),
            pod(name="real", nodeName="real"),
        ],
        events=[_event("FailedMount", "no volume")],
    )
    found = links_of(facts)["lowerVerdict"]
    assert found.state is State.BROKEN
    assert found.detail == (
        "Pod shop/u0, shop/u1, shop/u2: Unschedulable: 0/3 nodes are available; "
        "Pod shop/q0, shop/q1: ExceededQuota: quota cpu; "
        "Pod shop/else, shop/web: Pending; and 1 more"
    )
    assert "virtual-node diagnose pod shop/u0" in found.next
    assert "descheduler" in found.next
    one = links_of(healthy(pending=[bound(status={})], events=[_event("FailedMount", "no volume")]))
    assert one["lowerVerdict"].detail == "Pod shop/web: Pending: FailedMount: no volume"
    assert links_of(healthy(pending=[bound(status={})]))["lowerVerdict"].detail == "Pod shop/web: Pending"


def test_the_status_of_the_lower_pod_wins():
    """With a lower kubeconfig it has what is not yet mirrored."""
    below = {
        "metadata": {"name": "web", "labels": {"virtual-node.io/upper-uid": "uid-web"}},
        "status": {"phase": "Pending", "reason": "NodeLost", "message": "gone"},
    }
    found = links_of(healthy(pending=[bound(status={})], lower=[lower_cluster(pods=[below])]))["lowerVerdict"]
    assert "NodeLost: gone" in found.detail


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("remote error: tls: bad certificate x509", Failure.TLS),
        ("Cannot connect: certificate verify failed: self-signed", Failure.UNTRUSTED),
        ("no endpoints available for service webhook", Failure.NO_ENDPOINTS),
        ("context deadline exceeded", Failure.SILENT),
        ("lookup x: no such host", Failure.NO_NAME),
        ("what", Failure.OTHER),
    ],
)
def test_kinds_of_failures_are_distinguished(text: str, kind: Failure):
    """In messages of Go and aiohttp."""
    assert failure(text) is kind
