"""An upper pod becomes a lower one, field by field."""

from __future__ import annotations

import copy
import dataclasses
import glob
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterset.model import names
from clusterset.model.pod import api_access
from clusterset.model.policy.config import Policy
from clusterset.model.policy.copied_keys import KeyPatterns
from clusterset.model.policy.rules import PolicySet
from tests.unit.virtual_node.translate.pods.pods import CLUSTER, OPTIONS, upper_pod
from virtual_node.translate.base import metadata
from virtual_node.translate.base.ownership import Owner
from virtual_node.translate.base.view import PodOptions
from virtual_node.translate.pods import dependencies, lower_pod, service_account

HOSTNAME_TERM = {"labelSelector": {"matchLabels": {"app": "a"}}, "topologyKey": "kubernetes.io/hostname"}


ZONE_TERM = {**HOSTNAME_TERM, "topologyKey": "topology.kubernetes.io/zone"}


def test_translation_never_changes_its_input():
    pod = upper_pod()
    before = copy.deepcopy(pod)
    lower_pod.lower_pod(pod, OPTIONS)
    assert pod == before


def test_identity_fields_are_cleared_and_ownership_is_labelled():
    """Only name, namespace, labels and annotations are kept; the labels name the upper pod."""
    metadata = lower_pod.lower_pod(upper_pod(), OPTIONS)["metadata"]
    assert set(metadata) == {"name", "namespace", "labels", "annotations"}
    assert metadata["labels"] == {
        "app": "web",
        "virtual-pod": "true",
        "virtual-node.io/upper-cluster": CLUSTER,
        "virtual-node.io/upper-uid": "11111111-2222-3333-4444-555555555555",
        "virtual-node.io/node": "vn",
    }
    assert metadata["annotations"]["note"] == "kept"
    assert json.loads(metadata["annotations"]["tripped-labels"]) == {"batch.io/group": "g1"}
    assert "kubectl.kubernetes.io/last-applied-configuration" not in metadata["annotations"]


def test_deletion_costs_stay_in_the_upper_cluster():
    """A changed cost causes no write in the lower cluster, but its user still sees it in the pod."""
    field = f"metadata.annotations['{names.ANNOTATION_DELETION_COST}']"
    pod = upper_pod()
    pod["spec"]["containers"][0]["env"] = [{"name": "C", "valueFrom": {"fieldRef": {"fieldPath": field}}}]
    pod["metadata"]["annotations"] |= {
        names.ANNOTATION_DELETION_COST: "7",
        names.ANNOTATION_DELETION_COST_WRITTEN: "7",
    }
    lower = lower_pod.lower_pod(pod, OPTIONS)
    assert lower["spec"]["containers"][0]["env"] == [{"name": "C", "value": "7"}]
    pod["metadata"]["annotations"][names.ANNOTATION_DELETION_COST] = "8"
    assert lower_pod.lower_pod(pod, OPTIONS)["metadata"] == lower["metadata"]


def test_reserved_keys_of_users_are_not_copied():
    """On a lower pod such keys are the virtual node's."""
    pod = upper_pod()
    forged = {
        "virtual-node.io/made-for": "another/pod/of/theirs",
        "virtual-node.io/binder-of": "x",
        "always.virtual-node.io/vn": "true",
    }
    pod["metadata"]["labels"] |= forged
    pod["metadata"]["annotations"] |= forged
    metadata = lower_pod.lower_pod(pod, OPTIONS)["metadata"]
    uid = "11111111-2222-3333-4444-555555555555"
    assert metadata["annotations"]["virtual-node.io/made-for"] == f"{CLUSTER}/shop/web-0/{uid}"
    assert not {"virtual-node.io/binder-of", "always.virtual-node.io/vn"} & metadata["annotations"].keys()
    assert not forged.keys() & metadata["labels"].keys()


@pytest.mark.parametrize(
    "field",
    [
        "nodeName",
        "nodeSelector",
        "schedulerName",
        "priority",
        "preemptionPolicy",
        "readinessGates",
        "serviceAccountName",
    ],
)
def test_fields_for_the_upper_cluster_are_removed(field):
    """The upper node, scheduling, priority, gates and account are meaningless in the lower cluster."""
    assert field not in lower_pod.lower_pod(upper_pod(), OPTIONS)["spec"]


def test_unknown_fields_are_copied():
    """Such as fields of a newer Kubernetes."""
    assert lower_pod.lower_pod(upper_pod(), OPTIONS)["spec"]["futureField"] == {"kept": True}


def test_without_cluster_selector_users_tolerations_are_copied():
    """Except that of the virtual node's own taint."""
    spec = lower_pod.lower_pod(upper_pod(), OPTIONS)["spec"]
    assert spec["tolerations"] == [{"key": "gpu", "operator": "Exists"}]
    assert "affinity" not in spec


def test_cluster_selector_is_restored_exactly():
    """The webhook's annotation has the lower pod's scheduling fields."""
    selector = {
        "nodeSelector": {"disk": "ssd"},
        "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}]}},
        "tolerations": [{"key": "spot", "operator": "Exists"}],
    }
    pod = upper_pod(affinity={"nodeAffinity": {"required": "above"}, "podAntiAffinity": {}})
    pod["metadata"]["annotations"]["clusterSelector"] = json.dumps(selector)
    spec = lower_pod.lower_pod(pod, OPTIONS)["spec"]
    assert spec["nodeSelector"] == selector["nodeSelector"]
    assert spec["affinity"] == selector["affinity"]
    assert spec["tolerations"] == selector["tolerations"]


@pytest.mark.parametrize(
    ("name", "keys", "expected"),
    [
        ("lower-1.example", None, ["lower-1.example"]),
        ("lower-1", ["metadata.*"], ["lower-1"]),
        ("lower-1", ["disk"], None),  # the policy does not let users choose nodes by name
        ("Lower_1", None, None),
        ("a" * 254, None, None),
        ("a,b", None, None),
        ("", None, None),
    ],
)
def test_preferred_node_is_added_to_preferences(name, keys, expected):
    """Only as a preference, beside those of the user."""
    kind = "preferredDuringSchedulingIgnoredDuringExecution"
    own = {"weight": 1, "preference": {"matchExpressions": [{"key": "disk", "operator": "Exists"}]}}
    pod = upper_pod()
    pod["metadata"]["annotations"] |= {
        "virtual-node.io/preferred-node": name,
        "clusterSelector": json.dumps({"affinity": {"nodeAffinity": {kind: [own]}}}),
    }
    options = dataclasses.replace(OPTIONS, policy=PolicySet(Policy(node_selector_keys=keys)))
    added = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": expected}]}
    preferences = [own, {"weight": 100, "preference": added}] if expected else [own]
    lower = lower_pod.lower_pod(pod, options)
    assert lower["spec"]["affinity"] == {"nodeAffinity": {kind: preferences}}
    assert "virtual-node.io/preferred-node" not in lower["metadata"]["annotations"]


def test_spreading_over_nodes_is_copied_over_zones_is_not():
    """Replicas that must not share an upper node must not share a lower one; upper zones are meaningless there."""
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    pod = upper_pod(
        affinity={"podAntiAffinity": {required: [HOSTNAME_TERM, ZONE_TERM]}},
        topologySpreadConstraints=[{"topologyKey": "kubernetes.io/hostname"}, {"topologyKey": "zone"}],
    )
    spec = lower_pod.lower_pod(pod, OPTIONS)["spec"]
    (term,) = spec["affinity"]["podAntiAffinity"][required]
    assert term["topologyKey"] == "kubernetes.io/hostname"
    assert term["labelSelector"]["matchLabels"] == {"app": "a"}
    assert spec["topologySpreadConstraints"] == [{"topologyKey": "kubernetes.io/hostname"}]


def test_environment_of_upper_values_becomes_literal():
    """Uid and node name are the upper pod's; values that only the lower kubelet has stay references."""
    env = lower_pod.lower_pod(upper_pod(), OPTIONS)["spec"]["containers"][0]["env"]
    assert env[0] == {"name": "UID", "value": "11111111-2222-3333-4444-555555555555"}
    assert env[1] == {"name": "NODE", "value": "vn"}
    assert env[2]["valueFrom"]["fieldRef"]["fieldPath"] == "status.podIP"


def test_token_volume_uses_our_secret_and_the_upper_ca():
    """The token is in a Secret of the virtual node, the CA in the copy of the upper cluster's."""
    spec = lower_pod.lower_pod(upper_pod(), OPTIONS)["spec"]
    sources = spec["volumes"][0]["projected"]["sources"]
    assert sources[0] == {
        "secret": {"name": "web-0-token-11111111", "items": [{"key": "token-0", "path": "token"}]}
    }
    assert sources[1]["configMap"]["name"] == service_account.root_ca_name(CLUSTER)
    assert spec["automountServiceAccountToken"] is False
    (request,) = service_account.token_requests(upper_pod())
    assert (request.audience, request.expiration_seconds, request.key) == ("", 3607, "token-0")


def test_a_shared_token_is_of_one_account_audience_lifetime_namespace_and_node():
    """Pods that differ in none of these share a Secret; only the pods of its account may use it as a token volume."""

    def volume_of(**changed: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        pod = json.loads(json.dumps(upper_pod()))
        pod["metadata"] |= {"uid": changed.pop("uid", "u"), "namespace": changed.pop("namespace", "shop")}
        pod["spec"]["serviceAccountName"] = changed.pop("account", "robot")
        options = PodOptions(owner=Owner(CLUSTER, changed.pop("node", "vn")), shared_tokens=True)
        pod["spec"]["volumes"][0]["projected"]["sources"][0]["serviceAccountToken"] |= changed
        lower = lower_pod.lower_pod(pod, options)
        return lower, lower["spec"]["volumes"][0]

    lower, volume = volume_of()
    assert volume == volume_of(uid="another")[1]
    assert api_access.is_injected(volume, lower)
    changes = (
        {"account": "other"}, {"audience": "vault"}, {"expirationSeconds": 600}, {"namespace": "crm"}, {"node": "vn-2"},
    )  # fmt: skip
    for change in changes:
        other, different = volume_of(**change)
        assert different != volume
        assert api_access.is_injected(different, other) is ("audience" not in change)
    forged = json.loads(json.dumps(volume).replace("robot-3607", "admin-3607"))
    assert not api_access.is_injected(forged, lower)


def test_without_upper_identities_the_lower_cluster_injects_its_own():
    """--enable-serviceaccount=false: the injected volume and its mounts are removed."""
    options = PodOptions(owner=Owner(CLUSTER, "vn"), service_accounts=False)
    spec = lower_pod.lower_pod(upper_pod(), options)["spec"]
    assert spec["volumes"] == []
    assert spec["containers"][0]["volumeMounts"] == []
    assert "automountServiceAccountToken" not in spec


@given(
    st.dictionaries(st.text(min_size=1), st.text(), max_size=6),
    st.lists(st.text(min_size=1), max_size=4),
)
def test_removed_labels_are_recorded(found, ignored):
    """The remaining labels and the annotation together have all labels."""
    tripped = metadata.trip(found, KeyPatterns(tuple(map(glob.escape, ignored))))
    rest = {key: value for key, value in found.items() if key not in tripped}
    assert rest | json.loads(metadata.render_tripped(tripped)) == found
    assert not {*ignored} & {*rest}


def test_dependencies_are_found_in_all_fields():
    """Each object is returned once, as mandatory if one reference is, and the token volume's CA is left out."""
    pod = upper_pod(
        imagePullSecrets=[{"name": "pull"}],
        initContainers=[{"name": "i", "envFrom": [{"configMapRef": {"name": "both", "optional": True}}]}],
    )
    pod["spec"]["containers"][0]["env"].append(
        {"name": "X", "valueFrom": {"configMapKeyRef": {"name": "both", "key": "k"}}}
    )
    pod["spec"]["volumes"] += [
        {"name": "s", "secret": {"secretName": "mounted"}},
        {"name": "c", "csi": {"driver": "d", "nodePublishSecretRef": {"name": "publish"}}},
        {"name": "r", "rbd": {"secretRef": None}},
        {"name": "p", "projected": {"sources": [{"configMap": {"name": "projected", "optional": True}}]}},
    ]
    found = {(need.kind, need.name): need.optional for need in dependencies.dependencies(pod)}
    assert found == {
        ("ConfigMap", "both"): False,
        ("Secret", "mounted"): False,
        ("Secret", "publish"): False,
        ("ConfigMap", "projected"): True,
        ("Secret", "pull"): True,
    }
