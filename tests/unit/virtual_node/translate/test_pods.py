"""An upper pod becomes a lower one, field by field, and a lower status an upper one."""

from __future__ import annotations

import copy
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from virtual_node.translate import (
    dependencies,
    labels,
    own_status,
    pod_down,
    pod_status,
    pod_update,
    service_account,
)
from virtual_node.translate.ownership import Owner

CLUSTER = "0f8e7d6c-upper"
OPTIONS = pod_down.PodOptions(owner=Owner(CLUSTER, "vn"), ignore_labels=("batch.io/group",))
HOSTNAME_TERM = {"labelSelector": {"matchLabels": {"app": "a"}}, "topologyKey": "kubernetes.io/hostname"}
ZONE_TERM = {**HOSTNAME_TERM, "topologyKey": "topology.kubernetes.io/zone"}


def upper_pod(**spec: Any) -> dict[str, Any]:
    """A pod as the API server returns it once it is bound to a virtual node."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "web-0",
            "namespace": "shop",
            "uid": "11111111-2222-3333-4444-555555555555",
            "resourceVersion": "42",
            "generation": 1,
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "generateName": "web-",
            "labels": {"app": "web", "batch.io/group": "g1"},
            "annotations": {"note": "kept", "kubectl.kubernetes.io/last-applied-configuration": "{}"},
            "ownerReferences": [{"kind": "StatefulSet", "name": "web", "uid": "x"}],
            "finalizers": ["example.com/hold"],
            "managedFields": [{}],
        },
        "spec": {
            "nodeName": "vn",
            "nodeSelector": {"type": "virtual-kubelet"},
            "schedulerName": "default-scheduler",
            "priority": 0,
            "preemptionPolicy": "PreemptLowerPriority",
            "serviceAccountName": "shopkeeper",
            "serviceAccount": "shopkeeper",
            "tolerations": [
                {"key": "virtual-kubelet.io/provider", "operator": "Exists"},
                {"key": "gpu", "operator": "Exists"},
            ],
            "readinessGates": [{"conditionType": "lb"}],
            "futureField": {"kept": True},
            "containers": [
                {
                    "name": "main",
                    "image": "web:1",
                    "env": [
                        {"name": "UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
                        {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
                        {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                    ],
                    "volumeMounts": [{"name": "kube-api-access-x", "mountPath": service_account.MOUNT_PATH}],
                }
            ],
            "volumes": [
                {
                    "name": "kube-api-access-x",
                    "projected": {
                        "defaultMode": 420,
                        "sources": [
                            {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
                            {
                                "configMap": {
                                    "name": "kube-root-ca.crt",
                                    "items": [{"key": "ca.crt", "path": "ca.crt"}],
                                }
                            },
                            {
                                "downwardAPI": {
                                    "items": [
                                        {"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}
                                    ]
                                }
                            },
                        ],
                    },
                }
            ],
            **spec,
        },
        "status": {"phase": "Pending", "qosClass": "BestEffort"},
    }


def test_translation_never_changes_its_input():
    """Callers keep their pod as it was."""
    pod = upper_pod()
    before = copy.deepcopy(pod)
    pod_down.lower_pod(pod, OPTIONS)
    assert pod == before


def test_identity_fields_are_cleared_and_ownership_is_marked():
    """Only name, namespace, labels and annotations go down; the labels say whose the pod is."""
    metadata = pod_down.lower_pod(upper_pod(), OPTIONS)["metadata"]
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
def test_what_is_about_the_upper_cluster_stays_there(field):
    """The upper node, scheduling, priority, gates and account mean nothing below."""
    assert field not in pod_down.lower_pod(upper_pod(), OPTIONS)["spec"]


def test_unknown_fields_are_carried():
    """A field newer than this code reaches the lower cluster."""
    assert pod_down.lower_pod(upper_pod(), OPTIONS)["spec"]["futureField"] == {"kept": True}


def test_without_cluster_selector_users_tolerations_go_down():
    """The virtual node's own taint is no business of the lower cluster; the rest is."""
    spec = pod_down.lower_pod(upper_pod(), OPTIONS)["spec"]
    assert spec["tolerations"] == [{"key": "gpu", "operator": "Exists"}]
    assert "affinity" not in spec


def test_cluster_selector_comes_back_exactly():
    """What the webhook moved into the annotation is the lower pod's scheduling."""
    selector = {
        "nodeSelector": {"disk": "ssd"},
        "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}]}},
        "tolerations": [{"key": "spot", "operator": "Exists"}],
    }
    pod = upper_pod(affinity={"nodeAffinity": {"required": "above"}, "podAntiAffinity": {}})
    pod["metadata"]["annotations"]["clusterSelector"] = json.dumps(selector)
    spec = pod_down.lower_pod(pod, OPTIONS)["spec"]
    assert spec["nodeSelector"] == selector["nodeSelector"]
    assert spec["affinity"] == selector["affinity"]
    assert spec["tolerations"] == selector["tolerations"]


def test_spreading_over_single_nodes_is_carried_zones_are_not():
    """Replicas that must not share a node above must not share one below; upper zones mean nothing there."""
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    pod = upper_pod(
        affinity={"podAntiAffinity": {required: [HOSTNAME_TERM, ZONE_TERM]}},
        topologySpreadConstraints=[{"topologyKey": "kubernetes.io/hostname"}, {"topologyKey": "zone"}],
    )
    spec = pod_down.lower_pod(pod, OPTIONS)["spec"]
    assert spec["affinity"] == {"podAntiAffinity": {required: [HOSTNAME_TERM]}}
    assert spec["topologySpreadConstraints"] == [{"topologyKey": "kubernetes.io/hostname"}]


def test_environment_of_upper_values_becomes_literal():
    """Uid and node name are the upper pod's; what only the lower kubelet knows stays a reference."""
    env = pod_down.lower_pod(upper_pod(), OPTIONS)["spec"]["containers"][0]["env"]
    assert env[0] == {"name": "UID", "value": "11111111-2222-3333-4444-555555555555"}
    assert env[1] == {"name": "NODE", "value": "vn"}
    assert env[2]["valueFrom"]["fieldRef"]["fieldPath"] == "status.podIP"


def test_token_volume_reads_our_secret_and_the_upper_ca():
    """The token comes from a Secret of ours, the CA from the copy of the upper cluster's."""
    spec = pod_down.lower_pod(upper_pod(), OPTIONS)["spec"]
    sources = spec["volumes"][0]["projected"]["sources"]
    assert sources[0] == {
        "secret": {"name": "web-0-token-11111111", "items": [{"key": "token-0", "path": "token"}]}
    }
    assert sources[1]["configMap"]["name"] == service_account.root_ca_name(CLUSTER)
    assert spec["automountServiceAccountToken"] is False
    (request,) = service_account.token_requests(upper_pod())
    assert (request.audience, request.expiration_seconds, request.key) == ("", 3607, "token-0")


def test_without_upper_identities_the_lower_cluster_supplies_its_own():
    """--enable-serviceaccount=false: the injected volume and its mounts are gone."""
    options = pod_down.PodOptions(owner=Owner(CLUSTER, "vn"), service_accounts=False)
    spec = pod_down.lower_pod(upper_pod(), options)["spec"]
    assert spec["volumes"] == []
    assert spec["containers"][0]["volumeMounts"] == []
    assert "automountServiceAccountToken" not in spec


@given(
    st.dictionaries(st.text(min_size=1), st.text(), max_size=6),
    st.lists(st.text(min_size=1), max_size=4),
)
def test_tripped_labels_come_back(found, ignored):
    """Taking labels off and putting them back is the identity."""
    carried, tripped = labels.trip(found, ignored)
    assert labels.restore(carried, {"tripped-labels": labels.render(tripped)}) == found


def test_dependencies_are_found_wherever_they_may_be_named():
    """Environment, volumes, projections, pull secrets; once each, mandatory wins, the token volume's CA left out."""
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


# --- updates ----------------------------------------------------------------------------------------


def test_an_unchanged_pod_needs_no_patch():
    """What was created from the same upper pod is what is wanted; additions of others do not count."""
    pod = upper_pod()
    lower = pod_down.lower_pod(pod, OPTIONS)
    lower["metadata"]["labels"]["sidecar.io/injected"] = "yes"
    lower["spec"]["containers"].append({"name": "sidecar", "image": "proxy:1"})
    lower["spec"]["tolerations"].append({"key": "node.kubernetes.io/not-ready", "operator": "Exists"})
    changes = pod_update.pod_patch(lower, pod_down.lower_pod(pod, OPTIONS), pod, OPTIONS)
    assert changes == pod_update.PodChanges()


def test_allowed_changes_become_patches():
    """Image, labels set and removed, added toleration, resize and ephemeral containers each find their way."""
    before = upper_pod()
    lower = pod_down.lower_pod(before, OPTIONS)
    after = upper_pod(
        ephemeralContainers=[{"name": "debug", "image": "tools"}],
        activeDeadlineSeconds=60,
    )
    after["metadata"]["labels"] = {"new": "label"}
    after["spec"]["containers"][0] |= {"image": "web:2", "resources": {"requests": {"cpu": "2"}}}
    after["spec"]["tolerations"].append({"key": "more", "operator": "Exists"})
    changes = pod_update.pod_patch(lower, pod_down.lower_pod(after, OPTIONS), after, OPTIONS)
    patch = changes.metadata_and_spec
    assert patch is not None
    assert patch["metadata"]["labels"] == {"new": "label", "app": None}
    assert patch["spec"]["containers"] == [{"name": "main", "image": "web:2"}]
    assert patch["spec"]["activeDeadlineSeconds"] == 60
    assert [entry["key"] for entry in patch["spec"]["tolerations"]] == ["gpu", "more"]
    assert changes.resize == {
        "spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": "2"}}}]}
    }
    assert changes.ephemeral_containers == {
        "spec": {"ephemeralContainers": [{"name": "debug", "image": "tools"}]}
    }


def test_resources_of_the_whole_pod_are_resized_in_place():
    """KEP-5419: cpu and memory of the pod itself go the way that those of containers go."""
    lower = pod_down.lower_pod(upper_pod(resources={"limits": {"cpu": "1", "memory": "1Gi"}}), OPTIONS)
    after = upper_pod(resources={"limits": {"cpu": "2", "memory": "1Gi"}})
    desired = pod_down.lower_pod(after, OPTIONS)
    changes = pod_update.pod_patch(lower, desired, after, OPTIONS)
    assert changes.resize == {"spec": {"resources": {"limits": {"cpu": "2"}}}}
    assert not pod_update.has_been_asked(lower, desired)


# --- status -----------------------------------------------------------------------------------------


def ready(status: str) -> dict[str, str]:
    """A Ready condition."""
    return {"type": "Ready", "status": status, "lastTransitionTime": "2026-01-01T00:00:00Z"}


def lower_with(status: dict[str, Any]) -> dict[str, Any]:
    """A lower pod of that status."""
    return {"metadata": {"name": "web-0", "generation": 1}, "status": status}


def test_status_comes_up_unabridged():
    """Everything is carried, fields unknown to us too, but for what names lower objects."""
    status = {"phase": "Running", "podIP": "10.1.1.1", "futureField": 1, "nominatedNodeName": "below"}
    found = pod_status.upper_status(lower_with(status), upper_pod(readinessGates=[]))
    assert found["podIP"] == "10.1.1.1"
    assert found["futureField"] == 1
    assert "nominatedNodeName" not in found


@pytest.mark.parametrize(
    ("gate", "expected"),
    [
        ({"type": "lb", "status": "True"}, "True"),
        ({"type": "lb", "status": "False"}, "False"),
        (None, "False"),
    ],
)
def test_ready_waits_for_the_gates_above(gate, expected):
    """Readiness gates are conditions of the upper pod: Ready is true only when they are."""
    pod = upper_pod()
    pod["status"]["conditions"] = [gate] if gate else []
    found = pod_status.upper_status(lower_with({"phase": "Running", "conditions": [ready("True")]}), pod)
    conditions = {condition["type"]: condition for condition in found["conditions"]}
    assert conditions["Ready"]["status"] == expected
    assert ("lb" in conditions) == bool(gate)
    if expected == "False":
        assert conditions["Ready"]["reason"] == "ReadinessGatesNotReady"


def test_equal_statuses_need_no_patch():
    """Nothing is written when nothing differs."""
    status = {"phase": "Running", "conditions": [ready("True")]}
    assert pod_status.status_patch(status, copy.deepcopy(status), uid="u") is None


def merge(current: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """A small reference of strategic merge for pod statuses."""
    result = dict(current)
    for field, value in patch.items():
        if value is None:
            result.pop(field, None)
        elif field == "conditions":
            merged = {condition["type"]: dict(condition) for condition in current.get(field) or ()}
            for change in value:
                if change.get("$patch") == "delete":
                    merged.pop(change["type"], None)
                else:
                    entry = merged.setdefault(change["type"], {})
                    entry |= {key: text for key, text in change.items() if text is not None}
                    for key in [key for key, text in change.items() if text is None]:
                        entry.pop(key, None)
            result[field] = list(merged.values())
        elif field in {"podIPs", "hostIPs"}:
            assert value[0] == {"$patch": "replace"}
            result[field] = value[1:]
        else:
            result[field] = value
    return {field: value for field, value in result.items() if value not in ([], None)}


CONDITIONS = st.lists(
    st.fixed_dictionaries(
        {
            "type": st.sampled_from(["Ready", "PodScheduled", "Initialized"]),
            "status": st.sampled_from(["True", "False"]),
        },
        optional={"reason": st.sampled_from(["A", "B"])},
    ),
    max_size=3,
    unique_by=lambda condition: condition["type"],
)
STATUSES = st.fixed_dictionaries(
    {"phase": st.sampled_from(["Pending", "Running"])},
    optional={
        "podIP": st.sampled_from(["1.1.1.1", "2.2.2.2"]),
        "podIPs": st.lists(
            st.fixed_dictionaries({"ip": st.sampled_from(["1.1.1.1", "2.2.2.2"])}), min_size=1, max_size=2
        ),
        "conditions": CONDITIONS,
        "reason": st.just("Because"),
    },
)


@given(STATUSES, STATUSES)
def test_the_patch_makes_one_status_of_the_other(current, desired):
    """Applied as strategic merge, the patch yields the desired status."""
    patch = pod_status.status_patch(current, desired, uid="u")
    found = merge(current, (patch or {}).get("status") or {})
    wanted = {field: value for field, value in desired.items() if value != []}

    def canonical(status: dict[str, Any]) -> dict[str, Any]:
        conditions = sorted(status.get("conditions") or [], key=lambda condition: condition["type"])
        return {**status, "conditions": conditions}

    assert canonical(found) == canonical(wanted)


def test_the_patch_is_for_that_very_pod():
    """The uid is a precondition, annotations ride along."""
    patch = pod_status.status_patch({}, {"phase": "Running"}, uid="u", annotations={"a": "b"})
    assert patch == {"metadata": {"uid": "u", "annotations": {"a": "b"}}, "status": {"phase": "Running"}}


def test_a_lost_pod_has_failed_and_its_containers_have_ended():
    """Phase Failed, Ready False, running containers terminated with 137; finished ones keep their own end."""
    pod = upper_pod()
    pod["status"] = {
        "phase": "Running",
        "conditions": [ready("True")],
        "containerStatuses": [
            {"name": "main", "ready": True, "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}},
            {"name": "done", "ready": False, "state": {"terminated": {"exitCode": 0}}},
        ],
    }
    found = own_status.lost(pod, reason="R", message="m", now=datetime(2026, 1, 2, tzinfo=UTC))
    assert (found["phase"], found["reason"]) == ("Failed", "R")
    assert found["conditions"][0]["status"] == "False"
    assert found["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 137
    assert found["containerStatuses"][1]["state"]["terminated"]["exitCode"] == 0
