"""Which pods a lower cluster takes: the virtual node and the multi-scheduler ask the same rules."""

from __future__ import annotations

import functools
import json
from random import Random
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from clusterset.admission import Admitted, ClusterRules, LastVerdict, Refusal
from clusterset.config import KNOWN_CONTROLLERS, Cluster, IgnoreConfig
from clusterset.model import names
from clusterset.model.namespace_map import NamespaceConfig
from clusterset.model.policy.config import AnnotationRules, Policy
from clusterset.model.policy.copied_keys import IgnoredKeys, KeyPatterns
from clusterset.model.policy.decision import violations
from controller_runtime.apimachinery.decoding import convert
from controller_runtime.objects import from_dict
from multi_scheduler.state.admission import Admission, AdmissionGate
from multi_scheduler.virtual_node import VirtualNode
from tests import objects
from tests.generated_pods import generate
from tests.unit.clusterset.model.policy.pods import INJECTED
from tests.unit.virtual_node.controllers import cluster as clusters
from tests.unit.virtual_node.controllers.pod_controller_setup import Scene
from virtual_node.config.types import Config
from virtual_node.translate.base.ownership import Owner
from virtual_node.translate.base.view import PodOptions
from virtual_node.translate.pods import lower_pod

CONTROL_PLANE = "node-role.kubernetes.io/control-plane"
CLAIM: dict[str, Any] = {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]}


def _pod(namespace: str = "shop", annotations: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    return objects.pod("p", namespace=namespace, annotations=annotations, node="vn", **spec)


def _refusals(pod: dict[str, Any], config: dict[str, Any], controllers: list[str]) -> tuple[str, str]:
    """Return why the extender rejects a pod, and why the virtual node does not create it; empty: neither does."""
    extender = AdmissionGate(
        Cluster(name="a", kubeconfig="", **config),
        Admission(),
        controllers,
        enforces=True,
    )
    scene = Scene(
        clusters.Cluster("upper"),
        clusters.Cluster("lower"),
        cluster="a",
        enable_controllers=controllers,
        **config,
    )
    options = scene.context.options["vn"]
    node = VirtualNode("vn", "a", options.labels, {})
    refusal = scene.pods.creator._translated(from_dict(pod), options).refusal
    return extender.judge(pod, node).refusal, "" if refusal is None else refusal.reason


@pytest.mark.parametrize(
    ("pod", "config", "controllers", "reason"),
    [
        (_pod(**CLAIM), {}, list(KNOWN_CONTROLLERS), ""),
        (
            _pod(**CLAIM),
            {},
            ["ServiceControllers"],
            (
                "Pods with PersistentVolumeClaims are not mirrored to lower cluster a: add PVControllers to "
                "enableControllers in the virtual node's configuration, or keep this pod off virtual nodes"
            ),
        ),
        (
            _pod("bank"),
            {"namespaces": NamespaceConfig(allowed=["shop"])},
            [],
            "Lower cluster a takes no pods of namespace bank (namespaces.allowed in the virtual node's configuration)",
        ),
        (
            _pod(hostNetwork=True),
            {},
            [],
            (
                "Lower cluster a does not take the pod: hostNamespaces: spec.hostNetwork is true, allowed: none (set by "
                "clusters[a].policy.preset, default baseline)"
            ),
        ),
    ],
    ids=["taken", "claim", "namespace", "policy"],
)
async def test_extender_rejects_a_pod_for_the_reason_of_the_virtual_node(pod, config, controllers, reason):
    """So the extender promises no pod to a cluster that refuses it."""
    assert _refusals(pod, config, controllers) == (reason, reason)


@given(
    st.integers(0, 2**32),
    st.sampled_from(["privileged", "baseline", "restricted"]),
    st.sets(st.sampled_from(KNOWN_CONTROLLERS)),
)
async def test_extender_and_virtual_node_refuse_the_same_pods(seed, preset, controllers):
    """For every pod and configuration, with the same reason."""
    pod = generate(Random(seed))
    pod["metadata"] |= {"namespace": "shop", "uid": "u"}
    pod["spec"]["nodeName"] = "vn"
    extender, virtual_node = _refusals(pod, {"policy": Policy(preset=preset)}, sorted(controllers))
    assert extender == virtual_node


def test_pool_of_the_virtual_node_must_have_the_selected_nodes():
    """Otherwise the pod is unschedulable, not forbidden."""
    rules = ClusterRules(Cluster(name="a", kubeconfig=""), controllers=())
    pod = _pod(annotations={names.ANNOTATION_CLUSTER_SELECTOR: json.dumps({"nodeSelector": {"zone": "x"}})})
    refusal = rules.admit(pod, VirtualNode("vn", "a", {}, {"zone": "y"}))
    assert isinstance(refusal, Refusal)
    assert refusal.is_unschedulable
    assert "virtual node vn stands for those with zone=y only" in refusal.reason
    admitted = rules.admit(pod, VirtualNode("vn", "a", {}, {"zone": "x", "disk": "ssd"}))
    assert isinstance(admitted, Admitted)
    assert admitted.pod["spec"]["nodeSelector"] == {"zone": "x", "disk": "ssd"}
    assert admitted.requested["nodeSelector"] == {"zone": "x"}


def test_node_selector_of_the_upper_pod_chooses_the_virtual_node_only():
    """Lower nodes have other labels."""
    rules = ClusterRules(Cluster(name="a", kubeconfig=""), controllers=())
    admitted = rules.admit(_pod(nodeSelector={names.LABEL_HOSTNAME: "vn"}), VirtualNode("vn", "a", {}, {}))
    assert isinstance(admitted, Admitted)
    assert "nodeSelector" not in admitted.pod["spec"]


def test_verdict_of_an_equal_policy_is_reused(monkeypatch: pytest.MonkeyPatch):
    """For the same pod with the same lower spec; a stricter policy decides by itself."""
    asked: list[Any] = []

    def counted(pod: Any, rules: Any) -> list[Any]:
        asked.append(rules)
        return violations(pod, rules)

    monkeypatch.setattr("clusterset.admission.violations", counted)
    last_verdict = LastVerdict()
    made = functools.partial(ClusterRules, controllers=KNOWN_CONTROLLERS, last_verdict=last_verdict)
    equal = [made(Cluster(name=name, kubeconfig="")) for name in ("a", "b", "c")]
    strict = made(Cluster(name="d", kubeconfig="", policy=Policy(preset="restricted")))
    pod, node = _pod(), VirtualNode("vn", "a", {}, {})
    assert all(isinstance(rules.admit(pod, node), Admitted) for rules in equal)
    assert len(asked) == 1
    assert isinstance(strict.admit(pod, node), Refusal)
    assert len(asked) == 2


_SELECTORS = st.sampled_from(
    [
        None,
        {"nodeSelector": {CONTROL_PLANE: ""}},
        {"nodeSelector": {"disk": "ssd"}, "tolerations": [{"operator": "Exists"}]},
        {"tolerations": [{"key": CONTROL_PLANE, "operator": "Exists"}]},
    ]
)


_EXTRAS = st.tuples(
    st.fixed_dictionaries(
        {},
        optional={
            "priorityClassName": st.sampled_from(["gold", "system-cluster-critical"]),
            "runtimeClassName": st.sampled_from(["gold", "kata"]),
        },
    ),
    st.dictionaries(
        st.sampled_from(
            [
                "iam.amazonaws.com/role",
                "team",
                names.ANNOTATION_LAST_APPLIED,
                names.ANNOTATION_DELETION_COST,
            ]
        ),
        st.sampled_from(["", "a"]),
    ),
    st.sampled_from([{}, {"volume_types": ["emptyDir"]}, {"annotations": AnnotationRules(allow=["team"])}]),
)
"""Fields of the spec, annotations, and rules of the policy."""


@given(
    st.integers(0, 2**32),
    _SELECTORS,
    st.sampled_from(["privileged", "baseline", "restricted"]),
    _EXTRAS,
    st.booleans(),
)
@example(274, None, "privileged", ({}, {}, {"volume_types": ["emptyDir"]}), False)  # an ephemeral volume
@example(
    0,
    None,
    "privileged",
    ({}, {names.ANNOTATION_DELETION_COST: "1"}, {"annotations": AnnotationRules(allow=["team"])}),
    False,
)
def test_translation_of_an_admitted_pod_violates_what_the_policy_was_asked_about(
    seed, selector, preset, extras, with_tokens
):
    """The policy decides about the pod before its references and identity are translated; nothing it forbids is added."""
    pod = generate(Random(seed))
    token = {
        "name": "kube-api-access-x",
        "projected": {"sources": INJECTED},
    }
    fields, annotations, listed = extras
    pod["metadata"]["annotations"] |= annotations
    pod["metadata"] |= {"namespace": "shop", "uid": "12345678-u"}
    pod["spec"] |= {
        "nodeName": "vn-a",
        "tolerations": [{"operator": "Exists"}],
        "volumes": [*pod["spec"].get("volumes", ()), token],
        **fields,
    }
    if selector:
        pod["metadata"]["annotations"]["clusterSelector"] = json.dumps(selector)
    policy = Policy(preset=preset, priority_classes=["gold"], runtime_classes=["gold"], **listed)
    rules = ClusterRules(Cluster(name="a", kubeconfig="", policy=policy), controllers=KNOWN_CONTROLLERS)
    options = PodOptions(owner=Owner("c", "vn-a"), policy=rules.policy, service_accounts=with_tokens)
    admitted = rules.admit(pod, options)
    translated = violations(lower_pod.lower_pod(pod, options), rules.policy.of("shop"))
    assert translated == (list(admitted.violations) if isinstance(admitted, Refusal) else [])


@pytest.mark.parametrize(
    ("ignore", "field"),
    [
        ({}, "labels: metadata.labels[aadpodidbinding]"),
        ({"presets": ["vault"]}, "labels: metadata.labels[aadpodidbinding]"),
        ({"labels": ["aad*"]}, "annotations: metadata.annotations[vault.hashicorp.com/agent-image]"),
        ({"presets": ["vault"], "labels": ["aad*"]}, ""),
    ],
)
def test_keys_that_stay_in_the_upper_cluster_are_not_refused(ignore: dict[str, Any], field: str):
    """The lower pod does not have them. The extender asks the same rules."""
    ignored = Config(ignore=IgnoreConfig(**ignore)).ignored
    pod = _pod(annotations={"vault.hashicorp.com/agent-image": "x", "team": "a"})
    pod["metadata"]["labels"] = {"aadpodidbinding": "x", "team": "a"}
    rules = ClusterRules(Cluster(name="a", kubeconfig=""), controllers=(), ignored=ignored)
    found = rules.admit(pod, VirtualNode("vn", "a", {}, {}))
    reason = found.reason if isinstance(found, Refusal) else ""
    assert field in reason
    assert bool(field) == bool(reason)


@pytest.mark.parametrize("key", ["team", "kueue.x-k8s.io/queue-name", "topology.kubernetes.io/zone"])
def test_spread_by_a_label_that_differs_in_the_lower_cluster_is_left_out(key: str):
    """Overrides change labels, ``ignore`` keeps them, and the lower node gives its zone. Each cluster has its own overrides."""
    constraint = {
        "maxSkew": 1,
        "topologyKey": names.LABEL_HOSTNAME,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {key: "x"}},
    }
    patch = {"metadata": {"labels": {"team": "below"}}}
    changing = convert(
        {"name": "a", "kubeconfig": "f", "overrides": [{"name": "o", "patch": patch}]}, Cluster
    )
    shared = LastVerdict()
    node = VirtualNode("vn", "a", {}, {})
    pod = _pod(topologySpreadConstraints=[constraint])
    found = []
    for cluster in (Cluster(name="b", kubeconfig=""), changing):
        rules = ClusterRules(
            cluster,
            controllers=(),
            ignored=IgnoredKeys(KeyPatterns(("kueue.x-k8s.io/*",))),
            last_verdict=shared,
        )
        admitted = rules.admit(pod, node)
        assert isinstance(admitted, Admitted)
        found.append(bool(admitted.requested.get("topologySpreadConstraints")))
    assert found == [key == "team", False]
