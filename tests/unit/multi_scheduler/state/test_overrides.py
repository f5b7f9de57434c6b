"""The fit agent judges the pod as the lower cluster's overrides change it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from clusterset.admission import Admitted, ClusterRules
from clusterset.config import KNOWN_CONTROLLERS, Cluster
from clusterset.model.overrides import Override
from clusterset.model.policy.config import ImageRules, Policy
from controller_runtime.apimachinery.decoding import convert
from controller_runtime.apimachinery.translation_budget import TranslationBudget
from controller_runtime.errors import ConfigError
from multi_scheduler.config import parse
from multi_scheduler.state.admission import Admission, AdmissionGate
from multi_scheduler.state.cluster.pod_requirements import demand
from multi_scheduler.virtual_node import VirtualNode
from virtual_node.translate.base.ownership import Owner
from virtual_node.translate.base.view import PodOptions
from virtual_node.translate.pods import lower_pod

POLICY = Policy(images=ImageRules(allow=["docker.io/*"]))
OVERRIDES: dict[str, dict[str, Any]] = {
    "images": {"images": [{"from": "docker.io/", "to": "m.example/"}]},
    "resources": {
        "patch": {"spec": {"containers": [{"name": "*", "resources": {"requests": {"cpu": "3"}}}]}}
    },
    "node selector": {"patch": {"spec": {"nodeSelector": {"pool": "a", "disk": None}}}},
    "added tolerations": {"tolerations": [{"key": "spot", "operator": "Exists"}]},
    "replaced tolerations": {"patch": {"spec": {"tolerations": [{"key": "only"}]}}},
    "every taint": {"tolerations": [{"operator": "Exists"}]},
}
SELECTOR = {"nodeSelector": {"disk": "ssd"}, "tolerations": [{"key": "own", "operator": "Exists"}]}


def _pod(selector: dict[str, Any] | None) -> dict[str, Any]:
    annotations = {} if selector is None else {"clusterSelector": json.dumps(selector)}
    return {
        "metadata": {
            "name": "web",
            "namespace": "shop",
            "uid": "u",
            "labels": {"app": "web"},
            "annotations": annotations,
        },
        "spec": {
            "nodeName": "vn-a",
            "nodeSelector": {"type": "virtual-kubelet"},
            "tolerations": [{"key": "virtual-kubelet.io/provider", "operator": "Exists"}, {"key": "gpu"}],
            "containers": [{"name": "app", "image": "nginx", "resources": {"requests": {"cpu": "1"}}}],
        },
    }


@pytest.mark.parametrize("selector", [None, SELECTOR])
@pytest.mark.parametrize("pool", [{}, {"zone": "x"}, {"pool": "b"}])
@pytest.mark.parametrize("override", OVERRIDES)
def test_the_demand_is_that_of_the_overridden_pod(override, selector, pool):
    """The same requests, node selector and tolerations as in the lower pod that the virtual node creates."""
    configured = [convert({"name": "o", **OVERRIDES[override]}, Override)]
    pod, node = _pod(selector), VirtualNode("vn-a", "a", {}, pool)
    config = Cluster(name="a", kubeconfig="", policy=POLICY, overrides=configured)
    gated = AdmissionGate(config, Admission(), KNOWN_CONTROLLERS, enforces=True).judge(pod, node)
    if override == "node selector" and pool == {"pool": "b"}:
        assert gated.refusal.startswith(
            "0 nodes of lower cluster a are available: the pod selects nodes with pool=a"
        )
        return
    assert gated.refusal == ""
    rules = ClusterRules(config, controllers=())
    admitted = rules.admit(pod, node)
    assert isinstance(admitted, Admitted)
    options = PodOptions(owner=Owner("c", "vn-a"), policy=rules.policy, overrides=rules.overrides, pool=pool)
    spec = lower_pod.created(pod, options, admitted, TranslationBudget())["spec"]
    wanted = demand(gated.pod)
    assert wanted.requests["cpu"] == (3000 if override == "resources" else 1000)
    for field, none in (("tolerations", []), ("nodeSelector", {}), ("affinity", {})):
        assert wanted.spec[field] == spec.get(field, none)


def test_clusters_with_different_overrides_do_not_share_a_demand():
    """Demands are cached by their key."""
    keys = set()
    for override in OVERRIDES.values():
        configured = [convert({"name": "o", **override}, Override)]
        config = Cluster(name="a", kubeconfig="", overrides=configured)
        gate = AdmissionGate(config, Admission(), KNOWN_CONTROLLERS, enforces=True)
        keys.add(gate.judge(_pod(None), VirtualNode("vn-a", "a", {}, {})).demand_key)
    assert len(keys) == len(OVERRIDES)


def test_a_pod_that_overrides_make_too_large_is_refused():
    """As by the virtual node, so that the scheduler chooses another one."""
    variable = {"name": "A", "value": "x" * 1000}
    change = {"patch": {"spec": {"containers": [{"name": "*", "env": [variable]}]}}}
    config = Cluster(name="a", kubeconfig="", overrides=[convert({"name": "o", **change}, Override)])
    gate = AdmissionGate(config, Admission(), KNOWN_CONTROLLERS, enforces=True)
    pod = _pod(None)
    pod["spec"]["containers"] = [{"name": f"c{number}", "image": "i"} for number in range(4000)]
    refusal = gate.judge(pod, VirtualNode("vn-a", "a", {}, {})).refusal
    assert refusal.startswith("Lower cluster a cannot take the pod: Override o in each container: ")


def test_an_error_names_the_cluster():
    """As in the virtual node."""
    cluster = {"name": "a", "kubeconfig": "k", "overrides": [{"name": "A"}]}
    document = {
        "apiVersion": "virtual-node.io/v1alpha1",
        "kind": "MultiSchedulerConfiguration",
        "clusters": [cluster],
    }
    with pytest.raises(ConfigError, match=r"clusters\[0\]\.overrides\[0\]\.name"):
        parse(json.dumps(document))
