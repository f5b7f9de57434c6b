"""The health model: every fault is found once, with its cause and what to do next."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from clusterset.model import names
from clusterset.model.moving import silence as silences
from clusterset.model.moving.silence import Silence
from tests.unit.virtual_node.examine.health_objects import (
    NOW,
    condition,
    healthy,
    lease,
    node,
    pod,
    swarm,
    waits,
)
from virtual_node.examine.codes import PODS, SWARMS, Code, Severity
from virtual_node.examine.engine import HEALTH, RULES
from virtual_node.examine.facts import COMPONENTS, ClusterState
from virtual_node.examine.health import Verdict
from virtual_node.examine.health import health as examine
from virtual_node.examine.leases import Report
from virtual_node.examine.objects import one_line
from virtual_node.examine.rules.pods import swarm_state
from virtual_node.examine.snapshot import Snapshot

UNREACHABLE = condition(
    "Ready", "False", "LowerClusterUnreachable", "Lower cluster a does not answer: refused"
)
UNSCHEDULED = condition("PodScheduled", "False", "Unschedulable", "0/2 nodes are available")
UNASSIGNED = condition("Assigned", "False", "NoWorkers", "3 jobs have no worker: NoWorkers", age=1)
CRASH = {"terminated": {"exitCode": 3, "reason": "Error"}}


def on_node(*pods: dict[str, Any]) -> Snapshot:
    """Return facts with these pods on the virtual node."""
    return healthy(bound=[{**one, "spec": {**one["spec"], "nodeName": "vn-a"}} for one in pods])


def without_node(*pods: dict[str, Any]) -> Snapshot:
    """Return facts with these pods and no node for them."""
    return healthy(waiting=pods)


LABEL = {"virtual-pod": "true"}
FAULTS = {
    "a lower cluster that the process cannot reach": (
        healthy(clusters=[ClusterState(name="a", reachable=False, error="refused")]),
        (Code.CLUSTER_LOST, "Cluster a", "refused"),
    ),
    "a lower cluster that its virtual node reports as lost": (
        healthy(nodes=[node(ready=UNREACHABLE)]),
        (Code.CLUSTER_LOST, "Cluster a", "does not answer"),
    ),
    "a lower cluster that both report": (
        healthy(
            nodes=[node(ready=UNREACHABLE)],
            clusters=[ClusterState(name="a", reachable=False, error="refused")],
        ),
        (Code.CLUSTER_LOST, "Cluster a", "refused"),
    ),
    "a tunnel without an agent": (
        healthy(clusters=[ClusterState(name="a", reachable=False, error="the proxy https://p:8090 answered 500: no agent available")]),
        (Code.CLUSTER_LOST, "Cluster a", "no agent available"),
    ),
    "a kubeconfig that cannot be used": (
        healthy(clusters=[ClusterState(name="b", failed=True, error="no such file", nodes=["vn-b"])]),
        (Code.CLUSTER_FAILED, "Cluster b", "no such file"),
    ),
    "a rejected configuration": (
        healthy(rejected={"": "unknown field lables"}),
        (Code.CONFIGURATION_REJECTED, "Configuration", "lables"),
    ),
    "a rejected kubeconfig": (
        healthy(rejected={"a": "no current context"}),
        (Code.CONFIGURATION_REJECTED, "Cluster a", "current context"),
    ),
    "no lower cluster at all": (
        healthy(nodes=[], leases={}),
        (Code.NO_LOWER_CLUSTER, "Installation", "no lower cluster is configured"),
    ),
    "a configured virtual node that is not registered": (
        healthy(clusters=[ClusterState(name="a", reachable=True, nodes=["vn-a", "vn-2"])]),
        (Code.NODE_MISSING, "Node vn-2", "not registered"),
    ),
    "an old Lease": (
        healthy(leases={"vn-a": lease(300)}),
        (Code.NODE_SILENT, "Node vn-a", "300 s ago"),
    ),
    "no Lease": (healthy(leases={}), (Code.NODE_SILENT, "Node vn-a", "no Lease")),
    "a node that is not Ready": (
        healthy(nodes=[node(ready=condition("Ready", "False", "NoReadyLowerNodes", "None of the 2 nodes"))]),
        (Code.NODE_NOT_READY, "Node vn-a", "None of the 2 nodes"),
    ),
    "a node without conditions": (
        healthy(nodes=[{**node(), "status": {}}]),
        (Code.NODE_NOT_READY, "Node vn-a", "no reason given"),
    ),
    "a stale-cluster taint that stays": (
        healthy(nodes=[node(taints=[{"key": "virtual-node.io/stale-cluster", "effect": "NoSchedule"}])]),
        (Code.NODE_CLOSED, "Node vn-a", "descheduler"),
    ),
    "cordoned lower nodes only": (
        healthy(nodes=[node(ready=condition("Ready", "True", "LowerNodesCordoned", "All Ready nodes are cordoned"))]),
        (Code.NODE_CLOSED, "Node vn-a", "All Ready nodes are cordoned"),
    ),
    "cordoned nodes only": (healthy(nodes=[node(unschedulable=True)]), (Code.NODE_CLOSED, "Node vn-a", "cordoned")),
    "an API server's certificate that ends soon": (
        healthy(expiring={"a": "the serving certificate of its API server ends on 2026-01-04"}),
        (Code.CERTIFICATE_EXPIRES, "Cluster a", "2026-01-04"),
    ),
    "a replica that crashes": (
        healthy(components=[pod("vn-0", phase="Running", containers=[waits("CrashLoopBackOff", lastState=CRASH)])]),
        (Code.REPLICA_FAILING, "Pod shop/vn-0", "exit code 3"),
    ),
    "a replica that cannot mount a Secret": (
        healthy(
            components=[pod("vn-0", containers=[waits("ContainerCreating")], nodeName="real")],
            words={"shop/vn-0": 'MountVolume.SetUp failed: secret "virtual-node-tokoy" not found'},
        ),
        (Code.REPLICA_FAILING, "Pod shop/vn-0", "virtual-node-tokoy"),
    ),
    "a replica without a node": (
        healthy(components=[pod("vn-0", conditions=[UNSCHEDULED])]),
        (Code.REPLICA_FAILING, "Pod shop/vn-0", "0/2 nodes"),
    ),
    "a replica that is not Ready": (
        healthy(components=[pod("vn-0", phase="Running", nodeName="real", conditions=[condition("Ready", "False")])]),
        (Code.REPLICA_FAILING, "Pod shop/vn-0", "is not Ready"),
    ),
    "a labelled pod without a node": (
        without_node(pod(labels=LABEL, conditions=[UNSCHEDULED])),
        (Code.POD_UNSCHEDULED, "Pod shop/web", "0/2 nodes"),
    ),
    "a pod that selects virtual nodes and has no node": (
        without_node(pod(nodeSelector={"type": "virtual-kubelet"}, conditions=[UNSCHEDULED])),
        (Code.POD_UNSCHEDULED, "Pod shop/web", "0/2 nodes"),
    ),
    "a pod that no scheduler has looked at": (
        without_node(pod(labels=LABEL, schedulerName="nobody")),
        (Code.POD_UNSCHEDULED, "Pod shop/web", "nobody has not looked"),
    ),
    "a pod that the lower scheduler has no node for": (
        on_node(pod(conditions=[UNSCHEDULED])),
        (Code.POD_UNSCHEDULABLE, "Pod shop/web", "0/2 nodes"),
    ),
    "a pod that the lower cluster refuses": (
        on_node(pod(conditions=[condition("virtual-node.io/Admitted", "False", "PodSecurity", "privileged")])),
        (Code.POD_REFUSED, "Pod shop/web", "privileged"),
    ),
    "a pod that references what does not exist": (
        on_node(pod(containers=[waits("CreateContainerConfigError", 'secret "x" not found')])),
        (Code.POD_FAILING, "Pod shop/web", '"x" not found'),
    ),
    "a pod that crashes": (
        on_node(pod(phase="Running", containers=[waits("CrashLoopBackOff", lastState=CRASH)])),
        (Code.POD_FAILING, "Pod shop/web", "exit code 3"),
    ),
    "a pod that does not start": (
        on_node(pod(containers=[waits("ContainerCreating")])),
        (Code.POD_NOT_STARTED, "Pod shop/web", "ContainerCreating"),
    ),
    **{
        f"a pod that waits: {code}": (
            on_node(pod(containers=[waits(code, "for node n1 of lower cluster a")])),
            (code, "Pod shop/web", "for node n1 of lower cluster a"),
        )
        for code in (Code.WAITING_FOR_PREDECESSOR, Code.WAITING_FOR_COPIES, Code.LOWER_POD_LOST_BACK_OFF)
    },
    "a Swarm with several conditions": (
        healthy(swarms=[swarm("s", UNASSIGNED, condition("Degraded", "True", "JobsFailing", "1 job cannot be started"))]),
        (Code.SWARM_DEGRADED, "Swarm shop/s", "1 job cannot be started"),
    ),
    "a Swarm without workers": (
        healthy(swarms=[swarm("s", UNASSIGNED)]), (Code.SWARM_UNASSIGNED, "Swarm shop/s", "NoWorkers"),
    ),
    "a Swarm whose hand-over does not end": (
        healthy(swarms=[swarm("s", condition("Converged", "False", "HandingOver", "waiting for 1 workers", age=301))]),
        (Code.SWARM_NOT_CONVERGED, "Swarm shop/s", "waiting for 1 workers"),
    ),
    "a Swarm with a time that is not valid": (
        healthy(swarms=[swarm("s", {**condition("Converged", "False", "HandingOver"), "lastTransitionTime": "2026-01-01t00:00:00z"})]),
        (Code.SWARM_NOT_CONVERGED, "Swarm shop/s", "HandingOver"),
    ),
}  # fmt: skip


def test_a_swarm_that_works_is_no_fault() -> None:
    """Also during a hand-over of up to five minutes, and before its controller has written conditions."""
    swarms = [
        swarm("new"),
        swarm("moves", condition("Converged", "False", "HandingOver", "waiting", age=299)),
        swarm(
            "works",
            *(condition(kind, "True") for kind in ("Assigned", "Converged")),
            condition("Degraded", "False"),
        ),
    ]
    assert examine(healthy(swarms=swarms)).verdict is Verdict.HEALTHY
    assert examine(healthy(swarms=None)).verdict is Verdict.UNKNOWN
    assert list(map(swarm_state, swarms)) == ["unknown", "handing over", "converged"]
    assert swarm_state(swarm("refused", condition("Converged", "Unknown"))) == "unknown"


@pytest.mark.parametrize("case", FAULTS)
def test_reports_each_fault_once(case: str) -> None:
    """Exactly one fault, of the right kind and object, with its cause in one line and a next step."""
    facts, (kind, subject, said) = FAULTS[case]
    health = examine(facts)
    assert [(one.code, one.subject) for one in health.faults] == [(kind, subject)]
    fault = health.faults[0]
    assert said in fault.cause
    assert "\n" not in fault.cause
    assert fault.next_step
    assert health.verdict is Verdict.FAULTY
    assert subject in health.sentence
    assert health.counts()[kind] == 1


def test_every_kind_has_a_case() -> None:
    assert {kind for _, (kind, *_) in FAULTS.values()} == {
        code for rule in RULES if rule.level in HEALTH for code in rule.codes
    }


def test_only_pods_of_users_are_warnings() -> None:
    """Pods, cordoned nodes and future expiries are warnings; what keeps the installation from working is an error."""
    for case, (facts, (kind, *_)) in FAULTS.items():
        wanted = (
            Severity.WARNING
            if kind in {*PODS, *SWARMS, Code.NODE_CLOSED, Code.CERTIFICATE_EXPIRES}
            else Severity.ERROR
        )
        assert examine(facts).faults[0].severity is wanted, case


PASSING = {
    "a healthy installation": healthy(),
    "a node that was registered a moment ago": healthy(
        nodes=[{**node(), "metadata": {**node()["metadata"], "creationTimestamp": "2025-12-31T23:59:50Z"}}],
        leases={},
    ),
    "a replica that starts": healthy(components=[pod("vn-0", age=5, containers=[waits("ContainerCreating")])]),
    "a replica that is deleted": healthy(
        components=[{**pod("vn-0"), "metadata": {**pod("vn-0")["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}}]
    ),
    "a finished hook": healthy(components=[pod("test", phase="Failed", restartPolicy="Never")]),
    "a pod that was created a moment ago": without_node(pod(labels=LABEL, age=5)),
    "a pod with scheduling gates": without_node(pod(labels=LABEL, schedulingGates=[{"name": "g"}])),
    "a pod for real nodes": without_node(pod(conditions=[UNSCHEDULED])),
    "a DaemonSet's pod that tolerates everything": without_node(
        pod(conditions=[UNSCHEDULED], tolerations=[{"operator": "Exists"}])
    ),
    "a first failed pull": on_node(pod(age=5, containers=[waits("ErrImagePull", "no such host")])),
    "a large image": on_node(pod(age=90, containers=[waits("ContainerCreating")])),
    "a Job's failed pod": on_node(pod(phase="Failed", containers=[waits("Error")])),
    "a pod that runs": on_node(pod(phase="Running", containers=[{"name": "c", "state": {"running": {}}}])),
}  # fmt: skip


@pytest.mark.parametrize("case", PASSING)
def test_reports_no_fault(case: str) -> None:
    """Pods that start, end, have finished or are not for virtual nodes are healthy."""
    health = examine(PASSING[case])
    assert (list(health.faults), health.verdict) == ([], Verdict.HEALTHY)


UNREAD = {
    "nodes": "nodes",
    "leases": "leases",
    "bound": "signs",
    "waiting": "waiting",
    "components": "replicas",
}


@pytest.mark.parametrize("field", UNREAD)
def test_unread_facts_are_not_healthy(field: str) -> None:
    """The verdict is unknown, and names what could not be read."""
    health = examine(healthy(**{field: None}))
    assert (list(health.faults), health.verdict) == ([], Verdict.UNKNOWN)
    assert UNREAD[field] in health.unknown
    assert UNREAD[field] in health.sentence


def test_pods_with_the_same_fault_are_one_fault() -> None:
    """Its first names are listed and the rest is counted."""
    pods = [pod(f"web-{number}", conditions=[UNSCHEDULED]) for number in range(5)]
    pods.append(pod("odd", containers=[waits("ErrImagePull", "no such host")]))
    health = examine(on_node(*pods))
    assert [fault.count for fault in health.faults] == [5, 1]
    assert health.faults[0].subject == "Pod shop/web-0, shop/web-1, shop/web-2 and 2 more"
    assert health.counts()[Code.POD_UNSCHEDULABLE] == 5


def test_pods_that_wait_for_different_causes_are_different_faults() -> None:
    """A scheduler's reason is always Unschedulable; only its message has the cause."""
    messages = [
        "0/3 nodes are available: 3 Insufficient cpu.",
        "0/3 nodes are available: 3 node(s) had untolerated taint.",
    ]
    pods = [
        pod(
            f"web-{number}",
            conditions=[condition("PodScheduled", "False", "Unschedulable", messages[number // 2])],
        )
        for number in range(3)
    ]
    health = examine(on_node(*pods))
    assert [(fault.count, fault.cause) for fault in health.faults] == [
        (2, f"Unschedulable: {messages[0]}"),
        (1, f"Unschedulable: {messages[1]}"),
    ]


def test_causes_come_before_effects() -> None:
    """The crashing replica comes before its node, and errors before warnings."""
    facts = healthy(
        components=FAULTS["a replica that crashes"][0].upper[COMPONENTS],
        leases={"vn-a": lease(300)},
        waiting=[pod(labels=LABEL, conditions=[UNSCHEDULED])],
    )
    found = [fault.code for fault in examine(facts).faults]
    assert found == [Code.REPLICA_FAILING, Code.NODE_SILENT, Code.POD_UNSCHEDULED]


def test_no_cluster_leads_to_the_command_that_adds_one() -> None:
    (fault,) = examine(healthy(nodes=[], leases={})).faults
    assert fault.next_step == "virtual-node lower-cluster join NAME --client-kubeconfig FILE"


def _reporting(text: str, *, age: float = 3) -> dict[str, Any]:
    return {**lease(age), "metadata": {"annotations": {"virtual-node.io/faults": text}}}


def test_reads_the_report_of_a_process_on_its_lease() -> None:
    """A rejected file and a stopped cluster, once, for any number of Leases."""
    text = Report({"": "unknown field lables"}, {"b": "no such file"}).text()
    leases = {"vn-a": _reporting(text), "vn-2": _reporting(text)}
    health = examine(healthy(nodes=[node(), node("vn-2")], leases=leases))
    assert [(fault.code, fault.subject) for fault in health.faults] == [
        (Code.CONFIGURATION_REJECTED, "Configuration"),
        (Code.CLUSTER_FAILED, "Cluster b"),
    ]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"rejected": 1}', '{"failed": {"b": 2}}', '{"other": {}}'])
def test_an_annotation_that_is_no_report_is_ignored(text: str) -> None:
    """Another release may write something else there."""
    assert not examine(healthy(leases={"vn-a": _reporting(text)})).faults


def test_reports_of_ended_processes_and_of_real_nodes_do_not_count() -> None:
    """The first are outdated; the second are not virtual nodes."""
    text = Report({"": "old"}).text()
    found = examine(healthy(leases={"vn-a": _reporting(text, age=300)})).faults
    assert [fault.code for fault in found] == [Code.NODE_SILENT]
    assert not examine(healthy(leases={"vn-a": lease(), "real": _reporting(text)})).faults


def test_data_is_what_the_page_and_json_show() -> None:
    """Names in camelCase without our attribute names, everything of it plain data."""
    data = examine(FAULTS["an old Lease"][0]).data()
    assert data["verdict"] == "faulty"
    assert data["faults"][0] == {
        "kind": "NodeSilent",
        "severity": "error",
        "objects": ["Node vn-a"],
        "subject": "Node vn-a",
        "cause": data["faults"][0]["cause"],
        "next": "virtual-node diagnose node vn-a",
        "cluster": "a",
        "node": "vn-a",
        "count": 1,
        "silence": None,
    }


def counted_down(name: str = "vn-a", *, silent: float = 42, **fields: Any) -> dict[str, Any]:
    """Return a node for which a descheduler moves running pods 300 s after its silence began."""
    since = NOW - timedelta(seconds=silent)
    found = Silence(since=since, running_pods_move_at=since + timedelta(seconds=300))
    body = node(name, taints=[{"key": names.TAINT_STALE_CLUSTER, "effect": "NoSchedule"}], **fields)
    body["metadata"]["annotations"] = {names.ANNOTATION_SILENCE: silences.render(found)}
    return body


UNKNOWN = condition("Ready", "Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status.")
NO_NODES = condition("Ready", "False", "NoReadyLowerNodes", "None of the 2 nodes")
COUNTDOWN = "; silent for 42 s; running pods move in 258 s"
LOST = ClusterState(name="a", reachable=False, error="refused")


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        (healthy(nodes=[counted_down(ready=UNREACHABLE)]), COUNTDOWN),
        (healthy(nodes=[counted_down(ready=UNREACHABLE)], clusters=[LOST]), COUNTDOWN),
        (healthy(nodes=[counted_down(ready=UNKNOWN)], leases={"vn-a": lease(300)}), COUNTDOWN),
        (healthy(nodes=[counted_down()], leases={"vn-a": lease(45)}), COUNTDOWN),
        # The virtual node of the cluster that has been silent for a longer time counts.
        (
            healthy(
                nodes=[counted_down(ready=UNREACHABLE), counted_down("vn-2", silent=10, ready=UNREACHABLE)],
                leases={"vn-a": lease(), "vn-2": lease()},
            ),
            COUNTDOWN,
        ),
        (healthy(nodes=[node(ready=UNREACHABLE)]), ""),  # no descheduler
        (healthy(nodes=[counted_down(ready=NO_NODES)]), ""),  # the cluster answers
        (healthy(clusters=[LOST], nodes=None), ""),
    ],
)
def test_fault_of_silent_cluster_counts_down(facts: Snapshot, text: str) -> None:
    fault = examine(facts).faults[0]
    assert fault.text(NOW).removeprefix(str(fault)) == text
    moment = {"since": "2025-12-31T23:59:18Z", "runningPodsMoveAt": "2026-01-01T00:04:18Z"}
    assert fault.data()["silence"] == (moment if text else None)


def test_every_kind_is_documented() -> None:
    """docs/operate/troubleshooting.md has a row for each kind, with its severity."""
    text = (Path(__file__).parents[4] / "docs/operate/troubleshooting.md").read_text(encoding="utf-8")
    for facts, (kind, *_) in FAULTS.values():
        assert f"| `{kind.value}` | {examine(facts).faults[0].severity.value} |" in text


def test_texts_of_users_contain_no_control_characters():
    """A user who can write the status of a Swarm chooses the text that administrators print on terminals."""
    text = "\x1b]0;title\x07 failed\n\x1b[2J\x9b31mred \u202e é 🙂"
    assert one_line(text) == "]0;title failed [2J 31mred é 🙂"
