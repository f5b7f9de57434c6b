"""The fit agent predicts the virtual node's policy, so that no pod gets a cluster that refuses it."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from clusterset.config import Cluster, VolumeConfig
from clusterset.model.policy.config import Policy, Rules
from controller_runtime.client.limits import CacheBudget
from controller_runtime.errors import ConfigError
from multi_scheduler.agent import AgentContext
from multi_scheduler.config import parse
from multi_scheduler.extender import protocol
from multi_scheduler.extender.extender import Extender, Weighted
from multi_scheduler.virtual_node import VirtualNode
from tests import objects
from tests.unit.multi_scheduler.lower_pods import fit_agent, mark_synced

CONTROL_PLANE = "node-role.kubernetes.io/control-plane"
TAINT = {"key": CONTROL_PLANE, "effect": "NoSchedule"}


class _Directory:
    async def wait(self, _seconds: float) -> bool:
        return True

    def find(self, name: str, _node: Any) -> VirtualNode:
        return VirtualNode(name, name.split("-")[1], {}, {})


class _Clusters:
    """Lower clusters a and b; a has a policy."""

    def __init__(self, policy: Policy | None = None, *, host_paths: tuple[str, ...] = ()) -> None:
        fake: Any = SimpleNamespace(cluster="test", caches=CacheBudget(0, cluster="test"))
        volumes = VolumeConfig(allowed_host_paths=list(host_paths))
        a = Cluster(name="a", kubeconfig="", policy=policy or Policy(), volumes=volumes)
        b = Cluster(name="b", kubeconfig="", policy=Policy(preset="privileged", control_plane=True))
        self.agent = fit_agent(AgentContext("fit", {}, fake, {"a": fake, "b": fake}, {"a": a, "b": b}))
        for cluster in self.agent.state.clusters:
            self.add_node(cluster, cluster)
        mark_synced(self.agent.state)
        directory: Any = _Directory()
        self.extender = Extender([Weighted("fit", self.agent, 1.0)], directory, upper=fake)

    def add_node(self, cluster: str, name: str, *taints: dict[str, str], **labels: str) -> None:
        self.agent.state.clusters[cluster].index.upsert_node(
            {
                "metadata": {"name": name, "labels": labels},
                "spec": {"taints": list(taints)},
                "status": {"allocatable": {"cpu": "16", "pods": "99"}},
            }
        )

    async def filter(self, pod: dict[str, Any], *names: str) -> Any:
        return await self.extender.filter(protocol.Candidates(pod, names or ("vn-a", "vn-b"), None))


@pytest.mark.looptime
async def test_pod_refused_by_policy_gets_another_cluster():
    """The scheduler's Event names rule, field, allowed values, and the setting."""
    answer = await _Clusters().filter(objects.pod(hostNetwork=True))
    assert answer.passing == ["vn-b"]
    assert answer.unresolvable == {
        "vn-a": "Lower cluster a does not take the pod: hostNamespaces: spec.hostNetwork is true, allowed: none "
        "(set by clusters[a].policy.preset, default baseline)"
    }


async def test_policy_applies_to_the_domain_of_a_group():
    """The pod gets its selector when it is bound, and would be refused then."""
    group = {
        "virtual-node.io/pod-group": "train",
        "virtual-node.io/min-members": "1",
        "virtual-node.io/pod-group-topology": "rack",
    }
    clusters = _Clusters(Policy(node_selector_keys=["zone"]))
    admission = clusters.agent.state.clusters["a"].gate
    node = VirtualNode("vn-a", "a", {}, {})
    assert "nodeSelectorKeys" in admission.judge(objects.pod(annotations=group), node).refusal
    allowed = group | {"virtual-node.io/pod-group-topology": "zone"}
    assert not admission.judge(objects.pod(annotations=allowed), node).refusal


@pytest.mark.looptime
@pytest.mark.parametrize(
    ("pod", "rule"),
    [
        (
            objects.pod(annotations={"clusterSelector": json.dumps({"nodeSelector": {CONTROL_PLANE: ""}})}),
            "controlPlane",
        ),
        (
            objects.pod(
                annotations={
                    "clusterSelector": json.dumps({"tolerations": [{**TAINT, "operator": "Exists"}]})
                }
            ),
            "controlPlane",
        ),
        (objects.pod(tolerations=[{"key": CONTROL_PLANE, "operator": "Exists"}]), "controlPlane"),
        (objects.pod(annotations={"virtual-node.io/scheduler-name": "volcano"}), "schedulerNames"),
        (objects.pod(priorityClassName="system-node-critical"), "priorityClasses"),
        (objects.pod(runtimeClassName="kata"), "runtimeClasses"),
        (objects.pod(annotations={"iam.amazonaws.com/role": "admin"}), "annotations"),
        (objects.pod(volumes=[{"name": "v", "hostPath": {"path": "/etc"}}]), "hostPaths"),
    ],
)
async def test_policy_applies_to_the_lower_pod(pod, rule):
    """Annotations become fields of the lower pod."""
    answer = await _Clusters(host_paths=("/var/log",)).filter(pod, "vn-a")
    assert f": {rule}: " in answer.unresolvable["vn-a"]


@pytest.mark.looptime
@pytest.mark.parametrize(
    "pod",
    [
        objects.pod(nodeSelector={CONTROL_PLANE: ""}),
        objects.pod(priorityClassName="gold"),
        objects.pod(schedulerName="virtual-node-scheduler"),
        objects.pod(volumes=[{"name": "v", "hostPath": {"path": "/var/log/pods"}}]),
        objects.pod(tolerations=[{"key": "virtual-kubelet.io/provider", "operator": "Exists"}]),
    ],
)
async def test_policy_ignores_fields_that_are_not_mirrored(pod):
    """Upper selectors, scheduler names and ordinary priority classes."""
    assert (await _Clusters(host_paths=("/var/log",)).filter(pod, "vn-a")).passing == ["vn-a"]


@pytest.mark.looptime
async def test_namespace_override_applies():
    """The override is that of the upper namespace."""
    policy = Policy(namespaces={"sh*": Rules(preset="privileged")})
    assert (await _Clusters(policy).filter(objects.pod(hostNetwork=True), "vn-a")).passing == ["vn-a"]


@pytest.mark.looptime
async def test_tolerating_everything_gives_no_room_on_control_plane_nodes():
    """The virtual node keeps such pods off these nodes."""
    clusters = _Clusters()
    for cluster in ("a", "b"):
        clusters.agent.state.clusters[cluster].index.remove_node(cluster)
        clusters.add_node(cluster, "cp", TAINT, **{CONTROL_PLANE: ""})
    answer = await clusters.filter(objects.pod(tolerations=[{"operator": "Exists"}]))
    assert answer.passing == ["vn-b"], "b allows control-plane nodes"
    assert "0/1 nodes are available" in answer.unresolvable["vn-a"]


@pytest.mark.looptime
async def test_untainted_control_plane_node_takes_ordinary_pods():
    """For example the only node of a small cluster."""
    clusters = _Clusters()
    clusters.agent.state.clusters["a"].index.remove_node("a")
    clusters.add_node("a", "cp", **{CONTROL_PLANE: ""})
    assert (await clusters.filter(objects.pod(), "vn-a")).passing == ["vn-a"]


def test_policy_errors_name_the_cluster():
    """As in the virtual node."""
    text = json.dumps(
        {
            "apiVersion": "virtual-node.io/v1alpha1",
            "kind": "MultiSchedulerConfiguration",
            "clusters": [{"name": "a", "kubeconfig": "k", "policy": {"hostPaths": ["var"]}}],
        }
    )
    with pytest.raises(ConfigError, match=r"clusters\[0\].policy.hostPaths: 'var' is not an absolute path"):
        parse(text)
