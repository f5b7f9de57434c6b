"""Claims, volumes and placeholders, translated for the other cluster."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from clusterset.model import names
from clusterset.model.pod import api_access
from clusterset.model.pod.conditions import claim_names
from clusterset.model.policy.config import MetadataRules
from controller_runtime.apimachinery import matching, timestamps
from virtual_node.translate.base.ownership import Owner, ownership_labels
from virtual_node.translate.base.view import PodOptions
from virtual_node.translate.pods import lower_pod
from virtual_node.translate.storage import binder_pod, pv
from virtual_node.translate.storage import pvc as claims

OWNER = Owner(cluster_id="upper", node_name="vn")


def _claim(**more: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "name": "data",
            "namespace": "shop",
            "uid": "u-1",
            "resourceVersion": "7",
            "labels": {"app": "db"},
            "annotations": {
                "note": "x",
                "pv.kubernetes.io/bind-completed": "yes",
                names.ANNOTATION_SELECTED_NODE: "vn",
            },
            **more.pop("metadata", {}),
        },
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "fast",
            "resources": {"requests": {"storage": "1Gi"}},
            "selector": {"matchLabels": {"a": "b"}},
            **more.pop("spec", {}),
        },
        "status": more.pop("status", {}),
    }


def _volume(**spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "pv-1"},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": "lower-fast",
            "hostPath": {"path": "/data"},
            **spec,
        },
    }


def _pod(*pod_volumes: dict[str, Any]) -> dict[str, Any]:
    return {
        "metadata": {"name": "web", "namespace": "shop", "uid": "pod-uid"},
        "spec": {"nodeName": "vn", "containers": [{"name": "c", "image": "i"}], "volumes": list(pod_volumes)},
    }


def test_a_lower_claim_has_the_same_requests_and_the_lower_class():
    """Binding annotations and the selected node stay in the upper cluster, as the selector of a bound claim does."""
    lower = claims.lower_claim(
        _claim(), namespace="u-shop", owner=OWNER, storage_class="slow", volume_name="pv-1"
    )
    assert lower["metadata"]["namespace"] == "u-shop"
    assert lower["metadata"]["labels"][names.LABEL_UPPER_UID] == "u-1"
    assert set(lower["metadata"]["annotations"]) == {
        "note",
        "global",
        names.ANNOTATION_UPPER_NAMESPACE,
        names.ANNOTATION_APPLIED,
    }
    assert lower["spec"] == {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}},
        "storageClassName": "slow",
        "volumeName": "pv-1",
    }


def test_an_unbound_lower_claim_selects_the_same_volumes():
    """The lower cluster bound any free volume of the class, also one with the data of another program."""
    lower = claims.lower_claim(_claim(), namespace="n", owner=OWNER, storage_class=None)
    assert lower["spec"]["selector"] == {"matchLabels": {"a": "b"}}
    assert "volumeName" not in lower["spec"]


def test_without_a_class_the_lower_default_applies():
    """An empty class means none; an absent one the default."""
    absent = claims.lower_claim(_claim(), namespace="n", owner=OWNER, storage_class=None)
    empty = claims.lower_claim(_claim(), namespace="n", owner=OWNER, storage_class="")
    assert "storageClassName" not in absent["spec"]
    assert empty["spec"]["storageClassName"] == ""


def _changed(lower: dict[str, Any], upper: dict[str, Any]) -> dict[str, Any]:
    """Return a lower claim's labels and annotations after the patch, without our own."""
    patch = (claims.claim_metadata_patch(lower, upper) or {}).get("metadata") or {}
    found: dict[str, str] = {}
    for field in ("labels", "annotations"):
        merged = {**(lower["metadata"].get(field) or {}), **(patch.get(field) or {})}
        found |= {
            key: value for key, value in merged.items() if value is not None and key in {"note", "tier"}
        }
    return found


@pytest.mark.parametrize("has_record", [True, False], ids=["", "of an earlier release"])
def test_labels_and_annotations_of_a_claim_follow(has_record):
    """Storage drivers read them, for example to change the performance of a volume, or to make backups of it."""
    upper = _claim()
    lower = claims.lower_claim(upper, namespace="n", owner=OWNER, storage_class=None)
    if not has_record:
        del lower["metadata"]["annotations"][names.ANNOTATION_APPLIED]
    else:
        assert claims.claim_metadata_patch(lower, upper) is None
    note = upper["metadata"]["annotations"]["note"]
    with_label = _claim()
    with_label["metadata"]["labels"] = {"tier": "gold"}
    assert _changed(lower, with_label) == {"note": note, "tier": "gold"}
    changed = _claim()
    changed["metadata"]["annotations"]["note"] = "other"
    assert _changed(lower, changed)["note"] == ("other" if has_record else note)
    removed = _claim()
    del removed["metadata"]["annotations"]["note"]
    assert _changed(lower, removed) == ({} if has_record else {"note": note})
    lower["metadata"]["annotations"]["note"] = "of the lower cluster"
    assert _changed(lower, upper)["note"] == "of the lower cluster"


def test_a_claim_of_an_earlier_release_keeps_what_the_lower_controllers_wrote():
    """The controllers of both clusters write the same value. Without it, the lower claim would be bound again."""
    upper = _claim()
    lower = claims.lower_claim(upper, namespace="n", owner=OWNER, storage_class=None)
    annotations = lower["metadata"]["annotations"]
    del annotations[names.ANNOTATION_APPLIED]
    annotations |= {"pv.kubernetes.io/bind-completed": "yes", names.ANNOTATION_SELECTED_NODE: "vn"}
    patch = claims.claim_metadata_patch(lower, upper)
    assert patch is not None
    assert set(patch["metadata"]) == {"annotations"}
    assert set(patch["metadata"]["annotations"]) == {names.ANNOTATION_APPLIED}


@pytest.mark.parametrize("has_record", [True, False], ids=["", "of an earlier release"])
def test_a_key_that_is_not_copied_stays_as_the_lower_cluster_sets_it(has_record):
    """A policy engine sets the same label in both clusters, so leaveOut lists it. The claim has no other label."""
    rules = MetadataRules(leave_out=["team"])
    upper = {
        **_claim(),
        "metadata": {"name": "data", "namespace": "shop", "uid": "u-1", "labels": {"team": "a"}},
    }
    lower = claims.lower_claim(upper, namespace="n", owner=OWNER, storage_class=None, rules=rules)
    lower["metadata"]["labels"]["team"] = "a"
    if not has_record:
        del lower["metadata"]["annotations"][names.ANNOTATION_APPLIED]
    patch = claims.claim_metadata_patch(lower, upper, rules=rules)
    empty = {"metadata": {"annotations": {names.ANNOTATION_APPLIED: "{}"}}}
    assert patch == (None if has_record else empty)


def test_a_claim_of_an_earlier_release_keeps_its_ownership():
    """The upper cluster is itself a lower cluster, where the virtual node has the same name."""
    upper = _claim()
    upper["metadata"]["labels"] = {names.LABEL_UPPER_CLUSTER: "top", names.LABEL_NODE: OWNER.node_name}
    lower = claims.lower_claim(upper, namespace="n", owner=OWNER, storage_class=None)
    del lower["metadata"]["annotations"][names.ANNOTATION_APPLIED]
    patch = claims.claim_metadata_patch(lower, upper)
    assert patch is not None
    assert "labels" not in patch["metadata"]


@pytest.mark.parametrize(
    ("wanted", "grows"), [("2Gi", True), ("1Gi", False), ("512Mi", False), ("1024Mi", False)]
)
def test_only_growth_is_passed_on(wanted, grows):
    """Compared by value; Kubernetes does not shrink volumes."""
    upper = _claim(spec={"resources": {"requests": {"storage": wanted}}})
    assert (claims.resize_patch(_claim(), upper) is not None) == grows


@pytest.mark.parametrize(
    ("wanted", "capacity", "is_sent"),
    [("20Gi", "10Gi", True), ("10Gi", "10Gi", False), ("5Gi", "10Gi", False), ("20Gi", None, False)],
)
def test_a_failed_expansion_is_tried_with_a_smaller_size(wanted, capacity, is_sent):
    """KEP-1790: less than before, and more than the capacity. A claim without capacity is not bound, so it is immutable."""
    upper = _claim(spec={"resources": {"requests": {"storage": wanted}}})
    status = {"phase": "Bound", "capacity": {"storage": capacity}} if capacity else {"phase": "Pending"}
    lower = _claim(spec={"resources": {"requests": {"storage": "1000Gi"}}}, status=status)
    sent = (claims.resize_patch(lower, upper) or {}).get("spec")
    assert sent == ({"resources": {"requests": {"storage": wanted}}} if is_sent else None)


def test_capacity_and_resize_conditions_are_mirrored():
    """Once both are bound; other conditions of the upper claim stay."""
    condition = {"type": "FileSystemResizePending", "status": "True"}
    lower = _claim(status={"phase": "Bound", "capacity": {"storage": "2Gi"}, "conditions": [condition]})
    upper = _claim(
        status={"phase": "Bound", "capacity": {"storage": "1Gi"}, "conditions": [{"type": "Other"}]}
    )
    patch = claims.status_patch(upper, lower)
    assert patch == {"status": {"capacity": {"storage": "2Gi"}, "conditions": [{"type": "Other"}, condition]}}
    assert patch is not None
    settled = {**upper, "status": {**upper["status"], **patch["status"]}}
    assert claims.status_patch(settled, lower) is None
    assert claims.status_patch(_claim(), lower) is None


def test_the_progress_of_an_ended_resize_is_removed():
    """A kubelet removes it at the end, and a merge patch keeps what it does not name."""
    progress = {
        "allocatedResources": {"storage": "2Gi", "example.com/iops": "7"},
        "allocatedResourceStatuses": {"storage": "NodeResizePending"},
    }
    upper = _claim(status={"phase": "Bound", "capacity": {"storage": "1Gi"}, **progress})
    ended = {"capacity": {"storage": "2Gi"}, "allocatedResources": {"storage": "2Gi"}}
    patch = claims.status_patch(upper, _claim(status={"phase": "Bound", **ended}))
    assert patch == {
        "status": {
            "capacity": {"storage": "2Gi"},
            "allocatedResources": {"example.com/iops": None},
            "allocatedResourceStatuses": None,
        }
    }
    settled = _claim(status={"phase": "Bound", **ended})
    assert claims.status_patch(settled, _claim(status={"phase": "Bound", **ended})) is None


def test_the_status_of_a_hostile_claim_is_rebuilt():
    """Its upper claim gets known fields with bounded sizes."""
    huge = "x" * 100_000
    condition = {"type": "Resizing", "status": "True", "message": huge, "x": huge}
    below = {
        "phase": "Bound", "x": huge,
        "capacity": {"storage": "2Gi", "a b": "1", "odd": huge, **{f"a/r{number}": "1" for number in range(999)}},
        "allocatedResources": huge, "allocatedResourceStatuses": {"storage": "NodeResizePending", "odd": huge},
        "conditions": [condition] * 99 + [{"type": "Odd", "status": "True"}, {"type": "Resizing", "status": huge}, huge],
    }  # fmt: skip
    patch = claims.status_patch(_claim(status={"phase": "Bound"}), {"status": below})
    assert patch is not None
    status = patch["status"]
    assert status.keys() == {"capacity", "allocatedResourceStatuses", "conditions"}
    assert status["capacity"]["storage"] == "2Gi"
    assert len(status["capacity"]) == 64
    assert status["allocatedResourceStatuses"] == {"storage": "NodeResizePending"}
    (one,) = status["conditions"]
    assert one.keys() == {"type", "status", "message"}
    assert len(one["message"]) == 1024


def test_a_mirror_has_known_values_only():
    """The lower cluster chooses them, and each mirror is stored in the upper etcd."""
    spec = _volume()["spec"]
    odd = {
        "accessModes": ["ReadWriteOnce", "Odd"] * 5000, "volumeMode": "Odd", "persistentVolumeReclaimPolicy": None,
        "capacity": {"storage": "1Gi", "x": "y" * 9999},
    }  # fmt: skip
    found = pv.upper_volume(
        {"metadata": {"name": "v"}, "spec": {**spec, **odd}}, cluster="c", cluster_labels={}, nodes=["vn"],
        storage_class="s", claim=None,
    )["spec"]  # fmt: skip
    assert found["accessModes"] == ["ReadWriteOnce", "ReadWriteOnce"]
    assert found["capacity"] == {"storage": "1Gi"}
    assert found.keys().isdisjoint({"volumeMode", "persistentVolumeReclaimPolicy"})


def test_finalizers_are_patched_with_a_resource_version():
    """Others have finalizers there, too."""
    claim = _claim(metadata={"finalizers": ["kubernetes.io/pvc-protection"]})
    patch = claims.finalizers_patch(claim, add=(claims.FINALIZER,))
    assert patch == {
        "metadata": {"finalizers": ["kubernetes.io/pvc-protection", claims.FINALIZER], "resourceVersion": "7"}
    }
    assert claims.finalizers_patch(claim, remove=(claims.FINALIZER,)) is None
    assert not claims.may_delete_lower(claim)
    assert claims.may_delete_lower(_claim())


def _mirror(claim: dict[str, Any] | None = None) -> dict[str, Any]:
    return pv.upper_volume(
        _volume(),
        cluster="a",
        cluster_labels={"c": "a"},
        nodes=["vn-2", "vn-1"],
        storage_class="fast",
        claim=claim,
    )


def test_a_mirror_is_inert_and_bound_to_its_virtual_nodes():
    """No upper controller can touch the lower volume."""
    mirror = _mirror(_claim())
    spec = mirror["spec"]
    assert spec["csi"] == {"driver": pv.DRIVER, "volumeHandle": "a/pv-1"}
    assert "hostPath" not in spec
    assert "hostPath" in mirror["metadata"]["annotations"][pv.ANNOTATION_SOURCE_OF_VOLUME]
    (term,) = spec["nodeAffinity"]["required"]["nodeSelectorTerms"]
    assert term["matchExpressions"][0]["values"] == ["vn-1", "vn-2"]
    assert (spec["storageClassName"], spec["claimRef"]["uid"]) == ("fast", "u-1")


def test_a_mirrors_name_leads_back():
    """The handle has the complete lower name, of any length."""
    assert pv.lower_name(_mirror(), "a") == "pv-1"
    assert pv.lower_name(_mirror(), "b") == ""
    assert pv.lower_name({"spec": {"hostPath": {}}}, "a") == ""
    long = pv.mirror_name("a", "x" * 253)
    assert len(long) == 253
    assert long != pv.mirror_name("a", "x" * 252 + "y")


def test_an_existing_name_stays():
    """Mirrors and token Secrets are found by it after an upgrade: a name is cut only at its invalid end."""
    assert pv.mirror_name("a", "x" * 241 + "-" + "y" * 11).startswith(f"a-{'x' * 241}--")
    assert pv.mirror_name("a", "x" * 241 + "." + "y" * 11).startswith(f"a-{'x' * 241}-")
    for end, kept in (("-", "-"), (".", "")):
        pod = {"metadata": {"name": "p" * 199 + end + "tail", "uid": "12345678-a"}}
        assert (
            api_access.token_secret_name(pod["metadata"]["name"], pod["metadata"]["uid"])
            == f"{'p' * 199}{kept}-token-12345678"
        )


def test_only_mutable_fields_of_a_mirror_are_patched():
    """A free mirror gets its claim, capacity follows."""
    assert pv.volume_patch(_mirror(), _mirror()) is None
    patch = pv.volume_patch(_mirror(), _mirror(_claim()))
    assert patch is not None
    assert patch["spec"]["claimRef"]["name"] == "data"
    assert pv.volume_patch(_mirror(_claim()), _mirror()) is None


def test_a_claim_with_a_class_of_attributes_is_bound():
    """kube-controller-manager refuses to bind a claim and a volume with different classes, so such claims stayed Pending."""
    claim = _claim(spec={"volumeAttributesClassName": "gold"})
    lower = claims.lower_claim(claim, namespace="n", owner=OWNER, storage_class=None)
    assert lower["spec"]["volumeAttributesClassName"] == "gold"
    mirror = _mirror(claim)
    assert mirror["spec"]["volumeAttributesClassName"] == "gold"
    assert "volumeAttributesClassName" not in _mirror(_claim())["spec"]
    # The mirror that an earlier release made for a claim that is not bound yet.
    earlier = _mirror(claim)
    del earlier["spec"]["volumeAttributesClassName"]
    assert pv.volume_patch(earlier, mirror) == {"spec": {"volumeAttributesClassName": "gold"}}
    assert pv.volume_patch(mirror, mirror) is None


def test_a_volume_with_a_class_of_attributes_is_bound_to_claims_with_the_class_only():
    """Those that a lower administrator created in advance, and those that were kept."""
    free = pv.upper_volume(
        _volume(volumeAttributesClassName="gold"),
        cluster="a",
        cluster_labels={},
        nodes=["vn"],
        storage_class="fast",
        claim=None,
    )
    assert free["spec"]["volumeAttributesClassName"] == "gold"
    lower = claims.lower_claim(
        _claim(), namespace="n", owner=OWNER, storage_class=None, volume_name="pv-1", attributes_class="gold"
    )
    assert lower["spec"]["volumeAttributesClassName"] == "gold"
    assert pv.attributes_class({"volumeAttributesClassName": "x" * 1000}) == ""


def test_a_changed_class_of_attributes_is_not_pretended():
    """It changes nothing on the lower volume, so the mirror keeps what it was bound with."""
    bound = {**_mirror(_claim()), "status": {"phase": "Bound"}}
    assert pv.volume_patch(bound, _mirror(_claim(spec={"volumeAttributesClassName": "gold"}))) is None
    kept = claims.lower_claim(
        _claim(spec={"volumeAttributesClassName": "gold"}),
        namespace="n",
        owner=OWNER,
        storage_class=None,
        volume_name="pv-1",
    )
    assert "volumeAttributesClassName" not in kept["spec"]


def test_nodes_that_reach_a_lower_volume():
    """By its node affinity; without one, all."""
    term = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["z"]}]}
    local = _volume(nodeAffinity={"required": {"nodeSelectorTerms": [term]}})
    assert pv.reachable_from(local, {"metadata": {"name": "n", "labels": {"zone": "z"}}})
    assert not pv.reachable_from(local, {"metadata": {"name": "n", "labels": {}}})
    assert pv.reachable_from(_volume(), {"metadata": {"name": "n"}})


@pytest.mark.parametrize(
    ("count", "values", "is_readable"), [(400, 0, True), (30_000, 0, False), (1, 900, True), (1, 1100, False)]
)
def test_node_affinity_of_a_volume_is_compared_up_to_a_size(count, values, is_readable):
    """It is compared with each lower node: 30,000 terms took 0.1 s for each of thousands of nodes."""
    expression = {"key": "zone", "operator": "In", "values": [f"z{number}" for number in range(values)]}
    terms = [{"matchExpressions": [expression]}] * count
    assert (
        pv.has_readable_affinity(_volume(nodeAffinity={"required": {"nodeSelectorTerms": terms}}))
        is is_readable
    )


def test_claims_of_a_pod():
    """Named ones, and those of ephemeral volumes."""
    pod = _pod(
        {"name": "a", "persistentVolumeClaim": {"claimName": "data"}},
        {"name": "b", "ephemeral": {"volumeClaimTemplate": {}}},
        {"name": "c", "emptyDir": {}},
        {"name": "d", "persistentVolumeClaim": {"claimName": "data"}},
    )
    assert claim_names(pod) == ["data", "web-b"]
    lower = lower_pod.lower_pod(pod, PodOptions(owner=OWNER))
    assert {"name": "b", "persistentVolumeClaim": {"claimName": "web-b"}} in lower["spec"]["volumes"]


def test_a_placeholder_selects_the_same_node_and_runs_no_code_of_the_pod():
    """Selectors, resources and claims are the pod's; the image is not."""
    pod = _pod({"name": "a", "persistentVolumeClaim": {"claimName": "data"}})
    pod["metadata"]["annotations"] = {"clusterSelector": '{"nodeSelector": {"disk": "ssd"}}'}
    pod["spec"]["containers"][0] |= {"command": ["rm"], "resources": {"requests": {"cpu": "1"}}}
    lower = lower_pod.lower_pod(pod, PodOptions(owner=OWNER))
    body = binder_pod.binder_pod(lower, uid="pod-uid", cluster_id="upper", claims=["data"], image="pause")
    assert body["spec"]["nodeSelector"] == {"disk": "ssd"}
    (container,) = body["spec"]["containers"]
    del container["securityContext"]
    assert container == {"name": "c", "image": "pause", "resources": {"requests": {"cpu": "1"}}}
    assert body["spec"]["volumes"][0]["persistentVolumeClaim"] == {"claimName": "data"}
    assert names.LABEL_NODE not in body["metadata"]["labels"]
    assert names.LABEL_UPPER_UID not in body["metadata"]["labels"]


def test_a_placeholder_takes_the_same_room_as_the_pod():
    """Sidecars, init containers, pod-level resources, overhead and host ports, or the pod would not fit the volume's node."""
    pod = _pod({"name": "a", "persistentVolumeClaim": {"claimName": "data"}})
    sidecar = {
        "name": "proxy",
        "image": "p",
        "restartPolicy": "Always",
        "resources": {"requests": {"cpu": "2"}},
    }
    pod["spec"] |= {
        "initContainers": [sidecar],
        "resources": {"requests": {"cpu": "4"}},
        "runtimeClassName": "kata",
    }
    pod["spec"]["containers"][0]["ports"] = [{"containerPort": 80, "hostPort": 80}]
    lower = lower_pod.lower_pod(pod, PodOptions(owner=OWNER))
    spec = binder_pod.binder_pod(lower, uid="u", cluster_id="upper", claims=["data"], image="pause")["spec"]
    del spec["initContainers"][0]["securityContext"]
    assert spec["initContainers"] == [{**sidecar, "image": "pause"}]
    assert spec["containers"][0]["ports"] == [{"containerPort": 80, "hostPort": 80}]
    assert (spec["resources"], spec["runtimeClassName"]) == ({"requests": {"cpu": "4"}}, "kata")


def test_each_pod_security_standard_admits_a_placeholder():
    """The lower namespace has the labels of the upper one; ``restricted`` refuses containers without these fields."""
    pod = _pod({"name": "a", "persistentVolumeClaim": {"claimName": "data"}})
    pod["spec"]["initContainers"] = [{"name": "setup", "image": "i"}]
    pod["spec"]["containers"][0]["securityContext"] = {"privileged": True, "runAsUser": 0}
    lower = lower_pod.lower_pod(pod, PodOptions(owner=OWNER))
    spec = binder_pod.binder_pod(lower, uid="u", cluster_id="upper", claims=["data"], image="pause")["spec"]
    # Without an ID, because OpenShift chooses it.
    assert spec["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    for container in (*spec["initContainers"], *spec["containers"]):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        }


_SELECTS = {"labelSelector": {"matchLabels": {"app": "db"}}, "topologyKey": names.LABEL_HOSTNAME}


@pytest.mark.parametrize(
    "scheduling",
    [
        {"affinity": {"podAntiAffinity": {matching.REQUIRED: [_SELECTS]}}},
        {"affinity": {"podAffinity": {matching.REQUIRED: [_SELECTS]}}},
        {"affinity": {"podAntiAffinity": {matching.PREFERRED: [{"weight": 1, "podAffinityTerm": _SELECTS}]}}},
        {
            "topologySpreadConstraints": [
                {
                    **_SELECTS,
                    "maxSkew": 1,
                    "whenUnsatisfiable": "DoNotSchedule",
                    "matchLabelKeys": ["version"],
                }
            ]
        },
    ],
    ids=["apart", "together", "preferred", "spread"],
)
def test_the_placeholders_of_pods_that_select_each_other_do_so_too(scheduling):
    """The volumes of two replicas that must not share a node got the same node, so one of them could never start."""
    pod = _pod({"name": "a", "persistentVolumeClaim": {"claimName": "data"}})
    pod["metadata"]["labels"] = {"app": "db", "version": "1", "queue": "q"}
    pod["spec"] |= scheduling
    lower = lower_pod.lower_pod(pod, PodOptions(owner=OWNER))
    body = binder_pod.binder_pod(lower, uid="u", cluster_id="upper", claims=["data"], image="pause")
    labels = body["metadata"]["labels"]
    version = {"version": "1"} if "topologySpreadConstraints" in scheduling else {}
    assert labels == {
        "app": "db",
        **version,
        names.LABEL_UPPER_CLUSTER: "upper",
        binder_pod.LABEL_BINDER_OF: "u",
    }


def test_a_placeholder_requests_no_devices_of_resource_claims():
    """API servers refuse a container that names a claim which the pod does not have, so the volume was never provisioned."""
    pod = _pod({"name": "a", "persistentVolumeClaim": {"claimName": "data"}})
    pod["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "gpu"}]
    pod["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "1"}, "claims": [{"name": "gpu"}]}
    lower = lower_pod.lower_pod(pod, PodOptions(owner=OWNER))
    spec = binder_pod.binder_pod(lower, uid="u", cluster_id="upper", claims=["data"], image="pause")["spec"]
    assert "resourceClaims" not in spec
    assert [container["resources"] for container in spec["containers"]] == [{"requests": {"cpu": "1"}}]


def test_a_lower_schedulers_first_verdict_is_not_final():
    """It may change soon; a lasting one counts."""
    now = datetime.now(UTC)

    def waiting(seconds: float) -> dict[str, Any]:
        since = timestamps.rfc3339(now - timedelta(seconds=seconds))
        condition = {"type": "PodScheduled", "status": "False", "message": "0/1", "lastTransitionTime": since}
        return {"metadata": {}, "status": {"conditions": [condition]}}

    assert binder_pod.unschedulable(waiting(5), now=now, patience=20) == ""
    assert binder_pod.unschedulable(waiting(30), now=now, patience=20) == "0/1"
    assert binder_pod.unschedulable({"metadata": {}, "status": {}}, now=now, patience=20) == ""


def test_a_lower_claim_gets_no_reserved_label_of_a_users_claim():
    """In the lower cluster they are the virtual node's."""
    upper = {
        "metadata": {
            "name": "data",
            "namespace": "shop",
            "uid": "c-1",
            "labels": {names.LABEL_NODE: "other", "x.virtual-node.io/y": "1", "app": "db"},
            "annotations": {names.ANNOTATION_SOURCE: "x", "note": "kept"},
        },
        "spec": {},
    }
    lower = claims.lower_claim(upper, namespace="shop", owner=Owner("c", "vn"), storage_class=None)
    assert set(lower["metadata"]["labels"]) == {"app", *ownership_labels(Owner("c", "vn"), "c-1")}
    assert lower["metadata"]["labels"][names.LABEL_NODE] == "vn"
    assert "note" in lower["metadata"]["annotations"]
    assert names.ANNOTATION_SOURCE not in lower["metadata"]["annotations"]
